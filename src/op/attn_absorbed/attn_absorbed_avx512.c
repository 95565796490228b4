/* attn_absorbed, AVX-512 with BF16. A query is a (row, head): all of a timeline read the same keys. A task takes
 * one split of keys and up to 64 queries, page by page with an online softmax. Scores: lanes are queries, keys
 * are broadcast as they lie in the page; 8 queries (one decode row of a small model) use half vectors, two
 * a cycle, so no lane idles. Values: lanes are latent dimensions, two keys interleaved on the fly, weights
 * broadcast. A query's sums run over even and odd keys in order, whatever group it is in, and are merged over
 * splits in index order by a second pass. Bound by vdpbf16ps with many heads, by KV traffic on many cores. */
#include "backend/backend.h"
#include "op/simd_avx512.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 16,
    HALF = 8,
    KEYS = FL_KV_PAGE_TOKENS,
    QUERIES = 64, /* the most a task takes */
    BLOCK = 8,    /* queries of one register block of values */
    STRIP = 32,   /* latent dimensions of one register block of values */
    CACHE_LINE = 64,
    AHEAD = 3,
    SPLIT_PAGES = FL_ATTN_ABSORBED_SPLIT_TOKENS / FL_KV_PAGE_TOKENS,
    RECORD_TAIL = 16, /* floats after the latent of a partial result: m, l, padding to a cache line */
    LATENT_MAX = 512,
    ROPE_MAX = 64
};

/* Below every score, and below that: a masked key weighs 0 even for a row that has seen no key. */
static const float FLOOR = -1e30f, MASKED = -2e30f;

typedef struct job {
    const fl_attn_absorbed_args *args;
    int64_t n_queries; /* of all rows */
    int64_t record;    /* floats of one partial result */
    int32_t run;       /* splits a task takes one after another, so that pages can be fetched ahead */
    float *partials;   /* [splits][n_queries][record]: o as lanes hold it, m, l */
} job;

/* One task: a run of splits; `width` lanes, of which the first `n` hold queries `query`... of the call. */
typedef struct span {
    const fl_kv_rows *seq;
    int32_t split, split_end;
    int32_t width, n;
    int64_t query;
    int32_t pos, head; /* of the first query */
    int32_t n_keys;    /* that the last query sees */
} span;

typedef struct page {
    const uint16_t *latent; /* [KEYS][latent_dim] */
    const uint16_t *k_pe;   /* [KEYS][rope_dim] */
} page;

/* What a task keeps; all indexed by lane, top and sums twice: for even keys from 0, for odd keys from width. */
typedef struct work {
    _Alignas(64) uint32_t q[(LATENT_MAX + ROPE_MAX) / 2 * QUERIES]; /* [pairs][width] */
    _Alignas(64) float scores[KEYS * QUERIES];                      /* [KEYS][width] */
    _Alignas(64) uint32_t weights[KEYS / 2 * QUERIES];              /* [KEYS / 2][width] pairs of keys */
    _Alignas(64) float top[2 * QUERIES];
    _Alignas(64) float sum[2 * QUERIES];
    _Alignas(64) float scale[2 * QUERIES];
    _Alignas(64) int32_t seen[2 * QUERIES]; /* keys that the lane sees */
    float *o[QUERIES];                      /* [latent_dim], strip by strip as lanes hold them */
    _Alignas(64) float no_query[LATENT_MAX];
    _Alignas(64) uint16_t padded[KEYS * (LATENT_MAX + ROPE_MAX)]; /* a page that is not full */
} work;

/* ---- scores ---- */

/* acc[i] += keys[i] . q over n_pairs pairs, for 16 keys and 8 queries. */
FL_SIMD void score_half(const uint16_t *keys, int32_t dim, const uint32_t *q, __m256 acc[16]) {
    for (int32_t p = 0; p < dim / 2; p++) {
        __m256i row = _mm256_load_si256((const __m256i *)(const void *)(q + p * HALF));
        for (int i = 0; i < 16; i++)
            acc[i] = fl_simd_dot2_half(
                acc[i], row, fl_simd_pair_half((const uint32_t *)(const void *)(keys + i * dim + 2 * p)));
    }
}

