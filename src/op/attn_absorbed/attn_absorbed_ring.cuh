/* attn_absorbed, CUDA, for latents of 512 and k_pe of 64 dimensions: keys are never written out in bf16. Chunks of 32 or
 * 64 keys come as they are stored through a ring of buffers in shared memory, by the bulk copy engine (rows of 128 bytes,
 * swizzled), several ahead. For each page of 64 keys that some lane of the task sees:
 *   scores  S[16 lanes][64 keys] = q key^T by mma.sync: a warp has 32 keys and a quarter of the dimensions, whose q it
 *           keeps in registers
 *   weights a warp has two lanes: the four parts of S in order, maximum, P in 16 bits, the running (m, l)
 *   values  O[16][512] += P latent: a warp has 64 latent dimensions, in registers
 * Codes become operands of the products in registers, each read twice from shared memory and never scaled:
 *   int4    q . latent = sum over groups of scale * (q . codes) + minimum * sum(q), and P latent = (P scale) codes
 *           + P minimum. A code is or-ed into the f16 1024 (or, one nibble higher, 64), which q's own sums and one
 *           more product, of P scale with the constant, take off again. All of this is f16; q is scaled by a power of
 *           two, lane by lane, so that nothing is lost. Outliers have code 0; their bf16 copies are a step of S and
 *           columns of O of their own.
 *   fp8     e4m3 bits moved into a bf16 read 2^-120 of the value (subnormals too); half of that power goes to q and
 *           to P scale, half to the result. The NaN code reads as 480: only kv_write's NaN and infinite inputs make it.
 *   bf16    ldmatrix
 * The order of dimensions within a product's 16 is whatever the codes' bits suggest; q is loaded in the same order. An
 * int4 or fp8 latent is therefore rounded to act nowhere, P scale is.
 *
 * Grid: (lane groups of all timelines) x spans, groups that share pages side by side. Block: 256 threads. Shared: about
 * 103 KiB for int4 and fp8 (two blocks a multiprocessor), 203 KiB for bf16. Bound by memory for bf16; by instruction
 * issue, close to memory, for int4; by instruction issue for fp8 and for more than 16 lanes a key. */
#ifndef FL_OP_ATTN_ABSORBED_RING_CUH
#define FL_OP_ATTN_ABSORBED_RING_CUH

#include "op/attn_absorbed/attn_absorbed_cuda.cuh"

enum {
    RING_LATENT = 512,
    RING_ROPE = 64,
    RING_WIDTH = RING_LATENT + RING_ROPE,
    QUARTER = RING_LATENT / QUARTERS, /* latent dimensions */
    SLICE = RING_LATENT / WARPS,      /* latent dimensions of a warp in O */
    ROW = 128                         /* bytes of a key in one copied box */
};

/* How pages are stored. */
enum { RING_INT4_64, RING_INT4_32, RING_FP8, RING_BF16 };

/* Sizes that follow from it. */
template <int FORM> struct ring {
    enum {
        INT4 = FORM == RING_INT4_64 || FORM == RING_INT4_32,
        BOXES = INT4               ? 2
                : FORM == RING_FP8 ? 4
                                   : 8, /* of a key's latent */
        KEYS = INT4 ? 64 : 32,          /* of a chunk */
        PARTS = PAGE / KEYS,            /* chunks of a page */
        STAGES = INT4               ? 3
                 : FORM == RING_FP8 ? 4
                                    : 5,
        BLOCKS = FORM == RING_BF16 ? 1 : 2,            /* a multiprocessor */
        BOX = KEYS * ROW,                              /* bytes */
        K_PE = BOXES * BOX,                            /* offset in a stage */
        REST = K_PE + BOX,                             /* offset of scales and outliers */
        GROUP = FORM == RING_INT4_32 ? 32 : 64,        /* int4: dimensions that share a scale */
        GROUPS = INT4 ? (int)QUARTER / (int)GROUP : 1, /* of a quarter */
        SLICE_GROUPS = FORM == RING_INT4_32 ? 2 : 1,   /* of a warp's slice, at least */
        KEY_GROUPS = INT4 ? (int)RING_LATENT / (int)GROUP : 4
    };
};

/* Of a launch. */
typedef struct ring_params {
    CUtensorMap latent, k_pe; /* in 16-bit elements: bytes of a key's latent / 2, keys, pages */
    int32_t rest_bytes;       /* scales and outliers of a chunk */
    int32_t stage_bytes;
    params p;
} ring_params;

/* Shared memory. */
typedef struct ring_board {
    board b;
    uint64_t full[8];
} ring_board;

/* ---- chunks to shared memory ----------------------------------------------------------------------------------- */

/* The thread that starts copies: what is left to start. */
typedef struct feed {
    uint32_t seen; /* pages */
    int32_t chunk; /* the next one's number */
} feed;

