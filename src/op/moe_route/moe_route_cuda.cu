/* moe_route, CUDA, in two kernels: logits, then one warp a row that scores and selects.
 *
 * Logits want f32 weights (the order of selection hangs on their last bits) at the speed of tensor cores: x is
 * bf16, and an f32 weight is the sum of three bf16 parts, so three products with f32 sums make the logits. Four
 * warpgroups multiply 64 rows each from swizzled shared memory. Tiles are tall (ROWS x EXPERTS) because weights take
 * three times the room of x there. Splitting a weight takes longer than multiplying with it: for many rows all are
 * split first, by another kernel, and the copy engine brings parts and x. For few rows a warpgroup brings weights
 * through registers, where they are split.
 *
 * Tensor cores cut off what does not fit a sum, always towards zero, so a sum is kept short: k in slices of SLICE,
 * then slices are added in order as floats are. That order is the same for any number of rows. Few rows cannot
 * fill the chip with tiles: then every slice is a block of its own, slices' sums go to the workspace, and the
 * selecting warp adds them in the same order. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"

enum {
    ROWS = 256,
    EXPERTS = 64,
    STEP = 64,
    SLICE_STEPS = 2,
    SLICE = SLICE_STEPS * STEP,
    PARTS = 3,
    STAGES = 4
};
enum {
    MULTIPLYING = ROWS / 64 * 128,
    BRINGING = 128,
    THREADS = MULTIPLYING + BRINGING,
    SELECT_WARPS = 4,
    SPLITTING = 256
};
enum { QUADS = EXPERTS * STEP / 4 / BRINGING }; /* of weights that a thread brings in a step */
enum {
    ROW_BYTES = STEP * 2, /* the span of the swizzle */
    X_BYTES = ROWS * ROW_BYTES,
    PART_BYTES = EXPERTS * ROW_BYTES,
    STAGE_BYTES = X_BYTES + PARTS * PART_BYTES,
    SWIZZLE_ALIGN = 1024,
    SHARED_BYTES = SWIZZLE_ALIGN + STAGES * STAGE_BYTES
};

typedef struct params {
    const uint16_t *x;
    const float *w, *bias;
    int64_t x_stride;
    int32_t rows, dim, n_experts; /* rows of this launch */
    bool wide_x, wide_w;
    uint16_t *parts; /* NULL: split on the way; or [PARTS][n_experts][dim], which the copy engine can bring */
    float *logits;   /* [n_slices][rows][n_experts] */
    int32_t n_slices; /* 1: each block adds all its slices itself */
    int32_t top_k, n_groups, top_groups;
    fl_moe_score score;
    fl_moe_select select;
    bool normalize;
    float factor;
    int32_t *ids;
    float *weights;
} params;

/* ---- logits: bringing ---- */

/* The stages of a block, full and empty in turn; what each step of k is in. */
typedef struct ring {
    uint8_t *stages;
    uint64_t *full, *empty;
    int32_t first, n; /* steps of k that this block takes */
} ring;

/* 16 bytes of a tile's row, where the products' swizzle has them. */
FL_DEVICE int32_t swizzled(int32_t row, int32_t chunk) {
    return row * ROW_BYTES + (chunk ^ (row & 7)) * 16;
}

