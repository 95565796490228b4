/* attn_absorbed, AVX-512 with BF16. A query is a (row, head): all of a timeline read the same keys. Queries go in
 * blocks of 8, one decode row of a small model. Scores: a vector holds two pairs of dimensions for each of the
 * 8 queries and meets 4 values of a key as they lie in the page, broadcast: no lane idles, nothing is transposed.
 * Values: lanes are latent dimensions, two keys interleaved on the fly, weights broadcast. A task takes a run of
 * splits and up to 8 blocks; while it computes a page the next one is fetched. Splits are merged in index order
 * by a second pass. A query's bits do not depend on its block.
 *
 * A weight is 2^(score - base). The base need not be the largest score, only near it: it starts as the score of
 * the split's first key, which every row sees that sees any, and moves when the sum leaves its range. So scores
 * become weights while they are in registers.
 *
 * Bound by vdpbf16ps: latent + rope / 2 of them for 16 keys and 8 queries; on many cores by KV traffic. */
#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/simd_avx512.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 16,
    BLOCK = 8,      /* queries */
    BLOCKS_MAX = 8, /* of a task */
    QUERIES = BLOCK * BLOCKS_MAX,
    KEYS = FL_KV_PAGE_TOKENS,
    GROUP = 16,       /* keys of one register block of scores */
    QUAD = 4,         /* dimensions of one step of a score */
    STRIP = 32,       /* latent dimensions of one register block of values */
    RECORD_TAIL = 16, /* floats after the latent of a partial result: base, sum, padding to a cache line */
    CACHE_LINE = 64,
    AHEAD = 3, /* cache lines of the next page fetched a pair of keys */
    SPLIT_PAGES = FL_ATTN_ABSORBED_SPLIT_TOKENS / FL_KV_PAGE_TOKENS,
    MERGE_QUERIES = 4, /* of a task of the second pass */
    LATENT_MAX = 512,
    ROPE_MAX = 64
};

/* The score of a key that a row must not see: weighs 0. And the sum of weights from which on a query takes a new
 * base: weights and outputs stay far inside f32. */
static const float MASKED = -1e30f, SUM_MAX = 0x1p60f;

typedef struct job {
    const fl_attn_absorbed_args *args;
    int64_t n_queries; /* of all rows */
    int64_t record;    /* floats of one partial result */
    int32_t run;       /* splits a task takes one after another, so that pages can be fetched ahead */
    float *partials;   /* [splits][n_queries][record]: o as lanes hold it, base, sum */
} job;

/* One task: a run of splits and the `n` queries from `query` of the call. */
typedef struct span {
    const fl_kv_rows *seq;
    int32_t split, split_end;
    int32_t n;
    int64_t query;
    int32_t pos, head; /* of the first query */
    int32_t n_keys;    /* that the last query sees */
} span;

typedef struct page {
    const uint16_t *latent; /* [KEYS][latent_dim] */
    const uint16_t *k_pe;   /* [KEYS][rope_dim] */
    int32_t latent_dim, rope_dim;
    int32_t first; /* position of its first key */
} page;

/* 8 queries. Lanes of a vector: even keys of the 8 queries, then odd keys of them. */
typedef struct block {
    _Alignas(64) uint64_t q[(LATENT_MAX + ROPE_MAX) / QUAD * BLOCK]; /* [quads][BLOCK] */
    _Alignas(64) uint32_t weights[KEYS / 2 * BLOCK];                 /* [KEYS / 2][BLOCK] pairs of keys */
    __m512 base;
    __m512 sum;      /* of the weights; of keys 0, 1 of 4 and of keys 2, 3 of 4 */
    __m512i seen;    /* keys of the timeline that the query sees */
    float *o[BLOCK]; /* [latent_dim], strip by strip as lanes hold them */
} block;

typedef struct work {
    block blocks[BLOCKS_MAX];
    _Alignas(64) float no_query[LATENT_MAX];
    _Alignas(64) uint16_t padded[KEYS * (LATENT_MAX + ROPE_MAX)]; /* a page that is not full */
} work;

