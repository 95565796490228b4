/* attn_prefill, AVX2, f32. Lanes are query rows: a task takes one head and up to 24 rows, holds Q transposed, and
 * computes S^T = K Q^T and O^T += V^T P in register tiles of 4 x 24 with K and V elements broadcast, so softmax
 * runs down the registers without a horizontal step and a row never meets its neighbours. First a parallel pass
 * makes K and V of each head contiguous, tiles that nobody visits left out. Views and lists choose the tiles of keys
 * that a task visits (attn_prefill_spans.h) and mask those that not all its rows see wholly. Bound by FMA: 12 to 7
 * loads a step. The running state is m, l [n_heads][rows], then o [n_heads][v_dim][rows]. */
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "op/attn_prefill/attn_prefill_spans.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum {
    LANES = 8,
    VECS = 3,
    ROWS = LANES * VECS,
    GROUP = 4, /* keys, or value dimensions, of one register tile */
    KEYS = FL_ATTN_TILE_TOKENS,
    DIM_MAX = 256 /* of q and k, and of v: bounds the buffers on the stack */
};

/* Below every score, and below that: a masked key weighs 0 even for a row that has seen no key. */
static const float FLOOR = -1e30f, MASKED = -2e30f;

typedef struct job {
    const fl_attn_prefill_args *a;
    int32_t qk_dim, v_pad; /* v_dim up to a multiple of GROUP */
    int32_t key_tiles;
    fl_attn_plan plan;
    float *keys;   /* [n_heads][key_tiles * KEYS][qk_dim], 0 past the last key */
    float *values; /* [n_heads][key_tiles * KEYS][v_pad], alike */
} job;

/* What a task knows of its rows; one lane a row, lanes past the end repeat the last row. */
typedef struct tile {
    _Alignas(32) float q[DIM_MAX][ROWS];
    _Alignas(32) float p[KEYS][ROWS]; /* scores, then weights */
    _Alignas(32) float o[DIM_MAX][ROWS];
    _Alignas(32) float m[ROWS], l[ROWS];
    _Alignas(32) float scale[ROWS]; /* what the sums so far are worth after the current tile's maximum */
    _Alignas(32) int32_t first[FL_ATTN_SPANS][ROWS], end[FL_ATTN_SPANS][ROWS]; /* keys seen, but for lists */
    int32_t end_of_all;                                                        /* the largest end */
    bool two_spans;
    float bias; /* of every score */
    int32_t n_rows, first_row;
} tile;

/* ---- packing ---- */

static void pack_tile(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_prefill_args *a = j->a;
    int32_t head = task / j->key_tiles, first = task % j->key_tiles * KEYS;
    if (!(j->plan.packed[head] >> (first / KEYS) & 1)) return;
    int64_t kv_dim = a->nope_dim + a->v_dim, place = (int64_t)head * j->key_tiles * KEYS;
    for (int32_t t = first; t < first + KEYS; t++) {
        float *key = j->keys + (place + t) * j->qk_dim, *value = j->values + (place + t) * j->v_pad;
        memset(value, 0, (size_t)j->v_pad * sizeof *value);
        if (t >= a->n_keys) {
            memset(key, 0, (size_t)j->qk_dim * sizeof *key);
            continue;
        }
        const float *kv = (const float *)a->kv + ((int64_t)t * a->n_heads + head) * kv_dim;
        const float *k_pe = (const float *)a->k_pe + (int64_t)t * a->rope_dim;
        memcpy(key, kv, (size_t)a->nope_dim * sizeof *key);
        memcpy(key + a->nope_dim, k_pe, (size_t)a->rope_dim * sizeof *key);
        memcpy(value, kv + a->nope_dim, (size_t)a->v_dim * sizeof *value);
    }
}