/* 8 bf16 of a row from k on; zeros outside of the matrix. */
FL_DEVICE uint4 bring_x(const params &p, int64_t row, int32_t k) {
    uint32_t words[4] = {0, 0, 0, 0};
    if (row < p.rows) {
        const uint16_t *from = p.x + row * p.x_stride + k;
#pragma unroll
        for (int32_t i = 0; i < 8; i++)
            if (k + i < p.dim) words[i / 2] |= (uint32_t)from[i] << i % 2 * 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* x of a step without the copy engine. */
FL_DEVICE void put_x(const params &p, uint8_t *to, int32_t k) {
    for (int32_t i = threadIdx.x % BRINGING; i < X_BYTES / 16; i += BRINGING) {
        int32_t row = i / (ROW_BYTES / 16), chunk = i % (ROW_BYTES / 16);
        *(uint4 *)(to + swizzled(row, chunk)) = bring_x(p, (int64_t)blockIdx.y * ROWS + row, k + chunk * 8);
    }
}

FL_DEVICE float4 bring_w(const params &p, int32_t expert, int32_t k) {
    float4 quad = make_float4(0, 0, 0, 0);
    if (expert >= p.n_experts || k >= p.dim) return quad;
    const float *from = p.w + (int64_t)expert * p.dim + k;
    if (p.wide_w) return __ldg((const float4 *)from);
    quad.x = from[0];
    if (k + 1 < p.dim) quad.y = from[1];
    if (k + 2 < p.dim) quad.z = from[2];
    if (k + 3 < p.dim) quad.w = from[3];
    return quad;
}

/* Quad i of this thread: 16 threads side by side take a row of a step. */
FL_DEVICE int32_t quad_row(int32_t i) {
    return (int32_t)(threadIdx.x % BRINGING) / 16 + i * (BRINGING / 16);
}

FL_DEVICE void bring_quads(const params &p, int32_t k, float4 quads[QUADS]) {
#pragma unroll
    for (int32_t i = 0; i < QUADS; i++)
        quads[i] =
            bring_w(p, (int32_t)blockIdx.x * EXPERTS + quad_row(i), k + (int32_t)(threadIdx.x % 16) * 4);
}

/* Two weights as PARTS pairs of bf16 whose sums they are. */
FL_DEVICE void split(float low, float high, uint32_t parts[PARTS]) {
#pragma unroll
    for (int32_t i = 0; i < PARTS; i++) {
        parts[i] = fl_pack_bf16(low, high);
        low = __fsub_rn(low, fl_low_of_bf16x2(parts[i])); /* exact */
        high = __fsub_rn(high, fl_high_of_bf16x2(parts[i]));
    }
}

FL_DEVICE void put_quads(uint8_t *to, const float4 quads[QUADS]) {
    int32_t at = threadIdx.x % 16; /* 8 bytes of a row's part */
#pragma unroll
    for (int32_t i = 0; i < QUADS; i++) {
        uint32_t front[PARTS], back[PARTS];
        split(quads[i].x, quads[i].y, front);
        split(quads[i].z, quads[i].w, back);
        uint8_t *place = to + swizzled(quad_row(i), at / 2) + at % 2 * 8;
#pragma unroll
        for (int32_t part = 0; part < PARTS; part++)
            *(uint2 *)(place + part * PART_BYTES) = make_uint2(front[part], back[part]);
    }
}

/* The bringing warpgroup: weights are read one step ahead of the stage they go to. */
FL_DEVICE void bring(const params &p, const CUtensorMap *map_x, const ring &r) {
    float4 quads[QUADS];
    bring_quads(p, r.first * STEP, quads);
    for (int32_t i = 0; i < r.n; i++) {
        int32_t stage = i % STAGES, k = (r.first + i) * STEP;
        uint8_t *to = r.stages + stage * STAGE_BYTES;
        float4 next[QUADS];
        if (i + 1 < r.n) bring_quads(p, k + STEP, next);
        if (i >= STAGES) fl_barrier_wait(&r.empty[stage], (uint32_t)(i / STAGES - 1) & 1u);
        if (threadIdx.x % BRINGING == 0) {
            fl_barrier_expect(&r.full[stage], p.wide_x ? X_BYTES : 0);
            if (p.wide_x) fl_tma_load_2d(to, map_x, &r.full[stage], k, (int32_t)blockIdx.y * ROWS);
        }
        if (!p.wide_x) put_x(p, to, k);
        put_quads(to + X_BYTES, quads);
        fl_async_proxy_fence();
        fl_barrier_arrive(&r.full[stage]);
        if (i + 1 == r.n) return;
#pragma unroll
        for (int32_t q = 0; q < QUADS; q++) quads[q] = next[q];
    }
}

/* The same by one thread, where weights were split before. */
FL_DEVICE void bring_parts(const CUtensorMap *map_x, const CUtensorMap *map_w, const ring &r) {
    for (int32_t i = 0; i < r.n; i++) {
        int32_t stage = i % STAGES, k = (r.first + i) * STEP;
        uint8_t *to = r.stages + stage * STAGE_BYTES;
        if (i >= STAGES) fl_barrier_wait(&r.empty[stage], (uint32_t)(i / STAGES - 1) & 1u);
        fl_barrier_expect(&r.full[stage], STAGE_BYTES);
        fl_tma_load_2d(to, map_x, &r.full[stage], k, (int32_t)blockIdx.y * ROWS);
        fl_tma_load_3d(to + X_BYTES, map_w, &r.full[stage], k, (int32_t)blockIdx.x * EXPERTS, 0);
    }
}

/* Weights as parts, 4 a thread. */
static __global__ void __launch_bounds__(SPLITTING) split_kernel(const __grid_constant__ params p) {
    int64_t quad = (int64_t)blockIdx.x * SPLITTING + threadIdx.x, n = (int64_t)p.n_experts * p.dim / 4;
    if (quad >= n) return;
    float4 w = __ldg((const float4 *)p.w + quad);
    uint32_t front[PARTS], back[PARTS];
    split(w.x, w.y, front);
    split(w.z, w.w, back);
#pragma unroll
    for (int32_t part = 0; part < PARTS; part++)
        *((uint2 *)p.parts + part * n + quad) = make_uint2(front[part], back[part]);
}

/* ---- logits: multiplying ---- */

/* sum (+)= x w of one stage; small parts first. */
FL_DEVICE void multiply(float (&sum)[32], const uint8_t *x, const uint8_t *w, bool add) {
    uint64_t a = fl_wgmma_k_major(x), b = fl_wgmma_k_major(w);
    fl_wgmma_begin();
#pragma unroll
    for (int32_t k = 0; k < STEP / 16; k++)
#pragma unroll
        for (int32_t part = PARTS - 1; part >= 0; part--)
            fl_wgmma_bf16(sum, a + 2 * k, b + part * (PART_BYTES >> 4) + 2 * k,
                          add || k > 0 || part < PARTS - 1);
    fl_wgmma_commit();
    fl_wgmma_wait<0>();
    fl_wgmma_pin(sum);
}

FL_DEVICE void store_logits(const params &p, int64_t row, const float (&total)[32]) {
    int32_t lane = threadIdx.x % 32, first = (int32_t)blockIdx.x * EXPERTS + lane % 4 * 2;
    bool together = p.n_experts % 2 == 0;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        int64_t at = row + threadIdx.x % 128 / 32 * 16 + i * 8 + lane / 4;
        if (at >= p.rows) return;
        float *to = p.logits + ((int64_t)blockIdx.z * p.rows + at) * p.n_experts;
#pragma unroll
        for (int32_t j = 0; j < EXPERTS / 8; j++) {
            int32_t expert = first + j * 8;
            float low = total[4 * j + 2 * i], high = total[4 * j + 2 * i + 1];
            if (expert + 1 < p.n_experts && together) {
                *(float2 *)(to + expert) = make_float2(low, high);
            } else {
                if (expert < p.n_experts) to[expert] = low;
                if (expert + 1 < p.n_experts) to[expert + 1] = high;
            }
        }
    }
}

/* A multiplying warpgroup; one whose rows are all beyond the last only keeps the ring going. */
FL_DEVICE void multiply_steps(const params &p, const ring &r) {
    int32_t group = threadIdx.x / 128;
    int64_t row = (int64_t)blockIdx.y * ROWS + group * 64;
    float sum[32], total[32];
#pragma unroll
    for (int32_t j = 0; j < 32; j++) sum[j] = total[j] = 0;
    for (int32_t i = 0; i < r.n; i++) {
        int32_t stage = i % STAGES;
        const uint8_t *from = r.stages + stage * STAGE_BYTES;
        fl_barrier_wait(&r.full[stage], (uint32_t)(i / STAGES) & 1u);
        if (row < p.rows) multiply(sum, from + group * 64 * ROW_BYTES, from + X_BYTES, i % SLICE_STEPS != 0);
        if (threadIdx.x % 32 == 0) fl_barrier_arrive(&r.empty[stage]);
        __syncwarp();
        if (i % SLICE_STEPS == SLICE_STEPS - 1 || i + 1 == r.n) {
#pragma unroll
            for (int32_t j = 0; j < 32; j++) total[j] = __fadd_rn(total[j], sum[j]);
        }
    }
    if (row < p.rows) store_logits(p, row, total);
}

/* Grid: (tiles of experts, tiles of rows, slices or 1). */
static __global__ void __launch_bounds__(THREADS, 1)
    logits_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                  const __grid_constant__ params p) {
    extern __shared__ uint8_t tiles_shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    int32_t steps = (p.dim + STEP - 1) / STEP;
    ring r = {};
    r.stages = tiles_shared + (0u - fl_shared_address(tiles_shared)) % SWIZZLE_ALIGN;
    r.full = full;
    r.empty = empty;
    r.first = (int32_t)blockIdx.z * SLICE_STEPS;
    r.n = p.n_slices > 1 ? min(SLICE_STEPS, steps - r.first) : steps;
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < STAGES; i++) {
            fl_barrier_init(&full[i], p.parts ? 1 : BRINGING + 1); /* one more announces x */
            fl_barrier_init(&empty[i], MULTIPLYING / 32);
        }
        fl_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < MULTIPLYING) multiply_steps(p, r);
    else if (!p.parts) bring(p, &map_x, r);
    else if (threadIdx.x == MULTIPLYING) bring_parts(&map_x, &map_w, r);
}