FL_SIMD void score_page_half(const page *pg, int32_t latent, int32_t rope, const uint32_t *q, float *scores) {
    for (int32_t key = 0; key < KEYS; key += 16) {
        __m256 acc[16];
        for (int i = 0; i < 16; i++) acc[i] = _mm256_setzero_ps();
        score_half(pg->latent + key * latent, latent, q, acc);
        score_half(pg->k_pe + key * rope, rope, q + latent / 2 * HALF, acc);
        for (int i = 0; i < 16; i++) _mm256_store_ps(scores + (key + i) * HALF, acc[i]);
    }
}

/* acc[i][v] += keys[i] . q[v] for `group` keys and `vecs` vectors of queries, both constant, 16 sums together. */
FL_SIMD void score_wide(const uint16_t *keys, int32_t dim, const uint32_t *q, const int vecs,
                        __m512 acc[16]) {
    for (int32_t p = 0; p < dim / 2; p++) {
        __m512i row[4];
        for (int v = 0; v < vecs; v++) row[v] = _mm512_load_si512(q + (p * vecs + v) * LANES);
        for (int i = 0; i < 16 / vecs; i++) {
            __m512i key = fl_simd_pair((const uint32_t *)(const void *)(keys + i * dim + 2 * p));
            for (int v = 0; v < vecs; v++) acc[i * vecs + v] = fl_simd_dot2(acc[i * vecs + v], key, row[v]);
        }
    }
}

FL_SIMD void score_page_wide(const page *pg, int32_t latent, int32_t rope, const uint32_t *q, const int vecs,
                             float *scores) {
    for (int32_t key = 0; key < KEYS; key += 16 / vecs) {
        __m512 acc[16];
        for (int i = 0; i < 16; i++) acc[i] = _mm512_setzero_ps();
        score_wide(pg->latent + key * latent, latent, q, vecs, acc);
        score_wide(pg->k_pe + key * rope, rope, q + latent / 2 * LANES * vecs, vecs, acc);
        for (int i = 0; i < 16; i++) _mm512_store_ps(scores + key * LANES * vecs + i * LANES, acc[i]);
    }
}

/* scores[KEYS][width] of a page. */
FL_SIMD void score_page(const page *pg, int32_t latent, int32_t rope, int32_t width, work *w) {
    switch (width) {
    case 8: score_page_half(pg, latent, rope, w->q, w->scores); break;
    case 16: score_page_wide(pg, latent, rope, w->q, 1, w->scores); break;
    case 32: score_page_wide(pg, latent, rope, w->q, 2, w->scores); break;
    default: score_page_wide(pg, latent, rope, w->q, 4, w->scores); break;
    }
}

static void score_128_32(const page *pg, int32_t width, work *w) {
    score_page(pg, 128, 32, width, w);
}

static void score_512_64(const page *pg, int32_t width, work *w) {
    score_page(pg, 512, 64, width, w);
}

static void score_any(const page *pg, const fl_kv_layer *kv, int32_t width, work *w) {
    score_page(pg, kv->latent_dim, kv->rope_dim, width, w);
}

/* ---- softmax; a row of scores is one pair of keys: 2 * width floats, the even key's first ---- */

static void mask_page(float *scores, int32_t width, const int32_t *seen, int32_t key0) {
    for (int32_t i = 0; i < 2 * width; i += LANES) {
        __m512i limit = _mm512_load_si512(seen + i);
        for (int32_t pair = 0; pair < KEYS / 2; pair++) {
            /* With 8 lanes a vector holds both keys of a pair. */
            __m512i key = _mm512_set1_epi32(key0 + 2 * pair + (i >= width));
            if (width == HALF) key = _mm512_mask_add_epi32(key, 0xff00, key, _mm512_set1_epi32(1));
            float *at = scores + pair * 2 * width + i;
            __mmask16 sees = _mm512_cmplt_epi32_mask(key, limit);
            _mm512_store_ps(at, _mm512_mask_blend_ps(sees, _mm512_set1_ps(MASKED), _mm512_load_ps(at)));
        }
    }
}

