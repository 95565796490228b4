/* attn_absorbed, CUDA, for latents of 512 and k_pe of 64 dimensions: keys are never written out in bf16. Chunks of 32
 * or 64 keys come as they are stored through a ring of buffers in shared memory, by the bulk copy engine (rows of 128
 * bytes, swizzled), several ahead. For each page of 64 keys that some lane of the task sees:
 *   scores  S[16 lanes][64 keys] = q key^T by mma.sync: a warp has 32 keys and a quarter of the dimensions, whose q it
 *           keeps in registers
 *   weights a warp has two lanes: the four parts of S in order, maximum, P in 16 bits, the running (m, l)
 *   values  O[16][512] += P latent: a warp has 64 latent dimensions, in registers
 * Codes become operands of the products in registers, each read twice from shared memory and never scaled:
 *   int4    q . latent = sum over groups of scale * (q . codes) + minimum * sum(q), and P latent = (P scale) codes
 *           + P minimum. A code's bits, masked, are an f16 already: a subnormal one, 2^-24 of its value, or 2^-20 for
 *           every second nibble; the powers of two are made good on q and on O. All of this is f16; q is scaled by a
 *           power of two, lane by lane, so that nothing is lost, the sums of q are pairs of f16. Outliers have code 0;
 *           their bf16 copies are a step of S and columns of O of their own.
 *   fp8     e4m3 bits moved into a bf16 read 2^-120 of the value (subnormals too); half of that power goes to q and
 *           to P scale, half to the result. The NaN code reads as 480: only kv_write's NaN and infinite inputs make it.
 *   bf16    ldmatrix
 * The order of dimensions within a product's 16 is whatever the codes' bits suggest; q is loaded in the same order. An
 * int4 or fp8 latent is therefore rounded to act nowhere, P scale is.
 *
 * Where timelines have 32 lanes and tasks of 32 still fill a device, a task has two tiles of 16: each operand made of
 * codes is used twice, and a lane's numbers are the same.
 *
 * Grid: (lane groups of all timelines) x spans, groups that share pages side by side. Block: 256 threads. Shared: about
 * 106 KiB for int4 and fp8 (two blocks a multiprocessor), 203 KiB for bf16; up to 226 KiB with two tiles. Bound by
 * memory for bf16; by instruction issue, close to memory, for int4; by instruction issue for fp8 and for more than 16
 * lanes a key. */
#ifndef FL_OP_ATTN_ABSORBED_RING_CUH
#define FL_OP_ATTN_ABSORBED_RING_CUH

#include "op/attn_absorbed/attn_absorbed_ring_scores.cuh"

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* What a thread keeps over the pages, q aside. */
template <int FORM, int TILES> struct ring_state {
    float o[TILES][8][4];             /* 8 x 8 of the warp's dimensions */
    float bias[TILES][4];             /* int4: P minimum, all columns the same */
    float m[2 * TILES], l[2 * TILES]; /* of the warp's lanes, l of the thread's keys */
};

/* S of a thread's two keys, lane by lane of the warp's; -INFINITY where they are not seen. */
template <int FORM, int TILES>
FL_DEVICE void sum_scores(const task &t, int32_t page, const float *parts, const ring_board<FORM, TILES> *rb,
                          float2 (&s)[2 * TILES]) {
    int32_t key = threadIdx.x % 32 * 2, first = t.split * SPLIT + page * PAGE;
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) {
        int32_t lane = threadIdx.x / 32 * (2 * TILES) + i;
        s[i] = *(const float2 *)(parts + lane * S_STRIDE + key);
#pragma unroll
        for (int32_t quarter = 1; quarter < QUARTERS; quarter++) {
            float2 part = *(const float2 *)(parts + (quarter * (TILES * LANES) + lane) * S_STRIDE + key);
            s[i].x += part.x;
            s[i].y += part.y;
        }
        if (ring<FORM>::INT4) {
            s[i].x *= rb->down[lane];
            s[i].y *= rb->down[lane];
        }
        const sight &sight = rb->b.sights[lane];
        if (sight.begin[1] > first || sight.end[1] < first + PAGE) {
            if (!sees(sight, first + key, 1)) s[i].x = -INFINITY;
            if (!sees(sight, first + key + 1, 1)) s[i].y = -INFINITY;
        }
    }
}

