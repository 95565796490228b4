#include "op/moe_combine/moe_combine.h"

#include <math.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, top_k, dim;
    bool shared;
    oc_fill fill;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, false, OC_NORMAL},     {OC_CHECK, 1, 4, 512, true, OC_NORMAL},
    {OC_CHECK, 65, 4, 33, true, OC_NORMAL},    {OC_CHECK, 64, 8, 96, true, OC_NORMAL},
    {OC_CHECK, 7, 6, 130, false, OC_SPIKE},    {OC_CHECK, 10, 2, 64, true, OC_LARGE},
    {OC_CHECK, 3, 5, 17, true, OC_TINY},       {OC_CHECK, 63, 3, 31, false, OC_ZERO},
    {OC_CHECK, 21, 11, 264, true, OC_NORMAL},  {OC_CHECK, 33, 0, 512, true, OC_NORMAL},
    {OC_CHECK, 5, 0, 35, true, OC_SPIKE},      {OC_CHECK, 2, 0, 48, false, OC_NORMAL},
    {OC_BENCH, 2048, 4, 512, true, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_pair y, shared;
    oc_mat weights, x0;
    int32_t *place;
    oc_outs x; /* in and out */
} fixture;

static fl_moe_combine_args make_args(const fixture *f, const oc_mat *y, const oc_mat *shared,
                                     const oc_mat *x) {
    const shape *s = f->s;
    fl_moe_combine_args args = {.rows = s->rows, .top_k = s->top_k, .dim = s->dim, .x = x->data};
    if (s->shared) args.shared = shared->data;
    if (s->top_k == 0) return args;
    args.y = y->data;
    args.place = f->place;
    args.weights = f->weights.data;
    return args;
}

