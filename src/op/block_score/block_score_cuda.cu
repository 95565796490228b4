/* block_score, CUDA: codes by block_score_e4m3.cu, heads of whole 64-dimension slices on tensor cores
 * (block_score_wgmma.cuh), any other by a plain kernel, a thread a row. */
enum { SCORERS = 3 };

#include "op/block_score/block_score_wgmma.cuh"

/* ---- any shape ------------------------------------------------------------------------------------------------- */

/* Grid: key blocks x heads x tiles. Block: one thread for each row of the tile. */
static __global__ void __launch_bounds__(TILE_ROWS)
    block_score_plain_kernel(const __grid_constant__ params p) {
    __shared__ float warp_top[TILE_ROWS / 32], warp_sum[TILE_ROWS / 32];
    int32_t block = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y, tile = (int32_t)blockIdx.z;
    float *score = scores_of(p, tile, head) + block;
    if (block >= visible_of(p, tile)) {
        if (threadIdx.x == 0) *score = -INFINITY;
        return;
    }
    const fl_bf16 *q = (const fl_bf16 *)p.q + (((int64_t)tile * TILE_ROWS + threadIdx.x) * p.n_heads + head) *
                                                  (p.nope_dim + p.rope_dim);
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
    for (int32_t i = 0; i < TILE_ROWS / 32; i++) top = fmaxf(top, warp_top[i]);
    float weights = fl_warp_sum(fl_exp2(s - top));
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = weights;
    __syncthreads();
    for (int32_t i = 0; i < TILE_ROWS / 32; i++) sum += warp_sum[i];
    if (threadIdx.x == 0) *score = top + __log2f(sum);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* Products over 16 dimensions: the nope part's, which are whole slices, and the rope part's. */
static int32_t steps_of(const fl_block_score_args *a) {
    return (int32_t)(a->nope_dim / 16 + fl_tasks_of(a->rope_dim, 16));
}

enum { STEPS_MAX = 12 };

/* Whole slices of k_nope, one at most of k_pe, and rows that TMA can step over. */
static bool fits_tensor_cores(const fl_block_score_args *a) {
    bool aligned = (((uintptr_t)a->q | (uintptr_t)a->kv | (uintptr_t)a->k_pe) & 15) == 0;
    return aligned && a->nope_dim % SLICE == 0 && a->rope_dim % 8 == 0 && a->rope_dim <= SLICE &&
           a->v_dim % 8 == 0 && steps_of(a) <= STEPS_MAX;
}

static fl_err map_tensors(const fl_block_score_args *a, tensors *out) {
    int64_t q_dim = a->nope_dim + a->rope_dim, kv_dim = a->nope_dim + a->v_dim;
    fl_tma_shape q = {a->q, FL_DTYPE_BF16, 3, {q_dim, a->n_heads, a->rows}, {1, q_dim, q_dim * a->n_heads}};
    fl_tma_shape kv = {
        a->kv, FL_DTYPE_BF16, 3, {kv_dim, a->n_heads, a->n_blocks}, {1, kv_dim, kv_dim * a->n_heads}};
    fl_tma_shape k_pe = {a->k_pe, FL_DTYPE_BF16, 2, {a->rope_dim, a->n_blocks}, {1, a->rope_dim}};
    q.box[0] = kv.box[0] = k_pe.box[0] = SLICE;
    q.box[1] = kv.box[1] = 1;
    q.box[2] = TILE_ROWS;
    kv.box[2] = k_pe.box[1] = CHUNK;
    q.swizzle = kv.swizzle = k_pe.swizzle = true;
    FL_TRY(fl_tma_map(&q, &out->q));
    FL_TRY(fl_tma_map(&kv, &out->kv));
    return fl_tma_map(&k_pe, &out->k_pe);
}

template <int STEPS>
static fl_err launch_wgmma(fl_cuda *cuda, const fl_block_score_args *a, const params *p) {
    auto kernel = block_score_wgmma_kernel<STEPS>;
    const int bytes = sizeof(score_shared<STEPS>) + 1024;
    tensors maps;
    FL_TRY(map_tensors(a, &maps));
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<(uint32_t)cuda->n_multiprocessors, SCORE_THREADS, bytes, cuda->stream>>>(*p, maps);
    return FL_CUDA_LAUNCHED("block_score");
}

extern "C" fl_err fl_block_score_cuda(fl_backend *be, const fl_block_score_args *a) {
    FL_TRY(fl_block_score_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    if (fl_block_score_by_codes(be, a)) return fl_block_score_e4m3(cuda, a);
    const params p = params_of(a);
    if (fits_tensor_cores(a)) {
        /* Dimensions beyond those of the head are zeros: they add nothing. */
        if (steps_of(a) <= 6) return launch_wgmma<6>(cuda, a, &p);
        if (steps_of(a) <= 8) return launch_wgmma<8>(cuda, a, &p);
        return launch_wgmma<STEPS_MAX>(cuda, a, &p);
    }
    dim3 grid((uint32_t)a->n_blocks, (uint32_t)a->n_heads, (uint32_t)p.tiles);
    block_score_plain_kernel<<<grid, TILE_ROWS, 0, cuda->stream>>>(p);
    return FL_CUDA_LAUNCHED("block_score");
}
