/* moe_route, CUDA, in two kernels: logits, then one warp a row that scores and selects.
 *
 * Logits are f32 products on the ordinary cores (w is f32 and the order of selection hangs on the last bits), so the
 * multiply-adds bound them: tiles of rows x experts, MICRO x MICRO sums a thread, operands in shared memory in two
 * stages. The order of a sum is fixed and the same for every shape of tile: k in slices of SLICE, inside a slice one
 * chain of fused multiply-adds, then slices in order. Few rows cannot fill the chip with tiles: then every slice is a
 * block of its own, partial sums go to the workspace, and the selecting warp adds them in the same order. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

enum { SLICE = 256, SELECT_WARPS = 4, FEW_ROWS = 128, FEW_EXPERTS = 64 };

typedef struct params {
    const uint16_t *x;
    const float *w, *bias;
    int64_t x_stride;
    int32_t rows, dim, n_experts; /* rows of this launch */
    bool wide_x, wide_w;
    float *logits;    /* [n_slices][rows][n_experts] */
    int32_t n_slices; /* 1: each block adds all its slices itself */
    int32_t top_k, n_groups, top_groups;
    fl_moe_score score;
    fl_moe_select select;
    bool normalize;
    float factor;
    int32_t *ids;
    float *weights;
} params;

/* ---- logits ---- */

/* ROWS x EXPERTS of the product, STEP of k at a time. */
template <int ROWS, int EXPERTS, int MICRO, int STEP> struct tile {
    static constexpr int THREADS = ROWS / MICRO * (EXPERTS / MICRO);
    static constexpr int QUADS = EXPERTS * STEP / 4 / THREADS; /* of w that a thread brings */
    static_assert(ROWS * STEP / 8 == THREADS, "a thread brings one run of x");
    static_assert(SLICE % STEP == 0 && MICRO % 4 == 0 && EXPERTS * STEP / 4 % THREADS == 0, "whole parts");

    /* What a thread brings of the next step, while this one is multiplied. */
    struct brought {
        uint4 x;
        float4 w[QUADS];
    };
    /* k first, so that a thread's rows and experts lie side by side. */
    struct stage {
        float x[STEP][ROWS + 4];
        float w[STEP][EXPERTS + 4];
    };
};

/* 8 bf16 of a row from k on; zeros outside of the matrix. */
FL_DEVICE uint4 bring_x(const params &p, int64_t row, int32_t k) {
    uint4 run = make_uint4(0, 0, 0, 0);
    if (row >= p.rows || k >= p.dim) return run;
    const uint16_t *from = p.x + row * p.x_stride + k;
    if (p.wide_x) return __ldg((const uint4 *)from);
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        if (k + i < p.dim) words[i / 2] |= (uint32_t)from[i] << i % 2 * 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
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

template <int ROWS, int EXPERTS, int MICRO, int STEP>
FL_DEVICE typename tile<ROWS, EXPERTS, MICRO, STEP>::brought bring(const params &p, int32_t k) {
    using T = tile<ROWS, EXPERTS, MICRO, STEP>;
    typename T::brought b;
    int32_t t = threadIdx.x;
    b.x = bring_x(p, (int64_t)blockIdx.x * ROWS + t % ROWS, k + t / ROWS * 8);
#pragma unroll
    for (int32_t i = 0; i < T::QUADS; i++) {
        int32_t quad = t + i * T::THREADS;
        b.w[i] = bring_w(p, (int32_t)blockIdx.y * EXPERTS + quad % EXPERTS, k + quad / EXPERTS * 4);
    }
    return b;
}

template <int ROWS, int EXPERTS, int MICRO, int STEP>
FL_DEVICE void put(typename tile<ROWS, EXPERTS, MICRO, STEP>::stage *s,
                   const typename tile<ROWS, EXPERTS, MICRO, STEP>::brought &b) {
    using T = tile<ROWS, EXPERTS, MICRO, STEP>;
    int32_t t = threadIdx.x, row = t % ROWS, k = t / ROWS * 8;
    uint32_t words[4] = {b.x.x, b.x.y, b.x.z, b.x.w};
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        s->x[k + 2 * i][row] = fl_low_of_bf16x2(words[i]);
        s->x[k + 2 * i + 1][row] = fl_high_of_bf16x2(words[i]);
    }
#pragma unroll
    for (int32_t i = 0; i < T::QUADS; i++) {
        int32_t quad = t + i * T::THREADS, expert = quad % EXPERTS, from = quad / EXPERTS * 4;
        s->w[from][expert] = b.w[i].x;
        s->w[from + 1][expert] = b.w[i].y;
        s->w[from + 2][expert] = b.w[i].z;
        s->w[from + 3][expert] = b.w[i].w;
    }
}

