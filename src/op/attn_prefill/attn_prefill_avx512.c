/* attn_prefill, AVX-512 with BF16. Lanes are query rows: a task takes one head and ROWS rows, holds Q
 * transposed, and computes S^T = K Q^T and O^T += V^T P with pairs of K and V broadcast from memory, so softmax
 * needs no horizontal step and a row never meets its neighbours. First a parallel pass packs the split's K
 * and V in the order the kernels read them.
 *
 * A weight is 2^(score - base). The base need not be the largest score, only near it: it starts as the score of
 * key 0 and moves when the sum of weights leaves its range, which real models hardly ever cause. So scores become
 * weights while they are in registers, and sums are not rescaled from tile to tile.
 *
 * Views and lists only choose the tiles of keys that a task visits (attn_prefill_spans.h); tiles that all its rows see
 * take the path of full attention, the others a mask of two spans a row and one bit a key. Tiles that nobody visits
 * are not packed.
 *
 * Bound by vdpbf16ps: (nope + rope + v) / 2 of them for 16 scores, beside 5 cycles of softmax. The running state
 * of a (row tile, head) is O^T[v][ROWS], base[ROWS], sum[ROWS]; a split goes on where the last one stopped, so
 * tiles of keys are taken in order of position whatever the chunking. */
#include "backend/backend.h"
#include "op/attn_prefill/attn_prefill_spans.h"
#include "op/simd_avx512.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 16,
    ROWS = 64,
    VECS = ROWS / LANES,
    KEYS = FL_ATTN_TILE_TOKENS, /* keys of one softmax step */
    GROUP = 4,                  /* keys, or value dimensions, of one register block */
    CACHE_LINE = 64,
    PACK_AHEAD = 8, /* rows fetched ahead by packing */
    DIM_MAX = 256   /* of q and k, and of v: bounds the buffers on the stack */
};

/* The score of a key that a row must not see: weighs 0. And the sums of weights beyond which a row takes a new base:
 * weights and outputs stay far inside f32. */
static const float MASKED = -1e30f, SUM_MAX = 0x1p60f, SUM_MIN = 0x1p-60f;

typedef struct job {
    const fl_attn_prefill_args *args;
    int32_t qk_pairs, v_dim; /* pairs a key; values a key */
    int32_t key_tiles;
    fl_attn_plan plan;
    uint32_t *keys;   /* [n_heads][key_tiles * KEYS / GROUP][qk_pairs][GROUP] pairs of dimensions */
    uint32_t *values; /* [n_heads][key_tiles][v_dim / GROUP][KEYS / 2][GROUP] pairs of keys */
} job;

/* KEYS keys of one head. */
typedef struct key_tile {
    const uint32_t *keys, *values; /* packed */
    int32_t first;                 /* number of its first key in the call */
    bool whole;                    /* every row sees every key */
    uint64_t listed;               /* bit i: key i may be seen */
    int32_t from, to;              /* keys that some row sees, to whole groups */
} key_tile;

/* ROWS rows of one head. */
typedef struct row_tile {
    uint32_t *q; /* [qk_pairs][ROWS] pairs of dimensions */
    int32_t qk_pairs;
    int32_t row, n_rows;
    const int32_t *first[FL_ATTN_SPANS],
        *end[FL_ATTN_SPANS]; /* [ROWS] keys of the call that rows see, but for lists */
    bool two_spans;
    float bias;          /* of every score */
    float *out;          /* [v_dim][ROWS] sums of weights times values */
    __m512 base[VECS];   /* weights are 2^(score - base) */
    __m512 sum[VECS];    /* of the weights */
    __mmask16 saw[VECS]; /* rows that saw a key of the tile last visited */
} row_tile;

static int64_t key_tile_pairs(const job *j) {
    return (int64_t)KEYS * j->qk_pairs;
}

static int64_t value_tile_pairs(const job *j) {
    return (int64_t)KEYS / 2 * j->v_dim;
}

/* ---- packing ---- */

