/* attn_absorbed, CUDA, the kernel of attn_absorbed_ring.cuh: its sizes, how chunks of keys come to shared memory,
 * how codes become operands, and the scores of a page. */
#ifndef FL_OP_ATTN_ABSORBED_RING_SCORES_CUH
#define FL_OP_ATTN_ABSORBED_RING_SCORES_CUH

#include "op/attn_absorbed/attn_absorbed_cuda.cuh"

enum {
    RING_LATENT = 512,
    RING_ROPE = 64,
    RING_WIDTH = RING_LATENT + RING_ROPE,
    QUARTER = RING_LATENT / QUARTERS, /* latent dimensions */
    SLICE = RING_LATENT / WARPS,      /* latent dimensions of a warp in O */
    GROUP = 64,                       /* int4: dimensions that share a scale, those of a warp's slice */
    GROUPS = QUARTER / GROUP,         /* of a quarter */
    ROW = 128                         /* bytes of a key in one copied box */
};

/* How pages are stored. */
enum { RING_INT4, RING_FP8, RING_BF16 };

/* Sizes that follow from it. */
template <int FORM> struct ring {
    enum {
        INT4 = FORM == RING_INT4,
        BOXES = INT4               ? 2
                : FORM == RING_FP8 ? 4
                                   : 8, /* of a key's latent */
        KEYS = INT4 ? 64 : 32,          /* of a chunk */
        PARTS = PAGE / KEYS,            /* chunks of a page */

        BOX = KEYS * ROW,         /* bytes */
        K_PE = BOXES * BOX,       /* offset in a stage */
        REST = K_PE + BOX,        /* offset of scales and outliers */
        KEY_GROUPS = INT4 ? 8 : 4 /* scales of a key */
    };
};

