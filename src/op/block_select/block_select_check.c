#include "op/block_select/block_select.h"

#include <math.h>
#include <string.h>

#include "opcheck/opcheck_case.h"

/* How the scores lie. */
typedef enum spread {
    WIDE,  /* normal times 4 */
    FEW,   /* one of five values, so that many are equal */
    EQUAL, /* all the same, zeros of both signs */
    FAR    /* normal times 1e30, a few -INFINITY */
} spread;

typedef struct shape {
    oc_kind kind;
    int32_t tiles, pos, heads, block_tokens, n_blocks, sinks, window, capacity;
    double log2_alpha;
    spread spread;
    uint64_t seed;
    float density; /* of head 0, the next ones' are each half of it more; 0 = none */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 0, 1, 128, 0, 0, 0, 2, -3, WIDE, 0, 0},
    {OC_CHECK, 3, 0, 2, 64, 6, 64, 128, 6, -3, WIDE, 0, 0},
    {OC_CHECK, 4, 4096, 3, 128, 36, 128, 256, 80, -3, WIDE, 0, 0},
    {OC_CHECK, 4, 4096, 3, 128, 36, 1, 1, 80, 0, FEW, 0, 0},
    {OC_CHECK, 2, 4096, 2, 64, 68, 130, 2, 80, -INFINITY, WIDE, 0, 0},
    {OC_CHECK, 4, 8192, 3, 128, 68, 128, 256, 17, -8, WIDE, 0, 0}, /* too many; an odd capacity */
    {OC_CHECK, 4, 8192, 3, 64, 140, 64, 129, 9, -3, FEW, 0, 0},    /* too many, equal ones at the limit */
    {OC_CHECK, 2, 8192, 2, 64, 130, 64, 130, 20, -1, EQUAL, 0, 0},
    {OC_CHECK, 2, 8192, 2, 128, 65, 0, 0, 30, -INFINITY, FAR, 0, 0}, /* too many, some of them -INFINITY */
    {OC_CHECK, 2, 8192, 2, 128, 65, 256, 512, 14, -40, WIDE, 0, 0},  /* only the forced ones fit */
    {OC_CHECK, 2, 2048, 2, 64, 34, 5000, 0, 36, -2, WIDE, 0, 0},     /* all are sinks */
    {OC_CHECK, 2, 2048, 2, 64, 34, 0, 5000, 36, -2, WIDE, 0, 0},     /* all are in the window */
    {OC_CHECK, 9, 896, 2, 192, 12, 100, 300, 40, -2, WIDE, 0, 0},    /* tiles begin inside blocks */
    {OC_CHECK, 9, 0, 2, 1024, 2, 0, 900, 40, -2, WIDE, 0, 0},
    {OC_CHECK, 4, 8192, 3, 128, 68, 128, 256, 140, -2, WIDE, 77, 0},
    {OC_CHECK, 4, 8192, 3, 64, 140, 64, 128, 30, -8, WIDE, 78, 0}, /* random, too many */
    {OC_CHECK, 9, 896, 2, 192, 12, 100, 300, 40, -2, WIDE, 79, 0},
    {OC_CHECK, 4, 4096, 3, 128, 36, 128, 256, 80, -3, WIDE, 0, 0.1f},
    {OC_CHECK, 4, 8192, 2, 64, 140, 64, 129, 140, 0, FEW, 0, 0.25f},  /* equal ones at the limit */
    {OC_CHECK, 2, 8192, 2, 64, 130, 64, 130, 20, -1, EQUAL, 0, 0.5f}, /* too many */
    {OC_CHECK, 2, 8192, 2, 128, 65, 0, 0, 130, -1, FAR, 0, 0.95f},    /* some of them -INFINITY */
    {OC_CHECK, 9, 896, 2, 192, 12, 100, 300, 40, -2, WIDE, 0, 1},     /* all */
    {OC_CHECK, 3, 0, 2, 64, 6, 64, 128, 6, -3, WIDE, 0, 0.001f},
    {OC_CHECK, 4, 8192, 3, 128, 68, 128, 256, 140, -2, WIDE, 77, 0.2f},
    {OC_SLOW, 3, 130944, 2, 64, 2050, 128, 512, 300, -8, WIDE, 0, 0},
    {OC_SLOW, 1, 524160, 2, 64, 8192, 128, 512, 700, -6, WIDE, 0, 0},
    {OC_SLOW, 1, 600064, 2, 64, 9378, 128, 512, 700, -6, WIDE, 0, 0},
    {OC_BENCH, 32, 28672, 8, 128, 256, 128, 256, 200, -3, WIDE, 0, 0},
    {OC_BENCH, 32, 28672, 8, 128, 256, 128, 256, 32, -8, WIDE, 0, 0}, /* every list over capacity */
};