template <int FORM>
FL_DEVICE void feed_chunk(const ring_params &r, const task &t, uint8_t *stages, uint64_t *full, feed *f) {
    typedef ring<FORM> R;
    if (f->seen == 0) return;
    int32_t page = t.pages[__ffs(f->seen) - 1], part = f->chunk % R::PARTS, stage = f->chunk % R::STAGES;
    uint8_t *to = stages + stage * r.stage_bytes;
    fl_barrier_expect(full + stage, (uint32_t)(R::REST + r.rest_bytes));
    for (int32_t i = 0; i < R::BOXES; i++)
        fl_tma_load_3d(to + i * R::BOX, &r.latent, full + stage, i * (ROW / 2), part * R::KEYS, page);
    fl_tma_load_3d(to + R::K_PE, &r.k_pe, full + stage, 0, part * R::KEYS, page);
    if (FORM != RING_BF16)
        fl_bulk_load(to + R::REST, fl_kv_piece_at(r.p.kv, page) + r.p.kv.scales_bytes + part * r.rest_bytes,
                     (uint32_t)r.rest_bytes, full + stage);
    f->chunk++;
    if (part == R::PARTS - 1) f->seen &= f->seen - 1;
}

/* 16 bytes of a key in a copied box. */
FL_DEVICE const uint8_t *piece_of(const uint8_t *box, int32_t key, int32_t piece) {
    return box + key * ROW + (piece ^ key % 8) * 16;
}

/* Keys behind the last row's position: what is stored there may be NaN, weight 0 or not. Scales of int4 and fp8,
 * outliers, latents of bf16 become zeros. */
template <int FORM>
FL_DEVICE void blank_keys(const ring_params &r, const task &t, int32_t page, uint8_t *const (&chunks)[2]) {
    typedef ring<FORM> R;
    int32_t there = t.last_pos + 1 - (t.split * SPLIT + page * PAGE);
#pragma unroll
    for (int32_t part = 0; part < R::PARTS; part++) {
        int32_t first = max(there - part * R::KEYS, 0);
        if (FORM == RING_BF16) {
            for (int32_t i = threadIdx.x; i < R::BOXES * R::KEYS * (ROW / 16); i += THREADS)
                if (i / (ROW / 16) % R::KEYS >= first)
                    *(uint4 *)(chunks[part] + i * 16) = make_uint4(0, 0, 0, 0);
            continue;
        }
        uint32_t *scales = (uint32_t *)(chunks[part] + R::REST);
        for (int32_t i = threadIdx.x; i < R::KEYS * R::KEY_GROUPS; i += THREADS)
            if (i / R::KEY_GROUPS >= first) scales[i] = 0;
        if (!R::INT4) continue;
        uint16_t *kept = (uint16_t *)(scales + R::KEYS * R::KEY_GROUPS);
        for (int32_t i = threadIdx.x; i < R::KEYS * r.p.kv.n_outliers; i += THREADS)
            if (i / r.p.kv.n_outliers >= first) kept[i] = 0;
    }
}

/* ---- codes to operands ----------------------------------------------------------------------------------------- */

/* Nibbles 0, 1, 2, 3 of both halves of a word, each pair an f16x2 that is 1024, 64, 1024, 64 too high. */
FL_DEVICE void halves_of_int4(uint32_t codes, uint32_t (&x)[4]) {
    x[0] = (codes & 0x000f000fu) | 0x64006400u;
    x[1] = (codes & 0x00f000f0u) | 0x54005400u;
    codes >>= 8;
    x[2] = (codes & 0x000f000fu) | 0x64006400u;
    x[3] = (codes & 0x00f000f0u) | 0x54005400u;
}