/* Buffers of the ring, blocks a multiprocessor, by how many 16 lanes a task has. */
template <int FORM, int TILES> struct ring_shape {
    enum {
        BLOCKS = FORM == RING_BF16 || TILES == 2 ? 1 : 2,
        STAGES = FORM == RING_BF16  ? 5
                 : ring<FORM>::INT4 ? (TILES == 2 ? 6 : 3)
                                    : (TILES == 2 ? 8 : 4),
        LINES = TILES * LANES,
        S_SIZE = TILES * S_BYTES,
        P_SIZE = TILES * P_BYTES,
        INT4_TILES = ring<FORM>::INT4 ? TILES : 1, /* what only int4 has takes little room otherwise */
        INT4_LINES = ring<FORM>::INT4 ? LINES : 1,
        INT4_THREADS = ring<FORM>::INT4 ? 32 : 1
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
template <int FORM, int TILES> struct ring_board {
    typedef ring_shape<FORM, TILES> shape;
    board b;
    uint64_t full[8];
    task t;
    int32_t pages[SPAN_MAX * PAGES]; /* those seen, read ahead: copies must not wait for the table */

    uint4 k_pe[TILES][QUARTERS][32]; /* operands, which registers have no room for: q's k_pe */
    /* int4, the latter three times a power of two, `up` * 2^-24, lane by lane */
    float tops[QUARTERS][shape::INT4_LINES];             /* largest |q| of a row's quarter */
    float down[shape::INT4_LINES];                       /* what S has to be multiplied by */
    float4 kept[shape::INT4_TILES][shape::INT4_THREADS]; /* warp 0's columns of O of outliers */
    uint4 sums_of_groups[shape::INT4_TILES][shape::INT4_THREADS];
    uint2 outliers[shape::INT4_TILES][shape::INT4_THREADS];
    float sums[shape::INT4_LINES][RING_LATENT / GROUP]; /* of q in groups, outliers aside */
};

/* ---- chunks to shared memory ----------------------------------------------------------------------------------- */

/* Where a chunk goes. */
typedef struct place {
    uint8_t *stage;
    uint64_t *full;
    int32_t page, part;
} place;

/* Copy i of a chunk: boxes of latents, k_pe, scales and outliers. */
template <int FORM> FL_DEVICE void feed_copy(const ring_params &r, const place &to, int32_t i) {
    typedef ring<FORM> R;
    if (i < R::BOXES)
        fl_tma_load_3d(to.stage + i * R::BOX, &r.latent, to.full, i * (ROW / 2), to.part * R::KEYS, to.page);
    else if (i == R::BOXES)
        fl_tma_load_3d(to.stage + R::K_PE, &r.k_pe, to.full, 0, to.part * R::KEYS, to.page);
    else if (FORM != RING_BF16 && i == R::BOXES + 1)
        fl_bulk_load(to.stage + R::REST,
                     fl_kv_piece_at(r.p.kv, to.page) + r.p.kv.scales_bytes + to.part * r.rest_bytes,
                     (uint32_t)r.rest_bytes, to.full);
}

/* Starts the copies of a chunk, each warp one or two. The barrier may count bytes before it is told how many. */
template <int FORM, int TILES>
FL_DEVICE void feed_chunk(const ring_params &r, uint8_t *stages, ring_board<FORM, TILES> *rb, int32_t chunk) {
    typedef ring<FORM> R;
    enum { STAGES = ring_shape<FORM, TILES>::STAGES };
    int32_t i = WARPS - 1 - (int32_t)threadIdx.x / 32, stage = chunk % STAGES;
    if (threadIdx.x % 32 != 0) return;
    place to = {stages + stage * r.stage_bytes, rb->full + stage, rb->pages[chunk / R::PARTS],
                chunk % R::PARTS};
    if (threadIdx.x == 0) fl_barrier_expect(to.full, (uint32_t)(R::REST + r.rest_bytes));
    feed_copy<FORM>(r, to, i);
    if (FORM == RING_BF16 && i == 0) feed_copy<FORM>(r, to, R::BOXES); /* a ninth */
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

/* Nibbles 0, 1, 2, 3 of both halves of a word: f16x2 of 2^-24, 2^-20, 2^-24, 2^-20 of their values. */
FL_DEVICE void halves_of_int4(uint32_t codes, uint32_t (&x)[4]) {
    x[0] = codes & 0x000f000fu;
    x[1] = codes & 0x00f000f0u;
    codes >>= 8;
    x[2] = codes & 0x000f000fu;
    x[3] = codes & 0x00f000f0u;
}

/* The low and the high bytes of both halves of a word of e4m3, each pair a bf16x2 of 2^-120 of their values. */
FL_DEVICE void bf16_of_fp8(uint32_t codes, uint32_t (&x)[2]) {
    x[0] = ((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u);
    x[1] = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
}

#define FL_RING_HALF 0x1p60f /* see the file's comment */

/* ---- scores ---------------------------------------------------------------------------------------------------- */

/* Of a thread: rows lane / 4 and + 8 of q of each 16 lanes, the warp's quarter; int4: times a power of two. */
template <int TILES> struct ring_q { uint32_t latent[TILES][8][4]; };

FL_DEVICE float bf16_at(const uint16_t *x) {
    return fl_kv_f32_of_bf16(*x);
}

/* Over the four threads of a row. */
FL_DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

FL_DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Of the thread's rows of q, 8 lanes apart, row i. */
FL_DEVICE int32_t q_lane(int32_t i) {
    return threadIdx.x % 32 / 4 + 8 * i;
}

/* Where it lies, NULL if the lane is not there. */
FL_DEVICE const uint16_t *q_row(const params &p, const task &t, int32_t i) {
    int32_t lane = q_lane(i);
    return lane < t.n_lanes ? p.q + (t.first_line + lane) * RING_WIDTH : NULL;
}

/* The thread's 8 dimensions of piece j of 32 of its quarter. */
FL_DEVICE void q_run(const uint16_t *row, int32_t j, float (&x)[8]) {
    int32_t quarter = threadIdx.x / 32 % QUARTERS, t = threadIdx.x % 4;
    uint4 run = make_uint4(0, 0, 0, 0);
    if (row) run = *(const uint4 *)(row + quarter * QUARTER + j * 32 + t * 8);
    fl_kv_decode8_bf16(run, x);
}

/* int4: each quarter's largest |q|; the barrier after it is the caller's. */
template <int FORM, int TILES>
FL_DEVICE void find_tops(const params &p, const task &t, ring_board<FORM, TILES> *rb) {
    int32_t quarter = threadIdx.x / 32 % QUARTERS;
    for (int32_t i = 0; i < 2 * TILES; i++) {
        const uint16_t *row = q_row(p, t, i);
        float x[8], top = 0;
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            q_run(row, j, x);
#pragma unroll
            for (int32_t k = 0; k < 8; k++) top = fmaxf(top, fabsf(x[k]));
        }
        top = row_max(top);
        if (threadIdx.x % 4 == 0 && threadIdx.x / 32 < QUARTERS) rb->tops[quarter][q_lane(i)] = top;
    }
}

/* Power of two that brings the largest latent q of a row to 2^14: f16 has all bits of it. */
template <int FORM, int TILES> FL_DEVICE float scale_up(const ring_board<FORM, TILES> *rb, int32_t lane) {
    float top = 0;
#pragma unroll
    for (int32_t i = 0; i < QUARTERS; i++) top = fmaxf(top, rb->tops[i][lane]);
    uint32_t exponent = min(max(__float_as_uint(top) >> 23, 40u), 228u);
    return __uint_as_float((268u - exponent) << 23);
}

/* int4: row `half` of the thread's two of a tile. Leaves the sums of the quarter's groups on the board. */
template <int FORM, int TILES>
FL_DEVICE void open_q_int4(const params &p, const task &t, int32_t tile, int32_t half,
                           ring_board<FORM, TILES> *rb, ring_q<TILES> *q) {
    typedef ring<FORM> R;
    int32_t quarter = threadIdx.x / 32 % QUARTERS, column = threadIdx.x % 4, lane = q_lane(2 * tile + half);
    const uint16_t *row = q_row(p, t, 2 * tile + half);
    float up = scale_up(rb, lane), low_up = up * 0x1p-24f, sum[GROUPS] = {}, kept[2] = {0, 0};
    rb->down[lane] = 1 / low_up;
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        float x[8];
        q_run(row, j, x);
#pragma unroll
        for (int32_t i = 0; i < 8; i++) {
            sum[j * 32 / GROUP] += x[i] * low_up;
            x[i] *= i % 2 ? up * 0.0625f : up;
        }
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            q->latent[tile][2 * j + i / 2][i % 2 * 2 + half] = fl_pack_f16(x[i], x[i + 4]);
    }
#pragma unroll
    for (int32_t i = 0; i < GROUPS; i++) sum[i] = row_sum(sum[i]);
    for (int32_t k = 0; k < p.kv.n_outliers; k++) {
        float x = row ? bf16_at(row + p.kv.outliers[k]) * low_up : 0;
#pragma unroll
        for (int32_t i = 0; i < GROUPS; i++)
            if (p.kv.outliers[k] / GROUP == quarter * GROUPS + i) sum[i] -= x;
        if (k == 2 * column) kept[0] = x;
        if (k == 2 * column + 1) kept[1] = x;
    }
    uint32_t *operands = (uint32_t *)&rb->outliers[tile][threadIdx.x % 32];
    operands[half] = fl_pack_bf16(kept[0], kept[1]);
    operands = (uint32_t *)&rb->k_pe[tile][quarter][threadIdx.x % 32];
    if (column == 0 && threadIdx.x / 32 < QUARTERS)
#pragma unroll
        for (int32_t i = 0; i < GROUPS; i++) rb->sums[lane][quarter * GROUPS + i] = sum[i];
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        uint32_t run = row ? *(const uint32_t *)(row + RING_LATENT + quarter * 16 + 2 * column + 8 * i) : 0;
        operands[2 * i + half] =
            fl_pack_bf16(fl_low_of_bf16x2(run) * low_up, fl_high_of_bf16x2(run) * low_up);
    }
}

/* int4, after a barrier: sums of all groups as an operand: f16, then what that leaves off. */
template <int FORM, int TILES> FL_DEVICE void open_sums(int32_t tile, ring_board<FORM, TILES> *rb) {
    uint32_t *operands = (uint32_t *)&rb->sums_of_groups[tile][threadIdx.x % 32];
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        const float *sums = rb->sums[q_lane(2 * tile + i)] + threadIdx.x % 4 * 2;
        uint32_t near = fl_pack_f16(sums[0], sums[1]);
        operands[i] = near;
        operands[2 + i] = fl_pack_f16(sums[0] - fl_low_of_f16x2(near), sums[1] - fl_high_of_f16x2(near));
    }
}

