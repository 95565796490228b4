#include "op/moe_combine/moe_combine.h"

#include <math.h>

#include "opcheck/opcheck_case.h"

typedef enum base { NONE, SHARED, IN_PLACE } base; /* what the sum starts from */

typedef struct shape {
    oc_kind kind;
    int32_t rows, top_k, dim;
    base base;
    oc_fill fill;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, NONE, OC_NORMAL},        {OC_CHECK, 1, 4, 512, SHARED, OC_NORMAL},
    {OC_CHECK, 65, 4, 33, SHARED, OC_NORMAL},    {OC_CHECK, 64, 8, 96, IN_PLACE, OC_NORMAL},
    {OC_CHECK, 7, 6, 130, NONE, OC_SPIKE},       {OC_CHECK, 10, 2, 64, IN_PLACE, OC_LARGE},
    {OC_CHECK, 3, 5, 17, SHARED, OC_TINY},       {OC_CHECK, 63, 3, 31, NONE, OC_ZERO},
    {OC_BENCH, 2048, 4, 512, SHARED, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_pair y;
    oc_mat weights, shared;
    int32_t *place;
    oc_outs out;
} fixture;

static fl_moe_combine_args make_args(const fixture *f, const oc_mat *y, const oc_mat *out) {
    const shape *s = f->s;
    fl_moe_combine_args args = {.y = y->data, .place = f->place, .weights = f->weights.data, .rows = s->rows};
    args.top_k = s->top_k;
    args.dim = s->dim;
    args.out = out->data;
    args.shared = s->base == NONE ? NULL : s->base == SHARED ? f->shared.data : out->data;
    return args;
}