/* The low and the high bytes of both halves of a word of e4m3, each pair a bf16x2 of 2^-120 of their values. */
FL_DEVICE void bf16_of_fp8(uint32_t codes, uint32_t (&x)[2]) {
    x[0] = ((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u);
    x[1] = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
}

#define FL_RING_HALF 0x1p60f /* see the file's comment */

/* ---- scores ---------------------------------------------------------------------------------------------------- */

/* Of a thread: rows lane / 4 and + 8 of q, the warp's quarter, times `up`. */
template <int FORM> struct ring_q {
    uint32_t latent[8][4], k_pe[4];
    uint32_t outliers[2];             /* int4 */
    float off[ring<FORM>::GROUPS][2]; /* what too high codes add */
    float sum[ring<FORM>::GROUPS][2]; /* but for outliers */
    float down[2];                    /* 1 / up */
};

FL_DEVICE float bf16_at(const uint16_t *x) {
    return fl_kv_f32_of_bf16(*x);
}

/* Over the four threads of a row. */
FL_DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Power of two that brings the largest q of a row's quarter to 2^14, so that f16 has all bits of it. */
FL_DEVICE float scale_up(const uint16_t *q, bool there, int32_t quarter) {
    int32_t t = threadIdx.x % 4;
    float top = 0;
    if (there) {
        for (int32_t i = 0; i < QUARTER / 4; i++)
            top = fmaxf(top, fabsf(bf16_at(q + quarter * QUARTER + t + 4 * i)));
        for (int32_t i = 0; i < 4; i++)
            top = fmaxf(top, fabsf(bf16_at(q + RING_LATENT + quarter * 16 + t + 4 * i)));
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    uint32_t exponent = min(max(__float_as_uint(top) >> 23, 15u), 254u);
    return __uint_as_float((268u - exponent) << 23);
}

/* int4: row `half` of the thread's two. Piece j of the quarter has 32 dimensions, of which this thread has 8. */
template <int FORM>
FL_DEVICE void open_q_int4(const params &p, const uint16_t *row, bool there, int32_t half, ring_q<FORM> *q) {
    typedef ring<FORM> R;
    int32_t quarter = threadIdx.x / 32 % QUARTERS, t = threadIdx.x % 4;
    float up = scale_up(row, there, quarter), off[R::GROUPS] = {}, sum[R::GROUPS] = {};
    q->down[half] = 1 / up;
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        uint4 run = make_uint4(0, 0, 0, 0);
        if (there) run = *(const uint4 *)(row + quarter * QUARTER + j * 32 + t * 8);
        float x[8];
        fl_kv_decode8_bf16(run, x);
        float even = 0, odd = 0;
#pragma unroll
        for (int32_t i = 0; i < 8; i++) {
            x[i] *= up;
            (i % 2 ? odd : even) += x[i];
        }
        off[j * 32 / R::GROUP] += 1024 * even + 64 * odd;
        sum[j * 32 / R::GROUP] += even + odd;
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            q->latent[2 * j + i / 2][i % 2 * 2 + half] = fl_pack_f16(x[i], x[i + 4]);
    }
#pragma unroll
    for (int32_t i = 0; i < R::GROUPS; i++) {
        q->off[i][half] = row_sum(off[i]);
        q->sum[i][half] = row_sum(sum[i]);
    }
    float kept[2] = {0, 0};
    for (int32_t k = 0; k < p.kv.n_outliers; k++) {
        float x = there ? bf16_at(row + p.kv.outliers[k]) * up : 0;
#pragma unroll
        for (int32_t i = 0; i < R::GROUPS; i++)
            if (p.kv.outliers[k] / R::GROUP == quarter * R::GROUPS + i) q->sum[i][half] -= x;
        if (k == 2 * t) kept[0] = x;
        if (k == 2 * t + 1) kept[1] = x;
    }
    q->outliers[half] = fl_pack_bf16(kept[0], kept[1]);
    const uint16_t *k_pe = row + RING_LATENT + quarter * 16 + 2 * t;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        float low = there ? bf16_at(k_pe + 8 * i) * up : 0, high = there ? bf16_at(k_pe + 8 * i + 1) * up : 0;
        q->k_pe[2 * i + half] = fl_pack_bf16(low, high);
    }
}

/* fp8: steps of 16 bytes of a key, of which this thread has 4; bf16: 16 dimensions of every fourth 16. */
template <int FORM>
FL_DEVICE void open_q_plain(const uint16_t *row, bool there, int32_t half, ring_q<FORM> *q) {
    int32_t quarter = threadIdx.x / 32 % QUARTERS, t = threadIdx.x % 4;
#pragma unroll
    for (int32_t j = 0; j < 8; j++) {
        uint32_t low = 0, high = 0;
        if (there && FORM == RING_FP8) {
            uint2 run = *(const uint2 *)(row + quarter * QUARTER + j * 16 + t * 4);
            low =
                fl_pack_bf16(fl_low_of_bf16x2(run.x) * FL_RING_HALF, fl_low_of_bf16x2(run.y) * FL_RING_HALF);
            high = fl_pack_bf16(fl_high_of_bf16x2(run.x) * FL_RING_HALF,
                                fl_high_of_bf16x2(run.y) * FL_RING_HALF);
        } else if (there) {
            const uint16_t *run = row + (j * QUARTERS + quarter) * 16 + 2 * t;
            low = *(const uint32_t *)run;
            high = *(const uint32_t *)(run + 8);
        }
        q->latent[j][half] = low;
        q->latent[j][2 + half] = high;
    }
    const uint16_t *k_pe = row + RING_LATENT + quarter * 16 + 2 * t;
    q->k_pe[half] = there ? *(const uint32_t *)k_pe : 0;
    q->k_pe[2 + half] = there ? *(const uint32_t *)(k_pe + 8) : 0;
}