/* ---- selection ---- */

/* A warp's part of shared memory, where groups are not of 32. */
typedef struct chosen {
    uint32_t *key;   /* [n_experts] what competes, in keys */
    uint32_t *group; /* [n_groups] keys of groups */
} chosen;

/* Orders as the numbers do, both zeros alike; 0 is below all of them and means taken. */
FL_DEVICE uint32_t key_of(float value) {
    uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

FL_DEVICE float value_of_key(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* This lane's largest key among keys lane, lane + 32, ..; the first of equals. */
FL_DEVICE void best_of_lane(const uint32_t *key, int32_t n, uint32_t *top, int32_t *at) {
    *top = 0;
    *at = INT32_MAX;
    for (int32_t i = threadIdx.x % 32; i < n; i += 32)
        if (key[i] > *top) {
            *top = key[i];
            *at = i;
        }
}

/* The largest of the warp's keys, the smaller index of equals, which is then taken; top and at are the lane's best. */
FL_DEVICE int32_t take_largest(uint32_t *key, int32_t n, uint32_t *top, int32_t *at) {
    uint32_t best = __reduce_max_sync(~0u, *top);
    int32_t winner = __reduce_min_sync(~0u, *top == best ? *at : INT32_MAX);
    if (winner == *at) {
        key[winner] = 0;
        best_of_lane(key, n, top, at);
    }
    return winner;
}

/* Key of a group's score from its two best keys. */
FL_DEVICE uint32_t group_key(const params &p, uint32_t first, uint32_t second) {
    float score = value_of_key(first);
    if (p.select == FL_MOE_GROUP_TOP2) score = __fadd_rn(score, value_of_key(second));
    return key_of(score);
}

/* Keys of all groups. A lane has whole groups, and begins each at another expert than its neighbours: many groups would
 * begin in one bank. */
FL_DEVICE void score_groups(const params &p, const chosen &c) {
    int32_t lane = threadIdx.x % 32, size = p.n_experts / p.n_groups;
    for (int32_t g = lane; g < p.n_groups; g += 32) {
        uint32_t first = 0, second = 0;
        for (int32_t i = 0, j = g % size; i < size; i++, j = j + 1 < size ? j + 1 : 0) {
            uint32_t key = c.key[g * size + j];
            second = max(second, min(first, key));
            first = max(first, key);
        }
        c.group[g] = group_key(p, first, second);
    }
    __syncwarp();
}

/* Puts every expert outside the best groups out of the running. */
FL_DEVICE void limit_groups(const params &p, const chosen &c) {
    int32_t lane = threadIdx.x % 32, size = p.n_experts / p.n_groups, at;
    uint32_t top;
    score_groups(p, c);
    best_of_lane(c.group, p.n_groups, &top, &at);
    for (int32_t i = 0; i < p.top_groups; i++) take_largest(c.group, p.n_groups, &top, &at);
    __syncwarp();
    for (int32_t e = lane; e < p.n_experts; e += 32)
        if (c.group[e / size] != 0) c.key[e] = key_of(-INFINITY);
    __syncwarp();
}

/* A row's experts, EACH of a lane: expert 32 j + lane is the lane's j-th. */
template <int EACH> struct experts {
    float score[EACH];
    uint32_t key[EACH]; /* what competes, in keys */
};

/* z of the row, its slices added in order, becomes scores and keys. */
template <int EACH> FL_DEVICE void score_experts(const params &p, int64_t row, experts<EACH> *x) {
    int32_t lane = threadIdx.x % 32;
    int64_t slice = (int64_t)p.rows * p.n_experts;
    const float *from = p.logits + row * p.n_experts + lane;
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) x->score[j] = 0;
#pragma unroll 2
    for (int32_t i = 0; i < p.n_slices; i++)
#pragma unroll
        for (int32_t j = 0; j < EACH; j++)
            if (lane + 32 * j < p.n_experts)
                x->score[j] = __fadd_rn(x->score[j], __ldg(from + i * slice + 32 * j));
    if (p.score == FL_MOE_SOFTMAX) {
#pragma unroll
        for (int32_t j = 0; j < EACH; j++)
            if (lane + 32 * j < p.n_experts) top = fmaxf(top, x->score[j]);
        top = fl_warp_max(top);
#pragma unroll
        for (int32_t j = 0; j < EACH; j++) {
            if (lane + 32 * j >= p.n_experts) continue;
            x->score[j] = expf(__fsub_rn(x->score[j], top));
            sum = __fadd_rn(sum, x->score[j]);
        }
        sum = fl_warp_sum(sum);
    }
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) {
        int32_t e = lane + 32 * j;
        x->key[j] = 0;
        if (e >= p.n_experts) continue;
        x->score[j] = p.score == FL_MOE_SOFTMAX ? __fdiv_rn(x->score[j], sum)
                                                : __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x->score[j])));
        x->key[j] = key_of(__fadd_rn(x->score[j], p.bias ? __ldg(p.bias + e) : 0.0f));
    }
}

