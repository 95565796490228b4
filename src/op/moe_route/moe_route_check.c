#include "op/moe_route/moe_route.h"

#include <math.h>
#include <string.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, dim, experts, top_k, groups, top_groups;
    fl_moe_score score;
    fl_moe_select select;
    bool bias, normalize;
    float factor;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 5, 16, 16, 4, 4, 2, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_CHECK, 65, 100, 16, 4, 4, 2, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_CHECK, 3, 512, 256, 8, 8, 4, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_CHECK, 7, 33, 64, 6, 1, 1, FL_MOE_SOFTMAX, FL_MOE_GREEDY, false, false, 1},
    {OC_CHECK, 9, 48, 60, 6, 6, 3, FL_MOE_SOFTMAX, FL_MOE_GROUP_MAX, false, false, 16},
    {OC_CHECK, 4, 20, 10, 10, 1, 1, FL_MOE_SOFTMAX, FL_MOE_GREEDY, true, true, 1},
    {OC_CHECK, 2, 7, 1, 1, 1, 1, FL_MOE_SIGMOID, FL_MOE_GREEDY, false, true, 3},
    {OC_CHECK, 6, 40, 12, 3, 3, 1, FL_MOE_SIGMOID, FL_MOE_GROUP_MAX, true, false, 0.5f},
    {OC_CHECK, 5, 130, 384, 8, 1, 1, FL_MOE_SIGMOID, FL_MOE_GREEDY, true, true, 2.827f},
    {OC_CHECK, 3, 25, 30, 4, 5, 5, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 1},
    {OC_CHECK, 34, 520, 32, 4, 4, 2, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 1},
    {OC_CHECK, 5, 24, 640, 36, 20, 9, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_CHECK, 3, 16, 1024, 8, 8, 4, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_SLOW, 131, 300, 72, 6, 1, 1, FL_MOE_SIGMOID, FL_MOE_GREEDY, true, true, 1},
    {OC_SLOW, 260, 520, 130, 4, 1, 1, FL_MOE_SIGMOID, FL_MOE_GREEDY, true, true, 2.5f},
    /* more tiles than a GPU has multiprocessors: whole sums a block, of weights split before */
    {OC_SLOW, 2306, 136, 256, 8, 8, 4, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_BENCH, 2048, 512, 16, 4, 4, 2, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
    {OC_BENCH, 64, 7168, 256, 8, 8, 4, FL_MOE_SIGMOID, FL_MOE_GROUP_TOP2, true, true, 2.5f},
};

typedef struct fixture {
    const shape *s;
    oc_pair x;
    oc_mat w, bias;
    double *scores, *competing; /* [experts] of the row at hand */
    int32_t *ids[3], *want_ids;
    oc_mat weights[3], want_weights;
} fixture;

/* s and c of one row, by the formula. */
static void score_row(const fixture *f, int32_t r) {
    const shape *s = f->s;
    double sum = 0;
    for (int32_t e = 0; e < s->experts; e++) {
        double z = 0;
        for (int32_t j = 0; j < s->dim; j++) z += oc_get(&f->x.ref, r, j) * oc_get(&f->w, e, j);
        f->scores[e] = s->score == FL_MOE_SIGMOID ? 1 / (1 + exp(-z)) : exp(z);
        sum += f->scores[e];
    }
    for (int32_t e = 0; e < s->experts; e++) {
        if (s->score == FL_MOE_SOFTMAX) f->scores[e] /= sum;
        f->competing[e] = f->scores[e] + (s->bias ? oc_get(&f->bias, 0, e) : 0);
    }
}

/* How many of c[first .. first + n - 1] come before expert e in the order of selection. */
static int32_t rank_of(const double *c, int32_t first, int32_t n, int32_t e) {
    int32_t rank = 0;
    for (int32_t i = first; i < first + n; i++) rank += c[i] > c[e] || (c[i] >= c[e] && i < e);
    return rank;
}

static double group_score(const fixture *f, int32_t g) {
    int32_t per_group = f->s->experts / f->s->groups;
    double score = 0;
    for (int32_t i = g * per_group; i < (g + 1) * per_group; i++)
        if (rank_of(f->competing, g * per_group, per_group, i) < (f->s->select == FL_MOE_GROUP_TOP2 ? 2 : 1))
            score += f->competing[i];
    return score;
}