template <int FORM> FL_DEVICE void open_q(const params &p, const task &t, ring_q<FORM> *q) {
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        int32_t lane = threadIdx.x % 32 / 4 + 8 * half;
        const uint16_t *row = p.q + (t.first_line + lane) * RING_WIDTH;
        if (ring<FORM>::INT4) open_q_int4<FORM>(p, row, lane < t.n_lanes, half, q);
        else open_q_plain<FORM>(row, lane < t.n_lanes, half, q);
    }
}

/* k_pe's part of S: 4 x 8 keys from `first` of a chunk on. */
FL_DEVICE void score_k_pe(const uint32_t (&q)[4], const uint8_t *box, int32_t first, float (&sum)[4][4]) {
    int32_t lane = threadIdx.x % 32, piece = threadIdx.x / 32 % QUARTERS * 2 + lane / 8 % 2;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        uint32_t b[4];
        fl_load_matrices(b, piece_of(box, first + i * 16 + lane / 16 * 8 + lane % 8, piece));
        fl_mma_bf16(sum[2 * i], q, b[0], b[1]);
        fl_mma_bf16(sum[2 * i + 1], q, b[2], b[3]);
    }
}

/* Outliers' part: each quarter has 8 of the keys. */
FL_DEVICE void score_outliers(const params &p, const uint32_t (&q)[2], const uint16_t *kept, int32_t first,
                              float (&sum)[4][4]) {
    int32_t quarter = threadIdx.x / 32 % QUARTERS, key = first + quarter * 8 + threadIdx.x % 32 / 4;
    int32_t k = threadIdx.x % 4 * 2, n = p.kv.n_outliers;
    uint32_t a[4] = {q[0], q[1], 0, 0}, b = 0;
    if (k < n) b = kept[key * n + k];
    if (k + 1 < n) b |= (uint32_t)kept[key * n + k + 1] << 16;
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        if (i == quarter) fl_mma_bf16(sum[i], a, b, 0);
}

/* Keys 8 i .. of the warp's 32; keys are the columns of D. */
template <int FORM>
FL_DEVICE void score_int4(const ring_q<FORM> &q, const uint8_t *chunk, int32_t first, float (&sum)[4]) {
    typedef ring<FORM> R;
    int32_t lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % QUARTERS;
    uint32_t words[4], x[4];
    fl_load_matrices(words,
                     piece_of(chunk + quarter / 2 * R::BOX, first + lane % 8, quarter % 2 * 4 + lane / 8));
    const uint32_t *scales = (const uint32_t *)(chunk + R::REST) + quarter * R::GROUPS;
    int32_t key = first + lane % 4 * 2;
#pragma unroll
    for (int32_t i = 0; i < R::GROUPS; i++) {
        float d[4] = {-q.off[i][0], -q.off[i][0], -q.off[i][1], -q.off[i][1]};
#pragma unroll
        for (int32_t j = i * (R::GROUP / 32); j < (i + 1) * (R::GROUP / 32); j++) {
            halves_of_int4(words[j], x);
            fl_mma_f16(d, q.latent[2 * j], x[0], x[1]);
            fl_mma_f16(d, q.latent[2 * j + 1], x[2], x[3]);
        }
#pragma unroll
        for (int32_t c = 0; c < 2; c++) {
            uint32_t fit = scales[(key + c) * R::KEY_GROUPS + i];
            float scale = __half2float(__ushort_as_half((uint16_t)fit));
            float minimum = __half2float(__ushort_as_half((uint16_t)(fit >> 16)));
#pragma unroll
            for (int32_t half = 0; half < 2; half++)
                sum[2 * half + c] += scale * d[2 * half + c] + minimum * q.sum[i][half];
        }
    }
}

FL_DEVICE void score_fp8(const ring_q<RING_FP8> &q, const uint8_t *chunk, int32_t first, float (&sum)[4]) {
    typedef ring<RING_FP8> R;
    int32_t lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % QUARTERS;
    float d[4] = {};
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        uint32_t words[4], x[2];
        fl_load_matrices(words, piece_of(chunk + quarter * R::BOX, first + lane % 8, i * 4 + lane / 8));
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            bf16_of_fp8(words[j], x);
            fl_mma_bf16(d, q.latent[4 * i + j], x[0], x[1]);
        }
    }
    const float *scales = (const float *)(chunk + R::REST) + quarter;
#pragma unroll
    for (int32_t c = 0; c < 2; c++) {
        float scale = scales[(first + lane % 4 * 2 + c) * R::KEY_GROUPS] * FL_RING_HALF;
        sum[c] += scale * d[c];
        sum[2 + c] += scale * d[2 + c];
    }
}