/* Interleaves dimension pairs of GROUP keys; `n_pairs` of them, 16 at a time. NULL = a key beyond the end. */
static void pack_key_group(const uint16_t *const rows[GROUP], int32_t n_pairs, uint32_t *out) {
    for (int32_t p = 0; p < n_pairs; p += LANES) {
        int32_t n = n_pairs - p < LANES ? n_pairs - p : LANES;
        __mmask16 some = (__mmask16)((1u << n) - 1);
        __m512i r[GROUP], t[GROUP];
        for (int i = 0; i < GROUP; i++)
            r[i] = rows[i] ? _mm512_maskz_loadu_epi32(some, rows[i] + 2 * p) : _mm512_setzero_si512();
        for (int i = 0; i < GROUP; i += 2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        r[0] = _mm512_unpacklo_epi64(t[0], t[2]);
        r[1] = _mm512_unpackhi_epi64(t[0], t[2]);
        r[2] = _mm512_unpacklo_epi64(t[1], t[3]);
        r[3] = _mm512_unpackhi_epi64(t[1], t[3]);
        for (int i = 0; i < 2; i++) { /* r[i] holds pairs i, 4 + i, 8 + i, 12 + i: bring them in order */
            t[i] = _mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0x44);
            t[i + 2] = _mm512_shuffle_i32x4(r[2 * i], r[2 * i + 1], 0xee);
        }
        r[0] = _mm512_shuffle_i32x4(t[0], t[1], 0x88);
        r[1] = _mm512_shuffle_i32x4(t[0], t[1], 0xdd);
        r[2] = _mm512_shuffle_i32x4(t[2], t[3], 0x88);
        r[3] = _mm512_shuffle_i32x4(t[2], t[3], 0xdd);
        for (int i = 0; i < GROUP && 4 * i < n; i++) {
            __mmask16 left = n - 4 * i < 4 ? (__mmask16)((1u << (n - 4 * i) * 4) - 1) : 0xffff;
            _mm512_mask_storeu_epi32(out + (p + 4 * i) * GROUP, left, r[i]);
        }
    }
}

/* Interleaves the values of two keys; group g of GROUP dimensions goes to out + g * KEYS / 2 * GROUP. */
static void pack_value_pair(const uint16_t *even, const uint16_t *odd, int32_t v_dim, uint32_t *out) {
    for (int32_t d = 0; d < v_dim; d += GROUP) {
        __m128i a = even ? _mm_loadl_epi64((const __m128i *)(const void *)(even + d)) : _mm_setzero_si128();
        __m128i b = odd ? _mm_loadl_epi64((const __m128i *)(const void *)(odd + d)) : _mm_setzero_si128();
        _mm_store_si128((__m128i *)(void *)(out + d * (KEYS / 2)), _mm_unpacklo_epi16(a, b));
    }
}

static void pack_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_prefill_args *a = j->args;
    int32_t head = task / j->key_tiles, tile = task % j->key_tiles;
    if (!(j->plan.packed[head] >> tile & 1)) return;
    int64_t kv_stride = (int64_t)a->n_heads * (a->nope_dim + a->v_dim);
    const uint16_t *kv = (const uint16_t *)a->kv + (int64_t)head * (a->nope_dim + a->v_dim);
    const uint16_t *k_pe = a->k_pe;
    uint32_t *keys = j->keys + task * key_tile_pairs(j), *values = j->values + task * value_tile_pairs(j);
    for (int32_t g = 0; g < KEYS / GROUP; g++) {
        const uint16_t *nope[GROUP], *rope[GROUP];
        for (int32_t i = 0; i < GROUP; i++) {
            int32_t key = tile * KEYS + g * GROUP + i;
            nope[i] = key < a->n_keys ? kv + key * kv_stride : NULL;
            rope[i] = key < a->n_keys ? k_pe + (int64_t)key * a->rope_dim : NULL;
            if (key + PACK_AHEAD >= a->n_keys) continue;
            /* Rows lie far apart: the hardware does not see the next one coming. */
            for (int32_t d = 0; d < a->nope_dim + a->v_dim; d += CACHE_LINE / 2)
                _mm_prefetch((const char *)(nope[i] + PACK_AHEAD * kv_stride + d), _MM_HINT_T0);
        }
        uint32_t *out = keys + g * j->qk_pairs * GROUP;
        pack_key_group(nope, a->nope_dim / 2, out);
        pack_key_group(rope, a->rope_dim / 2, out + a->nope_dim / 2 * GROUP);
        for (int32_t i = 0; i < GROUP; i += 2)
            pack_value_pair(nope[i] ? nope[i] + a->nope_dim : NULL,
                            nope[i + 1] ? nope[i + 1] + a->nope_dim : NULL, a->v_dim,
                            values + (g * GROUP + i) / 2 * GROUP);
    }
}

/* ---- kernels ---- */