static double random_score(oc_run *run, spread kind) {
    double normal = oc_normal(run);
    switch (kind) {
    case FEW: return oc_below(run, 5) - 2;
    case EQUAL: return oc_below(run, 2) ? 0.0 : -0.0;
    case FAR: return oc_below(run, 9) == 0 ? -INFINITY : normal * 1e30;
    default: return normal * 4;
    }
}

typedef struct fixture {
    const shape *s;
    oc_mat score;
    float *log2_alpha;
    float *density; /* [heads] */
    bool *dense;
} fixture;

/* What one call writes. */
typedef struct lists {
    oc_mat ids, n; /* held as 16-bit and 32-bit elements */
    int64_t *overflow;
    int64_t *listed; /* [heads] */
    int64_t *visible;
} lists;

static lists make_lists(oc_run *run, const shape *s) {
    int64_t n = (int64_t)s->tiles * s->heads;
    return (lists){.ids = oc_output(run, FL_DTYPE_BF16, n, s->capacity, s->capacity),
                   .n = oc_output(run, FL_DTYPE_F32, n, 1, 1),
                   .overflow = oc_memory(run, sizeof(int64_t)),
                   .listed = oc_memory(run, s->heads * (int64_t)sizeof(int64_t)),
                   .visible = oc_memory(run, sizeof(int64_t))};
}

static int32_t length(const lists *l, int32_t line) {
    return ((const int32_t *)l->n.data)[line];
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    f.score = oc_input(run, FL_DTYPE_F32, (int64_t)s->tiles * s->heads, s->n_blocks + 1, s->n_blocks + 1);
    f.score.width = f.score.stride = s->n_blocks; /* one more was made: there may be none */
    for (int32_t i = 0; i < s->tiles * s->heads; i++)
        for (int32_t j = 0; j < s->n_blocks; j++) {
            bool before = (j + 1) * s->block_tokens <= s->pos + i / s->heads * FL_ATTN_LIST_ROWS;
            oc_set(&f.score, i, j, before ? random_score(run, s->spread) : -INFINITY);
        }
    f.log2_alpha = oc_memory_fenced(run, 64);
    f.density = oc_memory_fenced(run, 64);
    f.dense = oc_memory(run, s->heads);
    for (int32_t h = 0; h < s->heads; h++) {
        f.log2_alpha[h] = (float)(s->log2_alpha - 0.25 * h);
        f.density[h] = s->density * (1 + 0.5f * (float)h);
    }
    f.dense[s->heads - 1] = s->heads > 2;
    return f;
}

static fl_block_select_args make_args(const fixture *f, lists *out) {
    const shape *s = f->s;
    return (fl_block_select_args){.rows = s->tiles * FL_ATTN_LIST_ROWS,
                                  .pos = s->pos,
                                  .n_heads = s->heads,
                                  .block_tokens = s->block_tokens,
                                  .n_blocks = s->n_blocks,
                                  .score = f->score.data,
                                  .log2_alpha = f->log2_alpha,
                                  .dense = s->heads > 2 ? f->dense : NULL,
                                  .sink_tokens = s->sinks,
                                  .window_tokens = s->window,
                                  .density = s->density > 0 ? f->density : NULL,
                                  .random_seed = s->seed,
                                  .list = {.ids = out->ids.data,
                                           .n = out->n.data,
                                           .capacity = s->capacity,
                                           .planned_blocks = s->capacity},
                                  .overflow = out->overflow,
                                  .listed = out->listed,
                                  .visible = out->visible};
}