/* Selection by counting who is better: no sorting, no masks. Returns the smallest gap that decided something. */
static double select_row(const fixture *f, int32_t *ids, double *weights) {
    const shape *s = f->s;
    double group_scores[FL_MOE_EXPERTS_MAX], kept[FL_MOE_EXPERTS_MAX], sum = 0, gap = INFINITY;
    int32_t kept_ids[FL_MOE_EXPERTS_MAX], n_kept = 0, per_group = s->experts / s->groups;
    for (int32_t g = 0; g < s->groups; g++) group_scores[g] = group_score(f, g);
    for (int32_t g = 0; g < s->groups && s->select != FL_MOE_GREEDY; g++)
        for (int32_t i = 0; i < g; i++) gap = fmin(gap, fabs(group_scores[g] - group_scores[i]));
    for (int32_t e = 0; e < s->experts; e++) {
        bool in =
            s->select == FL_MOE_GREEDY || rank_of(group_scores, 0, s->groups, e / per_group) < s->top_groups;
        if (!in) continue;
        kept_ids[n_kept] = e;
        kept[n_kept++] = f->competing[e];
    }
    for (int32_t i = 0; i < n_kept; i++) {
        int32_t rank = rank_of(kept, 0, n_kept, i);
        for (int32_t j = 0; j < i; j++) gap = fmin(gap, fabs(kept[i] - kept[j]));
        if (rank < s->top_k) ids[rank] = kept_ids[i];
    }
    for (int32_t i = 0; i < s->top_k; i++) sum += f->scores[ids[i]];
    for (int32_t i = 0; i < s->top_k; i++)
        weights[i] = (double)s->factor * f->scores[ids[i]] / (s->normalize ? sum : 1);
    return gap;
}

/* Rows are drawn again until no decision hangs on less than rounding. */
static void make_rows(oc_run *run, fixture *f) {
    const shape *s = f->s;
    double weights[FL_MOE_EXPERTS_MAX] = {0};
    for (int32_t r = 0; r < s->rows; r++) {
        int32_t *ids = f->want_ids + r * s->top_k, tries = 0;
        do {
            for (int32_t j = 0; j < s->dim; j++) oc_set(&f->x.be, r, j, oc_normal(run));
            for (int32_t j = 0; j < s->dim; j++) oc_set(&f->x.ref, r, j, oc_get(&f->x.be, r, j));
            if (s->kind == OC_BENCH) break; /* not compared: near ties among so many */
            score_row(f, r);
        } while (select_row(f, ids, weights) < 1e-5 && ++tries < 200);
        OC_TRUE(run, tries < 200);
        for (int32_t i = 0; i < s->top_k; i++) oc_set(&f->want_weights, r, i, weights[i]);
    }
}

static fixture make_fixture(oc_run *run, const shape *s) {
    int32_t padding = s->rows % 2 ? 5 : 8; /* strides of whole vectors, and others */
    fixture f = {.s = s, .x = oc_act(run, s->rows, s->dim, s->dim + padding, OC_ZERO)};
    f.w = oc_input(run, FL_DTYPE_F32, s->experts, s->dim, s->dim);
    f.bias = oc_input(run, FL_DTYPE_F32, 1, s->experts, s->experts);
    f.scores = oc_memory(run, s->experts * (int64_t)sizeof(double));
    f.competing = oc_memory(run, s->experts * (int64_t)sizeof(double));
    f.want_ids = oc_memory(run, s->rows * s->top_k * (int64_t)sizeof(int32_t));
    f.want_weights = oc_output(run, FL_DTYPE_F32, s->rows, s->top_k, s->top_k);
    for (int32_t e = 0; e < s->experts; e++) {
        /* negative competitors, too: a dropped group must count as -inf, not as 0 */
        oc_set(&f.bias, 0, e, oc_normal(run) * 0.5 - 1);
        for (int32_t j = 0; j < s->dim; j++) oc_set(&f.w, e, j, oc_normal(run) / sqrt(s->dim));
    }
    for (int32_t i = 0; i < 3; i++) {
        f.ids[i] = oc_memory(run, (s->rows * s->top_k + 1) * (int64_t)sizeof(int32_t));
        f.weights[i] = oc_output(run, FL_DTYPE_F32, s->rows, s->top_k, s->top_k);
    }
    make_rows(run, &f);
    return f;
}