static void open_tile(const job *j, int32_t head, fl_span rows, tile *t) {
    const fl_attn_prefill_args *a = j->a;
    t->n_rows = rows.end - rows.first;
    t->first_row = rows.first;
    t->end_of_all = 0;
    t->two_spans = a->view.sinks > 0;
    t->bias = a->key_bias ? a->key_bias[head] : 0;
    for (int32_t lane = 0; lane < ROWS; lane++) {
        int32_t row = rows.first + (lane < t->n_rows ? lane : t->n_rows - 1);
        const float *q = (const float *)a->q + ((int64_t)row * a->n_heads + head) * j->qk_dim;
        for (int32_t d = 0; d < j->qk_dim; d++) t->q[d][lane] = q[d];
        for (int32_t i = 0; i < FL_ATTN_SPANS; i++) {
            t->first[i][lane] = j->plan.first[i][row];
            t->end[i][lane] = j->plan.end[i][row];
            if (t->end[i][lane] > t->end_of_all) t->end_of_all = t->end[i][lane];
        }
        t->m[lane] = FLOOR;
        t->l[lane] = 0;
    }
    memset(t->o, 0, (size_t)j->v_pad * sizeof t->o[0]);
}

/* ---- one tile of keys ---- */

/* p[i][:] = scores of keys i..i+3, over the head dimensions in order; `vecs` is a constant after inlining. */
__attribute__((always_inline)) static inline void score_group(const float *key, int32_t dim, tile *t,
                                                              int32_t i, int32_t vecs) {
    __m256 sum[GROUP][VECS];
    for (int32_t g = 0; g < GROUP; g++)
        for (int32_t v = 0; v < vecs; v++) sum[g][v] = _mm256_set1_ps(t->bias);
    for (int32_t d = 0; d < dim; d++) {
        __m256 q[VECS];
        for (int32_t v = 0; v < vecs; v++) q[v] = _mm256_load_ps(t->q[d] + v * LANES);
        for (int32_t g = 0; g < GROUP; g++) {
            __m256 k = _mm256_broadcast_ss(key + (int64_t)g * dim + d);
            for (int32_t v = 0; v < vecs; v++) sum[g][v] = _mm256_fmadd_ps(k, q[v], sum[g][v]);
        }
    }
    for (int32_t g = 0; g < GROUP; g++)
        for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->p[i + g] + v * LANES, sum[g][v]);
}

/* o[c..c+3][:] = scale o + the sum over keys in order of value[key][c..c+3] p[key][:]. */
__attribute__((always_inline)) static inline void
value_group(const float *value, int32_t stride, int32_t n_keys, tile *t, int32_t c, int32_t vecs) {
    __m256 sum[GROUP][VECS];
    for (int32_t g = 0; g < GROUP; g++)
        for (int32_t v = 0; v < vecs; v++)
            sum[g][v] =
                _mm256_mul_ps(_mm256_load_ps(t->o[c + g] + v * LANES), _mm256_load_ps(t->scale + v * LANES));
    for (int32_t i = 0; i < n_keys; i++) {
        __m256 p[VECS];
        for (int32_t v = 0; v < vecs; v++) p[v] = _mm256_load_ps(t->p[i] + v * LANES);
        for (int32_t g = 0; g < GROUP; g++) {
            __m256 element = _mm256_broadcast_ss(value + (int64_t)i * stride + c + g);
            for (int32_t v = 0; v < vecs; v++) sum[g][v] = _mm256_fmadd_ps(element, p[v], sum[g][v]);
        }
    }
    for (int32_t g = 0; g < GROUP; g++)
        for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->o[c + g] + v * LANES, sum[g][v]);
}

/* All-ones where a row's span i does not hold `key`. */
__attribute__((always_inline)) static inline __m256i outside(const tile *t, int32_t i, int32_t v,
                                                             __m256i key) {
    __m256i first = _mm256_load_si256((const __m256i *)(t->first[i] + v * LANES));
    __m256i end = _mm256_load_si256((const __m256i *)(t->end[i] + v * LANES));
    __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(first, key), _mm256_cmpgt_epi32(end, key));
    return _mm256_xor_si256(inside, _mm256_set1_epi32(-1));
}

/* Hides what rows must not see of n_keys keys from `first` of the call; bit i of `listed`: key i may be seen. */
__attribute__((always_inline)) static inline void mask_keys(tile *t, int32_t first, int32_t n_keys,
                                                            uint64_t listed, int32_t vecs) {
    for (int32_t i = 0; i < n_keys; i++) {
        __m256i key = _mm256_set1_epi32(first + i), unlisted = _mm256_set1_epi32(listed >> i & 1 ? 0 : -1);
        for (int32_t v = 0; v < vecs; v++) {
            __m256i hidden = outside(t, 0, v, key);
            if (t->two_spans) hidden = _mm256_and_si256(hidden, outside(t, 1, v, key));
            hidden = _mm256_or_si256(hidden, unlisted);
            __m256 s = _mm256_load_ps(t->p[i] + v * LANES);
            s = _mm256_blendv_ps(s, _mm256_set1_ps(MASKED), _mm256_castsi256_ps(hidden));
            _mm256_store_ps(t->p[i] + v * LANES, s);
        }
    }
}