static bool is_forced(const shape *s, int32_t pos, int32_t block) {
    int32_t first = block * s->block_tokens, last = first + s->block_tokens - 1;
    return first < s->sinks || pos - last < s->window || last >= pos;
}

static bool is_listed(const lists *l, int32_t line, int32_t id) {
    const uint16_t *ids = oc_at(&l->ids, line, 0);
    for (int32_t i = 0; i < length(l, line); i++)
        if (ids[i] == id) return true;
    return false;
}

/* What every list must be, by the rule itself. */
static void check_rule(oc_run *run, const fixture *f, const lists *l, int32_t line) {
    const shape *s = f->s;
    int32_t pos = s->pos + line / s->heads * FL_ATTN_LIST_ROWS, each = s->block_tokens / FL_KV_PAGE_TOKENS;
    int32_t head = line % s->heads, end_id = (pos + FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS, wanted = 0,
            passing = 0, n = 0;
    double top = -INFINITY, worst_in = INFINITY, best_out = -INFINITY;
    if (s->heads > 2 && f->dense[head]) {
        OC_TRUE(run, length(l, line) == -1);
        return;
    }
    const uint16_t *ids = oc_at(&l->ids, line, 0);
    for (int32_t i = 1; i < length(l, line); i++) OC_TRUE(run, ids[i - 1] < ids[i]);
    for (int32_t j = 0; (j + 1) * s->block_tokens <= pos; j++) top = fmax(top, oc_get(&f->score, line, j));
    for (int32_t id = 0; id < end_id; id++) {
        int32_t j = id / each;
        bool in = is_listed(l, line, id), forced = is_forced(s, pos, j);
        n += in;
        OC_TRUE(run, in || !forced);
        OC_TRUE(run, in == is_listed(l, line, j * each));
        double score = forced ? 0 : oc_get(&f->score, line, j);
        bool passed =
            s->density > 0 || isinf(f->log2_alpha[head]) || score >= top + (double)f->log2_alpha[head];
        wanted += forced;
        passing += !forced && passed;
        if (!forced && in) worst_in = fmin(worst_in, score);
        if (!forced && !in) best_out = fmax(best_out, score);
    }
    OC_TRUE(run, n == length(l, line));
    /* Of the share every block counts that begins before the tile's end. */
    int32_t begun = (pos + FL_ATTN_LIST_ROWS - 1) / s->block_tokens + 1;
    int32_t share = (int32_t)ceil(fmin((double)f->density[head], 1) * begun) * each;
    wanted += s->density > 0 && share < passing ? share : passing;
    if (wanted <= s->capacity) OC_TRUE(run, n == wanted);
    else OC_TRUE(run, n <= s->capacity && n > s->capacity - each);
    if (s->seed == 0) OC_TRUE(run, worst_in >= best_out);
}

/* What `listed` grows by: ids of lists, and in dense heads all that lies before the tile's end. `visible` by the
 * latter. */
static void check_listed(oc_run *run, const fixture *f, const lists *l) {
    const shape *s = f->s;
    for (int32_t h = 0; h < s->heads; h++) {
        int64_t sum = 0, all = 0;
        for (int32_t i = 0; i < s->tiles; i++) {
            int32_t n = length(l, i * s->heads + h),
                    visible = (s->pos + (i + 1) * FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS;
            sum += n >= 0 ? n : visible;
            all += visible;
        }
        OC_TRUE(run, l->listed[h] == sum && *l->visible == all);
    }
}

/* Each tile alone gives the same lists, and the same overflow in sum. */
static void check_alone(oc_run *run, const fixture *f, const lists *whole) {
    const shape *s = f->s;
    lists alone = make_lists(run, s);
    for (int32_t i = 0; i < s->tiles; i++) {
        fl_block_select_args args = make_args(f, &alone);
        args.rows = FL_ATTN_LIST_ROWS;
        args.pos += i * FL_ATTN_LIST_ROWS;
        args.score += (int64_t)i * s->heads * s->n_blocks;
        args.list.ids += (int64_t)i * s->heads * s->capacity;
        args.list.n += i * s->heads;
        OC_OK(run, run->be->op->block_select(run->be, &args));
    }
    oc_same(run, &alone.ids, &whole->ids);
    oc_same(run, &alone.n, &whole->n);
    OC_TRUE(run, *alone.overflow == *whole->overflow);
    check_listed(run, f, &alone);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind,
                 "block_select tiles=%d pos=%d heads=%d tokens=%d blocks=%d sinks=%d window=%d capacity=%d "
                 "alpha=%g "
                 "spread=%d seed=%d density=%g",
                 s->tiles, s->pos, s->heads, s->block_tokens, s->n_blocks, s->sinks, s->window, s->capacity,
                 s->log2_alpha, (int)s->spread, (int)s->seed, (double)s->density))
        return;
    fixture f = make_fixture(run, s);
    lists out[3];
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    for (int32_t i = 0; i < 3; i++) {
        out[i] = make_lists(run, s);
        *out[i].overflow = 5;
        fl_block_select_args args = make_args(&f, &out[i]);
        OC_OK(run, backends[i]->op->block_select(backends[i], &args));
        oc_guards(run, &out[i].ids);
        oc_guards(run, &out[i].n);
        oc_same(run, &out[i].ids, &out[0].ids);
        oc_same(run, &out[i].n, &out[0].n);
        OC_TRUE(run, *out[i].overflow == *out[0].overflow);
        check_listed(run, &f, &out[i]);
        args.overflow = args.listed = args.visible = NULL;
        while (i == 0 && oc_timing(run, fl_block_select_cost(&args)))
            OC_OK(run, run->be->op->block_select(run->be, &args));
    }
    for (int32_t line = 0; line < s->tiles * s->heads; line++) check_rule(run, &f, &out[0], line);
    *out[0].overflow -= 5;
    if (s->kind != OC_BENCH) check_alone(run, &f, &out[0]);
}