/* Weights of the warp's lanes; each of its threads has two keys. */
template <int FORM, int TILES>
FL_DEVICE void ring_weights(const task &t, int32_t page, const float *parts, uint16_t *weights,
                            ring_board<FORM, TILES> *rb, ring_state<FORM, TILES> *st) {
    float2 s[2 * TILES];
    float top[2 * TILES];
    sum_scores(t, page, parts, rb, s);
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) top[i] = fmaxf(s[i].x, s[i].y);
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) /* of all lanes together, for their latencies */
#pragma unroll
        for (int32_t i = 0; i < 2 * TILES; i++) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], step));
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) {
        int32_t lane = threadIdx.x / 32 * (2 * TILES) + i;
        top[i] = fmaxf(st->m[i], top[i]);
        float from = top[i] == -INFINITY ? 0 : top[i]; /* nothing seen so far: all weights 0 */
        float x = fl_exp2(s[i].x - from), y = fl_exp2(s[i].y - from), scale = fl_exp2(st->m[i] - from);
        uint32_t packed = ring<FORM>::INT4 ? fl_pack_f16(x, y) : fl_pack_bf16(x, y);
        float sum = ring<FORM>::INT4 ? fl_low_of_f16x2(packed) + fl_high_of_f16x2(packed)
                                     : fl_low_of_bf16x2(packed) + fl_high_of_bf16x2(packed);
        st->l[i] = st->l[i] * scale + sum;
        st->m[i] = top[i];
        *(uint32_t *)(weights + lane * S_STRIDE + threadIdx.x % 32 * 2) = packed;
        if (threadIdx.x % 32 == 0) rb->b.scale[lane] = scale;
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* P of 16 keys times the scales of int4 or fp8 at keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of them. */
FL_DEVICE void scale_f16(const uint32_t (&weights)[4], const uint32_t (&scales)[2], uint32_t (&out)[4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; i++) out[i] = fl_multiply_f16x2(weights[i], scales[i / 2]);
}

FL_DEVICE void scale_bf16(const uint32_t (&weights)[4], const float (&scales)[4], uint32_t (&out)[4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        out[i] = fl_pack_bf16(fl_low_of_bf16x2(weights[i]) * scales[i / 2 * 2],
                              fl_high_of_bf16x2(weights[i]) * scales[i / 2 * 2 + 1]);
}

FL_DEVICE void scale_rows(float (&d)[4], const float (&scale)[2]) {
#pragma unroll
    for (int32_t k = 0; k < 4; k++) d[k] *= scale[k / 2];
}

/* Warp 0, int4: copies of outliers, the columns of D; f16 holds what bf16 does but for the range. `row` of P as
 * ldmatrix takes it. */
FL_DEVICE void add_outliers(const params &p, const uint16_t *row, const uint16_t *kept,
                            const float (&scale)[2], float4 *sum) {
    int32_t k = threadIdx.x / 4, n = p.kv.n_outliers;
    float d[4] = {sum->x, sum->y, sum->z, sum->w};
    scale_rows(d, scale);
    for (int32_t first = 0; first < PAGE; first += 16) {
        uint32_t weights[4];
        float x[4] = {};
        fl_load_matrices(weights, row + first);
        if (k < n)
#pragma unroll
            for (int32_t i = 0; i < 4; i++)
                x[i] = bf16_at(kept + (first + threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2) * n + k);
        fl_mma_f16(d, weights, fl_pack_f16(x[0], x[1]), fl_pack_f16(x[2], x[3]));
    }
    *sum = make_float4(d[0], d[1], d[2], d[3]);
}

/* P of 16 keys, of each 16 lanes. */
template <int TILES> struct ring_p { uint32_t a[TILES][4]; };

/* 16 keys from `first` on. A code's column is lane / 4 of tile j: dimension 8 (lane / 4) + j of the slice. */
template <int TILES>
FL_DEVICE void add_int4(const ring_p<TILES> &weights, const uint8_t *chunk, int32_t first,
                        ring_state<RING_INT4, TILES> *st) {
    typedef ring<RING_INT4> R;
    int32_t warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, key = first + threadIdx.x % 4 * 2;
    const uint32_t *scales = (const uint32_t *)(chunk + R::REST) + key * R::KEY_GROUPS + warp;
    const uint8_t *box = chunk + warp / 4 * R::BOX;
    uint32_t fit[4], words[4], scale[2], minimum[2], x[4], y[4];
    ring_p<TILES> scaled;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        int32_t step = i / 2 * 8 + i % 2; /* the thread's keys: 0, 1, 8, 9 from `key` on */
        fit[i] = scales[step * R::KEY_GROUPS];
        words[i] = *(const uint32_t *)(piece_of(box, key + step, warp % 4 * 2 + column / 4) + column % 4 * 4);
    }
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        scale[i] = __byte_perm(fit[2 * i], fit[2 * i + 1], 0x5410);
        minimum[i] = __byte_perm(fit[2 * i], fit[2 * i + 1], 0x7632);
    }
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        scale_f16(weights.a[tile], scale, scaled.a[tile]);
        fl_mma_f16(st->bias[tile], weights.a[tile], minimum[0], minimum[1]);
    }
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        uint32_t halves = half ? 0x7632 : 0x5410;
        halves_of_int4(__byte_perm(words[0], words[1], halves), x);
        halves_of_int4(__byte_perm(words[2], words[3], halves), y);
