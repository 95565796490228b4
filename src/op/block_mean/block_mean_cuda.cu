/* block_mean, CUDA. A thread takes units: a run of 8 columns (latent runs first, those of k_pe behind them) of one
 * page, whose 64 slots it adds in order with BATCH loads under way. Pages' sums meet in shared memory and are
 * added page by page. A CUDA block has several blocks of keys if they are small, a part of the columns if they are
 * large. Bound by memory traffic. */
#include "op/cuda/kv_format.cuh"

enum { THREADS_MIN = 96, THREADS_MAX = 256, BATCH = 8 };

typedef struct params {
    fl_kv_cuda kv;
    const int32_t *pages;                  /* from the first block on */
    int32_t n_blocks, n_pages;             /* of a block */
    int32_t each;                          /* blocks of keys of a CUDA block */
    int32_t latent_runs, runs, group_runs; /* of all columns, and of a CUDA block's */
    uint16_t *latent, *k_pe;
    bool wide_out; /* rows of the means in whole runs at 16-byte addresses */
} params;

FL_DEVICE void add8(float sum[FL_KV_RUN], const float x[FL_KV_RUN]) {
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++) sum[i] = __fadd_rn(sum[i], x[i]);
}

/* Runs of bf16, `stride_bytes` from slot to slot. */
FL_DEVICE void sum_plain(const uint8_t *from, int32_t stride_bytes, float sum[FL_KV_RUN]) {
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot += BATCH) {
        uint4 runs[BATCH];
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++)
            runs[i] = __ldg((const uint4 *)(from + (slot + i) * stride_bytes));
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            float x[FL_KV_RUN];
            fl_kv_decode8_bf16(runs[i], x);
            add8(sum, x);
        }
    }
}

FL_DEVICE void sum_fp8(const fl_kv_cuda &kv, const uint8_t *piece, int32_t dim, float sum[FL_KV_RUN]) {
    const float *scales = (const float *)(piece + kv.scales_bytes) + dim / FL_KV_FP8_GROUP;
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot += BATCH) {
        uint2 codes[BATCH];
        float scale[BATCH];
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            codes[i] = __ldg((const uint2 *)(piece + (slot + i) * kv.latent_dim + dim));
            scale[i] = __ldg(scales + (slot + i) * kv.groups);
        }
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            float x[FL_KV_RUN];
            fl_kv_decode8_fp8(codes[i], scale[i], x);
            add8(sum, x);
        }
    }
}

FL_DEVICE void sum_int4(const fl_kv_cuda &kv, const uint8_t *piece, int32_t dim, float sum[FL_KV_RUN]) {
    const uint32_t *fits = (const uint32_t *)(piece + kv.scales_bytes) + dim / kv.group;
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot += BATCH) {
        uint32_t codes[BATCH], fit[BATCH];
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            codes[i] = __ldg((const uint32_t *)(piece + ((slot + i) * kv.latent_dim + dim) / 2));
            fit[i] = __ldg(fits + (slot + i) * kv.groups);
        }
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            float x[FL_KV_RUN];
            fl_kv_decode8_int4(codes[i], fit[i], x);
            fl_kv_put_outliers8(kv, piece, slot + i, dim, x);
            add8(sum, x);
        }
    }
}

/* Sum over a page of 8 columns, in order of slots. */
FL_DEVICE void sum_page(const params &p, int32_t page, int32_t run, float sum[FL_KV_RUN]) {
    const fl_kv_cuda &kv = p.kv;
    const uint8_t *piece = fl_kv_piece_at(kv, page);
    bool of_latent = run < p.latent_runs, plain = !of_latent || fl_kv_is_plain(kv.format);
    int32_t dim = (of_latent ? run : run - p.latent_runs) * FL_KV_RUN;
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++) sum[i] = 0;
    if (!(of_latent ? kv.wide_latent : kv.wide_k_pe)) {
        for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot++) {
            float x[FL_KV_RUN];
            if (of_latent) fl_kv_latent_load8(kv, piece, slot, dim, x);
            else fl_kv_k_pe_load8(kv, piece, slot, dim, x);
            add8(sum, x);
        }
    } else if (plain) {
        sum_plain(piece + (of_latent ? 0 : kv.k_pe_bytes) + dim * 2,
                  (of_latent ? kv.latent_dim : kv.rope_dim) * 2, sum);
    } else if (kv.format == FL_KV_FP8) {
        sum_fp8(kv, piece, dim, sum);
    } else {
        sum_int4(kv, piece, dim, sum);
    }
}

