/* attn_absorbed, AVX2. Lanes are (row, head) pairs of one timeline, up to 16 a task; a task takes one split of keys and
 * goes through its pages, reading them as stored: two bf16 of a key are broadcast at once and widened by a shift and a
 * mask. Latents of quantised pages become f32 in the task's buffer. S^T = K Q^T, softmax down the registers,
 * O^T += latent^T P. A second pass merges the splits of each (row, head) in index order. Bound by FMA with many lanes,
 * by the widening with few. Scratch holds [rows][n_heads][n_splits] partial results: o, then m and l. */
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "op/attn_absorbed/attn_absorbed_keys.h"
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
    _Alignas(32) int32_t before[2][WIDTH], end[2][WIDTH]; /* fl_absorbed_keys: begin - 1, end */
    fl_absorbed_keys rows[WIDTH];                         /* of the lanes, each once */
    int32_t n_rows;
    int32_t first_lane, n_lanes; /* among the timeline's rows * heads */
    int32_t end_key;             /* one past the last key up to which a row may see */
} tile;

/* The page at hand. */
typedef struct page {
    const void *latent;   /* [KEYS][latent_dim], f32 or bf16 */
    const uint16_t *k_pe; /* [KEYS][rope_dim] */
    int32_t first;        /* position of its first key */
    int32_t n_keys;       /* of the page, up to the last one that a row may see */
    uint64_t some, all;   /* keys that some row sees, that all rows see */
    uint64_t steps;       /* keys that a row may see at all */
} page;

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
    t->n_rows = 0;
    for (int32_t i = 0; i < WIDTH; i++) { /* lanes past the end repeat the last one */
        int32_t lane = lanes.first + (i < t->n_lanes ? i : t->n_lanes - 1);
        const float *q = (const float *)a->q + ((int64_t)seq->row * a->n_heads + lane) * key_dim;
        for (int32_t d = 0; d < key_dim; d++) t->q[d][i] = q[d];
        fl_absorbed_keys keys = fl_absorbed_keys_of(&a->view, seq->pos + lane / a->n_heads);
        for (int32_t k = 0; k < 2; k++) {
            t->before[k][i] = keys.begin[k] - 1;
            t->end[k][i] = keys.end[k];
        }
        if (i == 0 || lane % a->n_heads == 0) t->rows[t->n_rows++] = keys;
        t->m[i] = FLOOR;
        t->l[i] = 0;
    }
    t->end_key = seq->pos + (lanes.end - 1) / a->n_heads + 1;
    memset(t->o, 0, (size_t)a->kv.latent_dim * sizeof t->o[0]);
}

/* ---- one page of keys; `vecs`, `wide`, `group` and `pairs` are constants after inlining ---- */

/* Elements i and i + 1 (i even) of a row of f32 (wide) or bf16. */
__attribute__((always_inline)) static inline void load_two(const void *row, int64_t i, bool wide,
                                                           __m256 *even, __m256 *odd) {
    if (wide) {
        *even = _mm256_broadcast_ss((const float *)row + i);
        *odd = _mm256_broadcast_ss((const float *)row + i + 1);
    } else {
        const float *pair = (const float *)(const void *)((const uint16_t *)row + i);
        __m256i halves = _mm256_castps_si256(_mm256_broadcast_ss(pair));
        *even = fl_bf16_even_avx2(halves);
        *odd = fl_bf16_odd_avx2(halves);
    }
}

/* What of a page is multiplied with q [dim][WIDTH]: rows of `dim`, from the first key's on. */
typedef struct part {
    const void *keys;
    int32_t dim;
    const float *q;
} part;

/* sum += the part of the scores of `group` keys from `key` on, over its dimensions in order. */
__attribute__((always_inline)) static inline void add_scores(part p, bool wide, int32_t key, int32_t vecs,
                                                             __m256 sum[GROUP]) {
    int32_t group = GROUP / vecs;
    for (int32_t d = 0; d < p.dim; d += 2)
        for (int32_t g = 0; g < group; g++) {
            __m256 even, odd;
            load_two(p.keys, (int64_t)(key + g) * p.dim + d, wide, &even, &odd);
            for (int32_t v = 0; v < vecs; v++) {
                __m256 *s = &sum[g * vecs + v];
                *s = _mm256_fmadd_ps(even, _mm256_load_ps(p.q + d * WIDTH + v * LANES), *s);
                *s = _mm256_fmadd_ps(odd, _mm256_load_ps(p.q + (d + 1) * WIDTH + v * LANES), *s);
            }
        }
}

__attribute__((always_inline)) static inline void score_page(const fl_kv_layer *kv, const page *pg, tile *t,
                                                             int32_t vecs, bool wide) {
    int32_t group = GROUP / vecs;
    const part latent = {pg->latent, kv->latent_dim, t->q[0]};
    const part k_pe = {pg->k_pe, kv->rope_dim, t->q[kv->latent_dim]};
    for (int32_t i = 0; i < pg->n_keys; i += group) {
        __m256 sum[GROUP];
        for (int32_t s = 0; s < GROUP; s++) sum[s] = _mm256_setzero_ps();
        add_scores(latent, wide, i, vecs, sum);
        add_scores(k_pe, false, i, vecs, sum);
        for (int32_t g = 0; g < group; g++)
            for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->p[i + g] + v * LANES, sum[g * vecs + v]);
    }
}

