/* attn_absorbed, CUDA, the kernel of attn_absorbed_pairs.cuh: its sizes, how chunks of keys come to shared memory, how
 * codes become operands, q as operands, and the scores of a chunk. */
#ifndef FL_OP_ATTN_ABSORBED_PAIRS_SCORES_CUH
#define FL_OP_ATTN_ABSORBED_PAIRS_SCORES_CUH

#include "op/attn_absorbed/attn_absorbed_wide.cuh"

/* How pages are stored. */
enum { FORM_INT4, FORM_FP8 };

enum {
    PAIRS = WARPS / 2,
    GROUP = 64,    /* int4: dimensions that share a scale */
    TILE_KEYS = 8, /* columns of a product of scores */
    TILES_OF_KEYS = CHUNK / TILE_KEYS,
    STEPS = CHUNK / 16,             /* of 16 keys in a product of values */
    HALF = WIDE_LATENT / 2,         /* latent dimensions of a warp */
    Q_PARTS = WIDE_KEY / 16,        /* operands of q: of 16 dimensions */
    LATENT_STRIDE = WIDE_LATENT + 4 /* of sums in shared memory */
};

/* Sizes that follow from how pages are stored: FORM_INT4 or FORM_FP8. */
template <int FORM> struct pairs {
    enum {
        INT4 = FORM == FORM_INT4,
        BOXES = INT4 ? 2 : 4, /* of a key's latent; a warp has the first or the second half of them */
        GROUP_DIMS = INT4 ? 64 : 128,
        KEY_GROUPS = WIDE_LATENT / GROUP_DIMS,  /* scales of a key, 4 bytes each */
        OWN_GROUPS = KEY_GROUPS / 2,            /* of a warp */
        PIECES = GROUP_DIMS / (INT4 ? 32 : 16), /* of 16 bytes, of a group */
        STAGES = INT4 ? 3 : 2,                  /* buffers of a pair */
        K_PE = BOXES * BOX_BYTES,               /* offset in a stage */
        REST = K_PE + BOX_BYTES,                /* offset of the scales, outliers behind them */
        SCALES = CHUNK * KEY_GROUPS * 4         /* bytes */
    };
};

/* A page of the task that some lane sees. */
typedef struct seen_page {
    int32_t page;  /* in the pool */
    int32_t first; /* its first key's position; negative: ~position, and some lane does not see all of it */
} seen_page;

/* Of a launch. */
typedef struct pairs_params {
    CUtensorMap latent, k_pe;  /* in 16-bit elements: bytes of a key's latent / 2, keys, pages */
    int32_t outliers_of_chunk; /* bytes */
    int32_t stage_bytes;
    params p;
} pairs_params;

/* Shared memory, behind the stages. */
typedef struct pairs_board {
    board b;
    task t;
    uint64_t full[PAIRS][3];
    seen_page pages[2][SPAN_PAGES / 2];           /* of even and of odd pages of the span, in order */
    uint4 q[Q_PARTS][32];                         /* operands */
    float4 parts[PAIRS][2][2][TILES_OF_KEYS][32]; /* of S: by turn, by the warp that it comes from */
    float m[PAIRS][LANES], l[PAIRS][LANES];       /* at the end */
    /* of latent q, times a power of two, `up`, lane by lane; of int4 all of q times 2^-24 more */
    float tops[WARPS][LANES], down[LANES];  /* largest |q| of a part; what S has to be multiplied by */
    float sums[LANES][WIDE_LATENT / GROUP]; /* int4: of q in groups, outliers aside */
    uint4 sums_of_groups[2][32];            /* as operands, halves; and outliers' q */
    uint2 outliers[2][32];
} pairs_board;

/* This thread's place in its block. */
FL_DEVICE int32_t pair_of(void) {
    return (int32_t)threadIdx.x / 64;
}

FL_DEVICE int32_t half_of(void) {
    return (int32_t)threadIdx.x / 32 % 2;
}

/* Which chunks are a pair's depends on nothing else: the first or the second keys of every second page. */
FL_DEVICE int32_t own_keys(void) {
    return pair_of() % CHUNKS * CHUNK;
}

FL_DEVICE const seen_page *own_pages(const pairs_board *pb) {
    return pb->pages[pair_of() / CHUNKS];
}

FL_DEVICE void pair_sync(void) {
    fl_named_barrier_wait(1 + pair_of(), 64);
}