/* One tile at 1024 over 8 blocks of 128 keys: a sink, a window of one block, and three scores. */
static void check_literal(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "block_select by hand")) return;
    const float *scores = oc_given(run, (const float[]){-9, 4, 3.5f, 1, 2, 1.9f, -9, -9}, 8 * sizeof *scores);
    const uint16_t all[] = {0, 1, 2, 3, 4, 5, 8, 9, 14, 15, 16, 17},
                   best[] = {0, 1, 2, 3, 4, 5, 14, 15, 16, 17};
    uint16_t *ids = oc_memory(run, 16 * sizeof *ids);
    int32_t *n = oc_memory(run, sizeof *n);
    int64_t *overflow = oc_given(run, (const int64_t[]){1}, sizeof *overflow);
    fl_block_select_args args = {.rows = 128, .pos = 1024, .n_heads = 1, .block_tokens = 128, .n_blocks = 8};
    args.score = scores;
    args.log2_alpha = oc_given(run, (const float[]){-2}, sizeof(float));
    args.sink_tokens = 1;
    args.window_tokens = 2;
    args.list = (fl_attn_list){.ids = ids, .n = n, .capacity = 12};
    args.overflow = overflow;
    OC_OK(run, run->be->op->block_select(run->be, &args));
    OC_TRUE(run, *n == 12 && memcmp(ids, all, sizeof all) == 0 && *overflow == 1);
    args.list.capacity = 11;
    OC_OK(run, run->be->op->block_select(run->be, &args));
    OC_TRUE(run, *n == 10 && memcmp(ids, best, sizeof best) == 0 && *overflow == 3);
    args.list.capacity = 12;
    float *density = oc_given(run, (const float[]){0.12f}, sizeof(float));
    args.density = density;
    /* 9 blocks begin before the tile's end: the two best, whatever alpha lets through */
    OC_OK(run, run->be->op->block_select(run->be, &args));
    OC_TRUE(run, *n == 10 && memcmp(ids, best, sizeof best) == 0 && *overflow == 3);
    const float outside[] = {-1, NAN, 0};
    for (int32_t i = 0; i < 3; i++) {
        *density = outside[i]; /* the forced ones only */
        OC_OK(run, run->be->op->block_select(run->be, &args));
        OC_TRUE(run, *n == 6 && *overflow == 3);
    }
}