FL_DEVICE void score_bf16(const ring_q<RING_BF16> &q, const uint8_t *chunk, float (&sum)[4][4]) {
    typedef ring<RING_BF16> R;
    int32_t lane = threadIdx.x % 32, piece = threadIdx.x / 32 % QUARTERS * 2 + lane / 8 % 2;
    const uint8_t *from[2];
#pragma unroll
    for (int32_t i = 0; i < 2; i++) from[i] = piece_of(chunk, i * 16 + lane / 16 * 8 + lane % 8, piece);
#pragma unroll
    for (int32_t j = 0; j < 8; j++)
#pragma unroll
        for (int32_t i = 0; i < 2; i++) {
            uint32_t b[4];
            fl_load_matrices(b, from[i] + j * R::BOX);
            fl_mma_bf16(sum[2 * i], q.latent[j], b[0], b[1]);
            fl_mma_bf16(sum[2 * i + 1], q.latent[j], b[2], b[3]);
        }
}

/* The warp's part of S: 32 keys, its quarter of the dimensions. */
template <int FORM>
FL_DEVICE void ring_scores(const params &p, const ring_q<FORM> &q, uint8_t *const (&chunks)[2], float *s) {
    typedef ring<FORM> R;
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = warp / QUARTERS;
    const uint8_t *chunk = R::PARTS == 2 && keys == 1 ? chunks[1] : chunks[0];
    int32_t first = R::PARTS == 2 ? 0 : keys * 32; /* of the chunk's keys */
    float sum[4][4] = {}, down[2] = {1, 1};
    score_k_pe(q.k_pe, chunk + R::K_PE, first, sum);
    if constexpr (R::INT4) {
        if (p.kv.n_outliers > 0)
            score_outliers(p, q.outliers, (const uint16_t *)(chunk + R::REST + R::KEYS * R::KEY_GROUPS * 4),
                           first, sum);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) score_int4<FORM>(q, chunk, first + i * 8, sum[i]);
        down[0] = q.down[0];
        down[1] = q.down[1];
    } else if constexpr (FORM == RING_FP8) {
#pragma unroll
        for (int32_t i = 0; i < 4; i++) score_fp8(q, chunk, first + i * 8, sum[i]);
    } else {
        score_bf16(q, chunk, sum);
    }
    float *to = s + (warp % QUARTERS * LANES + lane / 4) * S_STRIDE + keys * 32 + lane % 4 * 2;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        *(float2 *)(to + i * 8) = make_float2(sum[i][0] * down[0], sum[i][1] * down[0]);
        *(float2 *)(to + 8 * S_STRIDE + i * 8) = make_float2(sum[i][2] * down[1], sum[i][3] * down[1]);
    }
}

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* What a thread keeps over the pages, q aside. */
template <int FORM> struct ring_state {
    float o[8][4]; /* 8 x 8 of the warp's dimensions */
    float bias[ring<FORM>::SLICE_GROUPS]
              [4];    /* int4: minima less what too high codes add; even, odd nibbles */
    float kept[4];    /* int4, warp 0: outliers */
    float m[2], l[2]; /* of the warp's two lanes, l of the thread's keys */
};