/* Scores of keys that a lane must not see become MASKED, in one vector of lanes. */
static void mask_keys(const page *pg, tile *t, int32_t lane) {
    for (int32_t i = 0; i < pg->n_keys; i++) {
        __m256i key = _mm256_set1_epi32(pg->first + i), sees = _mm256_setzero_si256();
        for (int32_t k = 0; k < 2 && pg->steps >> i & 1; k++) {
            __m256i before = _mm256_load_si256((const __m256i *)(t->before[k] + lane));
            __m256i end = _mm256_load_si256((const __m256i *)(t->end[k] + lane));
            __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(key, before), _mm256_cmpgt_epi32(end, key));
            sees = _mm256_or_si256(sees, in);
        }
        __m256 s = _mm256_load_ps(t->p[i] + lane);
        s = _mm256_blendv_ps(_mm256_set1_ps(MASKED), s, _mm256_castsi256_ps(sees));
        _mm256_store_ps(t->p[i] + lane, s);
    }
}

/* Scores to weights for the page's keys, in one vector of lanes. */
static void weigh_keys(const page *pg, tile *t, int32_t lane) {
    __m256 before = _mm256_load_ps(t->m + lane), top = before;
    if (pg->all != UINT64_MAX) mask_keys(pg, t, lane);
    for (int32_t i = 0; i < pg->n_keys; i++) top = _mm256_max_ps(top, _mm256_load_ps(t->p[i] + lane));
    __m256 scale = fl_exp2_avx2(_mm256_sub_ps(before, top));
    __m256 sum = _mm256_mul_ps(_mm256_load_ps(t->l + lane), scale);
    for (int32_t i = 0; i < pg->n_keys; i++) {
        __m256 weight = fl_exp2_avx2(_mm256_sub_ps(_mm256_load_ps(t->p[i] + lane), top));
        _mm256_store_ps(t->p[i] + lane, weight);
        sum = _mm256_add_ps(sum, weight);
    }
    _mm256_store_ps(t->m + lane, top);
    _mm256_store_ps(t->l + lane, sum);
    _mm256_store_ps(t->scale + lane, scale);
}

/* Some dimensions of a page's latents: `dims` from c on, of `stride` values a key. */
typedef struct slice {
    int32_t stride, c, dims;
} slice;

/* o[c..c+dims-1][:] = scale o + the sum over keys in order of latent[key][c..] p[key][:]. */
__attribute__((always_inline)) static inline void add_values(const page *pg, slice s, tile *t, int32_t vecs,
                                                             bool wide) {
    __m256 sum[GROUP];
    for (int32_t d = 0; d < s.dims; d++)
        for (int32_t v = 0; v < vecs; v++)
            sum[d * vecs + v] = _mm256_mul_ps(_mm256_load_ps(t->o[s.c + d] + v * LANES),
                                              _mm256_load_ps(t->scale + v * LANES));
    for (int32_t i = 0; i < pg->n_keys; i++)
        for (int32_t d = 0; d < s.dims; d += 2) {
            __m256 even, odd;
            load_two(pg->latent, (int64_t)i * s.stride + s.c + d, wide, &even, &odd);
            for (int32_t v = 0; v < vecs; v++) {
                __m256 p = _mm256_load_ps(t->p[i] + v * LANES), *two = &sum[d * vecs + v];
                two[0] = _mm256_fmadd_ps(even, p, two[0]);
                two[vecs] = _mm256_fmadd_ps(odd, p, two[vecs]);
            }
        }
    for (int32_t d = 0; d < s.dims; d++)
        for (int32_t v = 0; v < vecs; v++) _mm256_store_ps(t->o[s.c + d] + v * LANES, sum[d * vecs + v]);
}

__attribute__((always_inline)) static inline void attend_page(const fl_kv_layer *kv, const page *pg, tile *t,
                                                              int32_t vecs, bool wide) {
    int32_t dims = GROUP / vecs, c = 0, latent_dim = kv->latent_dim;
    score_page(kv, pg, t, vecs, wide);
    for (int32_t v = 0; v < vecs; v++) weigh_keys(pg, t, v * LANES);
    for (; c + dims <= latent_dim; c += dims) add_values(pg, (slice){latent_dim, c, dims}, t, vecs, wide);
    for (; c < latent_dim; c += 2) add_values(pg, (slice){latent_dim, c, 2}, t, vecs, wide);
}

static void attend_narrow(const fl_kv_layer *kv, const page *pg, tile *t) {
    if (t->n_lanes > LANES) attend_page(kv, pg, t, VECS, false);
    else attend_page(kv, pg, t, 1, false);
}