/* Scores to weights for n_keys keys. */
__attribute__((always_inline)) static inline void weigh_keys(tile *t, int32_t n_keys, int32_t vecs) {
    __m256 top[VECS], sum[VECS];
    for (int32_t v = 0; v < vecs; v++) top[v] = _mm256_load_ps(t->m + v * LANES);
    for (int32_t i = 0; i < n_keys; i++)
        for (int32_t v = 0; v < vecs; v++)
            top[v] = _mm256_max_ps(top[v], _mm256_load_ps(t->p[i] + v * LANES));
    for (int32_t v = 0; v < vecs; v++) {
        __m256 scale = fl_exp2_avx2(_mm256_sub_ps(_mm256_load_ps(t->m + v * LANES), top[v]));
        sum[v] = _mm256_mul_ps(_mm256_load_ps(t->l + v * LANES), scale);
        _mm256_store_ps(t->scale + v * LANES, scale);
        _mm256_store_ps(t->m + v * LANES, top[v]);
    }
    for (int32_t i = 0; i < n_keys; i++)
        for (int32_t v = 0; v < vecs; v++) {
            __m256 p = fl_exp2_avx2(_mm256_sub_ps(_mm256_load_ps(t->p[i] + v * LANES), top[v]));
            _mm256_store_ps(t->p[i] + v * LANES, p);
            sum[v] = _mm256_add_ps(sum[v], p);
        }
    for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->l + v * LANES, sum[v]);
}

/* All key tiles to visit. Keys past the last visible one are left out: their weight is exactly 0. */
__attribute__((always_inline)) static inline void attend(const job *j, int32_t head, tile *t,
                                                         const fl_attn_visit *visit, int32_t vecs) {
    int64_t place = (int64_t)head * j->key_tiles * KEYS;
    for (uint64_t left = visit->some; left != 0; left &= left - 1) {
        int32_t number = __builtin_ctzll(left), first = number * KEYS, n_seen = t->end_of_all - first;
        const float *key = j->keys + (place + first) * j->qk_dim;
        const float *value = j->values + (place + first) * j->v_pad;
        int32_t n_keys = n_seen < KEYS ? (n_seen + GROUP - 1) / GROUP * GROUP : KEYS;
        for (int32_t i = 0; i < n_keys; i += GROUP)
            score_group(key + (int64_t)i * j->qk_dim, j->qk_dim, t, i, vecs);
        if (!(visit->whole >> number & 1)) mask_keys(t, first, n_keys, visit->keys[number], vecs);
        weigh_keys(t, n_keys, vecs);
        for (int32_t c = 0; c < j->v_pad; c += GROUP) value_group(value, j->v_pad, n_keys, t, c, vecs);
    }
}

/* ---- between calls ---- */

/* Merges the state of earlier calls into the tile's (unless this is the first) and stores the sum (unless it is
 * the last), for the rows of vector v. */