/* A lane's best expert that is left: of equals the first. */
typedef struct candidate {
    uint32_t key;
    int32_t at; /* j */
    float score;
} candidate;

template <int EACH> FL_DEVICE candidate best_left(const experts<EACH> &x) {
    candidate c = {0, 0, 0};
#pragma unroll
    for (int32_t j = 0; j < EACH; j++)
        if (x.key[j] > c.key) {
            c.key = x.key[j];
            c.at = j;
            c.score = x.score[j];
        }
    return c;
}

/* Takes the largest of the warp's keys out, the smaller expert of equals, and says its score. */
template <int EACH> FL_DEVICE int32_t take_best(experts<EACH> *x, candidate *own, float *score) {
    int32_t lane = threadIdx.x % 32;
    uint32_t best = __reduce_max_sync(~0u, own->key);
    int32_t winner = __reduce_min_sync(~0u, own->key == best ? own->at * 32 + lane : INT32_MAX);
    *score = __shfl_sync(~0u, own->score, winner % 32);
    if (winner % 32 == lane) {
#pragma unroll
        for (int32_t j = 0; j < EACH; j++)
            if (j == own->at) x->key[j] = 0;
        *own = best_left(*x);
    }
    return winner;
}

/* Groups of 32 are a register each: bit j is set if group j is one of the best. */
template <int EACH> FL_DEVICE uint32_t best_groups_of_32(const params &p, const experts<EACH> &x) {
    int32_t lane = threadIdx.x % 32, rank = 0;
    uint32_t keys[EACH], own = 0;
#pragma unroll
    for (int32_t j = 0; j < EACH; j++) {
        uint32_t first = __reduce_max_sync(~0u, x.key[j]);
        uint32_t at_first = __ballot_sync(~0u, x.key[j] == first);
        uint32_t second = __reduce_max_sync(~0u, lane == __ffs((int32_t)at_first) - 1 ? 0 : x.key[j]);
        keys[j] = group_key(p, first, second);
        if (j == lane) own = keys[j];
    }
#pragma unroll
    for (int32_t j = 0; j < EACH; j++)
        if (j < p.n_groups) rank += keys[j] > own || (keys[j] == own && j < lane);
    return __ballot_sync(~0u, lane < p.n_groups && rank < p.top_groups);
}