static fl_block_select_args good_args(void) {
    return (fl_block_select_args){.rows = 256,
                                  .pos = 1024,
                                  .n_heads = 2,
                                  .block_tokens = 128,
                                  .n_blocks = 9,
                                  .sink_tokens = 128,
                                  .window_tokens = 256,
                                  .list = {.capacity = 12, .planned_blocks = 7.5}};
}

static void check_limits(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "block_select limits and cost")) return;
    fl_block_select_args good = good_args();
    OC_OK(run, fl_block_select_validate(&good));
    OC_REFUSED_WITH(run, block_select, good, rows, 0, "block_select: rows");
    OC_REFUSED_WITH(run, block_select, good, rows, 200, "block_select: rows");
    OC_REFUSED_WITH(run, block_select, good, pos, 960, "block_select: pos");
    OC_REFUSED_WITH(run, block_select, good, pos, 1152, "block_select: n_blocks");
    OC_REFUSED_WITH(run, block_select, good, pos, FL_ATTN_LIST_TOKENS_MAX - 128, "block_select: pos");
    OC_REFUSED_WITH(run, block_select, good, n_heads, 0, "block_select: n_heads");
    OC_REFUSED_WITH(run, block_select, good, n_heads, 4097, "block_select: n_heads");
    OC_REFUSED_WITH(run, block_select, good, block_tokens, 32, "block_select: block_tokens");
    OC_REFUSED_WITH(run, block_select, good, n_blocks, 8, "block_select: n_blocks");
    OC_ACCEPTED_WITH(run, block_select, good, n_blocks, FL_ATTN_LIST_TOKENS_MAX / 128);
    OC_REFUSED_WITH(run, block_select, good, n_blocks, FL_ATTN_LIST_TOKENS_MAX / 128 + 1,
                    "block_select: n_blocks");
    OC_REFUSED_WITH(run, block_select, good, sink_tokens, -1, "block_select: sink_tokens");
    OC_REFUSED_WITH(run, block_select, good, window_tokens, -1, "block_select: window_tokens");
    OC_ACCEPTED_WITH(run, block_select, good, list.capacity, 8);
    OC_REFUSED_WITH(run, block_select, good, list.capacity, 7, "block_select: list.capacity");
    OC_TRUE(run, fl_block_select_forced(128, 128, 256) == 2 + 4 + 2);
    OC_TRUE(run, fl_block_select_forced(128, 0, 1) == 2 && fl_block_select_forced(128, 1, 2) == 2 + 2 + 2);
    OC_TRUE(run, fl_block_select_forced(64, 65, 66) == 2 + 2 + 2);
    OC_TRUE(run, fl_block_select_forced(256, 0, 0) == 4); /* half a block lies before the tile */
    OC_TRUE(run, fl_block_select_forced(192, 0, 130) == 3 + 2 + 2);
    OC_TRUE(run, fl_block_select_forced(64, INT32_MAX, INT32_MAX) > 1 << 25);
    OC_ACCEPTED_WITH(run, block_select, good, list.capacity, 20);
    good.sink_tokens = INT32_MAX; /* no tile has more than 20 ids */
    OC_REFUSED_WITH(run, block_select, good, list.capacity, 19, "block_select: list.capacity");
    OC_ACCEPTED_WITH(run, block_select, good, list.capacity, 20);
    oc_cost(run, fl_block_select_cost(&good), 0, 2 * 2 * (9 * 4 + 7.5 * 2 + 4));
    good.rows = 0;
    OC_REFUSED(run, run->be->op->block_select(run->be, &good), "block_select: rows");
}

void fl_block_select_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_literal(run);
    check_limits(run);
}