/* Raises top to the page's largest scores; scale = how much what was summed so far shrinks by that. */
static void raise_top(const float *scores, int32_t width, float *top, float *scale) {
    for (int32_t i = 0; i < width; i += LANES) {
        __m512 before = _mm512_load_ps(top + i), best[4] = {before, before, before, before};
        const float *at = scores + i;
        int32_t step = width == HALF ? LANES : width, n = width == HALF ? KEYS / 2 : KEYS;
        for (int32_t k = 0; k < n; k += 4)
            for (int j = 0; j < 4; j++) best[j] = _mm512_max_ps(best[j], _mm512_load_ps(at + (k + j) * step));
        __m512 now = _mm512_max_ps(_mm512_max_ps(best[0], best[1]), _mm512_max_ps(best[2], best[3]));
        if (width == HALF) now = _mm512_max_ps(now, _mm512_shuffle_f32x4(now, now, 0x4e));
        __m512 shrink = fl_simd_exp2_weight(_mm512_sub_ps(before, now));
        _mm512_store_ps(top + i, now);
        _mm512_store_ps(scale + i, shrink);
        if (width == HALF) continue;
        _mm512_store_ps(top + width + i, now);
        _mm512_store_ps(scale + width + i, shrink);
    }
}

/* weights = 2^(scores - top) as pairs of keys; sum = sum * scale + weights, even and odd keys apart. */
static void weigh_page(int32_t width, work *w) {
    if (width == HALF) {
        /* Two vectors of (8 even, 8 odd) become two rows of 8 pairs. */
        const __m512i lane = _mm512_set_epi32(7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0);
        __m512i index = _mm512_mask_add_epi32(lane, 0xff00, lane, _mm512_set1_epi32(16));
        index = _mm512_or_si512(index, _mm512_slli_epi32(_mm512_add_epi32(index, _mm512_set1_epi32(8)), 16));
        __m512 top = _mm512_load_ps(w->top);
        __m512 total = _mm512_mul_ps(_mm512_load_ps(w->sum), _mm512_load_ps(w->scale));
        for (int32_t pair = 0; pair < KEYS / 2; pair += 2) {
            const float *at = w->scores + pair * LANES;
            __m512 a = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_load_ps(at), top));
            __m512 b = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_load_ps(at + LANES), top));
            total = _mm512_add_ps(_mm512_add_ps(total, a), b);
            _mm512_store_si512(w->weights + pair * HALF, fl_simd_pack_pairs(a, b, index));
        }
        _mm512_store_ps(w->sum, total);
        return;
    }
    const __m512i interleave = fl_simd_interleave_index();
    for (int32_t i = 0; i < width; i += LANES) {
        __m512 top = _mm512_load_ps(w->top + i), scale = _mm512_load_ps(w->scale + i);
        __m512 evens = _mm512_mul_ps(_mm512_load_ps(w->sum + i), scale);
        __m512 odds = _mm512_mul_ps(_mm512_load_ps(w->sum + width + i), scale);
        for (int32_t pair = 0; pair < KEYS / 2; pair++) {
            const float *at = w->scores + pair * 2 * width + i;
            __m512 even = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_load_ps(at), top));
            __m512 odd = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_load_ps(at + width), top));
            evens = _mm512_add_ps(evens, even);
            odds = _mm512_add_ps(odds, odd);
            _mm512_store_si512(w->weights + pair * width + i, fl_simd_pack_pairs(even, odd, interleave));
        }
        _mm512_store_ps(w->sum + i, evens);
        _mm512_store_ps(w->sum + width + i, odds);
    }
}

/* ---- values ---- */

/* What all blocks of one strip share. */
typedef struct strip {
    const uint16_t *values; /* [KEYS] rows, `stride` apart */
    int32_t stride, width;
    int32_t at;        /* its place in o */
    const char *ahead; /* next page's bytes that are fetched meanwhile; NULL = none */
} strip;

/* One strip of dimensions, one block of queries: o = o * scale + weights^T values. Every key of the strip is
 * one cache line; AHEAD lines of the next page a pair of keys fetch its latent and k_pe within the page's time. */