/* The mean of 8 columns of one block from its pages' sums, `stride` floats apart. */
FL_DEVICE void store_mean(const params &p, int64_t block, int32_t run, const float *of_page, int32_t stride) {
    bool of_latent = run < p.latent_runs;
    int32_t dim = (of_latent ? run : run - p.latent_runs) * FL_KV_RUN;
    int32_t width = of_latent ? p.kv.latent_dim : p.kv.rope_dim;
    float tokens = (float)(p.n_pages * FL_KV_PAGE_TOKENS), sum[FL_KV_RUN];
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++) {
        sum[i] = 0;
        for (int32_t page = 0; page < p.n_pages; page++)
            sum[i] = __fadd_rn(sum[i], of_page[page * stride + i]);
        sum[i] = __fdiv_rn(sum[i], tokens);
    }
    uint16_t *to = (of_latent ? p.latent : p.k_pe) + block * width + dim;
    if (p.wide_out) {
        *(uint4 *)to = make_uint4(fl_pack_bf16(sum[0], sum[1]), fl_pack_bf16(sum[2], sum[3]),
                                  fl_pack_bf16(sum[4], sum[5]), fl_pack_bf16(sum[6], sum[7]));
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++)
        if (dim + i < width) to[i] = fl_kv_bf16_of_f32(sum[i]);
}

/* Shared: [each][n_pages][group_runs][8]. Grid: (blocks of keys, groups of columns). */
static __global__ void __launch_bounds__(THREADS_MAX) block_mean_kernel(const __grid_constant__ params p) {
    extern __shared__ float4 shared[];
    int64_t first = (int64_t)blockIdx.x * p.each;
    int32_t here = (int32_t)min((int64_t)p.each, p.n_blocks - first);
    int32_t first_run = blockIdx.y * p.group_runs, runs = min(p.group_runs, p.runs - first_run);
    const int32_t *pages = p.pages + first * p.n_pages;
    for (int32_t unit = threadIdx.x; unit < here * p.n_pages * runs; unit += blockDim.x) {
        float sum[FL_KV_RUN];
        sum_page(p, __ldg(pages + unit / runs), first_run + unit % runs, sum);
        shared[2 * unit] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        shared[2 * unit + 1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < here * runs; i += blockDim.x) {
        int32_t block = i / runs, run = i % runs;
        const float *of_page = (const float *)(shared + 2 * (block * p.n_pages * runs + run));
        store_mean(p, first + block, first_run + run, of_page, runs * FL_KV_RUN);
    }
}

extern "C" fl_err fl_block_mean_cuda(fl_backend *be, const fl_block_mean_args *a) {
    FL_TRY(fl_block_mean_validate(a));
    params p = {};
    FL_TRY(fl_kv_cuda_of("block_mean", &a->kv, &p.kv));
    p.n_blocks = a->n_blocks;
    p.n_pages = a->block_tokens / FL_KV_PAGE_TOKENS;
    p.pages = a->pages + (int64_t)a->block * p.n_pages;
    p.latent_runs = (int32_t)fl_tasks_of(a->kv.latent_dim, FL_KV_RUN);
    p.runs = p.latent_runs + (int32_t)fl_tasks_of(a->kv.rope_dim, FL_KV_RUN);
    p.latent = (uint16_t *)a->latent;
    p.k_pe = (uint16_t *)a->k_pe;
    p.wide_out = ((uintptr_t)a->latent % 16 | (uintptr_t)a->k_pe % 16) == 0 &&
                 (a->kv.latent_dim | a->kv.rope_dim) % FL_KV_RUN == 0;
    int32_t groups = (int32_t)fl_tasks_of(p.n_pages * p.runs, THREADS_MAX);
    p.group_runs = (int32_t)fl_tasks_of(p.runs, groups);
    int32_t units = p.n_pages * p.group_runs; /* of a block of keys */
    p.each = units < THREADS_MIN ? THREADS_MIN / units : 1;
    int32_t threads = (int32_t)fl_tasks_of(p.each * units, 32) * 32;
    dim3 grid((uint32_t)fl_tasks_of(a->n_blocks, p.each), (uint32_t)fl_tasks_of(p.runs, p.group_runs));
    size_t shared_bytes = (size_t)(p.each * units) * FL_KV_RUN * sizeof(float);
    block_mean_kernel<<<grid, (uint32_t)(threads < THREADS_MAX ? threads : THREADS_MAX), shared_bytes,
                        fl_cuda_of(be)->stream>>>(p);
    return FL_CUDA_LAUNCHED("block_mean");
}