static void attend_wide(const fl_kv_layer *kv, const page *pg, tile *t) {
    if (t->n_lanes > LANES) attend_page(kv, pg, t, VECS, true);
    else attend_page(kv, pg, t, 1, true);
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

/* What the rows of a tile see of the page at `first`. */
static page look_at_page(const job *j, const tile *t, int32_t first) {
    page pg = {
        .first = first, .all = UINT64_MAX, .steps = fl_absorbed_page_steps(first, fl_absorbed_step(j->a))};
    pg.n_keys = t->end_key - first < KEYS ? t->end_key - first : KEYS;
    for (int32_t i = 0; i < t->n_rows; i++) {
        uint64_t keys = fl_absorbed_page_keys(&t->rows[i], first, pg.steps);
        pg.some |= keys;
        pg.all &= keys;
    }
    return pg;
}

static void attend_keys(const job *j, const fl_kv_rows *seq, const page *seen, tile *t) {
    const fl_kv_layer *kv = &j->a->kv;
    const uint8_t *piece = fl_kv_piece(kv, seq->pages[seen->first / KEYS]);
    float wide[KEYS * LATENT_MAX];
    page pg = *seen;
    pg.k_pe = fl_kv_k_pe(kv, piece, 0);
    pg.latent = piece;
    if (fl_kv_format_is_plain(kv->format)) {
        attend_narrow(kv, &pg, t);
        return;
    }
    int32_t read =
        fl_span_tasks(pg.n_keys, GROUP) * GROUP; /* scores go by groups; what a key past the last gets */
    fl_kv_latents_read(kv, piece, (fl_kv_slots){0, read}, FL_DTYPE_F32, wide); /* is not looked at */
    pg.latent = wide;
    attend_wide(kv, &pg, t);
}

static bool sees_split(const fl_attn_absorbed_args *a, const fl_absorbed_keys *keys, int32_t split) {
    return fl_absorbed_first_key(keys, split * SPLIT, (split + 1) * SPLIT, fl_absorbed_step(a)) >= 0;
}

static void attend_split(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_absorbed_args *a = j->a;
    const fl_kv_rows *seq = a->seqs;
    for (; task >= splits_of(seq) * lane_groups_of(j, seq); seq++)
        task -= splits_of(seq) * lane_groups_of(j, seq);
    int32_t group = task / splits_of(seq), split = task % splits_of(seq);
    bool any = false;
    tile t;
    open_tile(j, seq, fl_span_of_task(group, WIDTH, seq->n_rows * a->n_heads), &t);
    int32_t end = t.end_key - split * SPLIT < SPLIT ? t.end_key : (split + 1) * SPLIT;
    for (int32_t first = split * SPLIT; first < end; first += KEYS) {
        page pg = look_at_page(j, &t, first);
        any |= pg.some != 0;
        if (pg.some != 0) attend_keys(j, seq, &pg, &t);
    }
    if (any) store_partial(j, seq, split, &t);
}

/* out = sum of o 2^(m - M) over the splits in order, over the sum of l alike, where M is the largest m. Splits of which
 * the row sees nothing have no partial result. */
static void merge_head(const job *j, int64_t row_head, int32_t pos) {
    const fl_attn_absorbed_args *a = j->a;
    int32_t latent_dim = a->kv.latent_dim, n_splits = pos / SPLIT + 1;
    const fl_absorbed_keys keys = fl_absorbed_keys_of(&a->view, pos);
    float *out = (float *)a->out + row_head * latent_dim, top = -INFINITY, sum = 0;
    _Alignas(32) float o[LATENT_MAX + LANES] = {0};
    for (int32_t s = 0; s < n_splits; s++)
        if (sees_split(a, &keys, s)) top = fmaxf(top, partial_of(j, row_head, s)[latent_dim]);
    for (int32_t s = 0; s < n_splits; s++) {
        if (!sees_split(a, &keys, s)) continue;
        const float *partial = partial_of(j, row_head, s);
        __m256 share = fl_exp2_avx2(_mm256_set1_ps(partial[latent_dim] - top));
        sum += partial[latent_dim + 1] * _mm256_cvtss_f32(share);
        for (int32_t c = 0; c < latent_dim; c += LANES)
            _mm256_store_ps(
                o + c, _mm256_fmadd_ps(fl_load_avx2(partial, c, latent_dim), share, _mm256_load_ps(o + c)));
    }
    bool nothing = fl_absorbed_first_key(&keys, 0, pos + 1, fl_absorbed_step(a)) < 0;
    for (int32_t c = 0; c < latent_dim; c += LANES)
        fl_store_avx2(out, c, latent_dim,
                      _mm256_div_ps(_mm256_load_ps(o + c), _mm256_set1_ps(nothing ? 1 : sum)));
    if (a->lse) a->lse[row_head] = nothing ? -INFINITY : top + log2f(sum);
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
        merge_head(j, (int64_t)(seq->row + row) * a->n_heads + h, seq->pos + row);
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
