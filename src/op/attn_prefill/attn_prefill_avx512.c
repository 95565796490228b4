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

/* Below every score, and below that: a masked key weighs 0 even for a row that has seen no key. */
static const float FLOOR = -1e30f, MASKED = -2e30f;

typedef struct job {
    const fl_attn_prefill_args *args;
    int32_t qk_pairs, v_dim; /* pairs a key; values a key */
    int32_t key_tiles, row_tiles;
    uint32_t *keys;   /* [n_heads][key_tiles * KEYS / GROUP][qk_pairs][GROUP] pairs of dimensions */
    uint32_t *values; /* [n_heads][key_tiles][v_dim / GROUP][KEYS / 2][GROUP] pairs of keys */
} job;

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

/* scores[KEYS][ROWS] = K Q^T; top[VECS] becomes the larger of itself and each row's largest score. */
static void score_tile(const uint32_t *keys, const uint32_t *q, int32_t qk_pairs, float *scores,
                       __m512 top[VECS]) {
    __m512 best[VECS];
    for (int v = 0; v < VECS; v++) best[v] = top[v];
    for (int32_t g = 0; g < KEYS / GROUP; g++) {
        __m512 acc[GROUP][VECS];
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) acc[i][v] = _mm512_setzero_ps();
        for (int32_t p = 0; p < qk_pairs; p++) {
            __m512i row[VECS];
            for (int v = 0; v < VECS; v++) row[v] = _mm512_load_si512(q + p * ROWS + v * LANES);
            for (int i = 0; i < GROUP; i++) {
                __m512i key = fl_simd_pair(keys + i);
                for (int v = 0; v < VECS; v++) acc[i][v] = fl_simd_dot2(acc[i][v], key, row[v]);
            }
            keys += GROUP;
        }
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) {
                best[v] = _mm512_max_ps(best[v], acc[i][v]);
                _mm512_store_ps(scores + (g * GROUP + i) * ROWS + v * LANES, acc[i][v]);
            }
    }
    for (int v = 0; v < VECS; v++) top[v] = best[v];
}

/* Masks keys that a row must not see (row r sees `visible + r` keys of the tile, which has n_keys) and takes
 * top anew. */
static void mask_tile(float *scores, int32_t visible, int32_t n_keys, __m512 top[VECS]) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int v = 0; v < VECS; v++) {
        __m512i seen = _mm512_add_epi32(lane, _mm512_set1_epi32(visible + v * LANES));
        seen = _mm512_min_epi32(seen, _mm512_set1_epi32(n_keys));
        for (int32_t key = 0; key < KEYS; key++) {
            float *at = scores + key * ROWS + v * LANES;
            __mmask16 sees = _mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(key));
            __m512 score = _mm512_mask_blend_ps(sees, _mm512_set1_ps(MASKED), _mm512_load_ps(at));
            _mm512_store_ps(at, score);
            top[v] = _mm512_max_ps(top[v], score);
        }
    }
}

/* weights[KEYS / 2][ROWS] = 2^(scores - top) as pairs of keys; sum += each row's weights. */
static void weigh_tile(const float *scores, const __m512 top[VECS], __m512 sum[VECS], uint32_t *weights) {
    const __m512i interleave = fl_simd_interleave_index();
    __m512 total[VECS];
    for (int v = 0; v < VECS; v++) total[v] = sum[v];
    for (int32_t key = 0; key < KEYS; key += 2)
        for (int v = 0; v < VECS; v++) {
            const float *at = scores + key * ROWS + v * LANES;
            __m512 even = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_load_ps(at), top[v]));
            __m512 odd = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_load_ps(at + ROWS), top[v]));
            total[v] = _mm512_add_ps(_mm512_add_ps(total[v], even), odd);
            _mm512_store_si512(weights + key / 2 * ROWS + v * LANES,
                               fl_simd_pack_pairs(even, odd, interleave));
        }
    for (int v = 0; v < VECS; v++) sum[v] = total[v];
}