static fixture make_fixture(oc_run *run, const shape *s) {
    int32_t slots = s->rows * s->top_k, top_k = s->top_k > 0 ? s->top_k : 1; /* no matrix is empty */
    fixture f = {.s = s, .y = oc_act(run, s->rows * top_k, s->dim, s->dim, s->fill)};
    f.shared = oc_act(run, s->rows, s->dim, s->dim, s->fill);
    f.weights = oc_input(run, FL_DTYPE_F32, s->rows, top_k, top_k);
    f.x0 = oc_input(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    f.x = oc_outs_make(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    f.place = oc_memory(run, s->rows * top_k * (int64_t)sizeof *f.place);
    oc_fill_mat(run, &f.x0, s->fill);
    for (int32_t i = 0; i < slots; i++) {
        oc_set(&f.weights, i / s->top_k, i % s->top_k, oc_uniform(run));
        int32_t other = oc_below(run, i + 1); /* a random permutation, grown */
        f.place[i] = f.place[other];
        f.place[other] = i;
    }
    oc_copy(&f.x.be, &f.x0);
    oc_copy(&f.x.one, &f.x0);
    oc_copy(&f.x.ref, &f.x0);
    return f;
}

static void expect(const fixture *f, const oc_mat *want, double *bound, double relative) {
    for (int32_t r = 0; r < f->s->rows; r++)
        for (int32_t j = 0; j < f->s->dim; j++) {
            double sum = oc_get(&f->x0, r, j), shared = f->s->shared ? oc_get(&f->shared.ref, r, j) : 0;
            double size = fabs(sum) + fabs(shared);
            sum += shared;
            for (int32_t k = 0; k < f->s->top_k; k++) {
                int32_t place = f->place[r * f->s->top_k + k];
                double term = oc_get(&f->weights, r, k) * oc_get(&f->y.ref, place, j);
                sum += term;
                size += fabs(term);
            }
            oc_set(want, r, j, sum);
            bound[r * f->s->dim + j] = relative * size;
        }
}

/* Each row alone, its places counted in all rows' slots: the same bits. */
static void check_rows(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    int32_t top_k = s->top_k > 0 ? s->top_k : 1;
    oc_mat x = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    oc_mat y = oc_input(run, run->be->act_dtype, top_k, s->dim, s->dim);
    int32_t *place = oc_memory(run, top_k * (int64_t)sizeof *place);
    oc_copy(&x, &f->x0);
    for (int32_t r = 0; r < s->rows; r++) {
        for (int32_t k = 0; k < s->top_k; k++) {
            place[k] = s->top_k - 1 - k;
            for (int32_t j = 0; j < s->dim; j++)
                oc_set(&y, place[k], j, oc_get(&f->y.be, f->place[r * s->top_k + k], j));
        }
        fl_moe_combine_args args = {.y = y.data, .place = place, .rows = 1, .top_k = s->top_k, .dim = s->dim};
        args.weights = oc_at(&f->weights, r, 0);
        args.shared = s->shared ? oc_at(&f->shared.be, r, 0) : NULL;
        args.x = oc_at(&x, r, 0);
        OC_OK(run, run->be->op->moe_combine(run->be, &args));
    }
    oc_same(run, &x, &f->x.be);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "moe_combine rows=%d top=%d dim=%d%s %s", s->rows, s->top_k, s->dim,
                 s->shared ? " shared" : "", oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    fl_moe_combine_args args = make_args(&f, &f.y.be, &f.shared.be, &f.x.be);
    fl_moe_combine_args one = make_args(&f, &f.y.be, &f.shared.be, &f.x.one);
    fl_moe_combine_args ref = make_args(&f, &f.y.ref, &f.shared.ref, &f.x.ref);
    OC_OK(run, run->be->op->moe_combine(run->be, &args));
    OC_OK(run, run->one->op->moe_combine(run->one, &one));
    OC_OK(run, run->ref->op->moe_combine(run->ref, &ref));
    oc_mat want = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    double *bound = oc_memory(run, s->rows * s->dim * (int64_t)sizeof *bound);
    expect(&f, &want, bound, 1e-6);
    oc_outs_near(run, &f.x, bound);
    expect(&f, &want, bound, 1.2e-7);
    oc_near(run, &f.x.ref, &want, bound);
    if (s->kind != OC_BENCH) check_rows(run, &f);
    while (oc_timing(run, fl_moe_combine_cost(&args))) OC_OK(run, run->be->op->moe_combine(run->be, &args));
}

/* act from numbers. */
static void *act_of(oc_run *run, const double *values, int32_t n) {
    oc_mat m = oc_input(run, run->be->act_dtype, 1, n, n);
    for (int32_t i = 0; i < n; i++) oc_set(&m, 0, i, values[i]);
    return m.data;
}

static void check_places(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "moe_combine places and by hand")) return;
    const double y[6] = {1, 2, 10, 20, 100, 200}, shared[2] = {3, -1};
    const float weights[3] = {0.5f, 2, 0.25f};
    const int32_t good_places[3] = {2, 0, 1};
    int32_t *place = oc_given(run, good_places, sizeof good_places);
    oc_mat x = oc_output(run, FL_DTYPE_F32, 1, 2, 2);
    fl_moe_combine_args args = {.place = place, .rows = 1, .top_k = 3, .dim = 2, .x = x.data};
    args.y = act_of(run, y, 6);
    args.weights = oc_given(run, weights, sizeof weights);
    args.shared = act_of(run, shared, 2);
    place[1] = 3;
    OC_REFUSED(run, run->be->op->moe_combine(run->be, &args), "moe_combine: place[]");
    place[1] = -1;
    OC_REFUSED(run, run->be->op->moe_combine(run->be, &args), "moe_combine: place[]");
    args.rows = 0;
    OC_REFUSED(run, run->be->op->moe_combine(run->be, &args), "moe_combine: rows");
    if (!run->be->device) oc_untouched(run, &x); /* a device finds out while it writes */
    args.rows = 1;
    place[1] = 0;
    oc_set(&x, 0, 0, 1000);
    oc_set(&x, 0, 1, -8);
    OC_OK(run, run->be->op->moe_combine(run->be, &args));
    OC_TRUE(run, fabs(oc_get(&x, 0, 0) - 1057.5) <= 0 && fabs(oc_get(&x, 0, 1) - 100) <= 0);
    args.top_k = 0;
    place[1] = 3;
    OC_OK(run, run->be->op->moe_combine(run->be, &args));
    OC_TRUE(run, fabs(oc_get(&x, 0, 0) - 1060.5) <= 0 && fabs(oc_get(&x, 0, 1) - 99) <= 0);
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "moe_combine limits and cost")) return;
    float some = 0;
    fl_moe_combine_args good = {.rows = 3, .top_k = 2, .dim = 5};
    OC_OK(run, fl_moe_combine_validate(&good));
    OC_ACCEPTED_WITH(run, moe_combine, good, rows, 1);
    OC_REFUSED_WITH(run, moe_combine, good, rows, 0, "moe_combine: rows");
    OC_ACCEPTED_WITH(run, moe_combine, good, top_k, 0);
    OC_REFUSED_WITH(run, moe_combine, good, top_k, -1, "moe_combine: top_k");
    OC_ACCEPTED_WITH(run, moe_combine, good, top_k, INT32_MAX / 3);
    OC_REFUSED_WITH(run, moe_combine, good, top_k, INT32_MAX / 3 + 1, "moe_combine: top_k");
    OC_ACCEPTED_WITH(run, moe_combine, good, dim, 1);
    OC_REFUSED_WITH(run, moe_combine, good, dim, 0, "moe_combine: dim");
    oc_cost(run, fl_moe_combine_cost(&good), 75, 3 * (2 * (10 + 8) + 40));
    good.shared = &some;
    oc_cost(run, fl_moe_combine_cost(&good), 75, 3 * (2 * (10 + 8) + 50));
    good.top_k = 0;
    oc_cost(run, fl_moe_combine_cost(&good), 15, 3 * 50);
}

void fl_moe_combine_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_places(run);
    check_limits(run);
}
