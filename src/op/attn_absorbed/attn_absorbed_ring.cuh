/* attn_absorbed, CUDA, for bf16 latents of 512 and k_pe of 64 dimensions. Chunks of 32 keys come through a ring of
 * buffers in shared memory, by the bulk copy engine (rows of 128 bytes, swizzled), several ahead. For each page of 64
 * keys that some lane of the task sees:
 *   scores  S[16 lanes][64 keys] = q key^T by mma.sync: a warp has 32 keys and a quarter of the dimensions, whose q it
 *           keeps in registers
 *   weights a warp has two lanes: the four parts of S in order, maximum, P in bf16, the running (m, l)
 *   values  O[16][512] += P latent: a warp has 64 latent dimensions, in registers
 *
 * Where timelines have 32 lanes and tasks of 32 still fill a device, a task has two tiles of 16: each key is read from
 * shared memory once for both, and a lane's numbers are the same.
 *
 * Grid: (lane groups of all timelines) x spans, groups that share pages side by side. Block: 256 threads, one a
 * multiprocessor. Shared: 203 KiB, 226 KiB with two tiles. Bound by memory for 16 lanes a key, by instruction issue for
 * more. */
#ifndef FL_OP_ATTN_ABSORBED_RING_CUH
#define FL_OP_ATTN_ABSORBED_RING_CUH

#include "op/attn_absorbed/attn_absorbed_wide.cuh"

enum {
    RING_BOXES = WIDE_LATENT * 2 / ROW, /* of a key's latent */
    RING_K_PE = RING_BOXES * BOX_BYTES, /* offset in a stage */
    RING_STAGE = RING_K_PE + BOX_BYTES, /* bytes */
    RING_STAGES = 5,
    SLICE = WIDE_LATENT / WARPS /* latent dimensions of a warp in O */
};

/* Of a launch. */
typedef struct ring_params {
    CUtensorMap latent, k_pe; /* in elements: of a key, keys, pages */
    params p;
} ring_params;

/* Shared memory behind the stages, S and P. */
template <int TILES> struct ring_board {
    board b;
    uint64_t full[RING_STAGES];
    task t;
    int32_t pages[SPAN_PAGES];       /* those seen, read ahead: copies must not wait for the table */
    uint4 k_pe[TILES][QUARTERS][32]; /* operands, which registers have no room for: q's k_pe */
};

/* ---- chunks to shared memory ----------------------------------------------------------------------------------- */

/* Starts the copies of a chunk, each warp a box of latents or two. The barrier may count bytes before it is told how
 * many. */
template <int TILES>
FL_DEVICE void feed_chunk(const ring_params &r, uint8_t *stages, ring_board<TILES> *rb, int32_t chunk) {
    int32_t box = WARPS - 1 - (int32_t)threadIdx.x / 32, stage = chunk % RING_STAGES;
    if (threadIdx.x % 32 != 0) return;
    int32_t page = rb->pages[chunk / CHUNKS], first = chunk % CHUNKS * CHUNK;
    uint8_t *to = stages + stage * RING_STAGE;
    uint64_t *full = rb->full + stage;
    if (threadIdx.x == 0) fl_barrier_expect(full, RING_STAGE);
    fl_tma_load_3d(to + box * BOX_BYTES, &r.latent, full, box * (ROW / 2), first, page);
    if (box == 0) fl_tma_load_3d(to + RING_K_PE, &r.k_pe, full, 0, first, page);
}

/* 16 bytes of a key in a copied box. */
FL_DEVICE const uint8_t *piece_of(const uint8_t *box, int32_t key, int32_t piece) {
    return box + key * ROW + (piece ^ key % 8) * 16;
}

/* Keys behind the last row's position: what is stored there may be NaN, weight 0 or not. Their latents become zeros. */
FL_DEVICE void blank_keys(const task &t, int32_t page, uint8_t *const (&chunks)[CHUNKS]) {
    int32_t there = t.last_pos + 1 - (t.first + page * PAGE);
#pragma unroll
    for (int32_t part = 0; part < CHUNKS; part++) {
        int32_t first = max(there - part * CHUNK, 0);
        for (int32_t i = threadIdx.x; i < RING_BOXES * CHUNK * (ROW / 16); i += THREADS)
            if (i / (ROW / 16) % CHUNK >= first) *(uint4 *)(chunks[part] + i * 16) = make_uint4(0, 0, 0, 0);
    }
}

