#include "op/sample/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "opcheck/opcheck_case.h"

/* How logits are spread. FINE: more of them in a narrow range than a backend may sort at once; STEPS: few values, so
 * that ties decide; PEAK: one is far above the rest. */
typedef enum spread { NORMAL, WIDE, EQUAL, FINE, STEPS, PEAK, HUGE_ONES, N_SPREADS } spread;

static const char *const spread_names[N_SPREADS] = {"normal", "wide", "equal", "fine",
                                                    "steps",  "peak", "huge"};

typedef struct shape {
    oc_kind kind;
    int32_t rows, n_known, gap; /* logits between rows that are not known */
    spread how;
} shape;

/* The quick ones are small, so that a race checker gets through them. */
static const shape shapes[] = {
    {OC_CHECK, 2, 1, 0, NORMAL},       {OC_CHECK, 4, 7, 2, STEPS},        {OC_CHECK, 4, 64, 0, WIDE},
    {OC_CHECK, 6, 300, 1, NORMAL},     {OC_CHECK, 6, 1000, 0, STEPS},     {OC_CHECK, 5, 1025, 3, EQUAL},
    {OC_CHECK, 7, 5003, 0, FINE},      {OC_CHECK, 6, 4099, 1, EQUAL},     {OC_CHECK, 8, 4996, 0, NORMAL},
    {OC_CHECK, 5, 3000, 0, PEAK},      {OC_CHECK, 5, 2100, 8, HUGE_ONES}, {OC_CHECK, 6, 5000, 0, STEPS},
    {OC_CHECK, 6, 4444, 0, WIDE},      {OC_SLOW, 40, 300, 1, NORMAL},     {OC_SLOW, 33, 1000, 0, STEPS},
    {OC_SLOW, 12, 5003, 0, FINE},      {OC_SLOW, 12, 16390, 10, EQUAL},   {OC_SLOW, 12, 30000, 0, PEAK},
    {OC_SLOW, 6, 33000, 8, HUGE_ONES}, {OC_SLOW, 70, 520, 0, NORMAL},     {OC_SLOW, 20, 40961, 0, FINE},
    {OC_SLOW, 40, 129280, 0, WIDE},    {OC_SLOW, 30, 129280, 0, NORMAL},  {OC_SLOW, 20, 129280, 0, FINE},
    {OC_SLOW, 20, 102400, 0, STEPS},   {OC_SLOW, 8, 327680, 0, WIDE},     {OC_SLOW, 8, 327677, 3, EQUAL},
    {OC_SLOW, 20, 163840, 0, PEAK},    {OC_BENCH, 1, 129280, 0, WIDE},    {OC_BENCH, 64, 129280, 0, WIDE},
};

typedef struct fixture {
    const shape *s;
    int64_t stride;
    float *logits;
    fl_sample_row *rows;
    uint8_t *lists;
    int64_t lists_bytes;
    fl_sample *out[3];
} fixture;

static float draw_logit(oc_run *run, const shape *s, int32_t id) {
    switch (s->how) {
    case NORMAL: return (float)oc_normal(run);
    case WIDE: return (float)(oc_normal(run) * 4);
    case EQUAL: return -3.25f;
    case FINE: return 1 + (float)oc_below(run, 60000) * 0x1p-23f;
    case STEPS: return (float)oc_below(run, 5) - 2; /* both zeros are one, see below */
    case PEAK: return id == s->n_known / 3 ? 30 : (float)(oc_normal(run) * 2);
    case HUGE_ONES: return (float)(oc_normal(run) * 1e30);
    case N_SPREADS: break;
    }
    return 0;
}

/* Room in the lists, at a multiple of 8. */
static int64_t take(fixture *f, int64_t bytes) {
    int64_t at = f->lists_bytes;
    f->lists_bytes += (bytes + 7) / 8 * 8;
    return at;
}