/* Where in a tile of SIZE the MICRO values of thread `at` lie: fours, SIZE * 4 / MICRO apart. */
template <int SIZE, int MICRO> FL_DEVICE int32_t place_of(int32_t at, int32_t i) {
    return i / 4 * (SIZE * 4 / MICRO) + at * 4 + i % 4;
}

template <int SIZE, int MICRO> FL_DEVICE void take(const float *from, int32_t at, float out[MICRO]) {
#pragma unroll
    for (int32_t i = 0; i < MICRO; i += 4) {
        float4 quad = *(const float4 *)(from + place_of<SIZE, MICRO>(at, i));
        out[i] = quad.x;
        out[i + 1] = quad.y;
        out[i + 2] = quad.z;
        out[i + 3] = quad.w;
    }
}

/* Grid: (tiles of rows, tiles of experts, slices or 1). */
template <int ROWS, int EXPERTS, int MICRO, int STEP>
static __global__ void __launch_bounds__(tile<ROWS, EXPERTS, MICRO, STEP>::THREADS)
    logits_kernel(const __grid_constant__ params p) {
    using T = tile<ROWS, EXPERTS, MICRO, STEP>;
    __shared__ __align__(16) typename T::stage stages[2];
    int32_t row_at = threadIdx.x / (EXPERTS / MICRO), expert_at = threadIdx.x % (EXPERTS / MICRO);
    int32_t k = (int32_t)blockIdx.z * SLICE, end = p.n_slices > 1 ? min(k + SLICE, p.dim) : p.dim, at = 0;
    float sum[MICRO][MICRO], total[MICRO][MICRO];
#pragma unroll
    for (int32_t i = 0; i < MICRO * MICRO; i++) sum[i / MICRO][i % MICRO] = total[i / MICRO][i % MICRO] = 0;
    put<ROWS, EXPERTS, MICRO, STEP>(&stages[0], bring<ROWS, EXPERTS, MICRO, STEP>(p, k));
    __syncthreads();
    for (; k < end; at ^= 1) {
        typename T::brought next;
        k += STEP;
        if (k < end) next = bring<ROWS, EXPERTS, MICRO, STEP>(p, k);
#pragma unroll
        for (int32_t j = 0; j < STEP; j++) {
            float x[MICRO], w[MICRO];
            take<ROWS, MICRO>(stages[at].x[j], row_at, x);
            take<EXPERTS, MICRO>(stages[at].w[j], expert_at, w);
#pragma unroll
            for (int32_t i = 0; i < MICRO * MICRO; i++)
                sum[i / MICRO][i % MICRO] = __fmaf_rn(x[i / MICRO], w[i % MICRO], sum[i / MICRO][i % MICRO]);
        }
        if (k % SLICE == 0 || k >= end) {
#pragma unroll
            for (int32_t i = 0; i < MICRO * MICRO; i++) {
                total[i / MICRO][i % MICRO] =
                    __fadd_rn(total[i / MICRO][i % MICRO], sum[i / MICRO][i % MICRO]);
                sum[i / MICRO][i % MICRO] = 0;
            }
        }
        if (k < end) put<ROWS, EXPERTS, MICRO, STEP>(&stages[at ^ 1], next); /* read a step ago, by all */
        __syncthreads();
    }
#pragma unroll
    for (int32_t i = 0; i < MICRO * MICRO; i++) {
        int64_t row = (int64_t)blockIdx.x * ROWS + place_of<ROWS, MICRO>(row_at, i / MICRO);
        int32_t expert = (int32_t)blockIdx.y * EXPERTS + place_of<EXPERTS, MICRO>(expert_at, i % MICRO);
        if (row < p.rows && expert < p.n_experts)
            p.logits[((int64_t)blockIdx.z * p.rows + row) * p.n_experts + expert] =
                total[i / MICRO][i % MICRO];
    }
}