/* fp8: steps of 16 bytes of a key, of which this thread has 4; bf16: 16 dimensions of every fourth 16. */
template <int FORM, int TILES>
FL_DEVICE void open_q_plain(const params &p, const task &t, int32_t tile, int32_t half,
                            ring_board<FORM, TILES> *rb, ring_q<TILES> *q) {
    int32_t quarter = threadIdx.x / 32 % QUARTERS, column = threadIdx.x % 4;
    const uint16_t *row = q_row(p, t, 2 * tile + half);
#pragma unroll
    for (int32_t j = 0; j < 8; j++) {
        uint32_t low = 0, high = 0;
        if (row && FORM == RING_FP8) {
            uint2 run = *(const uint2 *)(row + quarter * QUARTER + j * 16 + column * 4);
            low =
                fl_pack_bf16(fl_low_of_bf16x2(run.x) * FL_RING_HALF, fl_low_of_bf16x2(run.y) * FL_RING_HALF);
            high = fl_pack_bf16(fl_high_of_bf16x2(run.x) * FL_RING_HALF,
                                fl_high_of_bf16x2(run.y) * FL_RING_HALF);
        } else if (row) {
            const uint16_t *run = row + (j * QUARTERS + quarter) * 16 + 2 * column;
            low = *(const uint32_t *)run;
            high = *(const uint32_t *)(run + 8);
        }
        q->latent[tile][j][half] = low;
        q->latent[tile][j][2 + half] = high;
    }
    const uint16_t *k_pe = row + RING_LATENT + quarter * 16 + 2 * column;
    uint32_t *operands = (uint32_t *)&rb->k_pe[tile][quarter][threadIdx.x % 32];
    operands[half] = row ? *(const uint32_t *)k_pe : 0;
    operands[2 + half] = row ? *(const uint32_t *)(k_pe + 8) : 0;
}