/* sums[i][v] += the pairs side[i] . across[p][v] for p in 0..n_pairs - 1: GROUP broadcasts against VECS vectors. Two
 * broadcasts at a time keep both multipliers busy. */
FL_SIMD void multiply(const uint32_t *side, const uint32_t *across, int32_t n_pairs,
                      __m512 sums[GROUP][VECS]) {
    for (int32_t p = 0; p < n_pairs; p++, side += GROUP, across += ROWS) {
        __m512i row[VECS];
        for (int v = 0; v < VECS; v++) row[v] = _mm512_load_si512(across + v * LANES);
        for (int i = 0; i < GROUP; i += 2) {
            __m512i even = fl_simd_pair(side + i), odd = fl_simd_pair(side + i + 1);
            for (int v = 0; v < VECS; v++) {
                sums[i][v] = fl_simd_dot2(sums[i][v], even, row[v]);
                sums[i + 1][v] = fl_simd_dot2(sums[i + 1][v], odd, row[v]);
            }
        }
    }
}

/* scores[key][rows] = K Q^T + bias - base for the GROUP keys from `key` of the tile. */
FL_SIMD void score_group(const key_tile *tile, int32_t key, const row_tile *r, __m512 scores[GROUP][VECS]) {
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) scores[i][v] = _mm512_sub_ps(_mm512_set1_ps(r->bias), r->base[v]);
    multiply(tile->keys + key * r->qk_pairs, r->q, r->qk_pairs, scores);
}

/* Lanes whose span holds `key`, which is counted like the spans' ends. */
FL_SIMD __mmask16 lanes_with(const int32_t *first, const int32_t *end, __m512i key) {
    __m512i from = _mm512_loadu_si512(first), n = _mm512_sub_epi32(_mm512_loadu_si512(end), from);
    return _mm512_cmplt_epu32_mask(_mm512_sub_epi32(key, from), n);
}

/* Hides keys from rows that must not see them, and notes rows that see any. */
FL_SIMD void mask_group(const key_tile *tile, int32_t key, row_tile *r, __m512 scores[GROUP][VECS]) {
    for (int v = 0; v < VECS; v++)
        for (int i = 0; i < GROUP; i++) {
            __m512i number = _mm512_set1_epi32(tile->first + key + i);
            __mmask16 sees = lanes_with(r->first[0] + v * LANES, r->end[0] + v * LANES, number);
            if (r->two_spans) sees |= lanes_with(r->first[1] + v * LANES, r->end[1] + v * LANES, number);
            if (!(tile->listed >> (key + i) & 1)) sees = 0;
            r->saw[v] |= sees;
            scores[i][v] = _mm512_mask_blend_ps(sees, _mm512_set1_ps(MASKED), scores[i][v]);
        }
}

/* Keys [from, to) of a tile: weights = 2^(score - base) as pairs of keys; sum takes them as rounded, so that it
 * matches. */
FL_SIMD void weigh_keys(const key_tile *tile, const bool masked, int32_t from, int32_t to, row_tile *r,
                        uint32_t *weights) {
    const __m512i interleave = fl_simd_interleave_index(), ones = _mm512_set1_epi32(0x3f803f80);
    __m512 sum[VECS];
    for (int v = 0; v < VECS; v++) {
        sum[v] = r->sum[v];
        r->saw[v] = masked ? 0 : 0xffff;
    }
    for (int32_t key = from; key < to; key += GROUP) {
        __m512 scores[GROUP][VECS];
        score_group(tile, key, r, scores);
        if (masked) mask_group(tile, key, r, scores);
        for (int i = 0; i < GROUP; i += 2)
            for (int v = 0; v < VECS; v++) {
                __m512i pair = fl_simd_pack_pairs(fl_simd_exp2_weight(scores[i][v]),
                                                  fl_simd_exp2_weight(scores[i + 1][v]), interleave);
                sum[v] = fl_simd_dot2(sum[v], pair, ones);
                _mm512_store_si512(weights + (key + i) / 2 * ROWS + v * LANES, pair);
            }
    }
    for (int v = 0; v < VECS; v++) r->sum[v] = sum[v];
}

static void weigh_whole_tile(const key_tile *tile, row_tile *r, uint32_t *weights) {
    weigh_keys(tile, false, 0, KEYS, r, weights);
}

static void weigh_edge_tile(const key_tile *tile, row_tile *r, uint32_t *weights) {
    weigh_keys(tile, true, tile->from, tile->to, r, weights);
}

/* Rows that need another base: their sum went beyond SUM_MAX, or is below SUM_MIN although they saw a key of the tile,
 * which happens at the first keys they see. */