/* A thread's place again and what follows from it, for the loop over chunks. */
typedef struct pair_thread {
    int32_t pair, half, lane, column; /* lane % 4 */
    uint32_t score_row, value_row;    /* as the functions say */
} pair_thread;

/* ---- chunks to shared memory ----------------------------------------------------------------------------------- */

/* Starts the copies of the pair's i-th chunk: by one warp latents, by the other all else. */
template <int FORM>
FL_DEVICE void feed_pair(const pairs_params &r, uint8_t *stages, pairs_board *pb, int32_t i) {
    typedef pairs<FORM> S;
    int32_t stage = i % S::STAGES, first = own_keys();
    if (!fl_elect_one()) return;
    int32_t page = own_pages(pb)[i].page;
    uint64_t *full = &pb->full[pair_of()][stage];
    uint8_t *to = stages + (pair_of() * S::STAGES + stage) * r.stage_bytes;
    if (half_of() == 0) {
        fl_barrier_expect(full, (uint32_t)(S::REST + S::SCALES + r.outliers_of_chunk));
#pragma unroll
        for (int32_t box = 0; box < S::BOXES; box++)
            fl_tma_load_3d(to + box * BOX_BYTES, &r.latent, full, box * (ROW / 2), first, page);
    } else {
        const uint8_t *piece = fl_kv_piece_at(r.p.kv, page);
        fl_tma_load_3d(to + S::K_PE, &r.k_pe, full, 0, first, page);
        fl_bulk_load(to + S::REST, piece + r.p.kv.scales_bytes + first * (S::KEY_GROUPS * 4), S::SCALES,
                     full);
        if (S::INT4 && r.outliers_of_chunk > 0)
            fl_bulk_load(to + S::REST + S::SCALES,
                         piece + r.p.kv.outliers_bytes + first / CHUNK * r.outliers_of_chunk,
                         (uint32_t)r.outliers_of_chunk, full);
    }
}

/* Keys from `there` on of a chunk: what is stored may be NaN, weight 0 or not. Scales and outliers become zeros. By
 * the pair, whose barrier is the caller's. */
template <int FORM> FL_DEVICE void blank_chunk(const pairs_params &r, int32_t there, uint8_t *chunk) {
    typedef pairs<FORM> S;
    uint32_t *scales = (uint32_t *)(chunk + S::REST);
    uint16_t *kept = (uint16_t *)(chunk + S::REST + S::SCALES);
    int32_t thread = threadIdx.x % 64, n = r.p.kv.n_outliers;
    there = max(there, 0);
    for (int32_t i = there * S::KEY_GROUPS + thread; i < CHUNK * S::KEY_GROUPS; i += 64) scales[i] = 0;
    for (int32_t i = there * n + thread; S::INT4 && i < CHUNK * n; i += 64) kept[i] = 0;
}

/* ---- codes to operands ----------------------------------------------------------------------------------------- */

/* Nibbles 0 .. 3 of both halves of a word as pairs of f16, 2^-24 of: nibble 0; 0 + 16 times nibble 1; nibble 2;
 * 2 + 16 times nibble 3. */
FL_DEVICE void pairs_of_int4(uint32_t codes, uint32_t (&x)[4]) {
    x[0] = codes & 0x000f000fu;
    x[1] = codes & 0x00ff00ffu;
    x[3] = __byte_perm(codes, 0, 0x4341);
    x[2] = x[3] & 0x000f000fu;
}

/* Four e4m3 codes as pairs of f16. */
FL_DEVICE void f16_of_fp8(uint32_t codes, uint32_t (&x)[2]) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(x[0]), "=r"(x[1])
        : "r"(codes));
}