template <int FORM, int TILES>
FL_DEVICE void open_q(const params &p, const task &t, ring_board<FORM, TILES> *rb, ring_q<TILES> *q) {
    if constexpr (ring<FORM>::INT4) {
        find_tops(p, t, rb);
        __syncthreads();
#pragma unroll
        for (int32_t i = 0; i < 2 * TILES; i++) open_q_int4(p, t, i / 2, i % 2, rb, q);
        __syncthreads();
        for (int32_t tile = 0; tile < TILES && threadIdx.x < 32; tile++) {
            open_sums(tile, rb);
            rb->kept[tile][threadIdx.x] = make_float4(0, 0, 0, 0);
        }
    } else {
#pragma unroll
        for (int32_t i = 0; i < 2 * TILES; i++) open_q_plain(p, t, i / 2, i % 2, rb, q);
    }
}

/* An operand of a row of 32. */
FL_DEVICE void take_operand(const uint4 *operands, uint32_t (&a)[4]) {
    uint4 operand = operands[threadIdx.x % 32];
    a[0] = operand.x;
    a[1] = operand.y;
    a[2] = operand.z;
    a[3] = operand.w;
}

/* k_pe's part of S: 4 x 8 keys from `first` of a chunk on. */
template <int FORM, int TILES>
FL_DEVICE void score_k_pe(const ring_board<FORM, TILES> *rb, const uint8_t *box, int32_t first,
                          float (&sum)[TILES][4][4]) {
    int32_t lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % QUARTERS,
            piece = quarter * 2 + lane / 8 % 2;
    uint32_t q[TILES][4];
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) take_operand(rb->k_pe[tile][quarter], q[tile]);
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        uint32_t b[4];
        fl_load_matrices(b, piece_of(box, first + i * 16 + lane / 16 * 8 + lane % 8, piece));
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++) {
            fl_mma_bf16(sum[tile][2 * i], q[tile], b[0], b[1]);
            fl_mma_bf16(sum[tile][2 * i + 1], q[tile], b[2], b[3]);
        }
    }
}

