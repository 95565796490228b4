/* block_mean, CUDA. Grid: (blocks of keys, groups of COLUMNS columns). Latent runs come first, those of k_pe
 * behind them. Block: threads share out (page, run of 8 columns); each adds its 64 slots in order, then the pages'
 * sums meet in shared memory and are added page by page. Bound by memory traffic. */
#include "op/cuda/kv_format.cuh"

enum { RUNS = 32, THREADS_MAX = 256, PAGES_MAX = (int)FL_BLOCK_TOKENS_MAX / (int)FL_KV_PAGE_TOKENS };

typedef struct params {
    fl_kv_cuda kv;
    const int32_t *pages; /* from the first block on */
    int32_t n_pages;      /* of a block */
    int32_t latent_runs, runs;
    uint16_t *latent, *k_pe;
} params;

/* Sum over a page of 8 columns, in order of slots. */
FL_DEVICE void sum_page(const params &p, int32_t page, int32_t run, float sum[FL_KV_RUN]) {
    const uint8_t *piece = fl_kv_piece_at(p.kv, page);
    bool of_latent = run < p.latent_runs;
    int32_t dim = (of_latent ? run : run - p.latent_runs) * FL_KV_RUN;
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++) sum[i] = 0;
#pragma unroll 4
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot++) {
        float x[FL_KV_RUN];
        if (of_latent) fl_kv_latent_load8(p.kv, piece, slot, dim, x);
        else fl_kv_k_pe_load8(p.kv, piece, slot, dim, x);
#pragma unroll
        for (int32_t i = 0; i < FL_KV_RUN; i++) sum[i] = __fadd_rn(sum[i], x[i]);
    }
}

static __global__ void __launch_bounds__(THREADS_MAX) block_mean_kernel(const __grid_constant__ params p) {
    __shared__ __align__(16) float of_page[PAGES_MAX][RUNS * FL_KV_RUN];
    int32_t first = blockIdx.y * RUNS, n_runs = min(RUNS, p.runs - first);
    const int32_t *pages = p.pages + (int64_t)blockIdx.x * p.n_pages;
    for (int32_t i = threadIdx.x; i < p.n_pages * n_runs; i += blockDim.x) {
        float sum[FL_KV_RUN];
        sum_page(p, pages[i / n_runs], first + i % n_runs, sum);
        float4 *to = (float4 *)&of_page[i / n_runs][i % n_runs * FL_KV_RUN];
        to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
    __syncthreads();
    float tokens = (float)(p.n_pages * FL_KV_PAGE_TOKENS);
    for (int32_t i = threadIdx.x; i < n_runs * FL_KV_RUN; i += blockDim.x) {
        int32_t run = first + i / FL_KV_RUN;
        bool of_latent = run < p.latent_runs;
        int32_t dim = (of_latent ? run : run - p.latent_runs) * FL_KV_RUN + i % FL_KV_RUN;
        int32_t width = of_latent ? p.kv.latent_dim : p.kv.rope_dim;
        if (dim >= width) continue;
        float sum = 0;
        for (int32_t page = 0; page < p.n_pages; page++) sum = __fadd_rn(sum, of_page[page][i]);
        uint16_t *to = of_latent ? p.latent : p.k_pe;
        to[(int64_t)blockIdx.x * width + dim] = fl_kv_bf16_of_f32(__fdiv_rn(sum, tokens));
    }
}

extern "C" fl_err fl_block_mean_cuda(fl_backend *be, const fl_block_mean_args *a) {
    FL_TRY(fl_block_mean_validate(a));
    params p = {};
    FL_TRY(fl_kv_cuda_of("block_mean", &a->kv, &p.kv));
    p.n_pages = a->block_tokens / FL_KV_PAGE_TOKENS;
    p.pages = a->pages + (int64_t)a->block * p.n_pages;
    p.latent_runs = (a->kv.latent_dim + FL_KV_RUN - 1) / FL_KV_RUN;
    p.runs = p.latent_runs + (a->kv.rope_dim + FL_KV_RUN - 1) / FL_KV_RUN;
    p.latent = (uint16_t *)a->latent;
    p.k_pe = (uint16_t *)a->k_pe;
    dim3 grid((uint32_t)a->n_blocks, (uint32_t)fl_tasks_of(p.runs, RUNS));
    uint32_t threads = p.n_pages * RUNS < THREADS_MAX ? (uint32_t)p.n_pages * RUNS : (uint32_t)THREADS_MAX;
    block_mean_kernel<<<grid, threads, 0, fl_cuda_of(be)->stream>>>(p);
    return FL_CUDA_LAUNCHED("block_mean");
}
