/* attn_absorbed, AVX-512 with BF16. A query is a (row, head): all of a timeline read the same keys. Queries go in
 * blocks of 8, one decode row of a small model. Scores: a vector holds two pairs of dimensions for each of the
 * 8 queries and meets 4 values of a key as they lie in the page, broadcast: no lane idles, nothing is transposed.
 * Values: lanes are latent dimensions, two keys interleaved on the fly, weights broadcast. A task takes a run of
 * splits and up to 8 blocks; while it computes a page the next one is fetched. Splits are merged in index order
 * by a second pass. A query's bits do not depend on its block.
 *
 * A weight is 2^(score - base). The base need not be the largest score, only near it: it starts as the score of
 * the first key of the split that the row sees, and moves when the sum leaves its range. So scores become weights
 * while they are in registers. Quantised pages become bf16 once a task, in its own buffer.
 *
 * Bound by vdpbf16ps: latent + rope / 2 of them for 16 keys and 8 queries; on many cores by KV traffic. */
#include "backend/backend.h"
#include "op/attn_absorbed/attn_absorbed_keys.h"
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
    AHEAD_MAX = 3, /* cache lines of the next page fetched a pair of keys */
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
    int32_t step;      /* seen keys are at its multiples */
    bool all;          /* rows see every key up to their own */
    int64_t piece_bytes;
    int32_t lines;   /* of the next page that are fetched with every pair of keys */
    float *partials; /* [splits][n_queries][record]: o as lanes hold it, base, sum */
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
    int32_t first;  /* position of its first key */
    uint64_t steps; /* bit i: key i is one that a row may see */
} page;

/* What of a page the queries of a block see. */
typedef enum sight { SEES_NONE, SEES_SOME, SEES_ALL } sight;

/* 8 queries. Lanes of a vector: even keys of the 8 queries, then odd keys of them. */
typedef struct block {
    _Alignas(64) uint64_t q[(LATENT_MAX + ROPE_MAX) / QUAD * BLOCK]; /* [quads][BLOCK] */
    _Alignas(64) uint32_t weights[KEYS / 2 * BLOCK];                 /* [KEYS / 2][BLOCK] pairs of keys */
    __m512 base;
    __m512 sum;                    /* of the weights; of keys 0, 1 of 4 and of keys 2, 3 of 4 */
    __m512i begin[2], length[2];   /* fl_absorbed_keys of each query */
    sight sight;                   /* of the current page */
    int32_t row, n_rows;           /* its rows in work.rows */
    __mmask16 lanes_of_row[BLOCK]; /* [n_rows] */
    float *o[BLOCK];               /* [latent_dim], strip by strip as lanes hold them */
} block;

