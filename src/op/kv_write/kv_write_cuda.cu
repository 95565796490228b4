/* kv_write, CUDA. A warp TOKENS tokens, a lane runs of 8 dimensions: all loads are under way before the first is looked
 * at; lanes of a group agree on its scale by shuffles, and what a warp stores lies side by side. A launch takes up to
 * SEQS timelines, whose descriptors travel as its parameter, and a warp finds its own by bisection. Of k_pe a lane has
 * a pair, which it rotates between the load and the store. Bound by memory traffic; where few rows decode, by latency:
 * then a token a warp.
 *
 * The naive formats need the smallest and the largest latent of every timeline first: another kernel takes them with
 * integer atomics, exact in any order, on keys that order as floats do. */
#include "op/cuda/kv_format.cuh"
#include "op/cuda/rope.cuh"

enum { WARPS = 8, SEQS = 64, RUNS = 2, EXTENT_ROWS = 8, ROWS_MANY = 4096 };

/* One of seqs[], and how many rows those before it in the launch have. */
typedef struct seq {
    const int32_t *pages, *pos_at; /* pos_at NULL: pos */
    int32_t row, pos, n_rows;
    int64_t rows_before;
} seq;

typedef struct params {
    fl_kv_cuda kv;
    const uint16_t *latent;
    const float *k_pe, *table;
    int64_t latent_stride, k_pe_stride;
    bool wide_latent; /* rows in whole runs at 16-byte addresses */
    bool pairs;       /* of k_pe, of the table and of what is stored at addresses that take one access each */
    float naive_code_max; /* 0: not a naive format */
    uint32_t *extents;    /* naive: [SEQS][2] keys: of the largest latent, of the largest negated one */
    int64_t rows;         /* of all timelines here */
    int32_t n_seqs;
    seq seqs[SEQS];
} params;

/* ---- extents of the naive formats ---- */