static fl_moe_route_args make_args(const fixture *f, int32_t i) {
    const shape *s = f->s;
    const oc_mat *x = i == 2 ? &f->x.ref : &f->x.be;
    return (fl_moe_route_args){.x = x->data,
                               .x_stride = x->stride,
                               .w = f->w.data,
                               .bias = s->bias ? f->bias.data : NULL,
                               .rows = s->rows,
                               .dim = s->dim,
                               .n_experts = s->experts,
                               .top_k = s->top_k,
                               .n_groups = s->groups,
                               .top_groups = s->top_groups,
                               .score = s->score,
                               .select = s->select,
                               .normalize = s->normalize,
                               .factor = s->factor,
                               .ids = f->ids[i],
                               .weights = f->weights[i].data};
}

/* Every row alone: the same ids and bits. */
static void check_rows(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    int32_t *ids = oc_memory(run, s->rows * s->top_k * (int64_t)sizeof *ids);
    oc_mat weights = oc_output(run, FL_DTYPE_F32, s->rows, s->top_k, s->top_k);
    for (int32_t r = 0; r < s->rows; r++) {
        fl_moe_route_args args = make_args(f, 0);
        args.rows = 1;
        args.x = oc_at(&f->x.be, r, 0);
        args.ids = ids + r * s->top_k;
        args.weights = oc_at(&weights, r, 0);
        OC_OK(run, run->be->op->moe_route(run->be, &args));
    }
    OC_TRUE(run, memcmp(ids, f->ids[0], (size_t)(s->rows * s->top_k) * sizeof *ids) == 0);
    oc_same(run, &weights, &f->weights[0]);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind,
                 "moe_route rows=%d dim=%d experts=%d top=%d groups=%d/%d score=%d select=%d%s%s", s->rows,
                 s->dim, s->experts, s->top_k, s->top_groups, s->groups, (int)s->score, (int)s->select,
                 s->bias ? " bias" : "", s->normalize ? " normalize" : ""))
        return;
    const int32_t guard = 0x55555555;
    fixture f = make_fixture(run, s);
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    double *bound = oc_memory(run, s->rows * s->top_k * (int64_t)sizeof *bound);
    for (int32_t i = 0; i < s->rows * s->top_k; i++)
        bound[i] = 1e-5 * oc_get(&f.want_weights, i / s->top_k, i % s->top_k);
    for (int32_t i = 0; i < 3; i++) {
        fl_moe_route_args args = make_args(&f, i);
        f.ids[i][s->rows * s->top_k] = guard;
        OC_OK(run, backends[i]->op->moe_route(backends[i], &args));
        OC_TRUE(run, f.ids[i][s->rows * s->top_k] == guard);
        if (s->kind == OC_BENCH) continue;
        oc_guards(run, &f.weights[i]);
        OC_TRUE(run, memcmp(f.ids[i], f.want_ids, (size_t)(s->rows * s->top_k) * sizeof(int32_t)) == 0);
        oc_near(run, &f.weights[i], &f.want_weights, bound);
    }
    oc_same(run, &f.weights[0], &f.weights[1]);
    if (s->kind != OC_BENCH) check_rows(run, &f);
    fl_moe_route_args args = make_args(&f, 0);
    while (oc_timing(run, fl_moe_route_cost(&args))) OC_OK(run, run->be->op->moe_route(run->be, &args));
}

/* Logits as given: W is the unit matrix, of eight experts in groups of two. */
typedef struct routed {
    const char *what;
    fl_moe_select select;
    double logits[8], bias[8];
    int32_t ids[2];
} routed;

