/* attn_absorbed, AVX2, over bf16 pages. Lanes are (row, head) pairs of one timeline, up to 16 a task; a task takes one
 * split of keys and goes through its pages, reading them as stored: two bf16 of a key are broadcast at once and
 * widened by a shift and a mask. S^T = K Q^T, softmax down the registers, O^T += latent^T P. A second pass merges the
 * splits of each (row, head) in index order. Bound by FMA with many lanes, by the widening with few. Scratch holds
 * [rows][n_heads][n_splits] partial results: o, then m and l. */
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum {
    LANES = 8,
    VECS = 2,
    WIDTH = LANES * VECS,
    GROUP = 8, /* accumulators of a register tile: keys or value dimensions, times vectors */
    KEYS = FL_KV_PAGE_TOKENS,
    SPLIT = FL_ATTN_ABSORBED_SPLIT_TOKENS,
    LATENT_MAX = 512, /* these two bound the buffers on the stack */
    ROPE_MAX = 64,
    SCRATCH_STEP = 16, /* floats: a partial's o is padded to it, m and l follow */
    HEADS_PER_MERGE = 8
};

/* Below every score, and below that: a masked key weighs 0 even for a lane that has seen no key. */
static const float FLOOR = -1e30f, MASKED = -2e30f;

typedef struct job {
    const fl_attn_absorbed_args *a;
    int32_t n_splits; /* of the longest timeline: stride of the partial results */
    int32_t partial_stride;
} job;

typedef struct tile {
    _Alignas(32) float q[LATENT_MAX + ROPE_MAX][WIDTH];
    _Alignas(32) float p[KEYS][WIDTH]; /* scores, then weights */
    _Alignas(32) float o[LATENT_MAX][WIDTH];
    _Alignas(32) float m[WIDTH], l[WIDTH];
    _Alignas(32) float scale[WIDTH]; /* what the sums so far are worth after the current page's maximum */
    _Alignas(32) int32_t last_key[WIDTH]; /* position of the last visible key */
    int32_t first_lane, n_lanes;          /* among the timeline's rows * heads */
    int32_t n_keys;                       /* of the current page, that some lane sees */
    int32_t end_key;                      /* one past the last key that some lane sees */
} tile;

static float *partial_of(const job *j, int64_t row_head, int32_t split) {
    return (float *)j->a->scratch + (row_head * j->n_splits + split) * j->partial_stride;
}

static int32_t splits_of(const fl_kv_rows *seq) {
    return (seq->pos + seq->n_rows - 1) / SPLIT + 1;
}

static int32_t lane_groups_of(const job *j, const fl_kv_rows *seq) {
    return fl_span_tasks(seq->n_rows * j->a->n_heads, WIDTH);
}

static void open_tile(const job *j, const fl_kv_rows *seq, fl_span lanes, tile *t) {
    const fl_attn_absorbed_args *a = j->a;
    int32_t key_dim = a->kv.latent_dim + a->kv.rope_dim;
    t->first_lane = lanes.first;
    t->n_lanes = lanes.end - lanes.first;
    for (int32_t i = 0; i < WIDTH; i++) { /* lanes past the end repeat the last one */
        int32_t lane = lanes.first + (i < t->n_lanes ? i : t->n_lanes - 1);
        const float *q = (const float *)a->q + ((int64_t)seq->row * a->n_heads + lane) * key_dim;
        for (int32_t d = 0; d < key_dim; d++) t->q[d][i] = q[d];
        t->last_key[i] = seq->pos + lane / a->n_heads;
        t->m[i] = FLOOR;
        t->l[i] = 0;
    }
    t->end_key = t->last_key[t->n_lanes - 1] + 1;
    memset(t->o, 0, (size_t)a->kv.latent_dim * sizeof t->o[0]);
}

/* ---- one page of keys; `vecs`, `group` and `pairs` are constants after inlining ---- */

static inline __m256i load_pair(const uint16_t *pair) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)pair));
}

/* sum += the part of the scores of `group` keys that `dim` dimensions give, in order; q [dim][WIDTH]. */
__attribute__((always_inline)) static inline void add_scores(const uint16_t *key, int32_t dim, const float *q,
                                                             __m256 sum[GROUP], int32_t vecs) {
    int32_t group = GROUP / vecs;
    for (int32_t d = 0; d < dim; d += 2)
        for (int32_t g = 0; g < group; g++) {
            __m256i pair = load_pair(key + (int64_t)g * dim + d);
            __m256 even = fl_bf16_even_avx2(pair), odd = fl_bf16_odd_avx2(pair);
            for (int32_t v = 0; v < vecs; v++) {
                __m256 *s = &sum[g * vecs + v];
                *s = _mm256_fmadd_ps(even, _mm256_load_ps(q + d * WIDTH + v * LANES), *s);
                *s = _mm256_fmadd_ps(odd, _mm256_load_ps(q + (d + 1) * WIDTH + v * LANES), *s);
            }
        }
}