/* Weights of the warp's two lanes; each of its threads has two keys. */
template <int FORM>
FL_DEVICE void ring_weights(const task &t, int32_t page, const float *parts, uint16_t *weights, board *b,
                            ring_state<FORM> *st) {
    int32_t warp = threadIdx.x / 32, key = threadIdx.x % 32 * 2;
    int32_t first = t.split * SPLIT + page * PAGE;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        int32_t lane = 2 * warp + i;
        const sight &sight = b->sights[lane];
        float2 s = *(const float2 *)(parts + lane * S_STRIDE + key);
#pragma unroll
        for (int32_t quarter = 1; quarter < QUARTERS; quarter++) {
            float2 part = *(const float2 *)(parts + (quarter * LANES + lane) * S_STRIDE + key);
            s.x += part.x;
            s.y += part.y;
        }
        if (sight.begin[1] > first || sight.end[1] < first + PAGE) {
            if (!sees(sight, first + key, 1)) s.x = -INFINITY;
            if (!sees(sight, first + key + 1, 1)) s.y = -INFINITY;
        }
        float top = fmaxf(st->m[i], fl_warp_max(fmaxf(s.x, s.y)));
        float from = top == -INFINITY ? 0 : top; /* nothing seen so far: all weights 0 */
        float x = fl_exp2(s.x - from), y = fl_exp2(s.y - from), scale = fl_exp2(st->m[i] - from);
        uint32_t packed;
        if (ring<FORM>::INT4) {
            packed = fl_pack_f16(x, y);
            st->l[i] = st->l[i] * scale + (fl_low_of_f16x2(packed) + fl_high_of_f16x2(packed));
        } else {
            packed = fl_pack_bf16(x, y);
            st->l[i] = st->l[i] * scale + (fl_low_of_bf16x2(packed) + fl_high_of_bf16x2(packed));
        }
        st->m[i] = top;
        *(uint32_t *)(weights + lane * S_STRIDE + key) = packed;
        if (key == 0) b->scale[lane] = scale;
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

/* Copies of outliers, the columns of D; f16 holds what bf16 does but for the range. */
FL_DEVICE void add_outliers(const params &p, const uint32_t (&weights)[4], const uint16_t *kept, int32_t key,
                            float (&d)[4]) {
    int32_t k = threadIdx.x % 32 / 4, n = p.kv.n_outliers;
    float x[4] = {};
    if (k < n)
#pragma unroll
        for (int32_t i = 0; i < 4; i++) x[i] = bf16_at(kept + (key + i / 2 * 8 + i % 2) * n + k);
    fl_mma_f16(d, weights, fl_pack_f16(x[0], x[1]), fl_pack_f16(x[2], x[3]));
}

/* 16 keys from `first` on. A code's column is lane / 4 of tile 4 s + j: dimension 32 s + 4 (lane / 4) + j of the slice. */
template <int FORM>
FL_DEVICE void add_int4(const params &p, const uint32_t (&weights)[4], const uint8_t *chunk, int32_t first,
                        ring_state<FORM> *st) {
    typedef ring<FORM> R;
    int32_t warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, key = first + threadIdx.x % 4 * 2;
    const uint32_t *scales =
        (const uint32_t *)(chunk + R::REST) + key * R::KEY_GROUPS + warp * R::SLICE_GROUPS;
    uint32_t halves = column % 2 ? 0x7632 : 0x5410, high = column % 2 ? 0xd400d400u : 0xe400e400u;
    uint32_t scaled[4];
#pragma unroll
    for (int32_t s = 0; s < 2; s++) {
        if (s < R::SLICE_GROUPS) {
            uint32_t fit[4], scale[2], minimum[2];
#pragma unroll
            for (int32_t i = 0; i < 4; i++) fit[i] = scales[(i / 2 * 8 + i % 2) * R::KEY_GROUPS + s];
#pragma unroll
            for (int32_t i = 0; i < 2; i++) {
                scale[i] = __byte_perm(fit[2 * i], fit[2 * i + 1], 0x5410);
                minimum[i] = __byte_perm(fit[2 * i], fit[2 * i + 1], 0x7632);
            }
            scale_f16(weights, scale, scaled);
            fl_mma_f16(st->bias[s], weights, minimum[0], minimum[1]);
            fl_mma_f16(st->bias[s], scaled, high, high);
        }
        uint32_t words[4], x[4], y[4];
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            words[i] = *(const uint32_t *)(piece_of(chunk + warp / 4 * R::BOX, key + i / 2 * 8 + i % 2,
                                                    warp % 4 * 2 + s) +
                                           column / 2 * 4);
        halves_of_int4(__byte_perm(words[0], words[1], halves), x);
        halves_of_int4(__byte_perm(words[2], words[3], halves), y);
#pragma unroll
        for (int32_t j = 0; j < 4; j++) fl_mma_f16(st->o[4 * s + j], scaled, x[j], y[j]);
    }
    if (warp == 0 && p.kv.n_outliers > 0)
        add_outliers(p, weights, (const uint16_t *)(chunk + R::REST + R::KEYS * R::KEY_GROUPS * 4), key,
                     st->kept);
}

/* The same of fp8. */
FL_DEVICE void add_fp8(const uint32_t (&weights)[4], const uint8_t *chunk, int32_t first,
                       ring_state<RING_FP8> *st) {
    typedef ring<RING_FP8> R;
    int32_t warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, key = first + threadIdx.x % 4 * 2;
    const float *scales = (const float *)(chunk + R::REST) + key * R::KEY_GROUPS + warp / 2;
    uint32_t scaled[4];
    float scale[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++) scale[i] = scales[(i / 2 * 8 + i % 2) * R::KEY_GROUPS] * FL_RING_HALF;
    scale_bf16(weights, scale, scaled);
#pragma unroll
    for (int32_t s = 0; s < 2; s++) {
        uint32_t words[4], x[2], y[2];
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            words[i] = *(const uint32_t *)(piece_of(chunk + warp / 2 * R::BOX, key + i / 2 * 8 + i % 2,
                                                    warp % 2 * 4 + 2 * s + column / 4) +
                                           column % 4 * 4);
#pragma unroll
        for (int32_t j = 0; j < 2; j++) {
            uint32_t halves = j ? 0x7632 : 0x5410;
            bf16_of_fp8(__byte_perm(words[0], words[1], halves), x);
            bf16_of_fp8(__byte_perm(words[2], words[3], halves), y);
            fl_mma_bf16(st->o[4 * s + 2 * j], scaled, x[0], y[0]);
            fl_mma_bf16(st->o[4 * s + 2 * j + 1], scaled, x[1], y[1]);
        }
    }
}

/* Tile 2 i + h: dimensions 16 i + 8 h of the slice. */
FL_DEVICE void add_bf16(const uint32_t (&weights)[4], const uint8_t *chunk, int32_t first,
                        ring_state<RING_BF16> *st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = first + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        uint32_t v[4];
        fl_load_matrices_transposed(v, piece_of(chunk + warp * ring<RING_BF16>::BOX, key, 2 * i + lane / 16));
        fl_mma_bf16(st->o[2 * i], weights, v[0], v[1]);
        fl_mma_bf16(st->o[2 * i + 1], weights, v[2], v[3]);
    }
}

