/* attn_prefill, AVX-512 with BF16. Lanes are query rows: a task takes one head and ROWS rows, holds Q
 * transposed, and computes S^T = K Q^T and O^T += V^T P with K and V pairs broadcast from memory, so softmax
 * needs no horizontal step and a row never meets its neighbours. First a parallel pass packs the split's K
 * and V in the order the kernels read them. Bound by vdpbf16ps: (nope + rope + v) / 2 of them a vector of 16
 * scores, beside about 6 cycles of softmax. The running state of a (tile of rows, head) is O^T[v][ROWS],
 * m[ROWS], l[ROWS]; a split goes on where the last one stopped, so tiles of keys are taken in order of
 * position whatever the chunking. */
#include "backend/backend.h"
#include "op/simd_avx512.h"

#include <string.h>

enum {
    LANES = 16,
    ROWS = 64,
    VECS = ROWS / LANES,
    KEYS = FL_ATTN_TILE_TOKENS, /* keys of one softmax step */
    GROUP = 4,                  /* keys, or value dimensions, of one register block */
    DIM_MAX = 256               /* of q and k, and of v: bounds the buffers on the stack */
};

/* The score of a key that a row must not see: weighs 0. And the sum of weights from which on a row takes a new
 * base: weights and outputs stay far inside f32. */
static const float MASKED = -1e30f, SUM_MAX = 0x1p60f;

typedef struct job {
    const fl_attn_prefill_args *args;
    int32_t qk_pairs, v_dim; /* pairs a key; values a key */
    int32_t key_tiles, row_tiles;
    uint32_t *keys;   /* [n_heads][key_tiles * KEYS / GROUP][qk_pairs][GROUP] pairs of dimensions */
    uint32_t *values; /* [n_heads][key_tiles][v_dim / GROUP][KEYS / 2][GROUP] pairs of keys */
} job;

/* KEYS keys of one head as a task sees them. */
typedef struct tile_view {
    const uint32_t *keys, *values; /* packed */
    int32_t visible;               /* row r of the task sees the first visible + r keys */
    int32_t n_keys;                /* that exist, if less than KEYS */
} tile_view;

/* A task's rows: [qk_pairs][ROWS] pairs of dimensions. */
typedef struct query_view {
    const uint32_t *pairs;
    int32_t qk_pairs;
} query_view;

/* Of a task's rows. */
typedef struct softmax {
    __m512 base[VECS]; /* weights are 2^(score - base) */
    __m512 sum[VECS];  /* of the weights */
} softmax;

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
        _Alignas(64) uint32_t part[4][LANES];
        for (int i = 0; i < GROUP; i++) _mm512_store_si512(part[i], r[i]);
        for (int32_t i = 0; i < n; i++) memcpy(out + (p + i) * GROUP, part[i % 4] + i / 4 * 4, 16);
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

/* scores[key][rows] = K Q^T - base for the GROUP keys from `key` of the tile. */
FL_SIMD void score_group(const tile_view *tile, int32_t key, const query_view *q, const softmax *s,
                         __m512 scores[GROUP][VECS]) {
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) scores[i][v] = _mm512_sub_ps(_mm512_setzero_ps(), s->base[v]);
    multiply(tile->keys + key * q->qk_pairs, q->pairs, q->qk_pairs, scores);
}

/* Hides keys from rows that must not see them. */
FL_SIMD void mask_group(const tile_view *tile, int32_t key, __m512 scores[GROUP][VECS]) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) {
            __m512i seen = _mm512_add_epi32(lane, _mm512_set1_epi32(tile->visible + v * LANES));
            __mmask16 sees = _mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(key + i));
            if (key + i >= tile->n_keys) sees = 0;
            scores[i][v] = _mm512_mask_blend_ps(sees, _mm512_set1_ps(MASKED), scores[i][v]);
        }
}

/* One tile: weights = 2^(score - base) as pairs of keys; sum takes them as rounded, so that it matches. */
FL_SIMD void weigh_keys(const tile_view *tile, const query_view *q, const bool masked, softmax *s,
                        uint32_t *weights) {
    const __m512i interleave = fl_simd_interleave_index(), ones = _mm512_set1_epi32(0x3f803f80);
    __m512 sum[VECS];
    for (int v = 0; v < VECS; v++) sum[v] = s->sum[v];
    for (int32_t key = 0; key < KEYS; key += GROUP) {
        __m512 scores[GROUP][VECS];
        score_group(tile, key, q, s, scores);
        if (masked) mask_group(tile, key, scores);
        for (int i = 0; i < GROUP; i += 2)
            for (int v = 0; v < VECS; v++) {
                __m512i pair = fl_simd_pack_pairs(fl_simd_exp2_weight(scores[i][v]),
                                                  fl_simd_exp2_weight(scores[i + 1][v]), interleave);
                sum[v] = fl_simd_dot2(sum[v], pair, ones);
                _mm512_store_si512(weights + (key + i) / 2 * ROWS + v * LANES, pair);
            }
    }
    for (int v = 0; v < VECS; v++) s->sum[v] = sum[v];
}