/* ---- scores ---------------------------------------------------------------------------------------------------- */

/* Of a thread: rows lane / 4 and + 8 of q of each 16 lanes, 16 dimensions of every fourth 16. */
template <int TILES> struct ring_q { uint32_t latent[TILES][8][4]; };

template <int TILES>
FL_DEVICE void open_q(const params &p, const task &t, int32_t i, ring_board<TILES> *rb, ring_q<TILES> *q) {
    int32_t quarter = threadIdx.x / 32 % QUARTERS, column = threadIdx.x % 4, tile = i / 2, half = i % 2;
    const uint16_t *row = q_row(p, t, i), *k_pe = row + WIDE_LATENT + quarter * 16 + 2 * column;
#pragma unroll
    for (int32_t j = 0; j < 8; j++) {
        const uint16_t *run = row + (j * QUARTERS + quarter) * 16 + 2 * column;
        q->latent[tile][j][half] = row ? *(const uint32_t *)run : 0;
        q->latent[tile][j][2 + half] = row ? *(const uint32_t *)(run + 8) : 0;
    }
    uint32_t *operands = (uint32_t *)&rb->k_pe[tile][quarter][threadIdx.x % 32];
    operands[half] = row ? *(const uint32_t *)k_pe : 0;
    operands[2 + half] = row ? *(const uint32_t *)(k_pe + 8) : 0;
}

/* The warp's part of S: 32 keys, a chunk, and its quarter of the dimensions. */
template <int TILES>
FL_DEVICE void ring_scores(const ring_board<TILES> *rb, const ring_q<TILES> &q,
                           uint8_t *const (&chunks)[CHUNKS], float *s) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = warp / QUARTERS,
            quarter = warp % QUARTERS;
    const uint8_t *chunk = keys == 1 ? chunks[1] : chunks[0], *from[2];
    float sum[TILES][4][4] = {};
    uint32_t b[4], pe[TILES][4];
#pragma unroll
    for (int32_t i = 0; i < 2; i++)
        from[i] = piece_of(chunk, i * 16 + lane / 16 * 8 + lane % 8, quarter * 2 + lane / 8 % 2);
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) take_operand(rb->k_pe[tile][quarter], lane, pe[tile]);
#pragma unroll
    for (int32_t j = -1; j < RING_BOXES; j++) /* k_pe first, which lies behind the latents */
#pragma unroll
        for (int32_t i = 0; i < 2; i++) {
            fl_load_matrices(b, from[i] + (j < 0 ? RING_BOXES : j) * BOX_BYTES);
#pragma unroll
            for (int32_t tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int32_t k = 0; k < 2; k++) {
                    if (j < 0) fl_mma_bf16(sum[tile][2 * i + k], pe[tile], b[2 * k], b[2 * k + 1]);
                    else fl_mma_bf16(sum[tile][2 * i + k], q.latent[tile][j], b[2 * k], b[2 * k + 1]);
                }
        }
    int32_t row = quarter * (TILES * LANES) + lane / 4;
#pragma unroll
    for (int32_t i = 0; i < 4 * TILES; i++) {
        const float(&x)[4] = sum[i / 4][i % 4];
        float *to = s + (row + i / 4 * LANES) * S_STRIDE + keys * 32 + i % 4 * 8 + lane % 4 * 2;
        *(float2 *)to = make_float2(x[0], x[1]);
        *(float2 *)(to + 8 * S_STRIDE) = make_float2(x[2], x[3]);
    }
}

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* What a thread keeps over the pages, q aside. */
template <int TILES> struct ring_state {
    float o[TILES][8][4];             /* 8 x 8 of the warp's dimensions */
    float m[2 * TILES], l[2 * TILES]; /* of the warp's lanes, l of the thread's keys */
};

/* S of a thread's two keys, lane by lane of the warp's; -INFINITY where they are not seen. */
template <int TILES>
FL_DEVICE void sum_scores(const task &t, int32_t page, const float *parts, const ring_board<TILES> *rb,
                          float2 (&s)[2 * TILES]) {
    int32_t key = threadIdx.x % 32 * 2, first = t.first + page * PAGE;
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
        const sight &sight = rb->b.sights[lane];
        if (sight.begin[1] > first || sight.end[1] < first + PAGE) {
            if (!sees(sight, first + key, 1)) s[i].x = -INFINITY;
            if (!sees(sight, first + key + 1, 1)) s[i].y = -INFINITY;
        }
    }
}

