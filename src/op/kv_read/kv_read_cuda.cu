/* kv_read, CUDA. Grid: one block for TOKENS positions. Block: 256 threads, each takes runs of 8 dimensions: one load, 8
 * floats, one 16-byte store. Bound by memory traffic. Rows that cannot be taken 16 bytes at a time (odd dimensions) go
 * element by element inside the same runs. */
#include "op/cuda/kv_format.cuh"

enum { THREADS = 256, TOKENS = 16 };

typedef struct params {
    fl_kv_cuda kv;
    const int32_t *pages;
    int32_t pos, n, step;
    uint16_t *latent, *k_pe;
    bool wide_latent, wide_k_pe; /* output rows of whole runs at 16-byte addresses */
} params;

/* At most n of 8 values; exactly 8 if wide. */
FL_DEVICE void store8(uint16_t *to, const float x[8], int32_t n, bool wide) {
    if (wide) {
        *(uint4 *)to = make_uint4(fl_pack_bf16(x[0], x[1]), fl_pack_bf16(x[2], x[3]),
                                  fl_pack_bf16(x[4], x[5]), fl_pack_bf16(x[6], x[7]));
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++)
        if (i < n) to[i] = fl_kv_bf16_of_f32(x[i]);
}

static __global__ void __launch_bounds__(THREADS) kv_read_kernel(const __grid_constant__ params p) {
    const fl_kv_cuda &kv = p.kv;
    int32_t first = blockIdx.x * TOKENS, n = min(TOKENS, p.n - first);
    int32_t runs = (kv.latent_dim + FL_KV_RUN - 1) / FL_KV_RUN;
    for (int32_t i = threadIdx.x; i < n * runs; i += THREADS) {
        int32_t token = first + i / runs, dim = i % runs * FL_KV_RUN, pos = p.pos + token * p.step;
        const uint8_t *piece = fl_kv_piece_at(kv, p.pages[pos / FL_KV_PAGE_TOKENS]);
        float x[8];
        fl_kv_latent_load8(kv, piece, pos % FL_KV_PAGE_TOKENS, dim, x);
        store8(p.latent + (int64_t)token * kv.latent_dim + dim, x, kv.latent_dim - dim, p.wide_latent);
    }
    runs = (kv.rope_dim + FL_KV_RUN - 1) / FL_KV_RUN;
    for (int32_t i = threadIdx.x; i < n * runs; i += THREADS) {
        int32_t token = first + i / runs, dim = i % runs * FL_KV_RUN, pos = p.pos + token * p.step;
        const uint8_t *piece = fl_kv_piece_at(kv, p.pages[pos / FL_KV_PAGE_TOKENS]);
        float x[8];
        fl_kv_k_pe_load8(kv, piece, pos % FL_KV_PAGE_TOKENS, dim, x);
        store8(p.k_pe + (int64_t)token * kv.rope_dim + dim, x, kv.rope_dim - dim, p.wide_k_pe);
    }
}

extern "C" fl_err fl_kv_read_cuda(fl_backend *be, const fl_kv_read_args *a) {
    FL_TRY(fl_kv_read_validate(a));
    params p = {};
    FL_TRY(fl_kv_cuda_of("kv_read", &a->kv, &p.kv));
    p.pages = a->pages;
    p.pos = a->pos;
    p.n = a->n;
    p.step = fl_kv_read_step(a);
    p.latent = (uint16_t *)a->latent;
    p.k_pe = (uint16_t *)a->k_pe;
    p.wide_latent = (uintptr_t)a->latent % 16 == 0 && a->kv.latent_dim % FL_KV_RUN == 0;
    p.wide_k_pe = (uintptr_t)a->k_pe % 16 == 0 && a->kv.rope_dim % FL_KV_RUN == 0;
    kv_read_kernel<<<(uint32_t)fl_tasks_of(a->n, TOKENS), THREADS, 0, fl_cuda_of(be)->stream>>>(p);
    return FL_CUDA_LAUNCHED("kv_read");
}