#pragma unroll
        for (int32_t j = 0; j < 4 * TILES; j++)
            fl_mma_f16(st->o[j / 4][4 * half + j % 4], scaled.a[j / 4], x[j % 4], y[j % 4]);
    }
}

/* The same of fp8. */
template <int TILES>
FL_DEVICE void add_fp8(const ring_p<TILES> &weights, const uint8_t *chunk, int32_t first,
                       ring_state<RING_FP8, TILES> *st) {
    typedef ring<RING_FP8> R;
    int32_t warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, key = first + threadIdx.x % 4 * 2;
    const float *scales = (const float *)(chunk + R::REST) + key * R::KEY_GROUPS + warp / 2;
    const uint8_t *box = chunk + warp / 2 * R::BOX;
    uint32_t words[4][2], x[2], y[2];
    ring_p<TILES> scaled;
    float scale[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        int32_t step = i / 2 * 8 + i % 2; /* the thread's keys: 0, 1, 8, 9 from `key` on */
        const uint8_t *at = piece_of(box, key + step, warp % 2 * 4 + column / 2) + column % 2 * 8;
        uint2 run = *(const uint2 *)at;
        words[i][0] = run.x;
        words[i][1] = run.y;
        scale[i] = scales[step * R::KEY_GROUPS] * FL_RING_HALF;
    }
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) scale_bf16(weights.a[tile], scale, scaled.a[tile]);
#pragma unroll
    for (int32_t j = 0; j < 4; j++) { /* two dimensions */
        uint32_t halves = j % 2 ? 0x7632 : 0x5410;
        bf16_of_fp8(__byte_perm(words[0][j / 2], words[1][j / 2], halves), x);
        bf16_of_fp8(__byte_perm(words[2][j / 2], words[3][j / 2], halves), y);
#pragma unroll
        for (int32_t i = 0; i < 2 * TILES; i++)
            fl_mma_bf16(st->o[i / 2][2 * j + i % 2], scaled.a[i / 2], x[i % 2], y[i % 2]);
    }
}

/* Tile 2 i + h: dimensions 16 i + 8 h of the slice. */
template <int TILES>
FL_DEVICE void add_bf16(const ring_p<TILES> &weights, const uint8_t *chunk, int32_t first,
                        ring_state<RING_BF16, TILES> *st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = first + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        uint32_t v[4];
        fl_load_matrices_transposed(v, piece_of(chunk + warp * ring<RING_BF16>::BOX, key, 2 * i + lane / 16));
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++) {
            fl_mma_bf16(st->o[tile][2 * i], weights.a[tile], v[0], v[1]);
            fl_mma_bf16(st->o[tile][2 * i + 1], weights.a[tile], v[2], v[3]);
        }
    }
}