/* Weights of the warp's lanes; each of its threads has two keys. */
template <int TILES>
FL_DEVICE void ring_weights(const task &t, int32_t page, const float *parts, uint16_t *weights,
                            ring_board<TILES> *rb, ring_state<TILES> *st) {
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
        uint32_t packed = fl_pack_bf16(x, y);
        float sum = fl_low_of_bf16x2(packed) + fl_high_of_bf16x2(packed);
        st->l[i] = st->l[i] * scale + sum;
        st->m[i] = top[i];
        *(uint32_t *)(weights + lane * S_STRIDE + threadIdx.x % 32 * 2) = packed;
        if (threadIdx.x % 32 == 0) rb->b.scale[lane] = scale;
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* What the sums so far are worth now, if that changed for a lane of the warp's. */
template <int TILES> FL_DEVICE void scale_tile(const float (&scale)[2], int32_t tile, ring_state<TILES> *st) {
    if (!__any_sync(~0u, scale[0] != 1 || scale[1] != 1)) return;
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
#pragma unroll
        for (int32_t k = 0; k < 4; k++) st->o[tile][i][k] *= scale[k / 2];
}

/* The warp's part of O. */
template <int TILES>
FL_DEVICE void ring_values(uint8_t *const (&chunks)[CHUNKS], const uint16_t *weights,
                           const ring_board<TILES> *rb, ring_state<TILES> *st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        const float scale[2] = {rb->b.scale[tile * LANES + lane / 4],
                                rb->b.scale[tile * LANES + lane / 4 + 8]};
        scale_tile(scale, tile, st);
    }
    /* Matrices: lanes 0-7 and keys 0-7, lanes 8-15 and keys 0-7, lanes 0-7 and keys 8-15, both. */
    const uint16_t *row = weights + (lane / 8 % 2 * 8 + lane % 8) * S_STRIDE + lane / 16 * 8;
#pragma unroll
    for (int32_t k = 0; k < PAGE / 16; k++) {
        const uint8_t *box = chunks[k * 16 / CHUNK] + warp * BOX_BYTES;
        int32_t key = k * 16 % CHUNK + lane / 8 % 2 * 8 + lane % 8;
        uint32_t a[TILES][4], v[4];
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++)
            fl_load_matrices(a[tile], row + tile * LANES * S_STRIDE + k * 16);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) { /* 16 dimensions */
            fl_load_matrices_transposed(v, piece_of(box, key, 2 * i + lane / 16));
#pragma unroll
            for (int32_t tile = 0; tile < TILES; tile++) {
                fl_mma_bf16(st->o[tile][2 * i], a[tile], v[0], v[1]);
                fl_mma_bf16(st->o[tile][2 * i + 1], a[tile], v[2], v[3]);
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------------------------- */

template <int TILES> FL_DEVICE void store_span(const params &p, const task &t, const ring_state<TILES> &st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) {
        float l = fl_warp_sum(st.l[i]);
        int32_t row = warp * (2 * TILES) + i;
        if (lane == 0 && row < t.n_lanes)
            *state_of(p, partial_of(p, t.first_line + row, t.slot)) = make_float2(st.m[i], l);
    }
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) {
        int32_t row = lane / 4 + i * 8;
        if (row >= t.n_lanes) continue;
        float *o = partial_of(p, t.first_line + row, t.slot) + warp * SLICE + lane % 4 * 2;
#pragma unroll
        for (int32_t k = 0; k < 8; k++)
            *(float2 *)(o + 8 * k) = make_float2(st.o[i / 2][k][i % 2 * 2], st.o[i / 2][k][i % 2 * 2 + 1]);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int TILES>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_absorbed_ring_kernel(const __grid_constant__ ring_params r) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const params &p = r.p;
    float *s = (float *)(shared + RING_STAGES * RING_STAGE);
    uint16_t *weights = (uint16_t *)((uint8_t *)s + TILES * S_BYTES);
    ring_board<TILES> *rb = (ring_board<TILES> *)((uint8_t *)s + TILES * (S_BYTES + P_BYTES));
    const task &t = rb->t; /* there because registers are scarce */
    ring_q<TILES> q;
    task opened;
    fl_grid_wait();
    fl_grid_begin_next();
    if (!find_task(p, &opened)) return;
    see_pages(p, opened, &rb->b);
    uint64_t seen = pages_of(rb->b.seen);
    int32_t n_chunks = __popcll(seen) * CHUNKS;
    if (threadIdx.x == 0) {
        rb->t = opened;
        for (int32_t i = 0; i < RING_STAGES; i++) fl_barrier_init(rb->full + i, 1);
        fl_barrier_init_fence();
    }
    if (threadIdx.x < SPAN_PAGES && (seen >> threadIdx.x & 1))
        rb->pages[__popcll(seen & (((uint64_t)1 << threadIdx.x) - 1))] = opened.pages[threadIdx.x];
    __syncthreads();
    if (seen == 0) {
        store_nothing(p, t);
        return;
    }
#pragma unroll 1
    for (int32_t i = 0; i < min((int32_t)RING_STAGES, n_chunks); i++) feed_chunk(r, shared, rb, i);
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) open_q(p, t, i, rb, &q);
    __syncthreads();
    ring_state<TILES> st = {};
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES; i++) st.m[i] = -INFINITY;
    for (int32_t chunk = 0; seen; seen &= seen - 1) {
        int32_t page = __ffsll((long long)seen) - 1;
        uint8_t *chunks[CHUNKS];
#pragma unroll
        for (int32_t part = 0; part < CHUNKS; part++, chunk++) {
            chunks[part] = shared + chunk % RING_STAGES * RING_STAGE;
            fl_barrier_wait(rb->full + chunk % RING_STAGES, (uint32_t)(chunk / RING_STAGES) & 1);
        }
        if (t.first + (page + 1) * PAGE - 1 > t.last_pos) {
            blank_keys(t, page, chunks);
            __syncthreads();
        }
        ring_scores(rb, q, chunks, s);
        __syncthreads(); /* S is there, and all are done with the page before */
                         /* Chunks of the page before give their room to these. */
#pragma unroll
        for (int32_t part = 0; part < CHUNKS; part++) {
            int32_t next = chunk - 2 * CHUNKS + part + RING_STAGES;
            if (chunk > CHUNKS && next < n_chunks) feed_chunk(r, shared, rb, next);
        }
        ring_weights(t, page, s, weights, rb, &st);
        __syncthreads(); /* P is there */
        ring_values(chunks, weights, rb, &st);
    }
    store_span(p, t, st);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* 32 where timelines have as many and tasks of 32 still fill a device. A lane's numbers are the same either way. */