static void weigh_whole_tile(const tile_view *tile, const query_view *q, softmax *s, uint32_t *weights) {
    weigh_keys(tile, q, false, s, weights);
}

static void weigh_edge_tile(const tile_view *tile, const query_view *q, softmax *s, uint32_t *weights) {
    weigh_keys(tile, q, true, s, weights);
}

/* Key 0 is the one that all rows see: its score is each row's first base. */
static void start_softmax(const tile_view *tile, const query_view *q, softmax *s) {
    __m512 scores[GROUP][VECS];
    for (int v = 0; v < VECS; v++) s->base[v] = s->sum[v] = _mm512_setzero_ps();
    score_group(tile, 0, q, s, scores);
    for (int v = 0; v < VECS; v++) s->base[v] = scores[0][v];
}

static bool must_raise(const softmax *s) {
    __mmask16 far = 0;
    for (int v = 0; v < VECS; v++) far |= _mm512_cmp_ps_mask(s->sum[v], _mm512_set1_ps(SUM_MAX), _CMP_NLE_UQ);
    return far != 0;
}

/* Rows whose sum in `s` would have gone beyond SUM_MAX take the tile's largest score as their new base: what they
 * summed before, `sum` and `out`, shrinks by the difference. A row's own scores alone decide. */
static void raise_base(const tile_view *tile, const query_view *q, const __m512 sum[VECS], int32_t v_dim,
                       softmax *s, float *out) {
    __m512 top[VECS];
    for (int v = 0; v < VECS; v++) top[v] = _mm512_setzero_ps();
    for (int32_t key = 0; key < KEYS; key += GROUP) {
        __m512 scores[GROUP][VECS];
        score_group(tile, key, q, s, scores);
        mask_group(tile, key, scores);
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) top[v] = _mm512_max_ps(top[v], scores[i][v]);
    }
    for (int v = 0; v < VECS; v++) {
        __mmask16 far = _mm512_cmp_ps_mask(s->sum[v], _mm512_set1_ps(SUM_MAX), _CMP_NLE_UQ);
        __m512 rise = _mm512_maskz_mov_ps(far, top[v]);
        __m512 scale = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_setzero_ps(), rise));
        s->base[v] = _mm512_add_ps(s->base[v], rise);
        s->sum[v] = _mm512_mul_ps(sum[v], scale);
        for (int32_t d = 0; d < v_dim; d++) {
            float *at = out + d * ROWS + v * LANES;
            _mm512_store_ps(at, _mm512_mul_ps(scale, _mm512_load_ps(at)));
        }
    }
}

/* out[v_dim][ROWS] += V^T P. */
static void add_values(const uint32_t *values, const uint32_t *weights, int32_t v_dim, float *out) {
    for (int32_t d = 0; d < v_dim; d += GROUP) {
        float *at = out + d * ROWS;
        __m512 sums[GROUP][VECS];
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) sums[i][v] = _mm512_load_ps(at + i * ROWS + v * LANES);
        multiply(values + d * (KEYS / 2), weights, KEYS / 2, sums);
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) _mm512_store_ps(at + i * ROWS + v * LANES, sums[i][v]);
    }
}

/* ---- tasks ---- */

/* out rows = O / l, back to row-major. */
static void write_rows(const job *j, int32_t head, int32_t row0, const float *state) {
    const fl_attn_prefill_args *a = j->args;
    int64_t stride = (int64_t)a->n_heads * j->v_dim;
    uint16_t *out = (uint16_t *)a->out + row0 * stride + (int64_t)head * j->v_dim;
    int32_t n_rows = a->rows - row0 < ROWS ? a->rows - row0 : ROWS;
    for (int32_t v = 0; v * LANES < n_rows; v++) {
        __m512 total = _mm512_load_ps(state + (j->v_dim + 1) * ROWS + v * LANES);
        __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), total);
        for (int32_t d = 0; d < j->v_dim; d += LANES) {
            int32_t n = j->v_dim - d < LANES ? j->v_dim - d : LANES;
            __mmask16 some = (__mmask16)((1u << n) - 1);
            __m512i r[LANES];
            for (int i = 0; i < LANES; i++)
                r[i] = i < n ? (__m512i)_mm512_mul_ps(inverse,
                                                      _mm512_load_ps(state + (d + i) * ROWS + v * LANES))
                             : _mm512_setzero_si512();
            fl_simd_transpose(r);
            for (int i = 0; i < LANES && v * LANES + i < n_rows; i++)
                _mm256_mask_storeu_epi16(out + (v * LANES + i) * stride + d, some,
                                         (__m256i)_mm512_cvtneps_pbh((__m512)r[i]));
        }
    }
}