__attribute__((always_inline)) static inline void score_page(const fl_kv_layer *kv, const uint16_t *piece,
                                                             tile *t, int32_t vecs) {
    int32_t group = GROUP / vecs;
    const uint16_t *k_pe = piece + (int64_t)KEYS * kv->latent_dim;
    for (int32_t i = 0; i < t->n_keys; i += group) {
        __m256 sum[GROUP];
        for (int32_t s = 0; s < GROUP; s++) sum[s] = _mm256_setzero_ps();
        add_scores(piece + (int64_t)i * kv->latent_dim, kv->latent_dim, t->q[0], sum, vecs);
        add_scores(k_pe + (int64_t)i * kv->rope_dim, kv->rope_dim, t->q[kv->latent_dim], sum, vecs);
        for (int32_t g = 0; g < group; g++)
            for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->p[i + g] + v * LANES, sum[g * vecs + v]);
    }
}

/* Scores to weights for the page's keys, from position `first`, in one vector of lanes. */
static void weigh_keys(tile *t, int32_t first, int32_t lane) {
    __m256i last = _mm256_load_si256((const __m256i *)(t->last_key + lane));
    __m256 before = _mm256_load_ps(t->m + lane), top = before;
    for (int32_t i = 0; i < t->n_keys; i++) {
        __m256 hidden = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(first + i), last));
        __m256 s = _mm256_blendv_ps(_mm256_load_ps(t->p[i] + lane), _mm256_set1_ps(MASKED), hidden);
        _mm256_store_ps(t->p[i] + lane, s);
        top = _mm256_max_ps(top, s);
    }
    __m256 scale = fl_exp2_avx2(_mm256_sub_ps(before, top));
    __m256 sum = _mm256_mul_ps(_mm256_load_ps(t->l + lane), scale);
    for (int32_t i = 0; i < t->n_keys; i++) {
        __m256 weight = fl_exp2_avx2(_mm256_sub_ps(_mm256_load_ps(t->p[i] + lane), top));
        _mm256_store_ps(t->p[i] + lane, weight);
        sum = _mm256_add_ps(sum, weight);
    }
    _mm256_store_ps(t->m + lane, top);
    _mm256_store_ps(t->l + lane, sum);
    _mm256_store_ps(t->scale + lane, scale);
}

/* o[c..c+dims-1][:] = scale o + the sum over keys in order of latent[key][c..] p[key][:]; `stride` values a key. */
__attribute__((always_inline)) static inline void add_values(const uint16_t *latent, int32_t stride, tile *t,
                                                             int32_t c, int32_t dims, int32_t vecs) {
    __m256 sum[GROUP];
    for (int32_t d = 0; d < dims; d++)
        for (int32_t v = 0; v < vecs; v++)
            sum[d * vecs + v] =
                _mm256_mul_ps(_mm256_load_ps(t->o[c + d] + v * LANES), _mm256_load_ps(t->scale + v * LANES));
    for (int32_t i = 0; i < t->n_keys; i++)
        for (int32_t d = 0; d < dims; d += 2) {
            __m256i pair = load_pair(latent + (int64_t)i * stride + c + d);
            __m256 even = fl_bf16_even_avx2(pair), odd = fl_bf16_odd_avx2(pair);
            for (int32_t v = 0; v < vecs; v++) {
                __m256 p = _mm256_load_ps(t->p[i] + v * LANES), *s = &sum[d * vecs + v];
                s[0] = _mm256_fmadd_ps(even, p, s[0]);
                s[vecs] = _mm256_fmadd_ps(odd, p, s[vecs]);
            }
        }
    for (int32_t d = 0; d < dims; d++)
        for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->o[c + d] + v * LANES, sum[d * vecs + v]);
}

__attribute__((always_inline)) static inline void attend_page(const fl_kv_layer *kv, const uint16_t *piece,
                                                              tile *t, int32_t first, int32_t vecs) {
    int32_t dims = GROUP / vecs, c = 0;
    score_page(kv, piece, t, vecs);
    for (int32_t v = 0; v < vecs; v++) weigh_keys(t, first, v * LANES);
    for (; c + dims <= kv->latent_dim; c += dims) add_values(piece, kv->latent_dim, t, c, dims, vecs);
    for (; c < kv->latent_dim; c += 2) add_values(piece, kv->latent_dim, t, c, 2, vecs);
}

/* ---- tasks ---- */

static void store_partial(const job *j, const fl_kv_rows *seq, int32_t split, const tile *t) {
    int32_t latent_dim = j->a->kv.latent_dim;
    for (int32_t i = 0; i < t->n_lanes; i++) {
        int64_t row_head = (int64_t)seq->row * j->a->n_heads + t->first_lane + i;
        float *partial = partial_of(j, row_head, split);
        for (int32_t c = 0; c < latent_dim; c++) partial[c] = t->o[c][i];
        partial[latent_dim] = t->m[i];
        partial[latent_dim + 1] = t->l[i];
    }
}