static int32_t ring_lanes(const fl_attn_absorbed_args *a, int32_t n_splits) {
    enum { TASKS = 512 };
    int64_t lines = (int64_t)a->rows * a->n_heads;
    return lines / a->n_seqs >= LANES_MAX && lines / LANES_MAX * n_splits >= TASKS ? LANES_MAX : LANES;
}

template <int TILES> static fl_err launch_ring_of(const params *p, cudaStream_t stream) {
    ring_params r;
    memset(&r, 0, sizeof r);
    r.p = *p;
    FL_TRY(map_keys(p->kv.base, p, (int32_t)RING_BOXES * (int32_t)ROW, &r.latent));
    FL_TRY(map_keys(p->kv.base + p->kv.k_pe_bytes, p, ROW, &r.k_pe));
    int32_t shared_bytes =
        RING_STAGES * RING_STAGE + TILES * (S_BYTES + P_BYTES) + (int32_t)sizeof(ring_board<TILES>);
    const void *kernel = (const void *)attn_absorbed_ring_kernel<TILES>;
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    dim3 grid((uint32_t)(p->n_groups * p->n_spans));
    FL_CUDA_TRY(launch_early(attn_absorbed_ring_kernel<TILES>, grid, THREADS, shared_bytes, &r, stream));
    return FL_CUDA_LAUNCHED("attn_absorbed (ring)");
}

static fl_err launch_ring(const params *p, cudaStream_t stream) {
    return p->lanes == LANES ? launch_ring_of<1>(p, stream) : launch_ring_of<2>(p, stream);
}

#endif