/* The low and the high bytes of both halves of a word of e4m3, each pair a bf16x2 of 2^-120 of their values. */
FL_DEVICE void bf16_of_fp8(uint32_t codes, uint32_t (&x)[2]) {
    x[0] = ((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u);
    x[1] = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
}

#define FL_PAIRS_HALF 0x1p60f /* see the file's comment */

/* ---- q --------------------------------------------------------------------------------------------------------- */

FL_DEVICE float bf16_at(const uint16_t *x) {
    return fl_kv_f32_of_bf16(*x);
}

/* What the warp needs of q, for a thread's two rows: 8 of each of 32 of the warp's 64 latent dimensions; of k_pe 4 of
 * 16 if it is one of the first four warps. Zeros where there is no row. */
typedef struct pairs_q_runs {
    uint4 latent[2][2];
    uint32_t k_pe[2][2];
} pairs_q_runs;

/* int4: 8 dimensions side by side; fp8: 4 of each 16. */
template <int FORM> FL_DEVICE pairs_q_runs fetch_pairs_q(const params &p, const task &t) {
    int32_t column = threadIdx.x % 4, warp = threadIdx.x / 32;
    pairs_q_runs runs = {};
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        const uint16_t *row = q_row(p, t, half), *k_pe = row + WIDE_LATENT + warp * 16 + 2 * column;
        if (!row) continue;
#pragma unroll
        for (int32_t piece = 0; piece < 2; piece++) {
            const uint16_t *from = row + (warp * 2 + piece) * 32;
            if (FORM == FORM_INT4) {
                runs.latent[half][piece] = *(const uint4 *)(from + column * 8);
            } else {
                uint2 low = *(const uint2 *)(from + column * 4),
                      high = *(const uint2 *)(from + 16 + column * 4);
                runs.latent[half][piece] = make_uint4(low.x, low.y, high.x, high.y);
            }
        }
        if (warp >= WIDE_ROPE / 16) continue;
        runs.k_pe[half][0] = *(const uint32_t *)k_pe;
        runs.k_pe[half][1] = *(const uint32_t *)(k_pe + 8);
    }
    return runs;
}

/* Power of two that brings the largest latent q of a row to 2^14: f16 has all bits of it. */
FL_DEVICE float up_of(const pairs_board *pb, int32_t lane) {
    float top = 0;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) top = fmaxf(top, pb->tops[i][lane]);
    uint32_t exponent = min(max(__float_as_uint(top) >> 23, 40u), 228u);
    return __uint_as_float((268u - exponent) << 23);
}

/* The warp's 64 latent dimensions of q's row `half` of the thread's two, as operands; int4: their sum too. Of two
 * codes in one operand the lower one's q is less a sixteenth of the other's. */
template <int FORM>
FL_DEVICE void open_latent_q(const params &p, const task &t, const uint4 (&runs)[2], int32_t half,
                             pairs_board *pb) {
    int32_t warp = threadIdx.x / 32, lane = q_lane(half);
    const uint16_t *row = q_row(p, t, half);
    float up = up_of(pb, lane), low_up = FORM == FORM_INT4 ? up * 0x1p-24f : up, sum = 0;
    pb->down[lane] = 1 / low_up;
#pragma unroll
    for (int32_t piece = 0; piece < 2; piece++) {
        float x[8];
        uint32_t pairs[4];
        fl_kv_decode8_bf16(runs[piece], x);
#pragma unroll
        for (int32_t i = 0; i < 8; i++) x[i] *= up;
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            if (FORM == FORM_INT4) {
                float low = x[i / 2 * 2 + 1] * 0.0625f, high = x[i / 2 * 2 + 5] * 0.0625f;
                pairs[i] =
                    i % 2 ? fl_pack_f16(low, high) : fl_pack_f16(x[i / 2 * 2] - low, x[i / 2 * 2 + 4] - high);
                sum += (fl_low_of_f16x2(pairs[i]) + fl_high_of_f16x2(pairs[i])) * (i % 2 ? 17 : 1);
            } else {
                pairs[i] = fl_pack_f16(x[2 * i], x[2 * i + 1]);
            }
        }
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            ((uint32_t *)&pb->q[warp * 4 + piece * 2 + i / 2][threadIdx.x % 32])[i % 2 * 2 + half] = pairs[i];
    }
    if constexpr (FORM == FORM_INT4) {
        sum = fl_quad_sum(sum) * 0x1p-24f; /* of what f16 left of q: the minima must go with the codes */
        for (int32_t k = 0; k < p.kv.n_outliers; k++)
            if (row && p.kv.outliers[k] / GROUP == warp) sum -= bf16_at(row + p.kv.outliers[k]) * low_up;
        pb->sums[lane][warp] = sum;
    }
}

