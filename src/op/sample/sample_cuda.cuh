/* What the parts of sample's kernel share: its shapes, what blocks tell each other, tokens as numbers. */
#ifndef FL_OP_SAMPLE_SAMPLE_CUDA_CUH
#define FL_OP_SAMPLE_SAMPLE_CUDA_CUH

#include <float.h>

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"
#include "op/sample/sample_weight.h"

enum {
    BLOCKS = 8, /* 30 such clusters run at once on an H200. 36 of seven: faster for flat rows alone */
    THREADS = 512,
    WARPS = THREADS / 32,
    GROUPS = BLOCKS * WARPS, /* of a row's tokens: a warp's each */
    GROUPS_MAX = 128,
    A_GROUP = THREADS / GROUPS_MAX, /* threads that rank one */
    BINS = 1024,
    BINS_A_DEPTH = 24, /* weights end at depth 41 */
    HEAD_DEPTH = 10,
    LIST = 2048,             /* tokens that block 0 searches */
    OWN_LIST = 3 * BINS / 2, /* tokens that a block lists, where its bins lie */
    EACH = BINS / THREADS,
    RANKED = THREADS / 2, /* tokens of a short list: each is compared with all */
    SHARE_STEP = 128,     /* ids that a warp reads at once */
    ROWS = 64             /* of a launch */
};

/* Of the groups' largest logits, from the mean to the least: tokens grow eightfold in number there, so that in a
 * flatter row those behind outweigh the head. */
#define FLAT_DEPTH 2.8f

/* What is seldom needed. It takes copies: what it had pointers to would leave the registers. */
#define FL_PART static __device__ __noinline__

typedef struct params {
    const float *logits;
    const uint8_t *lists;
    fl_sample *out;
    int64_t stride;
    int32_t n_known;
    int32_t share; /* ids of a block, a multiple of SHARE_STEP */
    bool wide;     /* rows are 16-byte aligned */
    fl_sample_row rows[ROWS];
} params;

/* What all blocks do next, as block 0 says. */
typedef enum order_kind { ORDER_GATHER, ORDER_BINS, ORDER_NTH, ORDER_END } order_kind;

typedef struct order {
    order_kind kind;
    int32_t bin, other; /* GATHER: of these two of the first bins; -1 = of any */
    uint32_t low, high; /* keys, both inside */
    int32_t shift;      /* BINS: a bin has 2^shift keys, the first one's begin at high and fall */
    int32_t rank, nth;  /* NTH: of this block the nth token of key `low`, by id */
} order;

/* What a block tells all others of its tokens. */
typedef struct told {
    uint64_t plain_sum;      /* of weights of the plain row */
    uint64_t sum, least_sum; /* of the row to draw from; what min_log2 lets in */
    uint64_t listed_sum;
    uint32_t n_listed, low, high; /* tokens; their smallest and largest key */
    int32_t first_id;             /* the smallest with the row's largest logit */
} told;

enum { TOLD_WORDS = sizeof(told) / 8 };

/* A block's small shared memory. What others write here they write before a barrier of the cluster, and again not
 * before the next but one. */
typedef struct post {
    fl_sample_row how;
    uint32_t best[GROUPS]; /* keys of the groups' largest logits; UINT32_MAX: one is not finite */
    told mine, all[BLOCKS];
    order next;
    int32_t bad[BLOCKS];
    uint64_t words[2][WARPS];
    float levels[GROUPS]; /* best[] from the largest on, at most 2^-16 of it lower */
    uint32_t n_own, own_low, own_high, own_at;
    int32_t own_first;
    /* the leader's */
    uint32_t n_collected;
    int32_t nth_id;
    uint64_t found_sum, found_count, found_size, found_entry;
    int32_t found_bin;
} post;

/* A block's shared memory; behind it float [share], the row's logits, -INFINITY behind the last id. */
typedef struct alignas(16) block_memory {
    post shared;
    uint64_t list[LIST]; /* block 0's: what all have listed */
    union {
        uint32_t bins[3][BINS]; /* halves of sums of weights, counts */
        uint64_t own[OWN_LIST]; /* what the block has listed */
    };
} block_memory;

extern __shared__ __align__(16) uint8_t fl_sample_memory[];

/* Functions in place of members of `part`, so that the compiler knows that all of it is shared memory. */
FL_DEVICE block_memory *here(void) {
    return (block_memory *)fl_sample_memory;
}