/* Tokens that differ, some of them unknown. */
static void draw_marks(oc_run *run, fixture *f, fl_sample_row *r) {
    int32_t n = f->s->n_known, step = 1 + oc_below(run, n < 40 ? 3 : n / 12);
    r->repetition = oc_below(run, 2) ? 1.5f : 1;
    r->presence = oc_below(run, 2) ? 0.7f : 0;
    r->frequency = oc_below(run, 2) ? -0.25f : 0.3f;
    r->n_marks = n / step + 2;
    r->marks_at = take(f, r->n_marks * (int64_t)sizeof(fl_sample_mark));
    fl_sample_mark *marks = (fl_sample_mark *)(void *)(f->lists + r->marks_at);
    for (int32_t i = 0; i < r->n_marks; i++) marks[i] = (fl_sample_mark){i * step, oc_below(run, 4)};
    r->n_biases = 1 + oc_below(run, 20);
    r->biases_at = take(f, r->n_biases * (int64_t)sizeof(fl_logit_bias));
    fl_logit_bias *biases = (fl_logit_bias *)(void *)(f->lists + r->biases_at);
    for (int32_t i = 0; i < r->n_biases; i++)
        biases[i] = (fl_logit_bias){n - 3 + i - r->n_biases / 2, (float)(oc_normal(run) * 3)};
}

static void draw_bans(oc_run *run, fixture *f, fl_sample_row *r) {
    int32_t n = f->s->n_known;
    r->n_banned = 1 + oc_below(run, 8);
    r->banned_at = take(f, r->n_banned * (int64_t)sizeof(int32_t));
    int32_t *banned = (int32_t *)(void *)(f->lists + r->banned_at);
    for (int32_t i = 0; i < r->n_banned; i++) banned[i] = oc_below(run, n + 2) - 1;
}

static void draw_allowed(oc_run *run, fixture *f, fl_sample_row *r) {
    int32_t words = (f->s->n_known + 63) / 64;
    r->allowed_at = take(f, words * (int64_t)sizeof(uint64_t));
    uint64_t *allowed = (uint64_t *)(void *)(f->lists + r->allowed_at);
    bool few = oc_below(run, 2);
    for (int32_t i = 0; i < words; i++) {
        uint64_t a = (uint64_t)oc_below(run, 1 << 30) << 34 ^ (uint64_t)oc_below(run, 1 << 30) << 17;
        allowed[i] = few && i != words / 2 ? 0 : a ^ (uint64_t)oc_below(run, 1 << 30);
    }
}

static void draw_row(oc_run *run, fixture *f, fl_sample_row *r) {
    static const float scales[] = {0, 1.44269504f, 1.44269504f / 0.6f, 1.44269504f / 2, 0.0144269504f, 50},
                       top_ps[] = {1, 1, 0.95f, 0.5f, 0.01f}, min_ps[] = {0, 0, 0.05f, 0.4f};
    const int32_t top_ks[] = {0, 0, 1, 2, 40, 3000, f->s->n_known}, tops[] = {0, 1, 5, FL_TOP_LOGPROBS_MAX};
    *r = (fl_sample_row){.uniform = oc_uniform(run),
                         .scale = scales[oc_below(run, 6)],
                         .top_p = top_ps[oc_below(run, 5)],
                         .min_log2 = log2f(min_ps[oc_below(run, 4)]),
                         .top_k = top_ks[oc_below(run, 7)],
                         .repetition = 1,
                         .allowed_at = -1,
                         .n_top = tops[oc_below(run, 4)]};
    if (oc_below(run, 8) == 0) r->uniform = 0;
    if (oc_below(run, 8) == 0) r->uniform = 1 - 0x1p-53;
    if (oc_below(run, 3) == 0) draw_marks(run, f, r);
    if (oc_below(run, 3) == 0) draw_bans(run, f, r);
    if (oc_below(run, 4) == 0) draw_allowed(run, f, r);
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s, .stride = s->n_known + s->gap};
    int64_t row_bytes = (int64_t)(s->n_known + 32) * 8 + s->n_known / 8 + 512;
    f.logits = oc_memory_fenced(run, s->rows * f.stride * (int64_t)sizeof(float));
    f.rows = oc_memory(run, s->rows * (int64_t)sizeof *f.rows);
    f.lists = oc_memory(run, s->rows * row_bytes);
    for (int32_t i = 0; i < 3; i++) {
        f.out[i] = oc_memory(run, (s->rows + 1) * (int64_t)sizeof *f.out[i]);
        memset(f.out[i], 0xaa, (size_t)(s->rows + 1) * sizeof *f.out[i]);
    }
    for (int32_t r = 0; r < s->rows; r++) {
        float *logits = f.logits + r * f.stride;
        for (int32_t i = 0; i < f.stride; i++) logits[i] = i < s->n_known ? draw_logit(run, s, i) : NAN;
        if (s->how == STEPS)
            for (int32_t i = 0; i < s->n_known; i += 2) logits[i] = logits[i] == 0 ? -0.0f : logits[i];
        draw_row(run, &f, &f.rows[r]);
    }
    return f;
}