FL_SIMD __mmask16 out_of_range(const row_tile *r, int v) {
    return _mm512_cmp_ps_mask(r->sum[v], _mm512_set1_ps(SUM_MAX), _CMP_NLE_UQ) |
           _mm512_mask_cmp_ps_mask(r->saw[v], r->sum[v], _mm512_set1_ps(SUM_MIN), _CMP_LT_OQ);
}

/* Rows out of range take the tile's largest score as their new base: `before`, their sum before the tile, and out
 * shrink by the difference; both are 0 where a base falls. A row's own scores alone decide. */
static void move_base(const key_tile *tile, const __m512 before[VECS], int32_t v_dim, row_tile *r) {
    __m512 top[VECS];
    for (int v = 0; v < VECS; v++) top[v] = _mm512_set1_ps(MASKED);
    for (int32_t key = 0; key < KEYS; key += GROUP) {
        __m512 scores[GROUP][VECS];
        score_group(tile, key, r, scores);
        mask_group(tile, key, r, scores);
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) top[v] = _mm512_max_ps(top[v], scores[i][v]);
    }
    for (int v = 0; v < VECS; v++) {
        __mmask16 move =
            _mm512_mask_cmp_ps_mask(out_of_range(r, v), top[v], _mm512_set1_ps(MASKED), _CMP_NEQ_UQ);
        __m512 rise = _mm512_maskz_mov_ps(move, top[v]);
        __m512 fall = _mm512_min_ps(_mm512_setzero_ps(), _mm512_sub_ps(_mm512_setzero_ps(), rise));
        __m512 scale = fl_simd_exp2_weight(fall);
        r->base[v] = _mm512_add_ps(r->base[v], rise);
        r->sum[v] = _mm512_mul_ps(before[v], scale);
        for (int32_t d = 0; d < v_dim; d++) {
            float *at = r->out + d * ROWS + v * LANES;
            _mm512_store_ps(at, _mm512_mul_ps(scale, _mm512_load_ps(at)));
        }
    }
}

/* out[v_dim][ROWS] += V^T P over n pairs of keys from `pair` on. */
FL_SIMD void add_pairs(const uint32_t *values, const uint32_t *weights, int32_t pair, int32_t n,
                       int32_t v_dim, float *out) {
    for (int32_t d = 0; d < v_dim; d += GROUP) {
        float *at = out + d * ROWS;
        __m512 sums[GROUP][VECS];
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) sums[i][v] = _mm512_load_ps(at + i * ROWS + v * LANES);
        multiply(values + d * (KEYS / 2) + pair * GROUP, weights + pair * ROWS, n, sums);
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) _mm512_store_ps(at + i * ROWS + v * LANES, sums[i][v]);
    }
}

static void add_whole_tile(const key_tile *tile, const uint32_t *weights, int32_t v_dim, float *out) {
    add_pairs(tile->values, weights, 0, KEYS / 2, v_dim, out);
}

static void add_edge_tile(const key_tile *tile, const uint32_t *weights, int32_t v_dim, float *out) {
    add_pairs(tile->values, weights, tile->from / 2, (tile->to - tile->from) / 2, v_dim, out);
}

/* ---- tasks ---- */

/* The score of the timeline's first key is each row's first base, whether the row sees that key or not. */
static void start_rows(const key_tile *tile, int32_t v_dim, row_tile *r) {
    __m512 scores[GROUP][VECS];
    for (int v = 0; v < VECS; v++) r->base[v] = r->sum[v] = _mm512_setzero_ps();
    score_group(tile, 0, r, scores);
    for (int v = 0; v < VECS; v++) r->base[v] = scores[0][v];
    memset(r->out, 0, sizeof(float) * (size_t)v_dim * ROWS);
}