/* ---- selection ---- */

/* A warp's part of shared memory. */
typedef struct chosen {
    float *score;    /* [n_experts] */
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

/* z of the row, its slices added in order, becomes scores; what competes becomes keys. */
FL_DEVICE void score_row(const params &p, int64_t row, const chosen &c) {
    int32_t lane = threadIdx.x % 32;
    int64_t slice = (int64_t)p.rows * p.n_experts;
    float top = -INFINITY, sum = 0;
    for (int32_t e = lane; e < p.n_experts; e += 32) {
        const float *from = p.logits + row * p.n_experts + e;
        float z = 0;
#pragma unroll 4
        for (int32_t i = 0; i < p.n_slices; i++) z = __fadd_rn(z, __ldg(from + i * slice));
        c.score[e] = z;
        top = fmaxf(top, z);
    }
    top = fl_warp_max(top);
    for (int32_t e = lane; e < p.n_experts; e += 32) {
        float s = p.score == FL_MOE_SIGMOID ? __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-c.score[e])))
                                            : expf(__fsub_rn(c.score[e], top));
        c.score[e] = s;
        sum = __fadd_rn(sum, s);
    }
    if (p.score == FL_MOE_SOFTMAX) sum = fl_warp_sum(sum);
    for (int32_t e = lane; e < p.n_experts; e += 32) {
        float s = p.score == FL_MOE_SOFTMAX ? __fdiv_rn(c.score[e], sum) : c.score[e];
        c.score[e] = s;
        c.key[e] = key_of(__fadd_rn(s, p.bias ? __ldg(p.bias + e) : 0.0f));
    }
    __syncwarp();
}

/* Puts every expert outside the best groups out of the running. A lane has whole groups, and begins each at another
 * expert than its neighbours: groups of 32 would all begin in one bank. */
FL_DEVICE void limit_groups(const params &p, const chosen &c) {
    int32_t lane = threadIdx.x % 32, size = p.n_experts / p.n_groups, at;
    uint32_t top;
    for (int32_t g = lane; g < p.n_groups; g += 32) {
        uint32_t first = 0, second = 0;
        for (int32_t i = 0, j = g % size; i < size; i++, j = j + 1 < size ? j + 1 : 0) {
            uint32_t key = c.key[g * size + j];
            second = max(second, min(first, key));
            first = max(first, key);
        }
        float score = value_of_key(first);
        if (p.select == FL_MOE_GROUP_TOP2) score = __fadd_rn(score, value_of_key(second));
        c.group[g] = key_of(score);
    }
    __syncwarp();
    best_of_lane(c.group, p.n_groups, &top, &at);
    for (int32_t i = 0; i < p.top_groups; i++) take_largest(c.group, p.n_groups, &top, &at);
    __syncwarp();
    for (int32_t e = lane; e < p.n_experts; e += 32)
        if (c.group[e / size] != 0) c.key[e] = key_of(-INFINITY);
    __syncwarp();
}

