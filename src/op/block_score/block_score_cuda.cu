/* block_score, CUDA. One block of threads for each tile and head. Warpgroups take 64 key blocks at a time each, in
 * turns, with two buffers of means of their own and no barrier among them, so that one's exponentials run beside
 * another's products: D[64 key blocks][128 rows] = means q^T by wgmma from shared memory, where TMA put them. Key
 * blocks are the rows of the product, so that the sum over a tile's rows runs along a thread's own accumulators
 * and across four lanes. Grid: tiles (long ones first) x heads. Shared: (128 rows + 3 x 2 x 64 means) of 128 bytes
 * for each 64 dimensions. Bound by the tensor cores. Head shapes that this does not fit take a plain kernel, a
 * thread a row. */
#include <math.h>

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"
#include "op/cuda/hopper.cuh"

enum {
    GROUPS = 3, /* warpgroups */
    THREADS = GROUPS * 128,
    STAGES = 2,
    KEYS = 64, /* key blocks of a product */
    ROWS = FL_ATTN_LIST_ROWS,
    SLICE = 64, /* dimensions: 128 bytes, the width of the swizzle */
    SLICES_MAX = 3,
    ROWS_BYTES = ROWS * SLICE * 2, /* of a slice */
    KEYS_BYTES = KEYS * SLICE * 2,
    SHARED_ALIGN = 1024
};

typedef struct params {
    const uint16_t *q, *kv, *k_pe;
    float *score;
    int32_t pos, n_heads, n_blocks, block_tokens;
    int32_t nope_dim, rope_dim, v_dim;
} params;

/* Blocks that lie wholly before a tile. */
FL_DEVICE int32_t visible_of(const params &p, int32_t tile) {
    return min((p.pos + tile * ROWS) / p.block_tokens, p.n_blocks);
}

FL_DEVICE float *scores_of(const params &p, int32_t tile, int32_t head) {
    return p.score + ((int64_t)tile * p.n_heads + head) * p.n_blocks;
}

/* ---- tensor cores ---------------------------------------------------------------------------------------------- */

/* Tensors as TMA takes them: q (dimension, head, row), kv (dimension, head, key block), k_pe (dimension, key block). */
typedef struct tensors {
    CUtensorMap q, kv, k_pe;
} tensors;

/* Shared memory, of `slices` slices of SLICE dimensions. */
typedef struct layout {
    int32_t slices;
    uint8_t *q;        /* [slices][ROWS][SLICE] */
    uint8_t *keys;     /* this group's [STAGES][slices][KEYS][SLICE] */
    uint64_t *q_ready; /* barriers */
    uint64_t *ready;   /* this group's [STAGES] */
} layout;

/* One thread. */
FL_DEVICE void load_rows(const tensors *maps, const layout &at, int32_t tile, int32_t head) {
    fl_barrier_expect(at.q_ready, at.slices * ROWS_BYTES);
    for (int32_t i = 0; i < at.slices; i++)
        fl_tma_load_3d(at.q + i * ROWS_BYTES, &maps->q, at.q_ready, i * SLICE, head, tile * ROWS);
}

/* One thread. Means of key blocks first .. first + KEYS - 1; those beyond the last read as zeros. */
FL_DEVICE void load_keys(const params &p, const tensors *maps, const layout &at, int32_t stage, int32_t head,
                         int32_t first) {
    int32_t nope_slices = p.nope_dim / SLICE, slices = at.slices;
    uint8_t *to = at.keys + stage * slices * KEYS_BYTES;
    fl_barrier_expect(at.ready + stage, slices * KEYS_BYTES);
    for (int32_t i = 0; i < nope_slices; i++)
        fl_tma_load_3d(to + i * KEYS_BYTES, &maps->kv, at.ready + stage, i * SLICE, head, first);
    for (int32_t i = nope_slices; i < slices; i++)
        fl_tma_load_2d(to + i * KEYS_BYTES, &maps->k_pe, at.ready + stage, (i - nope_slices) * SLICE, first);
}

/* D = keys q^T over all slices, finished. */
FL_DEVICE void multiply(const layout &at, int32_t stage, float (&d)[64]) {
    const uint8_t *keys = at.keys + stage * at.slices * KEYS_BYTES;
    fl_wgmma_pin(d);
    fl_wgmma_begin();
    for (int32_t i = 0; i < at.slices; i++) {
        uint64_t a = fl_wgmma_k_major(keys + i * KEYS_BYTES), b = fl_wgmma_k_major(at.q + i * ROWS_BYTES);
#pragma unroll
        for (int32_t k = 0; k < SLICE / 16; k++) fl_wgmma_bf16(d, a + 2 * k, b + 2 * k, i + k > 0);
    }
    fl_wgmma_commit();
    fl_wgmma_wait<0>();
    fl_wgmma_pin(d);
}