/* ---- scores and weights ---- */

/* sums[i] += keys[i] . q over `dim` dimensions: lane 2h of query h's even pairs, lane 2h + 1 of its odd ones. */
FL_SIMD void multiply(const uint16_t *keys, int32_t dim, const uint64_t *q, __m512 sums[GROUP]) {
    for (int32_t d = 0; d < dim; d += QUAD, q += BLOCK) {
        __m512i row = _mm512_load_si512(q);
        for (int i = 0; i < GROUP; i++)
            sums[i] = fl_simd_dot2(sums[i], row, fl_simd_quad(keys + i * dim + d));
    }
}

/* scores[i] = those of keys 2i and 2i + 1 after `key` of the page, less the base. */
FL_SIMD void score_group(const page *pg, int32_t latent, int32_t rope, int32_t key, const block *b,
                         __m512 scores[GROUP / 2]) {
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_or_si512(evens, _mm512_set1_epi32(1));
    __m512 sums[GROUP];
    for (int i = 0; i < GROUP; i++) sums[i] = _mm512_setzero_ps();
    multiply(pg->latent + key * latent, latent, b->q, sums);
    multiply(pg->k_pe + key * rope, rope, b->q + latent / QUAD * BLOCK, sums);
    for (int i = 0; i < GROUP / 2; i++) {
        __m512 low = _mm512_permutex2var_ps(sums[2 * i], evens, sums[2 * i + 1]);
        __m512 high = _mm512_permutex2var_ps(sums[2 * i], odds, sums[2 * i + 1]);
        scores[i] = _mm512_sub_ps(_mm512_add_ps(low, high), b->base);
    }
}

/* Hides keys from rows that must not see them; `position` is that of the first. */
FL_SIMD void mask_group(int32_t position, __m512i seen, __m512 scores[GROUP / 2]) {
    const __m512i odd = _mm512_maskz_set1_epi32(0xff00, 1);
    for (int i = 0; i < GROUP / 2; i++) {
        __mmask16 sees =
            _mm512_cmplt_epi32_mask(_mm512_add_epi32(odd, _mm512_set1_epi32(position + 2 * i)), seen);
        scores[i] = _mm512_mask_blend_ps(sees, _mm512_set1_ps(MASKED), scores[i]);
    }
}

/* What becomes of the scores of a group. */
typedef enum goal { WEIGH, FIND_TOP } goal;

/* A page's weights and their sum (as rounded, so that it matches), or just raises *top to the largest score. */
FL_SIMD void score_page(const page *pg, int32_t latent, int32_t rope, block *b, const goal use, __m512 *top) {
    /* Two vectors of (8 even, 8 odd) become two rows of 8 pairs. */
    const __m512i lane = _mm512_set_epi32(23, 22, 21, 20, 19, 18, 17, 16, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i index =
        _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(8)), 16));
    bool edge = _mm512_cmplt_epi32_mask(b->seen, _mm512_set1_epi32(pg->first + KEYS)) != 0;
    for (int32_t key = 0; key < KEYS; key += GROUP) {
        __m512 scores[GROUP / 2];
        score_group(pg, latent, rope, key, b, scores);
        if (edge) mask_group(pg->first + key, b->seen, scores);
        for (int i = 0; use == WEIGH && i < GROUP / 2; i += 2) {
            __m512i pairs =
                fl_simd_pack_pairs(fl_simd_exp2_weight(scores[i]), fl_simd_exp2_weight(scores[i + 1]), index);
            b->sum = fl_simd_dot2(b->sum, pairs, _mm512_set1_epi32(0x3f803f80));
            _mm512_store_si512(b->weights + (key / 2 + i) * BLOCK, pairs);
        }
        for (int i = 0; use == FIND_TOP && i < GROUP / 2; i++) *top = _mm512_max_ps(*top, scores[i]);
    }
}

static void weigh_128_32(const page *pg, block *b) {
    score_page(pg, 128, 32, b, WEIGH, NULL);
}

static void weigh_512_64(const page *pg, block *b) {
    score_page(pg, 512, 64, b, WEIGH, NULL);
}