/* Gathers row tile `number` of a head; r->q is given. */
static void open_rows(const job *j, int32_t head, int32_t number, const key_tile *tile, row_tile *r) {
    const fl_attn_prefill_args *a = j->args;
    int64_t stride = (int64_t)a->n_heads * 2 * j->qk_pairs;
    r->qk_pairs = j->qk_pairs;
    r->row = number * ROWS;
    r->n_rows = a->rows - r->row < ROWS ? a->rows - r->row : ROWS;
    for (int i = 0; i < FL_ATTN_SPANS; i++) {
        r->first[i] = j->plan.first[i] + r->row;
        r->end[i] = j->plan.end[i] + r->row;
    }
    r->two_spans = a->view.sinks > 0;
    r->bias = a->key_bias ? a->key_bias[head] : 0;
    r->out = (float *)a->state + ((int64_t)number * a->n_heads + head) * (j->v_dim + 2) * ROWS;
    fl_simd_pack_rows((const uint16_t *)a->q + r->row * stride + (int64_t)head * 2 * j->qk_pairs, stride,
                      r->n_rows, j->qk_pairs, ROWS, r->q);
    if (a->first) {
        start_rows(tile, j->v_dim, r);
        return;
    }
    const float *bases = r->out + j->v_dim * ROWS;
    for (int v = 0; v < VECS; v++) {
        r->base[v] = _mm512_load_ps(bases + v * LANES);
        r->sum[v] = _mm512_load_ps(bases + ROWS + v * LANES);
    }
}

/* Adds one tile of keys to one tile of rows. */
static void attend_tile(const key_tile *tile, int32_t v_dim, row_tile *r) {
    _Alignas(64) uint32_t weights[KEYS / 2 * ROWS];
    __m512 before[VECS];
    __mmask16 move = 0;
    for (int v = 0; v < VECS; v++) before[v] = r->sum[v];
    if (tile->whole) weigh_whole_tile(tile, r, weights);
    else weigh_edge_tile(tile, r, weights);
    for (int v = 0; v < VECS; v++) move |= out_of_range(r, v);
    if (move) { /* rare */
        move_base(tile, before, v_dim, r);
        weigh_edge_tile(tile, r, weights);
    }
    if (tile->whole) add_whole_tile(tile, weights, v_dim, r->out);
    else add_edge_tile(tile, weights, v_dim, r->out);
}

/* out = O / l, back to row-major. */
static void write_rows(const job *j, int32_t head, const row_tile *r) {
    const fl_attn_prefill_args *a = j->args;
    int64_t stride = (int64_t)a->n_heads * j->v_dim;
    uint16_t *out = (uint16_t *)a->out + r->row * stride + (int64_t)head * j->v_dim;
    for (int32_t v = 0; v * LANES < r->n_rows; v++) {
        __mmask16 saw = _mm512_cmp_ps_mask(r->sum[v], _mm512_setzero_ps(), _CMP_NEQ_UQ);
        __m512 inverse = _mm512_maskz_div_ps(saw, _mm512_set1_ps(1.0f), r->sum[v]);
        for (int32_t d = 0; d < j->v_dim; d += LANES) {
            int32_t n = j->v_dim - d < LANES ? j->v_dim - d : LANES;
            __mmask16 some = (__mmask16)((1u << n) - 1);
            __m512i t[LANES];
            for (int i = 0; i < LANES; i++)
                t[i] = i < n ? (__m512i)_mm512_mul_ps(inverse,
                                                      _mm512_load_ps(r->out + (d + i) * ROWS + v * LANES))
                             : _mm512_setzero_si512();
            fl_simd_transpose(t);
            for (int i = 0; i < LANES && v * LANES + i < r->n_rows; i++)
                _mm256_mask_storeu_epi16(out + (v * LANES + i) * stride + d, some,
                                         (__m256i)_mm512_cvtneps_pbh((__m512)t[i]));
        }
    }
}

static void close_rows(const job *j, int32_t head, const row_tile *r) {
    const fl_attn_prefill_args *a = j->args;
    float *bases = r->out + j->v_dim * ROWS, *sums = bases + ROWS;
    for (int v = 0; v < VECS; v++) {
        _mm512_store_ps(bases + v * LANES, r->base[v]);
        _mm512_store_ps(sums + v * LANES, r->sum[v]);
    }
    if (!a->last) return;
    write_rows(j, head, r);
    for (int32_t i = 0; a->lse && i < r->n_rows; i++)
        a->lse[(int64_t)(r->row + i) * a->n_heads + head] = bases[i] + log2f(sums[i]);
}