/* What the sums so far are worth now, if that changed for a lane of the warp's. */
template <int FORM, int TILES>
FL_DEVICE void scale_tile(const float (&scale)[2], int32_t tile, ring_state<FORM, TILES> *st) {
    if (!__any_sync(~0u, scale[0] != 1 || scale[1] != 1)) return;
#pragma unroll
    for (int32_t i = 0; i < 8; i++) scale_rows(st->o[tile][i], scale);
    if (ring<FORM>::INT4) scale_rows(st->bias[tile], scale);
}

/* The warp's part of O. */
template <int FORM, int TILES>
FL_DEVICE void ring_values(const params &p, uint8_t *const (&chunks)[2], const uint16_t *weights,
                           ring_board<FORM, TILES> *rb, ring_state<FORM, TILES> *st) {
    typedef ring<FORM> R;
    int32_t lane = threadIdx.x % 32;
    float scale[TILES][2];
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        scale[tile][0] = rb->b.scale[tile * LANES + lane / 4];
        scale[tile][1] = rb->b.scale[tile * LANES + lane / 4 + 8];
        scale_tile(scale[tile], tile, st);
    }
    /* Matrices: lanes 0-7 and keys 0-7, lanes 8-15 and keys 0-7, lanes 0-7 and keys 8-15, both. */
    const uint16_t *row = weights + (lane / 8 % 2 * 8 + lane % 8) * S_STRIDE + lane / 16 * 8;