typedef struct work {
    block blocks[BLOCKS_MAX];
    fl_absorbed_keys rows[QUERIES]; /* of the task */
    int32_t first_key[QUERIES];     /* that each row sees in the current split, or -1 */
    int32_t n_rows;
    _Alignas(64) float no_query[LATENT_MAX];
    _Alignas(
        64) uint16_t opened[KEYS * (LATENT_MAX + ROPE_MAX)]; /* a page that is not full, or was quantised */
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

/* Hides keys from rows that must not see them; `key` is the first of the group. */
FL_SIMD void mask_group(const page *pg, int32_t key, const block *b, __m512 scores[GROUP / 2]) {
    const __m512i odd = _mm512_maskz_set1_epi32(0xff00, 1);
    for (int i = 0; i < GROUP / 2; i++) {
        __m512i position = _mm512_add_epi32(odd, _mm512_set1_epi32(pg->first + key + 2 * i));
        uint64_t steps = pg->steps >> (key + 2 * i);
        __mmask16 sees = (__mmask16)((steps & 1 ? 0x00ff : 0) | (steps & 2 ? 0xff00 : 0));
        sees &= _mm512_cmplt_epu32_mask(_mm512_sub_epi32(position, b->begin[0]), b->length[0]) |
                _mm512_cmplt_epu32_mask(_mm512_sub_epi32(position, b->begin[1]), b->length[1]);
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
    for (int32_t key = 0; key < KEYS; key += GROUP) {
        __m512 scores[GROUP / 2];
        score_group(pg, latent, rope, key, b, scores);
        if (b->sight == SEES_SOME) mask_group(pg, key, b, scores);
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

/* The score of one of the page's keys becomes the first base of the queries in `lanes`. */
static void start_base(const page *pg, int32_t key, __mmask16 lanes, block *b) {
    const __m512i evens = _mm512_set_epi32(14, 12, 10, 8, 6, 4, 2, 0, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_or_si512(evens, _mm512_set1_epi32(1));
    __m512 sum = _mm512_setzero_ps();
    const uint64_t *q = b->q;
    for (int32_t d = 0; d < pg->latent_dim; d += QUAD, q += BLOCK)
        sum = fl_simd_dot2(sum, fl_simd_quad(pg->latent + key * pg->latent_dim + d), _mm512_load_si512(q));
    for (int32_t d = 0; d < pg->rope_dim; d += QUAD, q += BLOCK)
        sum = fl_simd_dot2(sum, fl_simd_quad(pg->k_pe + key * pg->rope_dim + d), _mm512_load_si512(q));
    sum = _mm512_add_ps(_mm512_permutexvar_ps(evens, sum), _mm512_permutexvar_ps(odds, sum));
    b->base = _mm512_mask_mov_ps(b->base, lanes, sum);
}

/* Starts the rows of a block whose first key of the split is in this page; rows with the same one together. */
static void start_rows(const page *pg, const work *w, block *b) {
    for (int32_t i = 0; i < b->n_rows; i++) {
        int32_t key = w->first_key[b->row + i];
        __mmask16 lanes = b->lanes_of_row[i];
        for (; i + 1 < b->n_rows && w->first_key[b->row + i + 1] == key; i++) lanes |= b->lanes_of_row[i + 1];
        if (key >= pg->first && key < pg->first + KEYS) start_base(pg, key - pg->first, lanes, b);
    }
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

/* One strip of dimensions: o += weights^T values. `lines` of the next page are fetched with every pair of keys. */
FL_SIMD void add_block(const strip *s, const int lines, block *b) {
    const uint16_t *values = s->values;
    const uint32_t *weights = b->weights;
    const char *ahead = s->ahead;
    __m512 low[BLOCK], high[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        low[i] = _mm512_load_ps(b->o[i] + s->at);
        high[i] = _mm512_load_ps(b->o[i] + s->at + LANES);
    }
    for (int32_t pair = 0; pair < KEYS / 2; pair++) {
        for (int i = 0; i < lines; i++) _mm_prefetch(ahead + i * CACHE_LINE, _MM_HINT_T1);
        if (lines > 0) ahead += lines * CACHE_LINE;
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

/* Which bytes are fetched while a page is computed: from NULL, none. */
typedef struct fetch {
    const char *from, *end;
    int32_t lines; /* with every pair of keys, so that all are fetched within the page's time */
} fetch;

static void add_fetching(const strip *s, int32_t lines, block *b) {
    if (lines == 1) add_block(s, 1, b);
    else if (lines == 2) add_block(s, 2, b);
    else add_block(s, AHEAD_MAX, b);
}

/* Adds a page's values to the blocks that see it. */
static void add_values(const page *pg, int32_t n_blocks, fetch next, block *blocks) {
    for (int32_t d = 0; d < pg->latent_dim; d += STRIP) {
        strip s = {.values = pg->latent + d, .stride = pg->latent_dim, .at = d, .ahead = next.from};
        bool fetching = next.from && next.from < next.end;
        for (int32_t i = 0; i < n_blocks; i++) {
            if (blocks[i].sight == SEES_NONE) continue;
            if (fetching) add_fetching(&s, next.lines, &blocks[i]);
            else add_block(&s, 0, &blocks[i]);
            fetching = false;
        }
        if (next.from) next.from += KEYS / 2 * next.lines * CACHE_LINE;
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
static page open_page(const job *j, const span *s, int32_t index, work *w) {
    const fl_kv_layer *kv = &j->args->kv;
    const uint8_t *piece = fl_kv_piece(kv, s->seq->pages[index]);
    bool plain = fl_kv_format_is_plain(kv->format);
    page pg = {.latent = (const uint16_t *)(const void *)piece,
               .k_pe = fl_kv_k_pe(kv, piece, 0),
               .latent_dim = kv->latent_dim,
               .rope_dim = kv->rope_dim,
               .first = index * KEYS,
               .steps = fl_absorbed_page_steps(index * KEYS, j->step)};
    int32_t n = s->n_keys - pg.first < KEYS ? s->n_keys - pg.first : KEYS;
    if (plain && n == KEYS) return pg;
    size_t latent = (size_t)kv->latent_dim, rope = (size_t)kv->rope_dim, used = (size_t)n;
    uint16_t *latents = w->opened, *k_pes = latents + KEYS * latent;
    fl_kv_latents_read_avx512(kv, piece, (fl_kv_slots){0, n}, latents);
    pg.latent = latents;
    if (n == KEYS) return pg;
    memset(latents + used * latent, 0, (KEYS - used) * latent * sizeof *latents);
    memcpy(k_pes, pg.k_pe, used * rope * sizeof *k_pes);
    memset(k_pes + used * rope, 0, (KEYS - used) * rope * sizeof *k_pes);
    pg.k_pe = k_pes;
    return pg;
}

/* Rows of a block of queries, `first` the number of its first query in the task, and what each query sees. */
static void open_sight(const job *j, const span *s, int32_t first, work *w) {
    block *b = &w->blocks[first / BLOCK];
    _Alignas(64) int32_t begin[2][LANES], length[2][LANES];
    int32_t heads = j->args->n_heads;
    b->row = (s->head + first) / heads;
    b->n_rows = 0;
    for (int32_t i = 0; i < BLOCK; i++) {
        int32_t query = first + i < s->n ? first + i : s->n - 1; /* no query: as the last one */
        int32_t row = (s->head + query) / heads;
        if (row == b->row + b->n_rows) b->lanes_of_row[b->n_rows++] = 0;
        b->lanes_of_row[b->n_rows - 1] |= (__mmask16)(0x0101 << i);
        for (int32_t lane = i; lane < LANES; lane += BLOCK)
            for (int32_t k = 0; k < 2; k++) {
                begin[k][lane] = w->rows[row].begin[k];
                length[k][lane] = w->rows[row].end[k] - w->rows[row].begin[k];
            }
    }
    for (int32_t k = 0; k < 2; k++) {
        b->begin[k] = _mm512_load_si512(begin[k]);
        b->length[k] = _mm512_load_si512(length[k]);
    }
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
    w->n_rows = (s->head + s->n - 1) / a->n_heads + 1;
    for (int32_t i = 0; i < w->n_rows; i++) w->rows[i] = fl_absorbed_keys_of(&a->view, s->pos + i);
    for (int32_t i = 0; i < s->n; i += BLOCK) open_sight(j, s, i, w);
}

static sight sight_of(const work *w, const block *b, int32_t page_pos, uint64_t steps) {
    uint64_t some = 0, all = UINT64_MAX;
    for (int32_t i = b->row; i < b->row + b->n_rows; i++) {
        uint64_t keys = fl_absorbed_page_keys(&w->rows[i], page_pos, steps);
        some |= keys;
        all &= keys;
    }
    return some == 0 ? SEES_NONE : all == UINT64_MAX ? SEES_ALL : SEES_SOME;
}

/* The first page from `index` on, and before `end`, of which a row of the task sees a key; else `end`. */
static int32_t next_page(const job *j, const work *w, int32_t index, int32_t end) {
    for (; !j->all && index < end; index++)
        for (int32_t i = 0; i < w->n_rows; i++)
            if (fl_absorbed_first_key(&w->rows[i], index * KEYS, (index + 1) * KEYS, j->step) >= 0)
                return index;
    return index < end ? index : end;
}

static void attend_page(const page *pg, int32_t n_blocks, fetch next, work *w) {
    for (int32_t i = 0; i < n_blocks; i++) {
        block *b = &w->blocks[i];
        __m512 before = b->sum;
        b->sight = sight_of(w, b, pg->first, pg->steps);
        if (b->sight == SEES_NONE) continue;
        start_rows(pg, w, b);
        weigh_page(pg, b);
        if (beyond(b->sum)) { /* rare */
            raise_base(pg, before, b);
            weigh_page(pg, b);
        }
    }
    add_values(pg, n_blocks, next, w->blocks);
}

/* Queries start with nothing; false if no row of the task sees a key of the split. */
static bool open_split(const job *j, const span *s, int32_t split, float *partial, work *w) {
    bool any = false;
    int32_t first = split * FL_ATTN_ABSORBED_SPLIT_TOKENS;
    for (int32_t i = 0; i < w->n_rows; i++) {
        w->first_key[i] =
            fl_absorbed_first_key(&w->rows[i], first, first + FL_ATTN_ABSORBED_SPLIT_TOKENS, j->step);
        any |= w->first_key[i] >= 0;
    }
    if (!any) return false;
    for (int32_t i = 0; i < (s->n + BLOCK - 1) / BLOCK * BLOCK; i++) {
        float *o = i < s->n ? partial + i * j->record : w->no_query;
        memset(o, 0, sizeof *o * (size_t)j->args->kv.latent_dim);
        w->blocks[i / BLOCK].o[i % BLOCK] = o;
        w->blocks[i / BLOCK].base = w->blocks[i / BLOCK].sum = _mm512_setzero_ps();
    }
    return true;
}

static void attend_split(const job *j, const span *s, int32_t split, work *w) {
    const fl_kv_layer *kv = &j->args->kv;
    int32_t latent = kv->latent_dim, n_blocks = (s->n + BLOCK - 1) / BLOCK;
    int32_t pages = (s->n_keys + KEYS - 1) / KEYS;
    int32_t run_end = s->split_end * SPLIT_PAGES < pages ? s->split_end * SPLIT_PAGES : pages;
    int32_t end = (split + 1) * SPLIT_PAGES < pages ? (split + 1) * SPLIT_PAGES : pages;
    float *partial = j->partials + (split * j->n_queries + s->query) * j->record;
    if (!open_split(j, s, split, partial, w)) return;
    for (int32_t index = next_page(j, w, split * SPLIT_PAGES, end); index < end;) {
        page pg = open_page(j, s, index, w);
        int32_t next = next_page(j, w, index + 1, run_end);
        fetch ahead = {.lines = j->lines};
        if (next < run_end) {
            ahead.from = (const char *)fl_kv_piece(kv, s->seq->pages[next]);
            ahead.end = ahead.from + j->piece_bytes;
        }
        attend_page(&pg, n_blocks, ahead, w);
        index = next;
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

/* The partial result of a query and split, or NULL where the row sees none of its keys: then there is none. */
static const float *partial_of(const job *j, int64_t query, const fl_absorbed_keys *keys, int32_t split) {
    int32_t first = split * FL_ATTN_ABSORBED_SPLIT_TOKENS, end = first + FL_ATTN_ABSORBED_SPLIT_TOKENS;
    if (!j->all && fl_absorbed_first_key(keys, first, end, j->step) < 0) return NULL;
    return j->partials + (split * j->n_queries + query) * j->record;
}

/* One query: out = sum of its splits' o, each brought to the largest base, over that of their sums alike. */
static void merge_query(const job *j, int64_t query, int32_t pos) {
    const fl_attn_absorbed_args *a = j->args;
    int32_t latent = a->kv.latent_dim, splits = pos / FL_ATTN_ABSORBED_SPLIT_TOKENS + 1;
    uint16_t *out = (uint16_t *)a->out + query * latent;
    const fl_absorbed_keys keys = fl_absorbed_keys_of(&a->view, pos);
    _Alignas(64) float o[LATENT_MAX] = {0};
    float top = -INFINITY;
    for (int32_t i = 0; i < splits; i++) {
        const float *partial = partial_of(j, query, &keys, i);
        if (partial && !(partial[latent] <= top)) top = partial[latent];
    }
    __m512 sum = _mm512_setzero_ps();
    for (int32_t i = 0; i < splits; i++) {
        const float *partial = partial_of(j, query, &keys, i);
        if (!partial) continue;
        __m512 scale = fl_simd_exp2_weight(_mm512_set1_ps(partial[latent] - top));
        sum = _mm512_fmadd_ps(scale, _mm512_set1_ps(partial[latent + 1]), sum);
        for (int32_t d = 0; d < latent; d += LANES)
            _mm512_store_ps(o + d,
                            _mm512_fmadd_ps(scale, _mm512_load_ps(partial + d), _mm512_load_ps(o + d)));
    }
    bool nothing = fl_absorbed_first_key(&keys, 0, pos + 1, j->step) < 0;
    __m512 inverse = nothing ? _mm512_setzero_ps() : _mm512_div_ps(_mm512_set1_ps(1.0f), sum);
    for (int32_t d = 0; d < latent; d += STRIP)
        write_strip(_mm512_mul_ps(inverse, _mm512_load_ps(o + d)),
                    _mm512_mul_ps(inverse, _mm512_load_ps(o + d + LANES)), out + d);
    if (a->lse) a->lse[query] = nothing ? -INFINITY : top + log2f(_mm512_cvtss_f32(sum));
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
        merge_query(j, query, position_of(a, (int32_t)(query / a->n_heads)));
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
    j.step = fl_absorbed_step(a);
    j.all = fl_absorbed_sees_all(a);
    j.piece_bytes = fl_kv_piece_bytes(&a->kv);
    int64_t pairs = (int64_t)a->kv.latent_dim / STRIP * (KEYS / 2) * CACHE_LINE;
    j.lines = (int32_t)((j.piece_bytes + pairs - 1) / pairs);
    if (j.lines > AHEAD_MAX) j.lines = AHEAD_MAX;
    /* Where rows see little, few splits have work, and no thread should take several of them. */
    j.run = j.all ? run_of(a, fl_pool_threads(be->pool)) : 1;
    int32_t n_tasks = 0;
    for (int32_t i = 0; i < a->n_seqs; i++) n_tasks += tasks_of(&j, &a->seqs[i]);
    fl_pool_run(be->pool, n_tasks, attend_task, &j);
    fl_pool_run(be->pool, (int32_t)((j.n_queries + MERGE_QUERIES - 1) / MERGE_QUERIES), merge_task, &j);
    return FL_ERR_OK;
}