/* Orders as the numbers do; 0 is below all of them. */
FL_DEVICE uint32_t key_of(float value) {
    uint32_t bits = __float_as_uint(value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

FL_DEVICE float value_of_key(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Grid: (blocks of EXTENT_ROWS rows, timelines). NaNs count nothing. */
static __global__ void __launch_bounds__(WARPS * 32) extent_kernel(const __grid_constant__ params p) {
    const seq &s = p.seqs[blockIdx.y];
    int64_t first = (int64_t)blockIdx.x * EXTENT_ROWS;
    uint32_t high = 0, low = 0;
    for (int64_t i = first; i < min(first + EXTENT_ROWS, (int64_t)s.n_rows); i++)
        for (int32_t j = threadIdx.x; j < p.kv.latent_dim; j += WARPS * 32) {
            float x = fl_kv_f32_of_bf16(p.latent[(s.row + i) * p.latent_stride + j]);
            if (isnan(x)) continue;
            high = max(high, key_of(x));
            low = max(low, key_of(-x));
        }
    high = __reduce_max_sync(~0u, high);
    low = __reduce_max_sync(~0u, low);
    if (threadIdx.x % 32 != 0 || high == 0) return;
    atomicMax(p.extents + 2 * blockIdx.y, high);
    atomicMax(p.extents + 2 * blockIdx.y + 1, low);
}

FL_DEVICE uint16_t naive_value(float low, float scale, float code_max, uint16_t value) {
    float x = fl_kv_f32_of_bf16(value), code = 0;
    if (isnan(x)) return value;
    if (scale > 0) code = fminf(rintf(__fdiv_rn(__fsub_rn(x, low), scale)), code_max);
    return fl_kv_bf16_of_f32(__fadd_rn(low, __fmul_rn(code, scale)));
}

/* ---- writing ---- */

/* A run into a row of n bf16 values, at dimension dim. */
FL_DEVICE void put8(uint16_t *to, int32_t dim, int32_t n, uint4 run, bool wide) {
    if (wide) {
        if (dim < n) *(uint4 *)(to + dim) = run;
        return;
    }
    const uint32_t words[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
    for (int32_t i = 0; i < FL_KV_RUN; i++)
        if (dim + i < n) to[dim + i] = (uint16_t)(words[i / 2] >> i % 2 * 16);
}

FL_DEVICE uint4 naive_run(const params &p, int32_t of_seq, uint4 run) {
    uint32_t high_key = p.extents[2 * of_seq], low_key = p.extents[2 * of_seq + 1];
    float high = value_of_key(high_key), low = -value_of_key(low_key); /* of NaNs alone: not used */
    float scale = __fdiv_rn(__fsub_rn(high, low), p.naive_code_max);
    uint32_t words[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        words[i] = naive_value(low, scale, p.naive_code_max, (uint16_t)words[i]) |
                   (uint32_t)naive_value(low, scale, p.naive_code_max, (uint16_t)(words[i] >> 16)) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

FL_DEVICE int32_t find_seq(const params &p, int64_t row) {
    int32_t low = 0, high = p.n_seqs;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (p.seqs[middle].rows_before <= row) low = middle;
        else high = middle;
    }
    return low;
}

enum { AT_ONCE = RUNS * FL_KV_WARP_DIMS };

/* First dimension of a lane's run k, of AT_ONCE from `first` on: a warp's runs lie side by side, but for int4, where
 * what is found once a group should be found by few lanes, a lane's do. */
template <fl_kv_format FORMAT> FL_DEVICE int32_t run_dim(int32_t first, int32_t k) {
    int32_t lane = threadIdx.x % 32;
    return first + FL_KV_RUN * (FORMAT == FL_KV_INT4 ? lane * RUNS + k : k * 32 + lane);
}

template <fl_kv_format FORMAT>
FL_DEVICE void fetch(const params &p, const uint16_t *row, int32_t first, uint4 x[RUNS]) {
#pragma unroll
    for (int32_t k = 0; k < RUNS; k++)
        x[k] = fl_kv_row_fetch8(row, run_dim<FORMAT>(first, k), p.kv.latent_dim, p.wide_latent);
}

/* Dimensions dim and dim + 1 of a row, if there are such. */
FL_DEVICE float2 fetch_pair(const params &p, const float *row, int32_t dim) {
    if (dim >= p.kv.rope_dim) return make_float2(0, 0);
    return p.pairs ? __ldg((const float2 *)(row + dim)) : make_float2(row[dim], row[dim + 1]);
}

FL_DEVICE void put_k_pe(const params &p, uint16_t *to, int32_t dim, float2 x, float2 turn) {
    if (dim >= p.kv.rope_dim) return;
    uint32_t rotated =
        fl_pack_bf16(fl_rope_even(x.x, x.y, turn.x, turn.y), fl_rope_odd(x.x, x.y, turn.x, turn.y));
    if (p.pairs) {
        *(uint32_t *)(to + dim) = rotated;
    } else {
        to[dim] = (uint16_t)rotated;
        to[dim + 1] = (uint16_t)(rotated >> 16);
    }
}

/* A token under way: where it goes, and what was read of it. */
typedef struct token {
    uint8_t *piece;
    int32_t of_seq, slot, row;
    uint4 x[RUNS];
    float2 k_pe, turn;
} token;

FL_DEVICE const float *k_pe_at(const params &p, const token *t) {
    return p.k_pe + t->row * p.k_pe_stride;
}

FL_DEVICE const float *table_at(const params &p, const token *t) {
    return p.table + (int64_t)t->row * p.kv.rope_dim;
}

FL_DEVICE void store_plain(const params &p, const token &t, int32_t dim, uint4 x) {
    if (p.naive_code_max > 0) x = naive_run(p, t.of_seq, x);
    put8((uint16_t *)t.piece + t.slot * p.kv.latent_dim, dim, p.kv.latent_dim, x, p.kv.wide_latent);
}

/* AT_ONCE dimensions from `first` on. FORMAT: fp8, int4, or bf16 for all plain ones. */
template <fl_kv_format FORMAT> FL_DEVICE void store(const params &p, const token &t, int32_t first) {
    if constexpr (FORMAT == FL_KV_INT4) {
        fl_kv_store_int4(p.kv, t.piece, t.slot, run_dim<FORMAT>(first, 0), t.x[0], t.x[1]);
    } else {
#pragma unroll
        for (int32_t k = 0; k < RUNS; k++) {
            int32_t dim = run_dim<FORMAT>(first, k);
            if (first + k * FL_KV_WARP_DIMS >= p.kv.latent_dim) return;
            if (FORMAT == FL_KV_FP8) fl_kv_store_fp8(p.kv, t.piece, t.slot, dim, t.x[k]);
            else store_plain(p, t, dim, t.x[k]);
        }
    }
}

template <fl_kv_format FORMAT> FL_DEVICE void open_token(const params &p, int64_t row, token *t) {
    t->of_seq = find_seq(p, row);
    const seq &s = p.seqs[t->of_seq];
    int32_t i = (int32_t)(row - s.rows_before), pos = (s.pos_at ? __ldg(s.pos_at) : s.pos) + i;
    t->slot = pos % FL_KV_PAGE_TOKENS;
    t->row = s.row + i;
    t->piece = fl_kv_piece_at(p.kv, __ldg(s.pages + pos / FL_KV_PAGE_TOKENS));
    fetch<FORMAT>(p, p.latent + t->row * p.latent_stride, 0, t->x);
    t->k_pe = fetch_pair(p, k_pe_at(p, t), (int32_t)(threadIdx.x % 32) * 2);
    t->turn = fetch_pair(p, table_at(p, t), (int32_t)(threadIdx.x % 32) * 2);
}

template <fl_kv_format FORMAT> FL_DEVICE void write_token(const params &p, token *t) {
    const fl_kv_cuda &kv = p.kv;
    uint16_t *to = (uint16_t *)(t->piece + kv.k_pe_bytes) + t->slot * kv.rope_dim;
    int32_t dim = (int32_t)(threadIdx.x % 32) * 2;
    put_k_pe(p, to, dim, t->k_pe, t->turn);
    while ((dim += 32 * 2) < kv.rope_dim)
        put_k_pe(p, to, dim, fetch_pair(p, k_pe_at(p, t), dim), fetch_pair(p, table_at(p, t), dim));
    for (int32_t first = 0;;) {
        store<FORMAT>(p, *t, first);
        first += AT_ONCE;
        if (first >= kv.latent_dim) return;
        fetch<FORMAT>(p, p.latent + t->row * p.latent_stride, first, t->x);
    }
}

template <fl_kv_format FORMAT, int TOKENS>
static __global__ void __launch_bounds__(WARPS * 32) kv_write_kernel(const __grid_constant__ params p) {
    int64_t row = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * TOKENS;
    token tokens[TOKENS];
#pragma unroll
    for (int32_t i = 0; i < TOKENS; i++)
        if (row + i < p.rows) open_token<FORMAT>(p, row + i, &tokens[i]);
#pragma unroll
    for (int32_t i = 0; i < TOKENS; i++)
        if (row + i < p.rows) write_token<FORMAT>(p, &tokens[i]);
}

/* ---- launching ---- */

/* The timelines of one launch; returns the rows of the longest. */
static int32_t take_seqs(const fl_kv_rows *seqs, int32_t n, params *p) {
    int32_t longest = 0;
    p->n_seqs = n;
    p->rows = 0;
    for (int32_t i = 0; i < n; i++) {
        p->seqs[i].pages = seqs[i].pages;
        p->seqs[i].pos_at = seqs[i].pos_at;
        p->seqs[i].row = seqs[i].row;
        p->seqs[i].pos = seqs[i].pos;
        p->seqs[i].n_rows = seqs[i].n_rows;
        p->seqs[i].rows_before = p->rows;
        p->rows += seqs[i].n_rows;
        longest = seqs[i].n_rows > longest ? seqs[i].n_rows : longest;
    }
    return longest;
}

template <fl_kv_format FORMAT> static void launch(fl_cuda *cuda, uint32_t blocks, const params &p) {
    if (p.rows >= ROWS_MANY) kv_write_kernel<FORMAT, 2><<<blocks, WARPS * 32, 0, cuda->stream>>>(p);
    else kv_write_kernel<FORMAT, 1><<<blocks, WARPS * 32, 0, cuda->stream>>>(p);
}

static fl_err write_seqs(fl_cuda *cuda, const fl_kv_rows *seqs, int32_t n, params *p) {
    int32_t longest = take_seqs(seqs, n, p);
    int64_t blocks = fl_tasks_of(p->rows, WARPS * (p->rows >= ROWS_MANY ? 2 : 1));
    if (blocks > INT32_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "kv_write: %lld rows are too many for one launch",
                       (long long)p->rows);
    if (p->naive_code_max > 0) {
        FL_CUDA_TRY(cudaMemsetAsync(p->extents, 0, 2 * SEQS * sizeof *p->extents, cuda->stream));
        dim3 grid((uint32_t)fl_tasks_of(longest, EXTENT_ROWS), (uint32_t)n);
        extent_kernel<<<grid, WARPS * 32, 0, cuda->stream>>>(*p);
        FL_TRY(FL_CUDA_LAUNCHED("kv_write, extents"));
    }
    if (p->kv.format == FL_KV_FP8) launch<FL_KV_FP8>(cuda, (uint32_t)blocks, *p);
    else if (p->kv.format == FL_KV_INT4) launch<FL_KV_INT4>(cuda, (uint32_t)blocks, *p);
    else launch<FL_KV_BF16>(cuda, (uint32_t)blocks, *p);
    return FL_CUDA_LAUNCHED("kv_write");
}

extern "C" fl_err fl_kv_write_cuda(fl_backend *be, const fl_kv_write_args *a) {
    FL_TRY(fl_kv_write_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    params p = {};
    FL_TRY(fl_kv_cuda_of("kv_write", &a->kv, &p.kv));
    p.latent = (const uint16_t *)a->latent;
    p.k_pe = a->k_pe;
    p.table = a->table;
    p.latent_stride = a->latent_stride;
    p.k_pe_stride = a->k_pe_stride;
    p.wide_latent = ((uintptr_t)a->latent % 16 | (uintptr_t)(a->latent_stride % FL_KV_RUN)) == 0 &&
                    a->kv.latent_dim % FL_KV_RUN == 0;
    p.pairs = ((uintptr_t)a->k_pe | (uintptr_t)a->table) % sizeof(float2) == 0 && a->k_pe_stride % 2 == 0 &&
              ((uintptr_t)a->kv.base | (uintptr_t)a->kv.page_stride_bytes) % sizeof(uint32_t) == 0;
    p.naive_code_max = (float)fl_kv_naive_code_max(a->kv.format);
    p.extents = (uint32_t *)cuda->workspace;
    for (int32_t i = 0; i < a->n_seqs; i += SEQS)
        FL_TRY(write_seqs(cuda, a->seqs + i, a->n_seqs - i < SEQS ? a->n_seqs - i : SEQS, &p));
    return FL_ERR_OK;
}