/* k_pe's q, 16 dimensions a warp; outliers', four a warp, by the first two. */
template <int FORM>
FL_DEVICE void open_other_q(const params &p, const task &t, const pairs_q_runs &runs, pairs_board *pb) {
    int32_t part = threadIdx.x / 32, column = threadIdx.x % 4, thread = threadIdx.x % 32;
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        const uint16_t *row = q_row(p, t, half);
        float up = 1 / pb->down[q_lane(half)], kept[2] = {0, 0};
#pragma unroll
        for (int32_t i = 0; i < 2; i++) {
            uint32_t run = runs.k_pe[half][i];
            ((uint32_t *)&pb->q[WIDE_LATENT / 16 + part][thread])[2 * i + half] =
                fl_pack_bf16(fl_low_of_bf16x2(run) * up, fl_high_of_bf16x2(run) * up);
        }
        if constexpr (FORM == FORM_INT4) {
#pragma unroll
            for (int32_t i = 0; i < 2; i++)
                if (row && column < 2 && part * 4 + 2 * column + i < p.kv.n_outliers)
                    kept[i] = bf16_at(row + p.kv.outliers[part * 4 + 2 * column + i]) * up;
            if (part < 2) ((uint32_t *)&pb->outliers[part][thread])[half] = fl_pack_bf16(kept[0], kept[1]);
        }
    }
}

/* Sums of a half's groups as an operand: f16, then what that leaves off; columns of four. */
FL_DEVICE void open_group_sums(int32_t half, pairs_board *pb) {
    int32_t column = threadIdx.x % 4;
    uint32_t *operands = (uint32_t *)&pb->sums_of_groups[half][threadIdx.x % 32];
#pragma unroll
    for (int32_t i = 0; i < 2; i++) {
        const float *sums = pb->sums[q_lane(i)] + half * 4 + column % 2 * 2;
        uint32_t near = fl_pack_f16(sums[0], sums[1]);
        uint32_t rest = fl_pack_f16(sums[0] - fl_low_of_f16x2(near), sums[1] - fl_high_of_f16x2(near));
        operands[i] = column < 2 ? near : 0;
        operands[2 + i] = column < 2 ? rest : 0;
    }
}

/* All of q, by the block. */
template <int FORM>
FL_DEVICE void open_pairs_q(const params &p, const task &t, const pairs_q_runs &runs, pairs_board *pb) {
    int32_t warp = threadIdx.x / 32;
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        float x[8], top = 0;
#pragma unroll
        for (int32_t piece = 0; piece < 2; piece++) {
            fl_kv_decode8_bf16(runs.latent[half][piece], x);
#pragma unroll
            for (int32_t i = 0; i < 8; i++) top = fmaxf(top, fabsf(x[i]));
        }
        top = fl_quad_max(top);
        if (threadIdx.x % 4 == 0) pb->tops[warp][q_lane(half)] = top;
    }
    __syncthreads();
#pragma unroll
    for (int32_t half = 0; half < 2; half++) open_latent_q<FORM>(p, t, runs.latent[half], half, pb);
    __syncthreads();
    if (warp < WIDE_ROPE / 16) open_other_q<FORM>(p, t, runs, pb);
    else if (FORM == FORM_INT4 && warp < WIDE_ROPE / 16 + 2) open_group_sums(warp - WIDE_ROPE / 16, pb);
    __syncthreads();
}

/* ---- scores ---------------------------------------------------------------------------------------------------- */

/* S of a warp: of each 8 keys, in a thread rows lane / 4 and + 8, columns 2 (lane % 4) and + 1. */
typedef float chunk_scores[TILES_OF_KEYS][4];

/* The key that is column 0 .. 7 of products. int4: two side by side are four keys apart, so that the scales of four
 * threads' keys lie on other banks; fp8's do as they come. */
template <int FORM> FL_DEVICE int32_t key_of_column(int32_t column) {
    return FORM == FORM_INT4 ? column / 2 + column % 2 * 4 : column;
}

/* A thread's keys of each 16: 0, 1 of the first 8 columns, 2, 3 of the others; how far key i is from key 0. */
template <int FORM> FL_DEVICE int32_t own_key(int32_t i) {
    return FORM == FORM_INT4 ? i * 4 : i / 2 * 8 + i % 2;
}

/* Scales of the warp's half at this thread's first key of a chunk: f16 and minimum of int4, floats of fp8. */
template <int FORM> FL_DEVICE const uint32_t *own_scales(const pair_thread &w, const uint8_t *chunk) {
    typedef pairs<FORM> S;
    return (const uint32_t *)(chunk + S::REST) + (S::INT4 ? w.column : 2 * w.column) * S::KEY_GROUPS +
           w.half * S::OWN_GROUPS;
}