FL_SIMD void add_block(const strip *s, const uint32_t *weights, const float *scale, float *const o[BLOCK],
                       const bool fetch) {
    const uint16_t *values = s->values;
    const char *ahead = s->ahead;
    __m512 low[BLOCK], high[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        __m512 shrink = _mm512_set1_ps(scale[i]);
        low[i] = _mm512_mul_ps(shrink, _mm512_load_ps(o[i] + s->at));
        high[i] = _mm512_mul_ps(shrink, _mm512_load_ps(o[i] + s->at + LANES));
    }
    for (int32_t pair = 0; pair < KEYS / 2; pair++) {
        for (int i = 0; fetch && i < AHEAD; i++) _mm_prefetch(ahead + i * CACHE_LINE, _MM_HINT_T1);
        if (fetch) ahead += AHEAD * CACHE_LINE;
        __m512i even = _mm512_loadu_si512(values), odd = _mm512_loadu_si512(values + s->stride);
        __m512i pairs_low = _mm512_unpacklo_epi16(even, odd), pairs_high = _mm512_unpackhi_epi16(even, odd);
        for (int i = 0; i < BLOCK; i++) {
            __m512i weight = fl_simd_pair(weights + i);
            low[i] = fl_simd_dot2(low[i], weight, pairs_low);
            high[i] = fl_simd_dot2(high[i], weight, pairs_high);
        }
        values += 2 * s->stride;
        weights += s->width;
    }
    for (int i = 0; i < BLOCK; i++) {
        _mm512_store_ps(o[i] + s->at, low[i]);
        _mm512_store_ps(o[i] + s->at + LANES, high[i]);
    }
}

/* Adds a page's values to the o of all queries while the next page (NULL = none) is fetched. */
static void add_values(const page *pg, int32_t latent, const span *s, const char *next, work *w) {
    for (int32_t d = 0; d < latent; d += STRIP) {
        strip st = {.values = pg->latent + d, .stride = latent, .width = s->width, .at = d};
        if (next) {
            st.ahead = next + d / STRIP * (KEYS / 2 * AHEAD * CACHE_LINE);
            add_block(&st, w->weights, w->scale, w->o, true);
        } else add_block(&st, w->weights, w->scale, w->o, false);
        for (int32_t i = BLOCK; i < s->n; i += BLOCK)
            add_block(&st, w->weights + i, w->scale + i, w->o + i, false);
    }
}

/* The 32 values of a strip as bf16 in order: unpack had put dimensions 8i..8i+3 low and 8i+4..8i+7 high. */
static void write_strip(__m512 low, __m512 high, uint16_t *out) {
    static const _Alignas(64)
        uint16_t order[STRIP] = {0, 1, 2,  3,  16, 17, 18, 19, 4,  5,  6,  7,  20, 21, 22, 23,
                                 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_load_si512(order), both));
}

/* ---- tasks ---- */

static int32_t width_of(int64_t n_queries) {
    return n_queries <= 8 ? 8 : n_queries <= 16 ? 16 : n_queries <= 32 ? 32 : QUERIES;
}

static int32_t splits_of(const fl_kv_rows *seq) {
    return (seq->pos + seq->n_rows - 1) / FL_ATTN_ABSORBED_SPLIT_TOKENS + 1;
}

static int32_t groups_of(const fl_kv_rows *seq, int32_t n_heads) {
    return (int32_t)(((int64_t)seq->n_rows * n_heads + QUERIES - 1) / QUERIES);
}

static int32_t tasks_of(const job *j, const fl_kv_rows *seq) {
    return (splits_of(seq) + j->run - 1) / j->run * groups_of(seq, j->args->n_heads);
}

/* Which part of the work task number `task` is. */
static span find_span(const job *j, int32_t task) {
    int32_t n_heads = j->args->n_heads;
    const fl_kv_rows *seq = j->args->seqs;
    for (; task >= tasks_of(j, seq); seq++) task -= tasks_of(j, seq);
    int32_t groups = groups_of(seq, n_heads);
    int64_t first = (int64_t)(task % groups) * QUERIES, all = (int64_t)seq->n_rows * n_heads;
    span s = {.seq = seq, .query = (int64_t)seq->row * n_heads + first};
    s.n = (int32_t)(all - first < QUERIES ? all - first : QUERIES);
    s.width = width_of(s.n);
    s.pos = seq->pos + (int32_t)(first / n_heads);
    s.head = (int32_t)(first % n_heads);
    s.n_keys = seq->pos + (int32_t)((first + s.n - 1) / n_heads) + 1;
    s.split = task / groups * j->run;
    s.split_end = (s.n_keys + FL_ATTN_ABSORBED_SPLIT_TOKENS - 1) / FL_ATTN_ABSORBED_SPLIT_TOKENS;
    if (s.split_end > s.split + j->run) s.split_end = s.split + j->run;
    return s;
}