static fl_sample_args make_args(oc_run *run, const fixture *f, fl_sample *out) {
    return (fl_sample_args){.logits = f->logits,
                            .logits_stride = f->stride,
                            .n_rows = f->s->rows,
                            .n_known = f->s->n_known,
                            .rows = f->rows,
                            .lists = f->lists,
                            .scratch = oc_memory(run, fl_sample_scratch_bytes(f->s->n_known)),
                            .out = out};
}

/* ---- the formula, in doubles ----------------------------------------------------------------------------------- */

typedef struct token {
    double value, weight;
    int32_t id;
} token;

static int compare_tokens(const void *a, const void *b) {
    const token *x = a, *y = b;
    if (x->value > y->value || x->value < y->value) return x->value > y->value ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void change_values(const fixture *f, const fl_sample_row *r, float *values) {
    const fl_sample_mark *marks = (const void *)(f->lists + r->marks_at);
    const fl_logit_bias *biases = (const void *)(f->lists + r->biases_at);
    for (int32_t i = 0; i < r->n_marks; i++) {
        if (marks[i].token >= f->s->n_known) continue;
        float *v = &values[marks[i].token];
        *v = *v > 0 ? *v / r->repetition : *v * r->repetition;
        if (marks[i].count > 0) *v -= r->presence + r->frequency * (float)marks[i].count;
    }
    for (int32_t i = 0; i < r->n_biases; i++)
        if (biases[i].token >= 0 && biases[i].token < f->s->n_known)
            values[biases[i].token] += biases[i].bias;
}

static bool is_banned(const fixture *f, const fl_sample_row *r, int32_t id) {
    const int32_t *banned = (const void *)(f->lists + r->banned_at);
    for (int32_t i = 0; i < r->n_banned; i++)
        if (banned[i] == id) return true;
    return false;
}

/* Tokens that may come, in order; how many. */
static int32_t order_tokens(const fixture *f, int32_t row, float *values, token *tokens) {
    const fl_sample_row *r = &f->rows[row];
    const uint64_t *allowed = (const void *)(f->lists + (r->allowed_at >= 0 ? r->allowed_at : 0));
    int32_t n = 0;
    memcpy(values, f->logits + row * f->stride, (size_t)f->s->n_known * sizeof *values);
    change_values(f, r, values);
    for (int32_t bans = 1; bans >= 0 && n == 0; bans--)
        for (int32_t i = 0; i < f->s->n_known; i++) {
            if (r->allowed_at >= 0 && !(allowed[i / 64] >> (i % 64) & 1)) continue;
            if (bans && is_banned(f, r, i)) continue;
            tokens[n++] = (token){.value = (double)values[i], .id = i};
        }
    qsort(tokens, (size_t)n, sizeof *tokens, compare_tokens);
    return n;
}

/* Whether `id` is the token of the row, or so near the border to it that rounding decides. */
static bool is_drawn(const fl_sample_row *r, token *tokens, int32_t n, int32_t id) {
    double total = 0, kept = 0, sum = 0;
    int32_t n_kept = 0;
    if (n == 0) return id == -1;
    if (r->scale == 0) return id == tokens[0].id;
    for (int32_t i = 0; i < n; i++) {
        tokens[i].weight = exp2((tokens[i].value - tokens[0].value) * (double)r->scale);
        total += tokens[i].weight;
    }
    for (; n_kept < n && (r->top_k == 0 || n_kept < r->top_k); n_kept++) {
        const token *t = &tokens[n_kept];
        double depth = (t->value - tokens[0].value) * (double)r->scale;
        if (n_kept > 0 && (depth < (double)r->min_log2 || kept >= (double)r->top_p * total)) break;
        kept += t->weight;
    }
    for (int32_t i = 0; i < n_kept; i++) {
        double before = sum, slack = 1e-5 * kept;
        sum += tokens[i].weight;
        if (tokens[i].id != id) continue;
        return r->uniform * kept >= before - slack && r->uniform * kept <= sum + slack;
    }
    return false;
}

static void check_logprobs(oc_run *run, const fixture *f, int32_t row, const fl_sample *got) {
    const float *logits = f->logits + row * f->stride;
    double best = -INFINITY, sum = 0;
    for (int32_t i = 0; i < f->s->n_known; i++) best = fmax(best, (double)logits[i]);
    for (int32_t i = 0; i < f->s->n_known; i++) sum += exp((double)logits[i] - best);
    double normaliser = best + log(sum);
    if (got->token >= 0) {
        double want = (double)logits[got->token] - normaliser;
        OC_TRUE(run, fabs((double)got->logprob - want) <= 1e-6 + 1e-7 * fabs(want));
    }
    for (int32_t i = 0; i < f->rows[row].n_top; i++) {
        const fl_token_logprob *t = &got->top[i], *before = &got->top[i > 0 ? i - 1 : 0];
        if (i >= f->s->n_known) {
            OC_TRUE(run, t->token == -1);
            continue;
        }
        OC_TRUE(run, t->token >= 0 && t->token < f->s->n_known);
        double want = (double)logits[t->token] - normaliser;
        OC_TRUE(run, fabs((double)t->logprob - want) <= 1e-6 + 1e-7 * fabs(want));
        OC_TRUE(run, i == 0 || logits[before->token] > logits[t->token] ||
                         (logits[before->token] >= logits[t->token] && before->token < t->token));
    }
}

/* The reference, by the formula. */
static void check_formula(oc_run *run, const fixture *f) {
    float *values = oc_memory(run, f->s->n_known * (int64_t)sizeof *values);
    token *tokens = oc_memory(run, f->s->n_known * (int64_t)sizeof *tokens);
    for (int32_t row = 0; row < f->s->rows; row++) {
        const fl_sample *got = &f->out[2][row];
        int32_t n = order_tokens(f, row, values, tokens);
        OC_TRUE(run, got->bad == -1);
        OC_TRUE(run, is_drawn(&f->rows[row], tokens, n, got->token));
        check_logprobs(run, f, row, got);
    }
}

static bool near(float a, float b) {
    return fabs((double)a - (double)b) <= 1e-6 + 1e-7 * fabs((double)b);
}

/* Like the reference: the same tokens. */
static void check_like(oc_run *run, const fixture *f, const fl_sample *got, const fl_sample *want) {
    for (int32_t row = 0; row < f->s->rows; row++, got++, want++) {
        OC_TRUE(run, got->bad == want->bad);
        if (want->bad >= 0) continue;
        if (got->token != want->token)
            oc_fail(run, "row %d: token %d, the reference draws %d", row, got->token, want->token);
        OC_TRUE(run, near(got->logprob, want->logprob));
        for (int32_t i = 0; i < f->rows[row].n_top; i++) {
            OC_TRUE(run, got->top[i].token == want->top[i].token);
            OC_TRUE(run, near(got->top[i].logprob, want->top[i].logprob));
        }
    }
}

static bool same_bits(const void *a, const void *b, size_t bytes) {
    return memcmp(a, b, bytes) == 0;
}

/* Every row alone: the same bits. */
static void check_rows(oc_run *run, const fixture *f) {
    fl_sample *alone = oc_memory(run, sizeof *alone);
    for (int32_t row = 0; row < f->s->rows; row++) {
        fl_sample_args args = make_args(run, f, alone);
        args.logits += row * f->stride;
        args.rows += row;
        args.n_rows = 1;
        memset(alone, 0xaa, sizeof *alone);
        OC_OK(run, run->be->op->sample(run->be, &args));
        OC_TRUE(run, same_bits(alone, &f->out[0][row], sizeof *alone));
    }
}

static void time_shape(oc_run *run, fixture *f) {
    for (int32_t r = 0; r < f->s->rows; r++)
        f->rows[r] = (fl_sample_row){.uniform = oc_uniform(run),
                                     .scale = 1.44269504f,
                                     .top_p = 0.95f,
                                     .min_log2 = -INFINITY,
                                     .repetition = 1,
                                     .allowed_at = -1};
    fl_sample_args args = make_args(run, f, f->out[0]);
    while (oc_timing(run, fl_sample_cost(&args))) OC_OK(run, run->be->op->sample(run->be, &args));
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "sample rows=%d n_known=%d gap=%d %s", s->rows, s->n_known, s->gap,
                 spread_names[s->how]))
        return;
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    fixture f = make_fixture(run, s);
    if (s->kind == OC_BENCH) {
        time_shape(run, &f);
        return;
    }
    for (int32_t i = 0; i < 3; i++) {
        fl_sample_args args = make_args(run, &f, f.out[i]);
        OC_OK(run, backends[i]->op->sample(backends[i], &args));
        OC_TRUE(run, f.out[i][s->rows].token == (int32_t)0xaaaaaaaa);
    }
    OC_TRUE(run, same_bits(f.out[0], f.out[1], (size_t)s->rows * sizeof *f.out[0]));
    check_like(run, &f, f.out[0], f.out[2]);
    check_formula(run, &f);
    check_rows(run, &f);
}