static void merge_state(const job *j, int32_t head, tile *t, int32_t v) {
    const fl_attn_prefill_args *a = j->a;
    int32_t lane = v * LANES;
    int64_t rows = a->rows, n_sums = (int64_t)a->n_heads * rows, row = t->first_row + lane;
    __m256i lanes = fl_lanes_avx2(t->n_rows - lane);
    float *m = (float *)a->state + head * rows + row, *l = m + n_sums;
    float *o = (float *)a->state + 2 * n_sums + (int64_t)head * a->v_dim * rows + row;
    __m256 m_here = _mm256_load_ps(t->m + lane), l_here = _mm256_load_ps(t->l + lane);
    __m256 m_before = m_here, l_before = _mm256_setzero_ps();
    if (!a->first) {
        m_before = _mm256_maskload_ps(m, lanes);
        l_before = _mm256_maskload_ps(l, lanes);
    }
    __m256 top = _mm256_max_ps(m_before, m_here);
    __m256 before = fl_exp2_avx2(_mm256_sub_ps(m_before, top)),
           here = fl_exp2_avx2(_mm256_sub_ps(m_here, top));
    __m256 sum = _mm256_fmadd_ps(l_before, before, _mm256_mul_ps(l_here, here));
    _mm256_store_ps(t->m + lane, top);
    _mm256_store_ps(t->l + lane, sum);
    if (!a->last) {
        _mm256_maskstore_ps(m, lanes, top);
        _mm256_maskstore_ps(l, lanes, sum);
    }
    for (int32_t c = 0; c < a->v_dim; c++, o += rows) {
        __m256 value = _mm256_mul_ps(_mm256_load_ps(t->o[c] + lane), here);
        if (!a->first) value = _mm256_fmadd_ps(_mm256_maskload_ps(o, lanes), before, value);
        if (a->last) _mm256_store_ps(t->o[c] + lane, value);
        else _mm256_maskstore_ps(o, lanes, value);
    }
}

static void write_out(const job *j, int32_t head, const tile *t) {
    const fl_attn_prefill_args *a = j->a;
    for (int32_t lane = 0; lane < t->n_rows; lane++) {
        int64_t line = (int64_t)(t->first_row + lane) * a->n_heads + head;
        float *out = (float *)a->out + line * a->v_dim;
        float inverse = t->l[lane] > 0 ? 1.0f / t->l[lane] : 0;
        for (int32_t c = 0; c < a->v_dim; c++) out[c] = t->o[c][lane] * inverse;
        if (a->lse) a->lse[line] = t->m[lane] + log2f(t->l[lane]);
    }
}

static void attend_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    int32_t row_tiles = j->plan.row_tiles;
    int32_t head = task / row_tiles, row_tile = row_tiles - 1 - task % row_tiles; /* longest first */
    fl_span rows = fl_attn_plan_rows(&j->plan, row_tile);
    if (rows.first >= rows.end) return; /* the list's last tile need not be full */
    fl_attn_visit visit;
    fl_attn_plan_visit(&j->plan, row_tile, head, &visit);
    if (visit.some == 0 && !j->a->first && !j->a->last) return;
    tile t;
    open_tile(j, head, rows, &t);
    int32_t vecs = fl_span_tasks(t.n_rows, LANES);
    if (vecs == 1) attend(j, head, &t, &visit, 1);
    else if (vecs == 2) attend(j, head, &t, &visit, 2);
    else attend(j, head, &t, &visit, VECS);
    for (int32_t v = 0; v < vecs; v++) merge_state(j, head, &t, v);
    if (j->a->last) write_out(j, head, &t);
}

static fl_err attend_call(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_codes_refuse(be, "attn_prefill", &a->out_codes));
    FL_TRY(fl_attn_prefill_need_split(a));
    job j = {.a = a, .qk_dim = a->nope_dim + a->rope_dim, .v_pad = fl_span_tasks(a->v_dim, GROUP) * GROUP};
    if (j.qk_dim > DIM_MAX || j.v_pad > DIM_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_prefill: heads of %d + %d / %d, at most %d / %d on avx2",
                       a->nope_dim, a->rope_dim, a->v_dim, DIM_MAX, DIM_MAX);
    j.key_tiles = fl_span_tasks(a->n_keys, KEYS);
    j.keys = (float *)(void *)((uint8_t *)a->scratch + fl_attn_plan_bytes(a->rows, a->n_heads));
    j.values = j.keys + (int64_t)a->n_heads * j.key_tiles * KEYS * j.qk_dim;
    fl_attn_plan_make(be->pool, a, ROWS, a->scratch, &j.plan);
    fl_pool_run(be->pool, a->n_heads * j.key_tiles, pack_tile, &j);
    fl_pool_run(be->pool, a->n_heads * j.plan.row_tiles, attend_rows, &j);
    return FL_ERR_OK;
}

fl_err fl_attn_prefill_avx2(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_attn_prefill_validate(a));
    FL_TRY(attend_call(be, a));
    return a->then ? attend_call(be, a->then) : FL_ERR_OK;
}