/* Outliers' part of keys 8 `eighth` .. of the warp's 32. */
template <int FORM, int TILES>
FL_DEVICE void score_outliers(const params &p, const ring_board<FORM, TILES> *rb, const uint16_t *kept,
                              int32_t first, int32_t eighth, float (&sum)[TILES][4][4]) {
    int32_t key = first + threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 2, n = p.kv.n_outliers;
    uint32_t b = 0;
    if (k < n) b = kept[key * n + k];
    if (k + 1 < n) b |= (uint32_t)kept[key * n + k + 1] << 16;
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        uint2 operand = rb->outliers[tile][threadIdx.x % 32];
        const uint32_t a[4] = {operand.x, operand.y, 0, 0};
        fl_mma_bf16(sum[tile][eighth], a, b, 0);
    }
}

/* Minima's part of these keys, of all groups. */
template <int FORM, int TILES>
FL_DEVICE void score_minima(const ring_board<FORM, TILES> *rb, const uint32_t *scales, int32_t first,
                            int32_t eighth, float (&sum)[TILES][4][4]) {
    const uint32_t *fits = scales + (first + threadIdx.x % 32 / 4) * ring<FORM>::KEY_GROUPS;
    uint2 fit = *(const uint2 *)(fits + threadIdx.x % 4 * 2);
    uint32_t minimum = __byte_perm(fit.x, fit.y, 0x7632), a[4];
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        take_operand(rb->sums_of_groups[tile], a);
        fl_mma_f16(sum[tile][eighth], a, minimum, minimum);
    }
}

/* Codes' part of keys 8 n ..; keys are the columns of D. */
template <int FORM, int TILES>
FL_DEVICE void score_int4(const ring_q<TILES> &q, const uint8_t *chunk, int32_t first, int32_t n,
                          float (&sum)[TILES][4][4]) {
    typedef ring<FORM> R;
    enum { PIECES = GROUP / 32 }; /* of a group */
    int32_t lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % QUARTERS;
    uint32_t words[4], x[4];
    fl_load_matrices(words,
                     piece_of(chunk + quarter / 2 * R::BOX, first + lane % 8, quarter % 2 * 4 + lane / 8));
    const uint32_t *scales = (const uint32_t *)(chunk + R::REST) + quarter * GROUPS;
    int32_t key = first + lane % 4 * 2;
    float d[GROUPS][TILES][4]; /* groups in turns: a product waits for the one before it in the same d */
#pragma unroll
    for (int32_t k = 0; k < PIECES * GROUPS; k++) {
        int32_t i = k % GROUPS, j = k / GROUPS, step = 2 * (i * PIECES + j);
        halves_of_int4(words[i * PIECES + j], x);
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++) {
            if (j == 0) fl_mma_f16_first(d[i][tile], q.latent[tile][step], x[0], x[1]);
            else fl_mma_f16(d[i][tile], q.latent[tile][step], x[0], x[1]);
        }
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++)
            fl_mma_f16(d[i][tile], q.latent[tile][step + 1], x[2], x[3]);
    }
#pragma unroll
    for (int32_t k = 0; k < 2 * GROUPS; k++) {
        int32_t i = k / 2, c = k % 2;
        float scale = fl_low_of_f16x2(scales[(key + c) * R::KEY_GROUPS + i]);
#pragma unroll
        for (int32_t row = 0; row < 2 * TILES; row++) {
            float &to = sum[row / 2][n][row % 2 * 2 + c];
            to = fmaf(scale, d[i][row / 2][row % 2 * 2 + c], to);
        }
    }
}