/* Adds one tile of keys to a task's rows. */
static void attend_tile(const tile_view *tile, const query_view *q, int32_t v_dim, softmax *s, float *out) {
    _Alignas(64) uint32_t weights[KEYS / 2 * ROWS];
    bool whole = tile->visible >= KEYS && tile->n_keys >= KEYS;
    const softmax before = *s;
    if (whole) weigh_whole_tile(tile, q, s, weights);
    else weigh_edge_tile(tile, q, s, weights);
    if (must_raise(s)) { /* rare */
        raise_base(tile, q, before.sum, v_dim, s, out);
        weigh_edge_tile(tile, q, s, weights);
    }
    add_values(tile->values, weights, v_dim, out);
}

static void attend_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_prefill_args *a = j->args;
    /* The last rows see most keys: their tasks come first. A head's tasks follow each other and share its K and V
     * in the cache. */
    int32_t head = task / j->row_tiles, row_tile = j->row_tiles - 1 - task % j->row_tiles,
            row0 = row_tile * ROWS;
    int32_t n_rows = a->rows - row0 < ROWS ? a->rows - row0 : ROWS;
    int64_t q_stride = (int64_t)a->n_heads * 2 * j->qk_pairs;
    float *out = (float *)a->state + ((int64_t)row_tile * a->n_heads + head) * (j->v_dim + 2) * ROWS;
    float *bases = out + j->v_dim * ROWS, *sums = bases + ROWS;
    _Alignas(64) uint32_t pairs[DIM_MAX / 2 * ROWS];
    const uint16_t *rows = (const uint16_t *)a->q + row0 * q_stride + (int64_t)head * 2 * j->qk_pairs;
    query_view q = {.pairs = pairs, .qk_pairs = j->qk_pairs};
    tile_view tile = {.visible = a->pos + row0 + 1 - a->key_pos, .n_keys = a->n_keys};
    tile.keys = j->keys + (int64_t)head * j->key_tiles * key_tile_pairs(j);
    tile.values = j->values + (int64_t)head * j->key_tiles * value_tile_pairs(j);
    softmax s;
    fl_simd_pack_rows(rows, q_stride, n_rows, j->qk_pairs, ROWS, pairs);
    if (a->first) {
        memset(out, 0, sizeof(float) * (size_t)j->v_dim * ROWS);
        start_softmax(&tile, &q, &s);
    } else {
        for (int v = 0; v < VECS; v++) s.base[v] = _mm512_load_ps(bases + v * LANES);
        for (int v = 0; v < VECS; v++) s.sum[v] = _mm512_load_ps(sums + v * LANES);
    }
    for (; tile.n_keys > 0 && tile.visible + n_rows > 1; tile.visible -= KEYS, tile.n_keys -= KEYS) {
        attend_tile(&tile, &q, j->v_dim, &s, out);
        tile.keys += key_tile_pairs(j);
        tile.values += value_tile_pairs(j);
    }
    for (int v = 0; v < VECS; v++) _mm512_store_ps(bases + v * LANES, s.base[v]);
    for (int v = 0; v < VECS; v++) _mm512_store_ps(sums + v * LANES, s.sum[v]);
    if (a->last) write_rows(j, head, row0, out);
}

fl_err fl_attn_prefill_avx512(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_attn_prefill_validate(a));
    int32_t qk_dim = a->nope_dim + a->rope_dim;
    if (a->nope_dim % 2 != 0 || a->rope_dim % 2 != 0 || qk_dim > DIM_MAX)
        return FL_FAIL(
            FL_ERR_UNSUPPORTED,
            "attn_prefill on avx512: head shape nope %d + rope %d: both must be even, together <= %d",
            a->nope_dim, a->rope_dim, DIM_MAX);
    if (a->v_dim % GROUP != 0 || a->v_dim > DIM_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_prefill on avx512: v %d is not a multiple of %d up to %d",
                       a->v_dim, GROUP, DIM_MAX);
    job j = {.args = a, .qk_pairs = qk_dim / 2, .v_dim = a->v_dim};
    j.key_tiles = (a->n_keys + KEYS - 1) / KEYS;
    j.row_tiles = (a->rows + ROWS - 1) / ROWS;
    j.keys = a->scratch;
    j.values = j.keys + a->n_heads * j.key_tiles * key_tile_pairs(&j);
    fl_pool_run(be->pool, a->n_heads * j.key_tiles, pack_task, &j);
    fl_pool_run(be->pool, a->n_heads * j.row_tiles, attend_task, &j);
    return FL_ERR_OK;
}