/* ---- by hand --------------------------------------------------------------------------------------------------- */

static void check_bad_logits(oc_run *run) {
    static const int32_t places[][2] = {{0, 999}, {999, 999}, {130, 700}, {500, 501}};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    if (!oc_case(run, OC_CHECK, "sample: logits that are not finite")) return;
    const shape s = {OC_CHECK, 1, 1000, 3, NORMAL};
    fixture f = make_fixture(run, &s);
    for (int32_t i = 0; i < 12; i++) {
        float kept[2];
        for (int32_t j = 0; j < 2; j++) {
            kept[j] = f.logits[places[i % 4][j]];
            f.logits[places[i % 4][j]] = values[i / 4];
        }
        fl_sample_args args = make_args(run, &f, f.out[0]);
        OC_OK(run, run->be->op->sample(run->be, &args));
        OC_TRUE(run, f.out[0]->token == -1 && f.out[0]->bad == places[i % 4][0]);
        for (int32_t j = 1; j >= 0; j--) f.logits[places[i % 4][j]] = kept[j];
    }
}

static void check_nothing_left(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "sample: bans and masks that leave nothing")) return;
    const int32_t all[] = {0, 1, 2, 3, 3, 3};
    const float logits[] = {1, 2, 2, -1};
    const uint64_t none[] = {(uint64_t)1 << 9}, last[] = {8};
    uint8_t *lists = oc_memory(run, 64);
    memcpy(lists, all, sizeof all);
    memcpy(lists + 32, none, sizeof none);
    memcpy(lists + 40, last, sizeof last);
    fl_sample *out = oc_memory(run, 3 * sizeof *out);
    fl_sample_row rows[3];
    for (int32_t greedy = 0; greedy < 2; greedy++) {
        for (int32_t i = 0; i < 3; i++)
            rows[i] = (fl_sample_row){.scale = greedy ? 0 : 1,
                                      .top_p = 1,
                                      .min_log2 = -INFINITY,
                                      .repetition = 1,
                                      .n_banned = 6,
                                      .allowed_at = i == 0 ? -1 : 24 + 8 * i};
        const fl_sample_args args = {.logits = oc_given(run, logits, sizeof logits),
                                     .n_rows = 3,
                                     .n_known = 4,
                                     .rows = rows,
                                     .lists = lists,
                                     .scratch = oc_memory(run, fl_sample_scratch_bytes(4)),
                                     .out = out};
        fl_sample_args given = args;
        given.logits_stride = 4;
        float *three = oc_memory(run, 3 * sizeof logits);
        for (int32_t i = 0; i < 3; i++) memcpy(three + 4 * i, logits, sizeof logits);
        given.logits = three;
        OC_OK(run, run->be->op->sample(run->be, &given));
        OC_TRUE(run, out[0].token == 1);  /* bans do not count then */
        OC_TRUE(run, out[1].token == -1); /* the mask does */
        OC_TRUE(run, out[2].token == 3);
    }
}