/* Puts every expert outside the best groups out of the running. */
template <int EACH> FL_DEVICE void keep_groups(const params &p, const chosen &c, experts<EACH> *x) {
    int32_t lane = threadIdx.x % 32, size = p.n_experts / p.n_groups;
    if (size == 32) {
        uint32_t best = best_groups_of_32(p, *x);
#pragma unroll
        for (int32_t j = 0; j < EACH; j++)
            if ((best >> j & 1u) == 0 && j < p.n_groups) x->key[j] = key_of(-INFINITY);
        return;
    }
#pragma unroll
    for (int32_t j = 0; j < EACH; j++)
        if (lane + 32 * j < p.n_experts) c.key[lane + 32 * j] = x->key[j];
    __syncwarp();
    limit_groups(p, c);
#pragma unroll
    for (int32_t j = 0; j < EACH; j++)
        if (lane + 32 * j < p.n_experts) x->key[j] = c.key[lane + 32 * j];
}

/* Whether only the best groups compete, and whether those are not of 32 experts: then they need shared memory. */
static __host__ __device__ inline bool limited(const params &p) {
    return p.select != FL_MOE_GREEDY && p.top_groups < p.n_groups;
}

static size_t select_bytes(const params &p) {
    bool shared = limited(p) && p.n_experts / p.n_groups != 32;
    return shared ? SELECT_WARPS * ((size_t)p.n_experts + (size_t)p.n_groups) * sizeof(uint32_t) : 0;
}