static void start_split(const job *j, const span *s, int32_t split, work *w) {
    int32_t latent = j->args->kv.latent_dim;
    float *partial = j->partials + (split * j->n_queries + s->query) * j->record;
    for (int32_t i = 0; i < s->width; i++) {
        w->o[i] = i < s->n ? partial + i * j->record : w->no_query;
        memset(w->o[i], 0, sizeof(float) * (size_t)latent);
    }
    for (int32_t i = 0; i < 2 * s->width; i++) {
        w->top[i] = FLOOR;
        w->sum[i] = 0;
        w->seen[i] = s->pos + (s->head + i % s->width) / j->args->n_heads + 1;
    }
}

/* Page `index` of the timeline. Slots that nobody has written yet may hold anything: they are replaced by 0, since
 * even a weight of 0 does not silence a NaN. */
static page open_page(const fl_kv_layer *kv, const span *s, int32_t index, work *w) {
    const void *piece = fl_kv_piece(kv, s->seq->pages[index]);
    page pg = {.latent = piece, .k_pe = (const uint16_t *)piece + KEYS * kv->latent_dim};
    int32_t n_keys = s->n_keys - index * KEYS;
    if (n_keys >= KEYS) return pg;
    size_t latent = (size_t)kv->latent_dim, rope = (size_t)kv->rope_dim, n = (size_t)n_keys;
    uint16_t *latents = w->padded, *k_pes = latents + KEYS * latent;
    memcpy(latents, pg.latent, n * latent * sizeof *latents);
    memset(latents + n * latent, 0, (KEYS - n) * latent * sizeof *latents);
    memcpy(k_pes, pg.k_pe, n * rope * sizeof *k_pes);
    memset(k_pes + n * rope, 0, (KEYS - n) * rope * sizeof *k_pes);
    return (page){.latent = latents, .k_pe = k_pes};
}

static void attend_split(const job *j, const span *s, int32_t split, work *w) {
    const fl_kv_layer *kv = &j->args->kv;
    int32_t pages = (s->n_keys + KEYS - 1) / KEYS, index = split * SPLIT_PAGES;
    int32_t run_end = s->split_end * SPLIT_PAGES < pages ? s->split_end * SPLIT_PAGES : pages;
    start_split(j, s, split, w);
    for (; index < (split + 1) * SPLIT_PAGES && index < pages; index++) {
        page pg = open_page(kv, s, index, w);
        const void *next = index + 1 < run_end ? fl_kv_piece(kv, s->seq->pages[index + 1]) : NULL;
        if (kv->latent_dim == 128 && kv->rope_dim == 32) score_128_32(&pg, s->width, w);
        else if (kv->latent_dim == 512 && kv->rope_dim == 64) score_512_64(&pg, s->width, w);
        else score_any(&pg, kv, s->width, w);
        if ((index + 1) * KEYS > w->seen[0]) mask_page(w->scores, s->width, w->seen, index * KEYS);
        raise_top(w->scores, s->width, w->top, w->scale);
        weigh_page(s->width, w);
        add_values(&pg, kv->latent_dim, s, next, w);
    }
    for (int32_t i = 0; i < s->n; i++) {
        w->o[i][kv->latent_dim] = w->top[i];
        w->o[i][kv->latent_dim + 1] = w->sum[i] + w->sum[s->width + i];
    }
}

static void attend_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_absorbed_args *a = j->args;
    int32_t dim = a->kv.latent_dim + a->kv.rope_dim;
    span s = find_span(j, task);
    work w;
    fl_simd_pack_rows((const uint16_t *)a->q + s.query * dim, dim, s.n, dim / 2, s.width, w.q);
    for (int32_t split = s.split; split < s.split_end; split++) attend_split(j, &s, split, &w);
}

enum { MERGE_QUERIES = 4 };