static void check_literal(oc_run *run) {
    static const routed cases[] = {
        {"largest first", FL_MOE_GREEDY, {0, 1, -1, 3, 2, 0, 0, 0}, {0}, {3, 4}},
        {"ties to the smaller id", FL_MOE_GREEDY, {0, 2, 1, 2, 2, 0, 2, 0}, {0}, {1, 3}},
        {"bias decides", FL_MOE_GREEDY, {4, 3, 2, 1, 0, 0, 0, 0}, {-1, 0, 0, 0, 0, 0, 0, 1}, {7, 1}},
        {"best two of a group", FL_MOE_GROUP_TOP2, {3, -4, 1, 1, 2, -4, 0, 0}, {0}, {2, 3}},
        {"best of a group", FL_MOE_GROUP_MAX, {3, -4, 1, 1, 2, -4, 0, 0}, {0}, {0, 1}},
        {"groups' ties to the smaller", FL_MOE_GROUP_TOP2, {0, 0, 1, 2, 0, 0, 2, 1}, {0}, {3, 2}},
        {"all negative",
         FL_MOE_GROUP_TOP2,
         {0, 0, 1, 1, 0, 0, 0, 0},
         {-9, -9, -3, -3, -9, -9, -5, -5},
         {2, 3}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!oc_case(run, OC_CHECK, "moe_route by hand: %s", cases[i].what)) continue;
        oc_pair x = oc_act(run, 1, 8, 8, OC_ZERO);
        float *w = oc_memory(run, 64 * sizeof *w), *bias = oc_memory(run, 8 * sizeof *bias);
        float *weights = oc_memory(run, 2 * sizeof *weights);
        int32_t *ids = oc_memory(run, 2 * sizeof *ids);
        for (int32_t e = 0; e < 8; e++) {
            w[e * 8 + e] = 1;
            bias[e] = (float)cases[i].bias[e];
            oc_set(&x.ref, 0, e, cases[i].logits[e]);
        }
        oc_act_sync(&x);
        fl_moe_route_args args = {.x = x.be.data, .x_stride = 8, .w = w, .bias = bias, .rows = 1, .dim = 8};
        args.n_experts = 8;
        args.top_k = 2;
        args.n_groups = 4;
        args.top_groups = 1;
        args.select = cases[i].select;
        args.factor = 2;
        args.normalize = true;
        args.ids = ids;
        args.weights = weights;
        OC_OK(run, run->be->op->moe_route(run->be, &args));
        OC_TRUE(run, ids[0] == cases[i].ids[0] && ids[1] == cases[i].ids[1]);
        double first = 1 / (1 + exp(-cases[i].logits[cases[i].ids[0]]));
        double second = 1 / (1 + exp(-cases[i].logits[cases[i].ids[1]]));
        OC_TRUE(run, fabs((double)weights[0] - 2 * first / (first + second)) < 2e-5);
        OC_TRUE(run, fabs((double)weights[1] - 2 * second / (first + second)) < 2e-5);
        args.score = FL_MOE_SOFTMAX; /* normalised over the chosen, softmax is a ratio of exponentials */
        OC_OK(run, run->be->op->moe_route(run->be, &args));
        first = exp(cases[i].logits[ids[0]]);
        second = exp(cases[i].logits[ids[1]]);
        OC_TRUE(run, fabs((double)weights[0] - 2 * first / (first + second)) < 2e-5);
    }
}