/* out[v_dim][ROWS] = out * scale + V^T P. */
static void add_values(const uint32_t *values, const uint32_t *weights, int32_t v_dim,
                       const __m512 scale[VECS], float *out) {
    for (int32_t d = 0; d < v_dim; d += GROUP) {
        __m512 acc[GROUP][VECS];
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++)
                acc[i][v] = _mm512_mul_ps(scale[v], _mm512_load_ps(out + (d + i) * ROWS + v * LANES));
        for (int32_t p = 0; p < KEYS / 2; p++) {
            __m512i weight[VECS];
            for (int v = 0; v < VECS; v++) weight[v] = _mm512_load_si512(weights + p * ROWS + v * LANES);
            for (int i = 0; i < GROUP; i++) {
                __m512i value = fl_simd_pair(values + i);
                for (int v = 0; v < VECS; v++) acc[i][v] = fl_simd_dot2(acc[i][v], value, weight[v]);
            }
            values += GROUP;
        }
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < VECS; v++) _mm512_store_ps(out + (d + i) * ROWS + v * LANES, acc[i][v]);
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

static void attend_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_prefill_args *a = j->args;
    /* The last rows see most keys: their tasks come first. A head's tasks follow each other and share its K
     * and V in the cache. */
    int32_t head = task / j->row_tiles, tile = j->row_tiles - 1 - task % j->row_tiles, row0 = tile * ROWS;
    int32_t n_rows = a->rows - row0 < ROWS ? a->rows - row0 : ROWS;
    int32_t first_sees = a->pos + row0 + 1 - a->key_pos; /* keys that row0 sees */
    int64_t q_stride = (int64_t)a->n_heads * 2 * j->qk_pairs;
    float *state = (float *)a->state + ((int64_t)tile * a->n_heads + head) * (j->v_dim + 2) * ROWS;
    _Alignas(64) uint32_t q[DIM_MAX / 2 * ROWS];
    _Alignas(64) float scores[KEYS * ROWS];
    _Alignas(64) uint32_t weights[KEYS / 2 * ROWS];
    __m512 top[VECS], sum[VECS], scale[VECS];
    if (a->first) memset(state, 0, sizeof(float) * (size_t)(j->v_dim + 2) * ROWS);
    for (int v = 0; v < VECS; v++) {
        top[v] = a->first ? _mm512_set1_ps(FLOOR) : _mm512_load_ps(state + j->v_dim * ROWS + v * LANES);
        sum[v] = _mm512_load_ps(state + (j->v_dim + 1) * ROWS + v * LANES);
    }
    const uint16_t *rows = (const uint16_t *)a->q + row0 * q_stride + (int64_t)head * 2 * j->qk_pairs;
    fl_simd_pack_rows(rows, q_stride, n_rows, j->qk_pairs, ROWS, q);
    for (int32_t t = 0; t < j->key_tiles; t++) {
        int32_t visible = first_sees - t * KEYS; /* keys of this tile that row0 sees */
        if (visible + n_rows - 1 <= 0) break;
        __m512 before[VECS], ignored[VECS];
        for (int v = 0; v < VECS; v++) ignored[v] = before[v] = top[v];
        bool whole = visible >= KEYS && (t + 1) * KEYS <= a->n_keys;
        int64_t at = (int64_t)head * j->key_tiles + t;
        score_tile(j->keys + at * key_tile_pairs(j), q, j->qk_pairs, scores, whole ? top : ignored);
        if (!whole) mask_tile(scores, visible, a->n_keys - t * KEYS, top);
        for (int v = 0; v < VECS; v++) {
            scale[v] = fl_simd_exp2_weight(_mm512_sub_ps(before[v], top[v]));
            sum[v] = _mm512_mul_ps(sum[v], scale[v]);
        }
        weigh_tile(scores, top, sum, weights);
        add_values(j->values + at * value_tile_pairs(j), weights, j->v_dim, scale, state);
    }
    for (int v = 0; v < VECS; v++) {
        _mm512_store_ps(state + j->v_dim * ROWS + v * LANES, top[v]);
        _mm512_store_ps(state + (j->v_dim + 1) * ROWS + v * LANES, sum[v]);
    }
    if (a->last) write_rows(j, head, row0, state);
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