#pragma unroll
    for (int32_t k = 0; k < PAGE / 16; k++) {
        ring_p<TILES> a;
        const uint8_t *chunk = chunks[k * 16 / R::KEYS];
        int32_t first = k * 16 % R::KEYS;
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++)
            fl_load_matrices(a.a[tile], row + tile * LANES * S_STRIDE + k * 16);
        if constexpr (R::INT4) add_int4(a, chunk, first, st);
        else if constexpr (FORM == RING_FP8) add_fp8(a, chunk, first, st);
        else add_bf16(a, chunk, first, st);
    }
    if constexpr (R::INT4)
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++)
            if (threadIdx.x < 32 && p.kv.n_outliers > 0)
                add_outliers(p, row + tile * LANES * S_STRIDE,
                             (const uint16_t *)(chunks[0] + R::REST + R::KEYS * R::KEY_GROUPS * 4),
                             scale[tile], &rb->kept[tile][lane]);
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* The thread's dimensions of row `half` of a tile of O. Codes: column c of the thread's two, 8 dimensions. */
template <int FORM, int TILES>
FL_DEVICE void store_row(const ring_state<FORM, TILES> &st, int32_t tile, int32_t half, float *o) {
#pragma unroll
    for (int32_t c = 0; c < 2; c++) {
        float x[8];
#pragma unroll
        for (int32_t j = 0; j < 8; j++) {
            x[j] = st.o[tile][j][2 * half + c];
            if (ring<FORM>::INT4) x[j] = fmaf(x[j], j % 2 ? 0x1p20f : 0x1p24f, st.bias[tile][2 * half]);
            if (FORM == RING_FP8) x[j] *= FL_RING_HALF;
        }
        float4 *to = (float4 *)(o + threadIdx.x % 4 * 16 + c * 8);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

template <int TILES>
FL_DEVICE void store_row(const ring_state<RING_BF16, TILES> &st, int32_t tile, int32_t half, float *o) {
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        *(float2 *)(o + 8 * i + threadIdx.x % 4 * 2) =
            make_float2(st.o[tile][i][2 * half], st.o[tile][i][2 * half + 1]);
}

/* Outliers, over what stands in their places. */
template <int FORM, int TILES>
FL_DEVICE void store_outliers(const params &p, const task &t, const ring_board<FORM, TILES> *rb) {
    for (int32_t i = threadIdx.x; i < TILES * 128; i += THREADS) {
        int32_t tile = i / 128, lane = i % 128 / 4,
                part = i % 4; /* part of D of the thread `lane` of warp 0 */
        int32_t row = tile * LANES + lane / 4 + part / 2 * 8, k = lane % 4 * 2 + part % 2;
        if (row < t.n_lanes && k < p.kv.n_outliers)
            partial_of(p, t.first_line + row, t.split)[p.kv.outliers[k]] =
                ((const float *)&rb->kept[tile][lane])[part];
    }
}

template <int FORM, int TILES>
FL_DEVICE void store_span(const params &p, const task &t, const ring_board<FORM, TILES> *rb,
                          const ring_state<FORM, TILES> &st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) {
        float l = fl_warp_sum(st.l[i]);
        int32_t row = warp * (2 * TILES) + i;
        if (lane == 0 && row < t.n_lanes)
            *state_of(p, partial_of(p, t.first_line + row, t.split)) = make_float2(st.m[i], l);
    }
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) {
        int32_t row = lane / 4 + i * 8;
        if (row < t.n_lanes)
            store_row(st, i / 2, i % 2, partial_of(p, t.first_line + row, t.split) + warp * SLICE);
    }
    if constexpr (ring<FORM>::INT4) {
        if (p.kv.n_outliers == 0) return;
        __syncthreads();
        store_outliers(p, t, rb);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int FORM, int TILES>
static __global__ void __launch_bounds__(THREADS, ring_shape<FORM, TILES>::BLOCKS)
    attn_absorbed_ring_kernel(const __grid_constant__ ring_params r) {
    typedef ring<FORM> R;
    typedef ring_shape<FORM, TILES> shape;
    extern __shared__ __align__(1024) uint8_t shared[];
    const params &p = r.p;
    float *s = (float *)(shared + shape::STAGES * r.stage_bytes);
    uint16_t *weights = (uint16_t *)((uint8_t *)s + shape::S_SIZE);
    ring_board<FORM, TILES> *rb = (ring_board<FORM, TILES> *)((uint8_t *)s + shape::S_SIZE + shape::P_SIZE);
    const task &t = rb->t; /* there because registers are scarce */
    ring_q<TILES> q;
    task opened;
    if (!open_task(p, &rb->b, &opened)) return;
    uint32_t seen = rb->b.seen;
    int32_t n_chunks = __popc(seen) * R::PARTS;
    if (threadIdx.x == 0) {
        rb->t = opened;
        for (int32_t i = 0; i < shape::STAGES; i++) fl_barrier_init(rb->full + i, 1);
        fl_barrier_init_fence();
    }
    if (threadIdx.x < SPAN_MAX * PAGES && (seen >> threadIdx.x & 1))
        rb->pages[__popc(seen & ((1u << threadIdx.x) - 1))] = opened.pages[threadIdx.x];
    __syncthreads();
    if (seen == 0) {
        if (threadIdx.x < t.n_lanes)
            *state_of(p, partial_of(p, t.first_line + threadIdx.x, t.split)) = make_float2(-INFINITY, 0);
        return;
    }
#pragma unroll 1
    for (int32_t i = 0; i < min((int32_t)shape::STAGES, n_chunks); i++) feed_chunk(r, shared, rb, i);
    open_q(p, t, rb, &q);
    __syncthreads();
    ring_state<FORM, TILES> st = {};
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) st.m[i] = -INFINITY;
    for (int32_t chunk = 0; seen; seen &= seen - 1) {
        int32_t page = __ffs(seen) - 1;
        uint8_t *chunks[2] = {};
#pragma unroll
        for (int32_t part = 0; part < R::PARTS; part++, chunk++) {
            chunks[part] = shared + chunk % shape::STAGES * r.stage_bytes;
            fl_barrier_wait(rb->full + chunk % shape::STAGES, (uint32_t)(chunk / shape::STAGES) & 1);
        }
        if (t.split * SPLIT + (page + 1) * PAGE - 1 > t.last_pos) {
            blank_keys<FORM>(r, t, page, chunks);
            __syncthreads();
        }
        ring_scores(p, rb, q, chunks, s);
        __syncthreads(); /* S is there, and all are done with the page before */
                         /* Chunks of the page before give their room to these. */
#pragma unroll
        for (int32_t part = 0; part < R::PARTS; part++) {
            int32_t next = chunk - 2 * R::PARTS + part + shape::STAGES;
            if (chunk > R::PARTS && next < n_chunks) feed_chunk(r, shared, rb, next);
        }
        ring_weights(t, page, s, weights, rb, &st);
        __syncthreads(); /* P is there */
        ring_values(p, chunks, weights, rb, &st);
    }
    store_span(p, t, rb, st);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* 32 where timelines have as many and tasks of 32 still fill a device. A lane's numbers are the same either way. */
static int32_t ring_lanes(const fl_attn_absorbed_args *a, int32_t n_splits) {
    enum { TASKS = 512 };
    int64_t lines = (int64_t)a->rows * a->n_heads;
    return lines / a->n_seqs >= LANES_MAX && lines / LANES_MAX * n_splits >= TASKS ? LANES_MAX : LANES;
}

/* Keys of pages as 16-bit elements of `bytes` a key, in boxes of 128 bytes and `keys` keys. */
static fl_err map_keys(const uint8_t *base, const params *p, int32_t bytes, int32_t keys, CUtensorMap *out) {
    enum { PAGES_MAX = 1 << 24 }; /* more than any memory has; only pages of the tables are read */
    fl_tma_shape s;
    memset(&s, 0, sizeof s);
    s.base = base;
    s.dtype = FL_DTYPE_BF16;
    s.rank = 3;
    s.size[0] = bytes / 2, s.size[1] = PAGE, s.size[2] = PAGES_MAX;
    s.stride[1] = bytes / 2, s.stride[2] = p->kv.page_stride_bytes / 2;
    s.box[0] = ROW / 2, s.box[1] = keys, s.box[2] = 1;
    s.swizzle = true;
    return fl_tma_map(&s, out);
}

template <int FORM, int TILES> static fl_err launch_tiles(const params *p, cudaStream_t stream) {
    typedef ring_shape<FORM, TILES> shape;
    typedef ring<FORM> R;
    ring_params r;
    memset(&r, 0, sizeof r);
    r.p = *p;
    FL_TRY(map_keys(p->kv.base, p, (int32_t)R::BOXES * (int32_t)ROW, R::KEYS, &r.latent));
    FL_TRY(map_keys(p->kv.base + p->kv.k_pe_bytes, p, ROW, R::KEYS, &r.k_pe));
    if (FORM != RING_BF16) r.rest_bytes = (p->stored_bytes - p->kv.scales_bytes) / R::PARTS;
    r.stage_bytes = (int32_t)fl_tasks_of(R::REST + r.rest_bytes, 1024) * 1024;
    int32_t board_bytes = (int32_t)sizeof(ring_board<FORM, TILES>);
    int32_t shared_bytes = shape::STAGES * r.stage_bytes + shape::S_SIZE + shape::P_SIZE + board_bytes;
    const void *kernel = (const void *)attn_absorbed_ring_kernel<FORM, TILES>;
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
    attn_absorbed_ring_kernel<FORM, TILES>
        <<<(uint32_t)(p->n_groups * p->n_spans), THREADS, (size_t)shared_bytes, stream>>>(r);
    return FL_CUDA_LAUNCHED("attn_absorbed (ring)");
}

template <int FORM> static fl_err launch_ring_of(const params *p, cudaStream_t stream) {
    return p->lanes == LANES ? launch_tiles<FORM, 1>(p, stream) : launch_tiles<FORM, 2>(p, stream);
}

static fl_err launch_ring(const params *p, cudaStream_t stream) {
    if (p->kv.format == FL_KV_FP8) return launch_ring_of<RING_FP8>(p, stream);
    if (p->kv.format != FL_KV_INT4) return launch_ring_of<RING_BF16>(p, stream);
    return launch_ring_of<RING_INT4>(p, stream);
}

#endif