/* Shared: for each warp [2][n_experts] and [n_groups]. */
static __global__ void __launch_bounds__(SELECT_WARPS * 32) select_kernel(const __grid_constant__ params p) {
    extern __shared__ float shared[];
    int64_t row = (int64_t)blockIdx.x * SELECT_WARPS + threadIdx.x / 32;
    int32_t lane = threadIdx.x % 32, n_groups = p.select == FL_MOE_GREEDY ? 0 : p.n_groups, at;
    if (row >= p.rows) return;
    chosen c;
    c.score = shared + threadIdx.x / 32 * (2 * p.n_experts + n_groups);
    c.key = (uint32_t *)(c.score + p.n_experts);
    c.group = c.key + p.n_experts;
    score_row(p, row, c);
    if (p.select != FL_MOE_GREEDY) limit_groups(p, c);
    uint32_t top;
    float sum = 0;
    int32_t *ids = p.ids + row * p.top_k;
    float *weights = p.weights + row * p.top_k;
    best_of_lane(c.key, p.n_experts, &top, &at);
    for (int32_t s = 0; s < p.top_k; s++) {
        int32_t id = take_largest(c.key, p.n_experts, &top, &at);
        float score = c.score[id];
        sum = __fadd_rn(sum, score);
        if (s % 32 != lane) continue;
        ids[s] = id;
        weights[s] = score; /* read again below, by this lane */
    }
    float factor = p.normalize ? __fdiv_rn(p.factor, __fadd_rn(sum, 1e-20f)) : p.factor;
    for (int32_t s = lane; s < p.top_k; s += 32) weights[s] = __fmul_rn(weights[s], factor);
}

/* ---- launching ---- */

template <int ROWS, int EXPERTS, int MICRO, int STEP>
static void launch_logits(const params &p, cudaStream_t stream) {
    dim3 grid((uint32_t)fl_tasks_of(p.rows, ROWS), (uint32_t)fl_tasks_of(p.n_experts, EXPERTS),
              (uint32_t)p.n_slices);
    logits_kernel<ROWS, EXPERTS, MICRO, STEP>
        <<<grid, tile<ROWS, EXPERTS, MICRO, STEP>::THREADS, 0, stream>>>(p);
}

/* Rows whose logits fit the workspace. */
static fl_err route_rows(fl_cuda *cuda, const params &p, bool small) {
    cudaStream_t stream = cuda->stream;
    if (small) launch_logits<32, 64, 4, 32>(p, stream);
    else launch_logits<128, 128, 8, 16>(p, stream);
    FL_TRY(FL_CUDA_LAUNCHED("moe_route, logits"));
    size_t n_groups = p.select == FL_MOE_GREEDY ? 0 : (size_t)p.n_groups;
    size_t shared_bytes = SELECT_WARPS * (2 * (size_t)p.n_experts + n_groups) * sizeof(float);
    select_kernel<<<(uint32_t)fl_tasks_of(p.rows, SELECT_WARPS), SELECT_WARPS * 32, shared_bytes, stream>>>(
        p);
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

extern "C" fl_err fl_moe_route_cuda(fl_backend *be, const fl_moe_route_args *a) {
    FL_TRY(fl_moe_route_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    params p = params_of(a, cuda->workspace);
    bool small = a->rows <= FEW_ROWS || a->n_experts <= FEW_EXPERTS;
    int64_t tiles = small ? fl_tasks_of(a->rows, 32) * fl_tasks_of(a->n_experts, 64)
                          : fl_tasks_of(a->rows, 128) * fl_tasks_of(a->n_experts, 128);
    p.n_slices = tiles < cuda->n_multiprocessors ? (int32_t)fl_tasks_of(a->dim, SLICE) : 1;
    int64_t row_bytes = (int64_t)p.n_slices * a->n_experts * (int64_t)sizeof(float);
    int64_t rows_max = cuda->workspace_bytes / row_bytes; /* at least 8: dim <= 2^20, 1,024 experts */
    for (int64_t row = 0; row < a->rows; row += rows_max) {
        p.rows = (int32_t)(a->rows - row < rows_max ? a->rows - row : rows_max);
        p.x = (const uint16_t *)a->x + row * a->x_stride;
        p.ids = a->ids + row * a->top_k;
        p.weights = a->weights + row * a->top_k;
        FL_TRY(route_rows(cuda, p, small));
    }
    return FL_ERR_OK;
}