static void attend_split(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_absorbed_args *a = j->a;
    const fl_kv_rows *seq = a->seqs;
    for (; task >= splits_of(seq) * lane_groups_of(j, seq); seq++)
        task -= splits_of(seq) * lane_groups_of(j, seq);
    int32_t group = task / splits_of(seq), split = task % splits_of(seq);
    tile t;
    open_tile(j, seq, fl_span_of_task(group, WIDTH, seq->n_rows * a->n_heads), &t);
    int32_t end = t.end_key - split * SPLIT < SPLIT ? t.end_key : (split + 1) * SPLIT;
    for (int32_t first = split * SPLIT; first < end; first += KEYS) {
        const uint16_t *piece = (const uint16_t *)(const void *)fl_kv_piece(&a->kv, seq->pages[first / KEYS]);
        t.n_keys = end - first < KEYS ? end - first : KEYS;
        if (t.n_lanes > LANES) attend_page(&a->kv, piece, &t, first, VECS);
        else attend_page(&a->kv, piece, &t, first, 1);
    }
    store_partial(j, seq, split, &t);
}

/* out = sum of o 2^(m - M) over the splits in order, over the sum of l alike, where M is the largest m. */
static void merge_head(const job *j, int64_t row_head, int32_t n_splits) {
    const fl_attn_absorbed_args *a = j->a;
    int32_t latent_dim = a->kv.latent_dim;
    float *partial = partial_of(j, row_head, 0), top = partial[latent_dim], sum = 0;
    for (int32_t s = 1; s < n_splits; s++)
        top = fmaxf(top, partial[s * (int64_t)j->partial_stride + latent_dim]);
    for (int32_t s = 0; s < n_splits; s++) {
        float *m = partial + s * (int64_t)j->partial_stride + latent_dim, *l = m + 1;
        *m = _mm256_cvtss_f32(fl_exp2_avx2(_mm256_set1_ps(*m - top))); /* from now on: the split's share */
        sum += *l * *m;
    }
    float *out = (float *)a->out + row_head * latent_dim;
    for (int32_t c = 0; c < latent_dim; c += LANES) {
        __m256 o = _mm256_setzero_ps();
        for (int32_t s = 0; s < n_splits; s++) {
            const float *part = partial + s * (int64_t)j->partial_stride;
            o = _mm256_fmadd_ps(fl_load_avx2(part, c, latent_dim), _mm256_set1_ps(part[latent_dim]), o);
        }
        fl_store_avx2(out, c, latent_dim, _mm256_div_ps(o, _mm256_set1_ps(sum)));
    }
    if (a->lse) a->lse[row_head] = top + log2f(sum);
}

static void merge_heads(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_absorbed_args *a = j->a;
    int32_t parts = fl_span_tasks(a->n_heads, HEADS_PER_MERGE), row = task / parts;
    fl_span heads = fl_span_of_task(task % parts, HEADS_PER_MERGE, a->n_heads);
    const fl_kv_rows *seq = a->seqs;
    for (; row >= seq->n_rows; seq++) row -= seq->n_rows;
    for (int32_t h = heads.first; h < heads.end; h++)
        merge_head(j, (int64_t)(seq->row + row) * a->n_heads + h, (seq->pos + row) / SPLIT + 1);
}

static fl_err check_shape(const fl_attn_absorbed_args *a) {
    const fl_kv_layer *kv = &a->kv;
    if (fl_kv_format_dtype(kv->format) != FL_DTYPE_BF16)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_absorbed: KV in %s, which avx2 does not attend",
                       fl_kv_format_name(kv->format));
    if (kv->latent_dim > LATENT_MAX || kv->rope_dim > ROPE_MAX || kv->latent_dim % 2 || kv->rope_dim % 2)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_absorbed: KV of %d + %d, on avx2 even and at most %d + %d",
                       kv->latent_dim, kv->rope_dim, LATENT_MAX, ROPE_MAX);
    return FL_ERR_OK;
}

fl_err fl_attn_absorbed_avx2(fl_backend *be, const fl_attn_absorbed_args *a) {
    FL_TRY(fl_attn_absorbed_validate(a));
    FL_TRY(check_shape(a));
    job j = {.a = a, .partial_stride = (fl_span_tasks(a->kv.latent_dim, SCRATCH_STEP) + 1) * SCRATCH_STEP};
    int32_t n_tasks = 0;
    for (int32_t i = 0; i < a->n_seqs; i++) {
        int32_t n_splits = splits_of(&a->seqs[i]);
        if (n_splits > j.n_splits) j.n_splits = n_splits;
        n_tasks += n_splits * lane_groups_of(&j, &a->seqs[i]);
    }
    fl_pool_run(be->pool, n_tasks, attend_split, &j);
    fl_pool_run(be->pool, a->rows * fl_span_tasks(a->n_heads, HEADS_PER_MERGE), merge_heads, &j);
    return FL_ERR_OK;
}
