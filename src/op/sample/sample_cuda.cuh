/* What the parts of sample's kernel share: its shapes, what blocks tell each other, tokens as numbers. */
#ifndef FL_OP_SAMPLE_SAMPLE_CUDA_CUH
#define FL_OP_SAMPLE_SAMPLE_CUDA_CUH

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"
#include "op/sample/sample_weight.h"

enum {
    BLOCKS = 8,
    THREADS = 512,
    WARPS = THREADS / 32,
    BINS = 1024,
    BINS_A_DEPTH = 24, /* weights end at depth 41 */
    HEAD_DEPTH = 10,
    LIST = 2048, /* tokens that are sorted */
    EACH = BINS / THREADS,
    PER_LIST = LIST / THREADS,
    ROWS = 64 /* of a launch */
};

typedef struct params {
    const float *logits;
    const uint8_t *lists;
    fl_sample *out;
    int64_t stride;
    int32_t n_known;
    int32_t share; /* ids of a block, a multiple of 64 */
    bool wide;
    fl_sample_row rows[ROWS];
} params;

/* What all blocks do next, as block 0 says. */
typedef enum order_kind { ORDER_DEPTHS, ORDER_GATHER, ORDER_BINS, ORDER_NTH, ORDER_END } order_kind;

typedef struct order {
    order_kind kind;
    int32_t bin;        /* GATHER: of the first bins; -1 = any */
    uint32_t low, high; /* keys, both inside */
    int32_t shift;      /* BINS: a bin has 2^shift keys, the first one's begin at high and fall */
    int32_t rank, nth;  /* NTH: of this block the nth token of key `low`, by id */
} order;

/* A block's small shared memory; others read it. */
typedef struct post {
    uint64_t best[3];                   /* of the plain row, of the adjusted one, of that without bans */
    uint64_t plain_sum, sum, least_sum; /* of the plain row; of the adjusted one, and what min_log2 lets in */
    uint64_t top[FL_TOP_LOGPROBS_MAX];
    int32_t bad;
    uint32_t n_listed, low, high; /* of a gathering: tokens, their smallest and largest key */
    int32_t nth_id;
    order next;
    uint64_t words[2][WARPS];
    /* the leader's */
    uint64_t found_sum, found_count;
    int32_t found;
} post;

/* A block's view of its row. */
typedef struct part {
    const params *p;
    const fl_sample_row *how;
    post *shared;
    float *values;               /* shared [share] */
    uint32_t *low, *high, *many; /* shared [BINS] halves of sums of weights, counts */
    uint64_t *list;              /* shared [LIST] */
    int32_t rank, first, n;
    int32_t turn; /* of post.words */
} part;

/* ---- exchanges ------------------------------------------------------------------------------------------------- */

/* The same place in the shared memory of block `rank`. */
template <class T> FL_DEVICE const T *at_rank(const T *shared, int32_t rank) {
    const T *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
    return there;
}

/* Words of all warps in turns of two buffers, so that one barrier is enough; `word` is the same in all lanes. */
FL_DEVICE const uint64_t *gather_words(part *c, uint64_t word) {
    uint64_t *words = c->shared->words[c->turn];
    c->turn ^= 1;
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word;
    __syncthreads();
    return words;
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

FL_DEVICE uint64_t block_sum(part *c, uint64_t value) {
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    const uint64_t *words = gather_words(c, value);
    uint64_t sum = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) sum += words[i];
    return sum;
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

/* Key and id as one number, larger for the one that comes first; 0: cannot come. */
FL_DEVICE uint64_t entry_of(float value, int32_t id) {
    return value > -INFINITY ? (uint64_t)key_of(value) << 32 | (uint32_t)~id : 0;
}

FL_DEVICE int32_t id_of(uint64_t entry) {
    return (int32_t) ~(uint32_t)entry;
}

FL_DEVICE float logit_of(uint64_t entry) {
    return value_of((uint32_t)(entry >> 32));
}

#endif