/* log2 of the sum of 2^s over the tile's rows: this thread's accumulators of row `half` of D, then those of the four
 * lanes that share it. */
FL_DEVICE float log_sum(const float (&d)[64], int32_t half) {
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int32_t j = 0; j < ROWS / 8; j++)
        top = fmaxf(top, fmaxf(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
#pragma unroll
    for (int32_t j = 0; j < ROWS / 8; j++)
        sum += fl_exp2(d[4 * j + 2 * half] - top) + fl_exp2(d[4 * j + 2 * half + 1] - top);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return top + __log2f(sum);
}

FL_DEVICE void group_barrier(int32_t group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/* The calling warpgroup's share of a tile's chunks of KEYS key blocks: group, group + GROUPS, .. */
FL_DEVICE void score_chunks(const params &p, const tensors *maps, const layout &at, int32_t tile,
                            int32_t head) {
    int32_t group = threadIdx.x / 128, thread = threadIdx.x % 128, visible = visible_of(p, tile);
    int32_t step = GROUPS * KEYS, stage = 0, parity = 0;
    float *score = scores_of(p, tile, head);
    float d[64];
    if (thread == 0)
        for (int32_t i = 0; i < STAGES && group * KEYS + i * step < visible; i++)
            load_keys(p, maps, at, i, head, group * KEYS + i * step);
    if (group * KEYS < visible) fl_barrier_wait(at.q_ready, 0);
    for (int32_t first = group * KEYS; first < visible; first += step) {
        fl_barrier_wait(at.ready + stage, parity);
        multiply(at, stage, d);
        group_barrier(group); /* all have read the stage */
        if (thread == 0 && first + STAGES * step < visible)
            load_keys(p, maps, at, stage, head, first + STAGES * step);
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            int32_t block = first + thread / 32 * 16 + half * 8 + thread % 32 / 4;
            float value = log_sum(d, half);
            if (thread % 4 == 0 && block < visible) score[block] = value;
        }
        stage = (stage + 1) % STAGES;
        if (stage == 0) parity ^= 1;
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    block_score_kernel(const __grid_constant__ params p, const __grid_constant__ tensors maps,
                       int32_t slices) {
    extern __shared__ uint8_t shared[];
    __shared__ uint64_t barriers[1 + GROUPS * STAGES];
    int32_t tile = (int32_t)(gridDim.x - 1 - blockIdx.x), head = (int32_t)blockIdx.y;
    int32_t group = threadIdx.x / 128, visible = visible_of(p, tile);
    layout at;
    at.slices = slices;
    at.q = shared + (SHARED_ALIGN - fl_shared_address(shared) % SHARED_ALIGN) % SHARED_ALIGN;
    at.keys = at.q + slices * (ROWS_BYTES + group * STAGES * KEYS_BYTES);
    at.q_ready = barriers;
    at.ready = barriers + 1 + group * STAGES;
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < 1 + GROUPS * STAGES; i++) fl_barrier_init(barriers + i, 1);
        fl_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0 && visible > 0) load_rows(&maps, at, tile, head);
    float *score = scores_of(p, tile, head);
    for (int32_t j = visible + threadIdx.x; j < p.n_blocks; j += THREADS) score[j] = -INFINITY;
    score_chunks(p, &maps, at, tile, head);
}

/* ---- any shape ------------------------------------------------------------------------------------------------- */

/* Grid: key blocks x heads x tiles. Block: one thread for each row of the tile. */
static __global__ void __launch_bounds__(ROWS) block_score_plain_kernel(const __grid_constant__ params p) {
    __shared__ float warp_top[ROWS / 32], warp_sum[ROWS / 32];
    int32_t block = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y, tile = (int32_t)blockIdx.z;
    float *score = scores_of(p, tile, head) + block;
    if (block >= visible_of(p, tile)) {
        if (threadIdx.x == 0) *score = -INFINITY;
        return;
    }
    const fl_bf16 *q = (const fl_bf16 *)p.q +
                       (((int64_t)tile * ROWS + threadIdx.x) * p.n_heads + head) * (p.nope_dim + p.rope_dim);
    const fl_bf16 *k_nope =
        (const fl_bf16 *)p.kv + ((int64_t)block * p.n_heads + head) * (p.nope_dim + p.v_dim);
    const fl_bf16 *k_pe = (const fl_bf16 *)p.k_pe + (int64_t)block * p.rope_dim;
    float s = 0, top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < p.nope_dim; i++) s += __bfloat162float(q[i]) * __bfloat162float(k_nope[i]);
    for (int32_t i = 0; i < p.rope_dim; i++)
        s += __bfloat162float(q[p.nope_dim + i]) * __bfloat162float(k_pe[i]);
    float warp_most = fl_warp_max(s);
    if (threadIdx.x % 32 == 0) warp_top[threadIdx.x / 32] = warp_most;
    __syncthreads();
    for (int32_t i = 0; i < ROWS / 32; i++) top = fmaxf(top, warp_top[i]);
    float weights = fl_warp_sum(fl_exp2(s - top));
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = weights;
    __syncthreads();
    for (int32_t i = 0; i < ROWS / 32; i++) sum += warp_sum[i];
    if (threadIdx.x == 0) *score = top + __log2f(sum);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

static int32_t slices_of(const fl_block_score_args *a) {
    return (int32_t)(a->nope_dim / SLICE + fl_tasks_of(a->rope_dim, SLICE));
}

/* Whole slices of k_nope, and rows that TMA can step over. */
static bool fits_tensor_cores(const fl_block_score_args *a) {
    bool aligned = (((uintptr_t)a->q | (uintptr_t)a->kv | (uintptr_t)a->k_pe) & 15) == 0;
    return aligned && a->nope_dim % SLICE == 0 && a->rope_dim % 8 == 0 && a->v_dim % 8 == 0 &&
           slices_of(a) <= SLICES_MAX;
}

static fl_err map_tensors(const fl_block_score_args *a, tensors *out) {
    int64_t q_dim = a->nope_dim + a->rope_dim, kv_dim = a->nope_dim + a->v_dim;
    fl_tma_shape q = {a->q, FL_DTYPE_BF16, 3, {q_dim, a->n_heads, a->rows}, {1, q_dim, q_dim * a->n_heads}};
    fl_tma_shape kv = {
        a->kv, FL_DTYPE_BF16, 3, {kv_dim, a->n_heads, a->n_blocks}, {1, kv_dim, kv_dim * a->n_heads}};
    fl_tma_shape k_pe = {a->k_pe, FL_DTYPE_BF16, 2, {a->rope_dim, a->n_blocks}, {1, a->rope_dim}};
    q.box[0] = kv.box[0] = k_pe.box[0] = SLICE;
    q.box[1] = kv.box[1] = 1;
    q.box[2] = ROWS;
    kv.box[2] = k_pe.box[1] = KEYS;
    q.swizzle = kv.swizzle = k_pe.swizzle = true;
    FL_TRY(fl_tma_map(&q, &out->q));
    FL_TRY(fl_tma_map(&kv, &out->kv));
    return fl_tma_map(&k_pe, &out->k_pe);
}

static fl_err launch_tensor_cores(const fl_block_score_args *a, const params *p, cudaStream_t stream) {
    tensors maps;
    int32_t slices = slices_of(a);
    int32_t shared_bytes = SHARED_ALIGN + slices * (ROWS_BYTES + GROUPS * STAGES * KEYS_BYTES);
    FL_TRY(map_tensors(a, &maps));
    FL_CUDA_TRY(cudaFuncSetAttribute((const void *)block_score_kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    dim3 grid((uint32_t)(a->rows / ROWS), (uint32_t)a->n_heads);
    block_score_kernel<<<grid, THREADS, (size_t)shared_bytes, stream>>>(*p, maps, slices);
    return FL_CUDA_LAUNCHED("block_score");
}

extern "C" fl_err fl_block_score_cuda(fl_backend *be, const fl_block_score_args *a) {
    FL_TRY(fl_block_score_validate(a));
    params p = {(const uint16_t *)a->q, (const uint16_t *)a->kv, (const uint16_t *)a->k_pe, a->score};
    p.pos = a->pos;
    p.n_heads = a->n_heads;
    p.n_blocks = a->n_blocks;
    p.block_tokens = a->block_tokens;
    p.nope_dim = a->nope_dim;
    p.rope_dim = a->rope_dim;
    p.v_dim = a->v_dim;
    if (fits_tensor_cores(a)) return launch_tensor_cores(a, &p, fl_cuda_of(be)->stream);
    dim3 grid((uint32_t)a->n_blocks, (uint32_t)a->n_heads, (uint32_t)(a->rows / ROWS));
    block_score_plain_kernel<<<grid, ROWS, 0, fl_cuda_of(be)->stream>>>(p);
    return FL_CUDA_LAUNCHED("block_score");
}