FL_DEVICE void scale_rows(float (&d)[4], const float (&scale)[2]) {
#pragma unroll
    for (int32_t k = 0; k < 4; k++) d[k] *= scale[k / 2];
}

/* The warp's part of O. */
template <int FORM>
FL_DEVICE void ring_values(const params &p, uint8_t *const (&chunks)[2], const uint16_t *weights,
                           const board *b, ring_state<FORM> *st) {
    typedef ring<FORM> R;
    int32_t lane = threadIdx.x % 32;
    float scale[2] = {b->scale[lane / 4], b->scale[lane / 4 + 8]};
#pragma unroll
    for (int32_t i = 0; i < 8; i++) scale_rows(st->o[i], scale);
    if (R::INT4) {
#pragma unroll
        for (int32_t i = 0; i < R::SLICE_GROUPS; i++) scale_rows(st->bias[i], scale);
        scale_rows(st->kept, scale);
    }
    /* Matrices: lanes 0-7 and keys 0-7, lanes 8-15 and keys 0-7, lanes 0-7 and keys 8-15, both. */
    const uint16_t *row = weights + (lane / 8 % 2 * 8 + lane % 8) * S_STRIDE + lane / 16 * 8;
#pragma unroll
    for (int32_t k = 0; k < PAGE / 16; k++) {
        uint32_t a[4];
        const uint8_t *chunk = chunks[k * 16 / R::KEYS];
        int32_t first = k * 16 % R::KEYS;
        fl_load_matrices(a, row + k * 16);
        if constexpr (R::INT4) add_int4<FORM>(p, a, chunk, first, st);
        else if constexpr (FORM == RING_FP8) add_fp8(a, chunk, first, st);
        else add_bf16(a, chunk, first, st);
    }
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* The thread's dimensions of a row of O, codes: of 32 dimensions s, column c. */
template <int FORM> FL_DEVICE void store_row(const ring_state<FORM> &st, int32_t half, float *o) {
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        int32_t s = i / 2, c = i % 2;
        float x[4];
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            x[j] = st.o[4 * s + j][2 * half + c];
            if (ring<FORM>::INT4) x[j] += st.bias[s % ring<FORM>::SLICE_GROUPS][2 * half + j % 2];
            if (FORM == RING_FP8) x[j] *= FL_RING_HALF;
        }
        *(float4 *)(o + 32 * s + 8 * (threadIdx.x % 4) + 4 * c) = make_float4(x[0], x[1], x[2], x[3]);
    }
}

template <>
__device__ __forceinline__ void store_row<RING_BF16>(const ring_state<RING_BF16> &st, int32_t half,
                                                     float *o) {
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        *(float2 *)(o + 8 * i + threadIdx.x % 4 * 2) = make_float2(st.o[i][2 * half], st.o[i][2 * half + 1]);
}