/* Grid: blocks of SELECT_WARPS rows. */
template <int EACH>
static __global__ void __launch_bounds__(SELECT_WARPS * 32) select_kernel(const __grid_constant__ params p) {
    extern __shared__ uint32_t keys_shared[];
    int64_t row = (int64_t)blockIdx.x * SELECT_WARPS + threadIdx.x / 32;
    int32_t lane = threadIdx.x % 32, *ids = p.ids + row * p.top_k, id = 0;
    float *weights = p.weights + row * p.top_k, sum = 0, kept = 0;
    if (row >= p.rows) return;
    experts<EACH> x;
    score_experts(p, row, &x);
    if (limited(p)) {
        chosen c;
        c.key = keys_shared + threadIdx.x / 32 * (p.n_experts + p.n_groups);
        c.group = c.key + p.n_experts;
        keep_groups(p, c, &x);
    }
    candidate own = best_left(x);
    for (int32_t s = 0; s < p.top_k; s++) {
        float score;
        int32_t best = take_best(&x, &own, &score);
        sum = __fadd_rn(sum, score);
        if (s % 32 != lane) continue;
        if (s == lane) {
            kept = score;
            id = best;
        } else {
            ids[s] = best;
            weights[s] = score; /* read again below, by this lane */
        }
    }
    float factor = p.normalize ? __fdiv_rn(p.factor, __fadd_rn(sum, 1e-20f)) : p.factor;
    if (lane < p.top_k) {
        ids[lane] = id;
        weights[lane] = __fmul_rn(kept, factor);
    }
    for (int32_t s = lane + 32; s < p.top_k; s += 32) weights[s] = __fmul_rn(weights[s], factor);
}

/* ---- launching ---- */

/* k steps of `rows` rows; of parts, all three. */
static fl_err map_operand(const void *base, const params &p, int64_t stride, int32_t rows, bool parts,
                          CUtensorMap *out) {
    fl_tma_shape shape = {};
    shape.base = base;
    shape.dtype = FL_DTYPE_BF16;
    shape.rank = parts ? 3 : 2;
    shape.size[0] = p.dim;
    shape.size[1] = rows;
    shape.size[2] = PARTS;
    shape.stride[0] = 1;
    shape.stride[1] = stride;
    shape.stride[2] = stride * rows;
    shape.box[0] = STEP;
    shape.box[1] = parts ? EXPERTS : ROWS;
    shape.box[2] = PARTS;
    shape.swizzle = true;
    return fl_tma_map(&shape, out);
}