static fixture make_fixture(oc_run *run, const shape *s) {
    int32_t slots = s->rows * s->top_k;
    fixture f = {.s = s, .y = oc_act(run, slots, s->dim, s->dim, s->fill)};
    f.weights = oc_input(run, FL_DTYPE_F32, s->rows, s->top_k, s->top_k);
    f.shared = oc_input(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    f.out = oc_outs_make(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    f.place = oc_memory(run, slots * (int64_t)sizeof *f.place);
    oc_fill_mat(run, &f.shared, s->fill);
    for (int32_t i = 0; i < slots; i++) {
        oc_set(&f.weights, i / s->top_k, i % s->top_k, oc_uniform(run));
        int32_t other = oc_below(run, i + 1); /* a random permutation, grown */
        f.place[i] = f.place[other];
        f.place[other] = i;
    }
    if (s->base == IN_PLACE) {
        oc_copy(&f.out.be, &f.shared);
        oc_copy(&f.out.one, &f.shared);
        oc_copy(&f.out.ref, &f.shared);
    }
    return f;
}

static void expect(const fixture *f, const oc_mat *want, double *bound, double relative) {
    for (int32_t r = 0; r < f->s->rows; r++)
        for (int32_t j = 0; j < f->s->dim; j++) {
            double sum = f->s->base == NONE ? 0 : oc_get(&f->shared, r, j), size = fabs(sum);
            for (int32_t k = 0; k < f->s->top_k; k++) {
                double term = oc_get(&f->weights, r, k) * oc_get(&f->y.ref, f->place[r * f->s->top_k + k], j);
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
    oc_mat out = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    oc_mat y = oc_input(run, run->be->act_dtype, s->top_k, s->dim, s->dim);
    int32_t *place = oc_memory(run, s->top_k * (int64_t)sizeof *place);
    for (int32_t r = 0; r < s->rows; r++) {
        for (int32_t k = 0; k < s->top_k; k++) {
            place[k] = s->top_k - 1 - k;
            for (int32_t j = 0; j < s->dim; j++)
                oc_set(&y, place[k], j, oc_get(&f->y.be, f->place[r * s->top_k + k], j));
        }
        fl_moe_combine_args args = {
            .y = y.data, .place = place, .weights = oc_at(&f->weights, r, 0), .rows = 1};
        args.top_k = s->top_k;
        args.dim = s->dim;
        args.shared = s->base == NONE ? NULL : oc_at(&f->shared, r, 0);
        args.out = oc_at(&out, r, 0);
        OC_OK(run, run->be->op->moe_combine(run->be, &args));
    }
    oc_same(run, &out, &f->out.be);
}

static void check_shape(oc_run *run, const shape *s) {
    static const char *const base_names[] = {"none", "shared", "in place"};
    if (!oc_case(run, s->kind, "moe_combine rows=%d top=%d dim=%d base=%s %s", s->rows, s->top_k, s->dim,
                 base_names[s->base], oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    fl_moe_combine_args args = make_args(&f, &f.y.be, &f.out.be);
    fl_moe_combine_args one = make_args(&f, &f.y.be, &f.out.one);
    fl_moe_combine_args ref = make_args(&f, &f.y.ref, &f.out.ref);
    OC_OK(run, run->be->op->moe_combine(run->be, &args));
    OC_OK(run, run->one->op->moe_combine(run->one, &one));
    OC_OK(run, run->ref->op->moe_combine(run->ref, &ref));
    oc_mat want = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    double *bound = oc_memory(run, s->rows * s->dim * (int64_t)sizeof *bound);
    expect(&f, &want, bound, 1e-6);
    oc_outs_near(run, &f.out, bound);
    expect(&f, &want, bound, 1.2e-7);
    oc_near(run, &f.out.ref, &want, bound);
    if (s->kind != OC_BENCH) check_rows(run, &f);
    while (oc_timing(run, fl_moe_combine_cost(&args))) OC_OK(run, run->be->op->moe_combine(run->be, &args));
}

static void check_places(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "moe_combine places and by hand")) return;
    const double y[6] = {1, 2, 10, 20, 100, 200};
    const float weights[3] = {0.5f, 2, 0.25f}, shared[2] = {3, -1};
    const int32_t good_places[3] = {2, 0, 1};
    int32_t *place = oc_given(run, good_places, sizeof good_places);
    oc_mat out = oc_output(run, FL_DTYPE_F32, 1, 2, 2);
    fl_moe_combine_args args = {.place = place, .rows = 1, .top_k = 3};
    oc_mat outputs = oc_input(run, run->be->act_dtype, 3, 2, 2);
    for (int32_t i = 0; i < 6; i++) oc_set(&outputs, i / 2, i % 2, y[i]);
    args.y = outputs.data;
    args.weights = oc_given(run, weights, sizeof weights);
    args.shared = oc_given(run, shared, sizeof shared);
    args.dim = 2;
    args.out = out.data;
    place[1] = 3;
    OC_REFUSED(run, run->be->op->moe_combine(run->be, &args), "moe_combine: place[]");
    place[1] = -1;
    OC_REFUSED(run, run->be->op->moe_combine(run->be, &args), "moe_combine: place[]");
    args.rows = 0;
    OC_REFUSED(run, run->be->op->moe_combine(run->be, &args), "moe_combine: rows");
    if (!run->be->device) oc_untouched(run, &out); /* a device finds out while it writes */
    args.rows = 1;
    place[1] = 0;
    OC_OK(run, run->be->op->moe_combine(run->be, &args));
    OC_TRUE(run, fabs(oc_get(&out, 0, 0) - 57.5) <= 0 && fabs(oc_get(&out, 0, 1) - 108) <= 0);
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "moe_combine limits and cost")) return;
    float some = 0;
    fl_moe_combine_args good = {.rows = 3, .top_k = 2, .dim = 5};
    OC_OK(run, fl_moe_combine_validate(&good));
    OC_ACCEPTED_WITH(run, moe_combine, good, rows, 1);
    OC_REFUSED_WITH(run, moe_combine, good, rows, 0, "moe_combine: rows");
    OC_ACCEPTED_WITH(run, moe_combine, good, top_k, 1);
    OC_REFUSED_WITH(run, moe_combine, good, top_k, 0, "moe_combine: top_k");
    OC_ACCEPTED_WITH(run, moe_combine, good, top_k, INT32_MAX / 3);
    OC_REFUSED_WITH(run, moe_combine, good, top_k, INT32_MAX / 3 + 1, "moe_combine: top_k");
    OC_ACCEPTED_WITH(run, moe_combine, good, dim, 1);
    OC_REFUSED_WITH(run, moe_combine, good, dim, 0, "moe_combine: dim");
    oc_cost(run, fl_moe_combine_cost(&good), 60, 3 * (2 * (10 + 8) + 20));
    good.shared = &some;
    oc_cost(run, fl_moe_combine_cost(&good), 60, 3 * (2 * (10 + 8) + 40));
}

void fl_moe_combine_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_places(run);
    check_limits(run);
}