static void check_extreme(oc_run *run) {
    for (int32_t score = FL_MOE_SIGMOID; score <= FL_MOE_SOFTMAX; score++) {
        if (!oc_case(run, OC_CHECK, "moe_route huge logits, score=%d", score)) continue;
        oc_pair x = oc_act(run, 2, 3, 3, OC_ZERO);
        const float unit[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, *w = oc_given(run, unit, sizeof unit);
        const double logits[6] = {-2000, 1500, 1000, -3000, -2500, -3000};
        int32_t *ids = oc_memory(run, 6 * sizeof *ids);
        float *weights = oc_memory(run, 6 * sizeof *weights);
        for (int32_t i = 0; i < 6; i++) oc_set(&x.ref, i / 3, i % 3, logits[i]);
        oc_act_sync(&x);
        fl_moe_route_args args = {.x = x.be.data, .x_stride = 3, .w = w, .rows = 2, .dim = 3, .n_experts = 3};
        args.top_k = 3;
        args.score = (fl_moe_score)score;
        args.normalize = true;
        args.factor = 1;
        args.ids = ids;
        args.weights = weights;
        OC_OK(run, run->be->op->moe_route(run->be, &args));
        OC_TRUE(run, ids[0] == 1);
        for (int32_t i = 0; i < 6; i++) OC_TRUE(run, isfinite(weights[i]));
        OC_TRUE(run, fabs((double)weights[0] - (score == FL_MOE_SIGMOID ? 0.5 : 1)) < 1e-5);
        OC_TRUE(run, fabs((double)weights[3] - (score == FL_MOE_SIGMOID ? 0 : 1)) < 1e-5);
        args.rows = 0;
        OC_REFUSED(run, run->be->op->moe_route(run->be, &args), "moe_route: rows");
    }
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "moe_route limits and cost")) return;
    float bias = 0;
    fl_moe_route_args good = {.x_stride = 6, .rows = 3, .dim = 6, .n_experts = 12, .top_k = 4, .n_groups = 4};
    good.top_groups = 2;
    good.select = FL_MOE_GROUP_TOP2;
    good.factor = 1;
    OC_OK(run, fl_moe_route_validate(&good));
    OC_ACCEPTED_WITH(run, moe_route, good, rows, 1);
    OC_REFUSED_WITH(run, moe_route, good, rows, 0, "moe_route: rows");
    OC_ACCEPTED_WITH(run, moe_route, good, dim, 1);
    OC_REFUSED_WITH(run, moe_route, good, dim, 0, "moe_route: dim");
    OC_REFUSED_WITH(run, moe_route, good, x_stride, 5, "moe_route: x_stride");
    OC_ACCEPTED_WITH(run, moe_route, good, n_experts, 1024);
    OC_REFUSED_WITH(run, moe_route, good, n_experts, 1028, "moe_route: n_experts");
    OC_REFUSED_WITH(run, moe_route, good, n_experts, 0, "moe_route: n_experts");
    OC_REFUSED_WITH(run, moe_route, good, n_experts, 14, "moe_route: n_experts (with n_groups)");
    OC_ACCEPTED_WITH(run, moe_route, good, top_k, 1);
    OC_REFUSED_WITH(run, moe_route, good, top_k, 0, "moe_route: top_k");
    OC_ACCEPTED_WITH(run, moe_route, good, top_k, 6);
    OC_REFUSED_WITH(run, moe_route, good, top_k, 7, "moe_route: top_k (with top_groups)");
    OC_REFUSED_WITH(run, moe_route, good, n_groups, 0, "moe_route: n_groups");
    OC_REFUSED_WITH(run, moe_route, good, n_groups, 12, "moe_route: experts a group");
    OC_ACCEPTED_WITH(run, moe_route, good, n_groups, 6);
    OC_REFUSED_WITH(run, moe_route, good, n_groups, 24, "moe_route: n_groups");
    OC_REFUSED_WITH(run, moe_route, good, top_groups, 0, "moe_route: top_groups");
    OC_ACCEPTED_WITH(run, moe_route, good, top_groups, 4);
    OC_REFUSED_WITH(run, moe_route, good, top_groups, 5, "moe_route: top_groups");
    OC_REFUSED_WITH(run, moe_route, good, score, (fl_moe_score)2, "moe_route: score");
    OC_REFUSED_WITH(run, moe_route, good, select, (fl_moe_select)3, "moe_route: select");
    OC_REFUSED_WITH(run, moe_route, good, factor, NAN, "moe_route: factor");
    good.select = FL_MOE_GREEDY;
    good.n_groups = good.top_groups = 0;
    OC_ACCEPTED_WITH(run, moe_route, good, top_k, 12);
    OC_REFUSED_WITH(run, moe_route, good, top_k, 13, "moe_route: top_k");
    good.select = FL_MOE_GROUP_MAX;
    good.n_groups = 12;
    good.top_groups = 4;
    OC_OK(run, fl_moe_route_validate(&good));
    good.top_groups = good.top_k = 1;
    OC_OK(run, fl_moe_route_validate(&good));
    good.top_k = 4;
    oc_cost(run, fl_moe_route_cost(&good), 2 * 3 * 12 * 6, 3 * (12 + 32) + 12 * 24);
    good.bias = &bias;
    oc_cost(run, fl_moe_route_cost(&good), 2 * 3 * 12 * 6, 3 * (12 + 32) + 12 * 28);
}

void fl_moe_route_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_literal(run);
    check_extreme(run);
    check_limits(run);
}