static fl_err launch_logits(const params &p, cudaStream_t stream) {
    CUtensorMap map_x = {}, map_w = {};
    if (p.wide_x) FL_TRY(map_operand(p.x, p, p.x_stride, p.rows, false, &map_x));
    if (p.parts) FL_TRY(map_operand(p.parts, p, p.dim, p.n_experts, true, &map_w));
    FL_CUDA_TRY(
        cudaFuncSetAttribute(logits_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    dim3 grid((uint32_t)fl_tasks_of(p.n_experts, EXPERTS), (uint32_t)fl_tasks_of(p.rows, ROWS),
              (uint32_t)p.n_slices);
    logits_kernel<<<grid, THREADS, SHARED_BYTES, stream>>>(map_x, map_w, p);
    return FL_CUDA_LAUNCHED("moe_route, logits");
}

static void launch_select(const params &p, cudaStream_t stream) {
    uint32_t grid = (uint32_t)fl_tasks_of(p.rows, SELECT_WARPS), block = SELECT_WARPS * 32;
    size_t bytes = select_bytes(p);
    if (p.n_experts <= 64) select_kernel<2><<<grid, block, bytes, stream>>>(p);
    else if (p.n_experts <= 256) select_kernel<8><<<grid, block, bytes, stream>>>(p);
    else if (p.n_experts <= 512) select_kernel<16><<<grid, block, bytes, stream>>>(p);
    else select_kernel<32><<<grid, block, bytes, stream>>>(p);
}

/* Rows whose logits fit the workspace. */
static fl_err route_rows(fl_cuda *cuda, const params &p) {
    FL_TRY(launch_logits(p, cuda->stream));
    launch_select(p, cuda->stream);
    return FL_CUDA_LAUNCHED("moe_route");
}

static params params_of(const fl_moe_route_args *a, void *workspace) {
    params p = {};
    p.x = (const uint16_t *)a->x;
    p.w = a->w;
    p.bias = a->bias;
    p.x_stride = a->x_stride;
    p.dim = a->dim;
    p.n_experts = a->n_experts;
    p.wide_x = (uintptr_t)a->x % 16 == 0 && a->x_stride % 8 == 0 && a->dim % 8 == 0;
    p.wide_w = (uintptr_t)a->w % 16 == 0 && a->dim % 4 == 0;
    p.logits = (float *)workspace;
    p.top_k = a->top_k;
    p.n_groups = a->n_groups;
    p.top_groups = a->top_groups;
    p.score = a->score;
    p.select = a->select;
    p.normalize = a->normalize;
    p.factor = a->factor;
    return p;
}

/* For many rows, where the copy engine can take the parts: into the front of the workspace, logits behind them. */
static fl_err split_weights(const fl_cuda *cuda, params *p, int64_t *parts_bytes) {
    int64_t n = (int64_t)p->n_experts * p->dim, bytes = PARTS * n * (int64_t)sizeof *p->parts;
    bool takes = p->wide_x && p->wide_w && p->dim % 8 == 0;
    if (p->n_slices > 1 || !takes || bytes > cuda->workspace_bytes / 2) return FL_ERR_OK;
    p->parts = (uint16_t *)cuda->workspace;
    p->logits += bytes / (int64_t)sizeof *p->logits;
    *parts_bytes = bytes;
    split_kernel<<<(uint32_t)fl_tasks_of(n / 4, SPLITTING), SPLITTING, 0, cuda->stream>>>(*p);
    return FL_CUDA_LAUNCHED("moe_route, weights");
}

extern "C" fl_err fl_moe_route_cuda(fl_backend *be, const fl_moe_route_args *a) {
    FL_TRY(fl_moe_route_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    params p = params_of(a, cuda->workspace);
    int64_t tiles = fl_tasks_of(a->rows, ROWS) * fl_tasks_of(a->n_experts, EXPERTS);
    /* slices' sums are traffic, which pays while most of the chip would have no tile */
    p.n_slices = tiles * 4 <= cuda->n_multiprocessors ? (int32_t)fl_tasks_of(a->dim, SLICE) : 1;
    int64_t row_bytes = (int64_t)p.n_slices * a->n_experts * (int64_t)sizeof(float);
    int64_t parts_bytes = 0;
    FL_TRY(split_weights(cuda, &p, &parts_bytes));
    int64_t rows_max =
        (cuda->workspace_bytes - parts_bytes) / row_bytes; /* at least 4: dim <= 2^20, 1,024 experts */
    for (int64_t row = 0; row < a->rows; row += rows_max) {
        p.rows = (int32_t)(a->rows - row < rows_max ? a->rows - row : rows_max);
        p.x = (const uint16_t *)a->x + row * a->x_stride;
        p.ids = a->ids + row * a->top_k;
        p.weights = a->weights + row * a->top_k;
        FL_TRY(route_rows(cuda, p));
    }
    return FL_ERR_OK;
}