static void weigh_any(const page *pg, block *b) {
    score_page(pg, pg->latent_dim, pg->rope_dim, b, WEIGH, NULL);
}

static void weigh_page(const page *pg, block *b) {
    if (pg->latent_dim == 128 && pg->rope_dim == 32) weigh_128_32(pg, b);
    else if (pg->latent_dim == 512 && pg->rope_dim == 64) weigh_512_64(pg, b);
    else weigh_any(pg, b);
}

/* The score of the page's first key is each query's first base. */
static void start_base(const page *pg, block *b) {
    const __m512i evens = _mm512_set_epi32(14, 12, 10, 8, 6, 4, 2, 0, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_or_si512(evens, _mm512_set1_epi32(1));
    __m512 sum = _mm512_setzero_ps();
    const uint64_t *q = b->q;
    for (int32_t d = 0; d < pg->latent_dim; d += QUAD, q += BLOCK)
        sum = fl_simd_dot2(sum, fl_simd_quad(pg->latent + d), _mm512_load_si512(q));
    for (int32_t d = 0; d < pg->rope_dim; d += QUAD, q += BLOCK)
        sum = fl_simd_dot2(sum, fl_simd_quad(pg->k_pe + d), _mm512_load_si512(q));
    b->base = _mm512_add_ps(_mm512_permutexvar_ps(evens, sum), _mm512_permutexvar_ps(odds, sum));
    b->sum = _mm512_setzero_ps();
}

/* Both halves the same: the larger of the two. */
FL_SIMD __m512 larger_half(__m512 v) {
    return _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
}

static __mmask16 beyond(__m512 sum) {
    return _mm512_cmp_ps_mask(larger_half(sum), _mm512_set1_ps(SUM_MAX), _CMP_NLE_UQ);
}

/* Queries whose sum went beyond SUM_MAX with this page take its largest score as their new base: `before`, their
 * sum before it, and o shrink by the difference. A query's own scores alone decide. */
static void raise_base(const page *pg, __m512 before, block *b) {
    __m512 top = _mm512_setzero_ps();
    score_page(pg, pg->latent_dim, pg->rope_dim, b, FIND_TOP, &top);
    __m512 rise = _mm512_maskz_mov_ps(beyond(b->sum), larger_half(top));
    __m512 scale = fl_simd_exp2_weight(_mm512_sub_ps(_mm512_setzero_ps(), rise));
    _Alignas(64) float scales[LANES];
    _mm512_store_ps(scales, scale);
    b->base = _mm512_add_ps(b->base, rise);
    b->sum = _mm512_mul_ps(before, scale);
    for (int i = 0; i < BLOCK; i++)
        for (int32_t d = 0; d < pg->latent_dim; d++) b->o[i][d] *= scales[i];
}

/* ---- values ---- */

/* What the blocks of one strip share. */
typedef struct strip {
    const uint16_t *values; /* [KEYS] rows, `stride` apart */
    int32_t stride;
    int32_t at;        /* its place in o */
    const char *ahead; /* next page's bytes that are fetched meanwhile */
} strip;

/* One strip of dimensions: o += weights^T values. AHEAD lines of the next page a pair of keys fetch it whole within
 * the page's time. */
FL_SIMD void add_block(const strip *s, const bool fetch, block *b) {
    const uint16_t *values = s->values;
    const uint32_t *weights = b->weights;
    const char *ahead = s->ahead;
    __m512 low[BLOCK], high[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        low[i] = _mm512_load_ps(b->o[i] + s->at);
        high[i] = _mm512_load_ps(b->o[i] + s->at + LANES);
    }
    for (int32_t pair = 0; pair < KEYS / 2; pair++) {
        if (fetch) {
            for (int i = 0; i < AHEAD; i++) _mm_prefetch(ahead + i * CACHE_LINE, _MM_HINT_T1);
            ahead += AHEAD * CACHE_LINE;
        }
        __m512i even = _mm512_loadu_si512(values), odd = _mm512_loadu_si512(values + s->stride);
        __m512i pairs_low = _mm512_unpacklo_epi16(even, odd), pairs_high = _mm512_unpackhi_epi16(even, odd);
        for (int i = 0; i < BLOCK; i++) {
            __m512i weight = fl_simd_pair(weights + i);
            low[i] = fl_simd_dot2(low[i], weight, pairs_low);
            high[i] = fl_simd_dot2(high[i], weight, pairs_high);
        }
        values += 2 * s->stride;
        weights += BLOCK;
    }
    for (int i = 0; i < BLOCK; i++) {
        _mm512_store_ps(b->o[i] + s->at, low[i]);
        _mm512_store_ps(b->o[i] + s->at + LANES, high[i]);
    }
}

/* Adds a page's values to all blocks while the next page (NULL = none) is fetched. */
static void add_values(const page *pg, int32_t n_blocks, const void *next, block *blocks) {
    for (int32_t d = 0; d < pg->latent_dim; d += STRIP) {
        strip s = {.values = pg->latent + d, .stride = pg->latent_dim, .at = d};
        if (next) {
            s.ahead = (const char *)next + d / STRIP * (KEYS / 2 * AHEAD * CACHE_LINE);
            add_block(&s, true, &blocks[0]);
        } else add_block(&s, false, &blocks[0]);
        for (int32_t i = 1; i < n_blocks; i++) add_block(&s, false, &blocks[i]);
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
    s.pos = seq->pos + (int32_t)(first / n_heads);
    s.head = (int32_t)(first % n_heads);
    s.n_keys = seq->pos + (int32_t)((first + s.n - 1) / n_heads) + 1;
    s.split = task / groups * j->run;
    s.split_end = (s.n_keys + FL_ATTN_ABSORBED_SPLIT_TOKENS - 1) / FL_ATTN_ABSORBED_SPLIT_TOKENS;
    if (s.split_end > s.split + j->run) s.split_end = s.split + j->run;
    return s;
}

/* Page `index` of the timeline. Slots that nobody has written yet may hold anything: they are replaced by 0, since
 * even a weight of 0 does not silence a NaN. */
static page open_page(const fl_kv_layer *kv, const span *s, int32_t index, work *w) {
    const void *piece = fl_kv_piece(kv, s->seq->pages[index]);
    page pg = {
        .latent = piece, .latent_dim = kv->latent_dim, .rope_dim = kv->rope_dim, .first = index * KEYS};
    pg.k_pe = pg.latent + KEYS * kv->latent_dim;
    if (s->n_keys - pg.first >= KEYS) return pg;
    size_t latent = (size_t)kv->latent_dim, rope = (size_t)kv->rope_dim, n = (size_t)(s->n_keys - pg.first);
    uint16_t *latents = w->padded, *k_pes = latents + KEYS * latent;
    memcpy(latents, pg.latent, n * latent * sizeof *latents);
    memset(latents + n * latent, 0, (KEYS - n) * latent * sizeof *latents);
    memcpy(k_pes, pg.k_pe, n * rope * sizeof *k_pes);
    memset(k_pes + n * rope, 0, (KEYS - n) * rope * sizeof *k_pes);
    pg.latent = latents;
    pg.k_pe = k_pes;
    return pg;
}

/* Queries in blocks, dimensions by fours beside each other; 0 where there is none. */
static void open_queries(const job *j, const span *s, work *w) {
    const fl_attn_absorbed_args *a = j->args;
    int32_t dim = a->kv.latent_dim + a->kv.rope_dim;
    const uint16_t *q = (const uint16_t *)a->q + s->query * dim;
    for (int32_t i = 0; i < (s->n + BLOCK - 1) / BLOCK * BLOCK; i++) {
        block *b = &w->blocks[i / BLOCK];
        for (int32_t d = 0; d < dim; d += QUAD) {
            uint64_t quad = 0;
            if (i < s->n) memcpy(&quad, q + (int64_t)i * dim + d, sizeof quad);
            b->q[d / QUAD * BLOCK + i % BLOCK] = quad;
        }
    }
    for (int32_t i = 0; i < s->n; i += BLOCK) {
        _Alignas(64) int32_t seen[LANES];
        for (int32_t lane = 0; lane < LANES; lane++)
            seen[lane] = s->pos + (s->head + i + lane % BLOCK) / a->n_heads + 1;
        w->blocks[i / BLOCK].seen = _mm512_load_si512(seen);
    }
}

static void attend_page(const page *pg, int32_t n_blocks, const void *next, work *w) {
    for (int32_t i = 0; i < n_blocks; i++) {
        block *b = &w->blocks[i];
        __m512 before = b->sum;
        weigh_page(pg, b);
        if (beyond(b->sum)) { /* rare */
            raise_base(pg, before, b);
            weigh_page(pg, b);
        }
    }
    add_values(pg, n_blocks, next, w->blocks);
}

static void attend_split(const job *j, const span *s, int32_t split, work *w) {
    const fl_kv_layer *kv = &j->args->kv;
    int32_t latent = kv->latent_dim, n_blocks = (s->n + BLOCK - 1) / BLOCK;
    int32_t pages = (s->n_keys + KEYS - 1) / KEYS, index = split * SPLIT_PAGES;
    int32_t run_end = s->split_end * SPLIT_PAGES < pages ? s->split_end * SPLIT_PAGES : pages;
    float *partial = j->partials + (split * j->n_queries + s->query) * j->record;
    page pg = open_page(kv, s, index, w);
    for (int32_t i = 0; i < n_blocks * BLOCK; i++) {
        float *o = i < s->n ? partial + i * j->record : w->no_query;
        memset(o, 0, sizeof *o * (size_t)latent);
        w->blocks[i / BLOCK].o[i % BLOCK] = o;
    }
    for (int32_t i = 0; i < n_blocks; i++) start_base(&pg, &w->blocks[i]);
    for (;;) {
        bool more = index + 1 < (split + 1) * SPLIT_PAGES && index + 1 < pages;
        attend_page(&pg, n_blocks, index + 1 < run_end ? fl_kv_piece(kv, s->seq->pages[index + 1]) : NULL, w);
        if (!more) break;
        pg = open_page(kv, s, ++index, w);
    }
    for (int32_t i = 0; i < s->n; i++) {
        const block *b = &w->blocks[i / BLOCK];
        _Alignas(64) float base[LANES], sum[LANES];
        _mm512_store_ps(base, b->base);
        _mm512_store_ps(sum, b->sum);
        partial[i * j->record + latent] = base[i % BLOCK];
        partial[i * j->record + latent + 1] = sum[i % BLOCK] + sum[BLOCK + i % BLOCK];
    }
}

static void attend_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    span s = find_span(j, task);
    work w;
    open_queries(j, &s, &w);
    for (int32_t split = s.split; split < s.split_end; split++) attend_split(j, &s, split, &w);
}

/* One query: out = sum of its splits' o, each brought to the largest base, over that of their sums alike. */
static void merge_query(const job *j, int64_t query, int32_t splits) {
    const fl_attn_absorbed_args *a = j->args;
    int32_t latent = a->kv.latent_dim;
    const float *first = j->partials + query * j->record;
    int64_t step = j->n_queries * j->record;
    _Alignas(64) float o[LATENT_MAX] = {0};
    float top = first[latent];
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
    if (fl_kv_format_dtype(a->kv.format) != FL_DTYPE_BF16)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "attn_absorbed on avx512: KV is %s, expected a 16-bit or quantised format",
                       fl_kv_format_name(a->kv.format));
    if (a->kv.latent_dim % STRIP != 0 || a->kv.latent_dim > LATENT_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "attn_absorbed on avx512: latent %d is not a multiple of %d up to %d",
                       a->kv.latent_dim, STRIP, LATENT_MAX);
    if (a->kv.rope_dim % QUAD != 0 || a->kv.rope_dim > ROPE_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "attn_absorbed on avx512: rope %d is not a multiple of %d up to %d", a->kv.rope_dim,
                       QUAD, ROPE_MAX);
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