/* Where the row of this thread begins in a box of which four 8x8 matrices are read: of columns 0-7, 0-7, 8-15, 8-15 and
 * pieces 0, 1, 0, 1 of 16 bytes; or, for values, the same with columns and pieces the other way round. Pieces 2 i on:
 * exclusive or 32 i. */
template <int FORM> FL_DEVICE uint32_t score_row(void) {
    uint32_t lane = threadIdx.x % 32, key = key_of_column<FORM>(lane % 8);
    return (key + lane / 16 * 8) * ROW + (lane / 8 % 2 ^ key) * 16;
}

template <int FORM> FL_DEVICE uint32_t value_row(void) {
    uint32_t lane = threadIdx.x % 32, key = key_of_column<FORM>(lane % 8);
    return (key + lane / 8 % 2 * 8) * ROW + (lane / 16 ^ key) * 16;
}

template <int FORM> FL_DEVICE pair_thread pair_thread_of(void) {
    int32_t lane = threadIdx.x % 32;
    pair_thread w = {pair_of(), half_of(), lane, lane % 4, score_row<FORM>(), value_row<FORM>()};
    /* Kept in registers: the compiler would find it anew in each turn. int4 has none left for that. */
    if (FORM == FORM_FP8)
        asm volatile("" : "+r"(w.pair), "+r"(w.half), "+r"(w.lane), "+r"(w.score_row), "+r"(w.value_row));
    return w;
}

/* k_pe's part: step 0 or 1 of the warp's half of it. */
FL_DEVICE void score_pe(const pair_thread &w, const pairs_board *pb, const uint8_t *box, int32_t step,
                        chunk_scores &sum) {
    uint32_t q[4], b[4];
    take_operand(pb->q[WIDE_LATENT / 16 + 2 * w.half + step], w.lane, q);
    const uint8_t *row = box + (w.score_row ^ (2 * w.half + step) * 32);
#pragma unroll
    for (int32_t n = 0; n < TILES_OF_KEYS; n += 2) {
        fl_load_matrices(b, row + n * TILE_KEYS * ROW);
        fl_mma_bf16(sum[n], q, b[0], b[1]);
        fl_mma_bf16(sum[n + 1], q, b[2], b[3]);
    }
}

/* int4: the minima of the warp's half of the groups. */
FL_DEVICE void score_minima(const pair_thread &w, const pairs_board *pb, const uint8_t *chunk,
                            chunk_scores &sum) {
    typedef pairs<FORM_INT4> S;
    const uint32_t *fits = (const uint32_t *)(chunk + S::REST) +
                           key_of_column<FORM_INT4>(w.lane / 4) * S::KEY_GROUPS + w.half * S::OWN_GROUPS +
                           w.column % 2 * 2;
    uint32_t a[4];
    take_operand(pb->sums_of_groups[w.half], w.lane, a);
#pragma unroll
    for (int32_t n = 0; n < TILES_OF_KEYS; n++) {
        uint2 fit = *(const uint2 *)(fits + n * TILE_KEYS * S::KEY_GROUPS);
        uint32_t minimum = __byte_perm(fit.x, fit.y, 0x7632);
        fl_mma_f16(sum[n], a, minimum, minimum);
    }
}

/* int4: the warp's half of `n` outliers. */
FL_DEVICE void score_outliers(const pair_thread &w, int32_t n, const pairs_board *pb, const uint8_t *chunk,
                              chunk_scores &sum) {
    typedef pairs<FORM_INT4> S;
    int32_t k = w.half * 4 + w.column * 2;
    const uint16_t *kept =
        (const uint16_t *)(chunk + S::REST + S::SCALES) + key_of_column<FORM_INT4>(w.lane / 4) * n + k;
    uint2 operand = pb->outliers[w.half][w.lane];
    const uint32_t q[4] = {operand.x, operand.y, 0, 0};
#pragma unroll
    for (int32_t i = 0; i < TILES_OF_KEYS; i++) {
        uint32_t b = 0;
        if (w.column < 2 && k < n) b = kept[i * TILE_KEYS * n];
        if (w.column < 2 && k + 1 < n) b |= (uint32_t)kept[i * TILE_KEYS * n + 1] << 16;
        fl_mma_bf16(sum[i], q, b, 0);
    }
}