/* Sets the keys of an edge tile that some row sees: what lies outside is not multiplied. */
static void clip_tile(const row_tile *r, key_tile *tile) {
    __m512i zero = _mm512_setzero_si512(), all = _mm512_set1_epi32(KEYS), at = _mm512_set1_epi32(tile->first);
    __m512i from = all, to = zero;
    for (int i = 0; i < (r->two_spans ? FL_ATTN_SPANS : 1); i++)
        for (int v = 0; v < VECS; v++) {
            __m512i first = _mm512_sub_epi32(_mm512_loadu_si512(r->first[i] + v * LANES), at);
            __m512i end = _mm512_sub_epi32(_mm512_loadu_si512(r->end[i] + v * LANES), at);
            first = _mm512_max_epi32(first, zero);
            end = _mm512_min_epi32(end, all);
            __mmask16 some = _mm512_cmplt_epi32_mask(first, end);
            from = _mm512_mask_min_epi32(from, some, from, first);
            to = _mm512_mask_max_epi32(to, some, to, end);
        }
    int32_t low = __builtin_ctzll(tile->listed), high = KEYS - __builtin_clzll(tile->listed);
    int32_t seen_from = _mm512_reduce_min_epi32(from), seen_to = _mm512_reduce_max_epi32(to);
    tile->from = (low > seen_from ? low : seen_from) / GROUP * GROUP;
    tile->to = ((high < seen_to ? high : seen_to) + GROUP - 1) / GROUP * GROUP;
}

/* One row tile of one head against the keys it visits. A head's tasks follow each other, so that its K and V stay in
 * the cache; the last rows see most keys and come first. */
static void attend_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    int32_t row_tiles = j->plan.row_tiles;
    int32_t head = task / row_tiles, number = row_tiles - 1 - task % row_tiles;
    fl_attn_visit visit;
    if (number * ROWS >= j->args->rows) return; /* the list's last tile need not be full */
    fl_attn_plan_visit(&j->plan, number, head, &visit);
    if (visit.some == 0 && !j->args->first && !j->args->last) return;
    const uint32_t *keys = j->keys + (int64_t)head * j->key_tiles * key_tile_pairs(j);
    const uint32_t *values = j->values + (int64_t)head * j->key_tiles * value_tile_pairs(j);
    key_tile tile = {.keys = keys};
    _Alignas(64) uint32_t q[DIM_MAX / 2 * ROWS];
    row_tile r = {.q = q};
    open_rows(j, head, number, &tile, &r);
    for (uint64_t left = visit.some; left != 0; left &= left - 1) {
        int32_t t = __builtin_ctzll(left);
        tile = (key_tile){.keys = keys + t * key_tile_pairs(j), .values = values + t * value_tile_pairs(j)};
        tile.first = t * KEYS;
        tile.whole = visit.whole >> t & 1;
        tile.listed = visit.keys[t];
        tile.from = 0;
        tile.to = KEYS;
        if (!tile.whole) clip_tile(&r, &tile);
        attend_tile(&tile, j->v_dim, &r);
    }
    close_rows(j, head, &r);
}

static fl_err need_shape(const fl_attn_prefill_args *a) {
    int32_t qk_dim = a->nope_dim + a->rope_dim;
    if (a->nope_dim % 2 != 0 || a->rope_dim % 2 != 0 || qk_dim > DIM_MAX)
        return FL_FAIL(
            FL_ERR_UNSUPPORTED,
            "attn_prefill on avx512: head shape nope %d + rope %d: both must be even, together <= %d",
            a->nope_dim, a->rope_dim, DIM_MAX);
    if (a->v_dim % GROUP != 0 || a->v_dim > DIM_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_prefill on avx512: v %d is not a multiple of %d up to %d",
                       a->v_dim, GROUP, DIM_MAX);
    return FL_ERR_OK;
}

static fl_err attend_call(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_codes_refuse(be, "attn_prefill", &a->out_codes));
    FL_TRY(fl_attn_prefill_need_split(a));
    FL_TRY(need_shape(a));
    job j = {.args = a, .qk_pairs = (a->nope_dim + a->rope_dim) / 2, .v_dim = a->v_dim};
    j.key_tiles = (a->n_keys + KEYS - 1) / KEYS;
    j.keys = (void *)((uint8_t *)a->scratch + fl_attn_plan_bytes(a->rows, a->n_heads));
    j.values = j.keys + a->n_heads * j.key_tiles * key_tile_pairs(&j);
    fl_attn_plan_make(be->pool, a, ROWS, a->scratch, &j.plan);
    fl_pool_run(be->pool, a->n_heads * j.key_tiles, pack_task, &j);
    fl_pool_run(be->pool, a->n_heads * j.plan.row_tiles, attend_task, &j);
    return FL_ERR_OK;
}

fl_err fl_attn_prefill_avx512(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_attn_prefill_validate(a));
    FL_TRY(attend_call(be, a));
    return a->then ? attend_call(be, a->then) : FL_ERR_OK;
}