template <int FORM> FL_DEVICE void store_span(const params &p, const task &t, const ring_state<FORM> &st) {
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        float l = fl_warp_sum(st.l[i]);
        if (lane == 0 && 2 * warp + i < t.n_lanes)
            *state_of(p, partial_of(p, t.first_line + 2 * warp + i, t.split)) = make_float2(st.m[i], l);
    }
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        int32_t row = lane / 4 + half * 8;
        if (row < t.n_lanes)
            store_row<FORM>(st, half, partial_of(p, t.first_line + row, t.split) + warp * SLICE);
    }
    if (!ring<FORM>::INT4 || p.kv.n_outliers == 0) return;
    __syncthreads(); /* outliers go over what stands in their places */
    for (int32_t i = 0; i < 4 && warp == 0; i++) {
        int32_t row = lane / 4 + i / 2 * 8, k = lane % 4 * 2 + i % 2;
        if (row < t.n_lanes && k < p.kv.n_outliers)
            partial_of(p, t.first_line + row, t.split)[p.kv.outliers[k]] =
                i < 2 ? (i ? st.kept[1] : st.kept[0]) : (i > 2 ? st.kept[3] : st.kept[2]);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------ */

template <int FORM>
static __global__ void __launch_bounds__(THREADS, ring<FORM>::BLOCKS)
    attn_absorbed_ring_kernel(const __grid_constant__ ring_params r) {
    typedef ring<FORM> R;
    extern __shared__ __align__(1024) uint8_t shared[];
    const params &p = r.p;
    float *s = (float *)(shared + R::STAGES * r.stage_bytes);
    uint16_t *weights = (uint16_t *)((uint8_t *)s + S_BYTES);
    ring_board *rb = (ring_board *)((uint8_t *)s + S_BYTES + P_BYTES);
    task t;
    ring_q<FORM> q;
    ring_state<FORM> st = {};
    if (!open_task(p, &rb->b, &t)) return;
    uint32_t seen = rb->b.seen;
    if (seen == 0) {
        if (threadIdx.x < t.n_lanes)
            *state_of(p, partial_of(p, t.first_line + threadIdx.x, t.split)) = make_float2(-INFINITY, 0);
        return;
    }
    feed f = {seen, 0};
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < R::STAGES; i++) fl_barrier_init(rb->full + i, 1);
        fl_barrier_init_fence();
        for (int32_t i = 0; i < R::STAGES; i++) feed_chunk<FORM>(r, t, shared, rb->full, &f);
    }
    open_q<FORM>(p, t, &q);
    st.m[0] = st.m[1] = -INFINITY;
    __syncthreads();
    for (int32_t chunk = 0; seen; seen &= seen - 1) {
        int32_t page = __ffs(seen) - 1;
        uint8_t *chunks[2] = {};
#pragma unroll
        for (int32_t part = 0; part < R::PARTS; part++, chunk++) {
            chunks[part] = shared + chunk % R::STAGES * r.stage_bytes;
            fl_barrier_wait(rb->full + chunk % R::STAGES, (uint32_t)(chunk / R::STAGES) & 1);
        }
        if (t.split * SPLIT + (page + 1) * PAGE - 1 > t.last_pos) {
            blank_keys<FORM>(r, t, page, chunks);
            __syncthreads();
        }
        ring_scores<FORM>(p, q, chunks, s);
        __syncthreads(); /* S is there, and all are done with the page before */
        if (threadIdx.x == 0 && chunk > R::PARTS)
            for (int32_t part = 0; part < R::PARTS; part++) feed_chunk<FORM>(r, t, shared, rb->full, &f);
        ring_weights<FORM>(t, page, s, weights, &rb->b, &st);
        __syncthreads(); /* P is there */
        ring_values<FORM>(p, chunks, weights, &rb->b, &st);
    }
    store_span<FORM>(p, t, st);
}

/* ---- host ------------------------------------------------------------------------------------------------------ */

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

template <int FORM> static fl_err launch_ring_of(const params *p, cudaStream_t stream) {
    typedef ring<FORM> R;
    ring_params r;
    memset(&r, 0, sizeof r);
    r.p = *p;
    FL_TRY(map_keys(p->kv.base, p, (int32_t)R::BOXES * (int32_t)ROW, R::KEYS, &r.latent));
    FL_TRY(map_keys(p->kv.base + p->kv.k_pe_bytes, p, ROW, R::KEYS, &r.k_pe));
    if (FORM != RING_BF16) r.rest_bytes = (p->stored_bytes - p->kv.scales_bytes) / R::PARTS;
    r.stage_bytes = (int32_t)fl_tasks_of(R::REST + r.rest_bytes, 1024) * 1024;
    int32_t shared_bytes = R::STAGES * r.stage_bytes + S_BYTES + P_BYTES + (int32_t)sizeof(ring_board);
    const void *kernel = (const void *)attn_absorbed_ring_kernel<FORM>;
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    FL_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
    attn_absorbed_ring_kernel<FORM>
        <<<(uint32_t)(p->n_groups * p->n_spans), THREADS, (size_t)shared_bytes, stream>>>(r);
    return FL_CUDA_LAUNCHED("attn_absorbed (ring)");
}

static fl_err launch_ring(const params *p, cudaStream_t stream) {
    if (p->kv.format == FL_KV_FP8) return launch_ring_of<RING_FP8>(p, stream);
    if (p->kv.format != FL_KV_INT4) return launch_ring_of<RING_BF16>(p, stream);
    return p->kv.group == 32 ? launch_ring_of<RING_INT4_32>(p, stream)
                             : launch_ring_of<RING_INT4_64>(p, stream);
}

#endif