/* A few tokens, one row at a time. */
typedef struct by_hand {
    const char *what;
    float logits[3], scale, repetition;
    int32_t n_marks, n_banned; /* token 0; token 1 */
    uint64_t allowed;          /* 0 = all */
    int32_t token;
} by_hand;

static void check_by_hand(oc_run *run) {
    static const by_hand cases[] = {
        {"a mark and a ban", {3, 2.9f, 2.8f}, 0, 2, 1, 1, 0, 2},
        {"the only one is banned", {3, 2, 1}, 0, 1, 0, 1, 2, 1},
        {"the only one is banned, drawn", {3, 2, 1}, 1, 1, 0, 1, 2, 1},
        {"infinite once changed", {2e38f, 1, 1}, 1, 0.25f, 1, 0, 0, 0},
        {"infinitely less once changed", {-2e38f, 1, 0.5f}, 50, 100, 1, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const by_hand *h = &cases[i];
        if (!oc_case(run, OC_CHECK, "sample by hand: %s", h->what)) continue;
        const fl_sample_mark mark = {0, 0};
        const int32_t banned = 1;
        uint8_t *lists = oc_memory(run, 24);
        fl_sample *out = oc_memory(run, sizeof *out);
        memcpy(lists, &mark, sizeof mark);
        memcpy(lists + 8, &banned, sizeof banned);
        memcpy(lists + 16, &h->allowed, sizeof h->allowed);
        const fl_sample_row row = {.scale = h->scale,
                                   .top_p = 1,
                                   .min_log2 = -INFINITY,
                                   .repetition = h->repetition,
                                   .n_marks = h->n_marks,
                                   .n_banned = h->n_banned,
                                   .banned_at = 8,
                                   .allowed_at = h->allowed ? 16 : -1};
        const fl_sample_args args = {.logits = oc_given(run, h->logits, sizeof h->logits),
                                     .logits_stride = 3,
                                     .n_rows = 1,
                                     .n_known = 3,
                                     .rows = &row,
                                     .lists = lists,
                                     .scratch = oc_memory(run, fl_sample_scratch_bytes(3)),
                                     .out = out};
        OC_OK(run, run->be->op->sample(run->be, &args));
        OC_TRUE(run, out->token == h->token);
    }
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "sample: limits and cost")) return;
    const fl_sample_row row = {.top_p = 1, .repetition = 1, .allowed_at = -1};
    fl_sample_row bad = row;
    const fl_sample_args good = {.logits_stride = 100, .n_rows = 1, .n_known = 90, .rows = &row};
    OC_OK(run, fl_sample_validate(&good));
    OC_REFUSED_WITH(run, sample, good, n_rows, 0, "n_rows");
    OC_REFUSED_WITH(run, sample, good, n_known, 0, "n_known");
    OC_REFUSED_WITH(run, sample, good, n_known, FL_SAMPLE_VOCAB_MAX + 1, "n_known");
    OC_REFUSED_WITH(run, sample, good, logits_stride, 89, "logits_stride");
    bad.n_top = FL_TOP_LOGPROBS_MAX + 1;
    OC_REFUSED_WITH(run, sample, good, rows, &bad, "n_top");
    bad = row;
    bad.uniform = 1;
    OC_REFUSED_WITH(run, sample, good, rows, &bad, "uniform");
    bad = row;
    bad.scale = -1;
    OC_REFUSED_WITH(run, sample, good, rows, &bad, "scale");
    bad = row;
    bad.top_k = -1;
    OC_REFUSED_WITH(run, sample, good, rows, &bad, "top_k");
    bad = row;
    bad.n_marks = 1;
    OC_REFUSED_WITH(run, sample, good, rows, &bad, "n_marks");
    bad = row;
    bad.allowed_at = 4;
    fl_sample_args listed = good;
    listed.lists = (const uint8_t *)&row;
    OC_REFUSED_WITH(run, sample, listed, rows, &bad, "allowed_at");
    bad.allowed_at = 8;
    OC_ACCEPTED_WITH(run, sample, listed, rows, &bad);
    oc_cost(run, fl_sample_cost(&good), 0, 360);
}

void fl_sample_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_bad_logits(run);
    check_nothing_left(run);
    check_by_hand(run);
    check_limits(run);
}