/* Two pieces of 16 bytes of each key: their operands of q, d the sums of their group. */
template <int FORM>
FL_DEVICE void score_pieces(const pair_thread &w, const uint4 (*q_parts)[32], const uint8_t *row, bool first,
                            chunk_scores &d) {
    uint32_t words[TILES_OF_KEYS / 2][4];
#pragma unroll
    for (int32_t n = 0; n < TILES_OF_KEYS / 2; n++) fl_load_matrices(words[n], row + n * 2 * TILE_KEYS * ROW);
#pragma unroll
    for (int32_t piece = 0; piece < 2; piece++) {
        uint32_t x[TILES_OF_KEYS][4], q[4];
#pragma unroll
        for (int32_t n = 0; n < TILES_OF_KEYS; n++) {
            uint32_t codes = words[n / 2][n % 2 * 2 + piece];
            if constexpr (FORM == FORM_INT4) {
                pairs_of_int4(codes, x[n]);
            } else {
                uint32_t two[2];
                f16_of_fp8(codes, two);
                x[n][0] = two[0], x[n][1] = two[1];
            }
        }
#pragma unroll
        for (int32_t step = 0; step < (FORM == FORM_INT4 ? 2 : 1); step++) {
            take_operand(q_parts[piece * (FORM == FORM_INT4 ? 2 : 1) + step], w.lane, q);
#pragma unroll
            for (int32_t n = 0; n < TILES_OF_KEYS; n++) {
                if (first && piece == 0 && step == 0) fl_mma_f16_first(d[n], q, x[n][0], x[n][1]);
                else fl_mma_f16(d[n], q, x[n][2 * step], x[n][2 * step + 1]);
            }
        }
    }
}

/* d of a group times its scales. */
template <int FORM>
FL_DEVICE void scale_group(const uint32_t *scales, bool first, const chunk_scores &d, chunk_scores &sum) {
    typedef pairs<FORM> S;
#pragma unroll
    for (int32_t i = 0; i < 2 * TILES_OF_KEYS; i++) {
        uint32_t bits = scales[(own_key<FORM>(i % 4) + i / 4 * 16) * S::KEY_GROUPS];
        float scale = S::INT4 ? fl_low_of_f16x2(bits) : __uint_as_float(bits);
#pragma unroll
        for (int32_t k = i % 2; k < 4; k += 2)
            sum[i / 2][k] = first ? scale * d[i / 2][k] : fmaf(scale, d[i / 2][k], sum[i / 2][k]);
    }
}

/* The warp's half of the dimensions: codes group by group, all else among them, where products of codes wait for one
 * another. */
template <int FORM>
FL_DEVICE void score_chunk(const pair_thread &w, int32_t n_outliers, const pairs_board *pb,
                           const uint8_t *chunk, chunk_scores &sum) {
    typedef pairs<FORM> S;
    enum { TURNS = S::PIECES / 2 }; /* of two pieces, of a group */
    chunk_scores d;
    const uint8_t *boxes = chunk + w.half * (S::BOXES / 2) * BOX_BYTES;
    const uint4(*q_parts)[32] = pb->q + w.half * 16;
    const uint32_t *scales = own_scales<FORM>(w, chunk);
#pragma unroll
    for (int32_t turn = 0; turn < S::OWN_GROUPS * TURNS; turn++) {
        int32_t group = turn / TURNS, i = turn % TURNS, other = turn - TURNS; /* behind the first group */
        /* Two pieces on: the rows of int4's groups, boxes of fp8's. */
        const uint8_t *box = boxes + (S::INT4 ? 0 : group * BOX_BYTES);
        const uint4(*q)[32] = q_parts + turn * (S::INT4 ? 4 : 2);
        score_pieces<FORM>(w, q, box + (w.score_row ^ (S::INT4 ? group : i) * 32), i == 0, d);
        if (other >= 0 && other < 2) score_pe(w, pb, chunk + S::K_PE, other, sum);
        if constexpr (S::INT4) {
            if (other == 2) score_minima(w, pb, chunk, sum);
        }
        if (i == TURNS - 1) scale_group<FORM>(scales + group, group == 0, d, sum);
    }
    if constexpr (S::INT4)
        if (n_outliers > 0) score_outliers(w, n_outliers, pb, chunk, sum);
}

#endif