/* One query: out = sum of its splits' o, each scaled to the largest m, over the sum of their l alike. */
static void merge_query(const job *j, int64_t query, int32_t splits) {
    const fl_attn_absorbed_args *a = j->args;
    int32_t latent = a->kv.latent_dim;
    const float *first = j->partials + query * j->record;
    int64_t step = j->n_queries * j->record;
    _Alignas(64) float o[LATENT_MAX] = {0};
    float top = FLOOR;
    for (int32_t i = 0; i < splits; i++)
        top = first[i * step + latent] > top ? first[i * step + latent] : top;
    __m512 sum = _mm512_setzero_ps();
    for (int32_t i = 0; i < splits; i++) {
        const float *partial = first + i * step;
        __m512 scale = fl_simd_exp2_weight(_mm512_set1_ps(partial[latent] - top));
        sum = _mm512_fmadd_ps(scale, _mm512_set1_ps(partial[latent + 1]), sum);
        for (int32_t d = 0; d < latent; d += LANES)
            _mm512_store_ps(o + d,
                            _mm512_fmadd_ps(scale, _mm512_load_ps(partial + d), _mm512_load_ps(o + d)));
    }
    __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), sum);
    for (int32_t d = 0; d < latent; d += STRIP)
        write_strip(_mm512_mul_ps(inverse, _mm512_load_ps(o + d)),
                    _mm512_mul_ps(inverse, _mm512_load_ps(o + d + LANES)),
                    (uint16_t *)a->out + query * latent + d);
    if (a->lse) a->lse[query] = top + log2f(_mm512_cvtss_f32(sum));
}

/* The position of a row of the call; every row is in one of the sequences. */
static int32_t position_of(const fl_attn_absorbed_args *a, int32_t row) {
    const fl_kv_rows *seq = a->seqs;
    for (int32_t i = 0; i < a->n_seqs; i++, seq++)
        if (row >= seq->row && row < seq->row + seq->n_rows) return seq->pos + row - seq->row;
    return 0;
}

static void merge_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_attn_absorbed_args *a = j->args;
    int64_t query = (int64_t)task * MERGE_QUERIES;
    for (int32_t i = 0; i < MERGE_QUERIES && query < j->n_queries; i++, query++)
        merge_query(j, query,
                    position_of(a, (int32_t)(query / a->n_heads)) / FL_ATTN_ABSORBED_SPLIT_TOKENS + 1);
}

static fl_err need_shape(const fl_attn_absorbed_args *a) {
    if (a->kv.dtype != FL_DTYPE_BF16)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_absorbed on avx512: KV is %s, expected BF16",
                       fl_dtype_name(a->kv.dtype));
    if (a->kv.latent_dim % STRIP != 0 || a->kv.latent_dim > LATENT_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "attn_absorbed on avx512: latent %d is not a multiple of %d up to %d",
                       a->kv.latent_dim, STRIP, LATENT_MAX);
    if (a->kv.rope_dim % 2 != 0 || a->kv.rope_dim > ROPE_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_absorbed on avx512: rope %d is not even and up to %d",
                       a->kv.rope_dim, ROPE_MAX);
    return FL_ERR_OK;
}

/* Longer runs fetch ahead across splits, but every thread should find several. */
static int32_t run_of(const fl_attn_absorbed_args *a, int32_t n_threads) {
    enum { RUN_MAX = 8, RUNS_A_THREAD = 6 };
    int64_t n = 0;
    for (int32_t i = 0; i < a->n_seqs; i++)
        n += (int64_t)splits_of(&a->seqs[i]) * groups_of(&a->seqs[i], a->n_heads);
    int64_t run = n / ((int64_t)n_threads * RUNS_A_THREAD);
    return run < 1 ? 1 : run > RUN_MAX ? RUN_MAX : (int32_t)run;
}

fl_err fl_attn_absorbed_avx512(fl_backend *be, const fl_attn_absorbed_args *a) {
    FL_TRY(fl_attn_absorbed_validate(a));
    FL_TRY(need_shape(a));
    job j = {.args = a, .n_queries = (int64_t)a->rows * a->n_heads, .partials = a->scratch};
    j.record = a->kv.latent_dim + RECORD_TAIL;
    j.run = run_of(a, fl_pool_threads(be->pool));
    int32_t n_tasks = 0;
    for (int32_t i = 0; i < a->n_seqs; i++) n_tasks += tasks_of(&j, &a->seqs[i]);
    fl_pool_run(be->pool, n_tasks, attend_task, &j);
    fl_pool_run(be->pool, (int32_t)((j.n_queries + MERGE_QUERIES - 1) / MERGE_QUERIES), merge_task, &j);
    return FL_ERR_OK;
}