template <int TILES>
FL_DEVICE void score_fp8(const ring_q<TILES> &q, const uint8_t *chunk, int32_t first, int32_t n,
                         float (&sum)[TILES][4][4]) {
    typedef ring<RING_FP8> R;
    int32_t lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % QUARTERS;
    float d[2][TILES][4] = {},
          scale[2]; /* two, in turns: a product waits for the one before it in the same d */
    uint32_t words[2][4], x[2];
#pragma unroll
    for (int32_t i = 0; i < 2; i++)
        fl_load_matrices(words[i], piece_of(chunk + quarter * R::BOX, first + lane % 8, i * 4 + lane / 8));
#pragma unroll
    for (int32_t k = 0; k < 8; k++) {
        int32_t i = k % 2, j = k / 2;
        bf16_of_fp8(words[i][j], x);
#pragma unroll
        for (int32_t tile = 0; tile < TILES; tile++)
            fl_mma_bf16(d[i][tile], q.latent[tile][4 * i + j], x[0], x[1]);
    }
    const float *scales = (const float *)(chunk + R::REST) + quarter;
#pragma unroll
    for (int32_t c = 0; c < 2; c++)
        scale[c] = scales[(first + lane % 4 * 2 + c) * R::KEY_GROUPS] * FL_RING_HALF;
#pragma unroll
    for (int32_t k = 0; k < 4 * TILES; k++) {
        float &to = sum[k / 4][n][k % 4];
        to = fmaf(scale[k % 2], d[0][k / 4][k % 4] + d[1][k / 4][k % 4], to);
    }
}

template <int TILES>
FL_DEVICE void score_bf16(const ring_q<TILES> &q, const uint8_t *chunk, float (&sum)[TILES][4][4]) {
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
#pragma unroll
            for (int32_t tile = 0; tile < TILES; tile++) {
                fl_mma_bf16(sum[tile][2 * i], q.latent[tile][j], b[0], b[1]);
                fl_mma_bf16(sum[tile][2 * i + 1], q.latent[tile][j], b[2], b[3]);
            }
        }
}

/* The warp's part of S: 32 keys, its quarter of the dimensions. */
template <int FORM, int TILES>
FL_DEVICE void ring_scores(const params &p, const ring_board<FORM, TILES> *rb, const ring_q<TILES> &q,
                           uint8_t *const (&chunks)[2], float *s) {
    typedef ring<FORM> R;
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = warp / QUARTERS;
    const uint8_t *chunk = R::PARTS == 2 && keys == 1 ? chunks[1] : chunks[0];
    int32_t first = R::PARTS == 2 ? 0 : keys * 32; /* of the chunk's keys */
    float sum[TILES][4][4] = {};
    score_k_pe(rb, chunk + R::K_PE, first, sum);
    if constexpr (R::INT4) {
        const uint32_t *scales = (const uint32_t *)(chunk + R::REST);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            if (i == warp % QUARTERS) { /* once a key: by one quarter */
                score_minima(rb, scales, first + i * 8, i, sum);
                if (p.kv.n_outliers > 0)
                    score_outliers(p, rb, (const uint16_t *)(scales + R::KEYS * R::KEY_GROUPS), first + i * 8,
                                   i, sum);
            }
            score_int4<FORM>(q, chunk, first + i * 8, i, sum);
        }
    } else if constexpr (FORM == RING_FP8) {
#pragma unroll
        for (int32_t i = 0; i < 4; i++) score_fp8(q, chunk, first + i * 8, i, sum);
    } else {
        score_bf16(q, chunk, sum);
    }
    int32_t row = warp % QUARTERS * (TILES * LANES) + lane / 4;
#pragma unroll
    for (int32_t i = 0; i < 4 * TILES; i++) {
        const float(&x)[4] = sum[i / 4][i % 4];
        float *to = s + (row + i / 4 * LANES) * S_STRIDE + keys * 32 + i % 4 * 8 + lane % 4 * 2;
        *(float2 *)to = make_float2(x[0], x[1]);
        *(float2 *)(to + 8 * S_STRIDE) = make_float2(x[2], x[3]);
    }
}

#endif