FL_DEVICE post *post_here(void) {
    return &here()->shared;
}

FL_DEVICE const fl_sample_row &how_here(void) {
    return here()->shared.how;
}

FL_DEVICE float *values_here(void) {
    return (float *)(fl_sample_memory + sizeof(block_memory));
}

FL_DEVICE float4 *quads_here(void) {
    return (float4 *)values_here();
}

/* A block's part of its row. */
typedef struct part {
    const float *logits; /* of the block's first id */
    const uint8_t *lists;
    int32_t rank, first, n;
    int32_t quads; /* of ids, with those behind the last */
    int32_t turn;  /* of post.words */
    bool wide;     /* logits are 16-byte aligned */
} part;

/* A row as all blocks have told it. */
typedef struct row_sums {
    uint64_t plain, total, least, listed;
    int32_t n;     /* listed */
    bool fits;     /* block 0 has them all */
    bool has_bins; /* the bins of depth are full in place of the list */
    int32_t first_id;
} row_sums;

/* ---- within a block -------------------------------------------------------------------------------------------- */

/* Words of all warps in turns of two buffers, so that one barrier is enough; `word` is the same in all lanes. */
FL_DEVICE const uint64_t *gather_words(part *c, uint64_t word) {
    uint64_t *words = post_here()->words[c->turn];
    c->turn ^= 1;
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word;
    __syncthreads();
    return words;
}

FL_DEVICE uint64_t block_sum(part *c, uint64_t value) {
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    const uint64_t *words = gather_words(c, value);
    uint64_t sum = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) sum += words[i];
    return sum;
}

FL_DEVICE uint64_t block_max(part *c, uint64_t value) {
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
    const uint64_t *words = gather_words(c, value);
    uint64_t top = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) top = max(top, words[i]);
    return top;
}

/* The sum of the threads before this one, and of all. */
FL_DEVICE uint64_t block_before(part *c, uint64_t value, uint64_t *total) {
    int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t sum = value;
#pragma unroll
    for (int32_t step = 1; step < 32; step *= 2) {
        uint64_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    const uint64_t *words = gather_words(c, __shfl_sync(~0u, sum, 31));
    uint64_t before = sum - value;
    *total = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) {
        before += i < warp ? words[i] : 0;
        *total += words[i];
    }
    return before;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* Orders as the logits do, both zeros alike. */
FL_DEVICE uint32_t key_of(float value) {
    uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

FL_DEVICE float value_of(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Key and id as one number, larger for the one that comes first. */
FL_DEVICE uint64_t entry_of(float value, int32_t id) {
    return (uint64_t)key_of(value) << 32 | (uint32_t)~id;
}

FL_DEVICE int32_t id_of(uint64_t entry) {
    return (int32_t) ~(uint32_t)entry;
}

FL_DEVICE float logit_of(uint64_t entry) {
    return value_of((uint32_t)(entry >> 32));
}

/* ---- bins ------------------------------------------------------------------------------------------------------ */

/* The block's list is there no more. */
FL_DEVICE void clear_bins(void) {
    __syncthreads();
    for (int32_t i = threadIdx.x; i < 3 * BINS; i += THREADS) here()->bins[0][i] = 0;
    __syncthreads();
}

/* Weights into bins; -1: into none. */
template <int32_t N>
FL_DEVICE void add_to_bins(const int32_t (&bin)[N], const uint64_t (&weight)[N], bool counts) {
    uint32_t before[N];
#pragma unroll
    for (int32_t j = 0; j < N; j++)
        if (bin[j] >= 0) before[j] = atomicAdd(&here()->bins[0][bin[j]], (uint32_t)weight[j]);
#pragma unroll
    for (int32_t j = 0; j < N; j++) {
        if (bin[j] < 0) continue;
        uint32_t high = (uint32_t)(weight[j] >> 32) + (before[j] + (uint32_t)weight[j] < before[j]);
        if (high > 0) atomicAdd(&here()->bins[1][bin[j]], high);
        if (counts) atomicAdd(&here()->bins[2][bin[j]], 1u);
    }
}

/* Its whole part is the token's bin of depth. */
FL_DEVICE float place_of(float value, float best, float scale) {
    return fl_sample_depth(value, best, scale) * -(float)BINS_A_DEPTH;
}

#endif
