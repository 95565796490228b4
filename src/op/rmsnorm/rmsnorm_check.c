#include "op/rmsnorm/rmsnorm.h"

#include <math.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, dim;
    bool delta, gamma;
    float eps;
    oc_fill fill;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, false, false, 1e-6f, OC_NORMAL},     {OC_CHECK, 1, 512, true, true, 1e-6f, OC_NORMAL},
    {OC_CHECK, 3, 17, false, true, 1e-5f, OC_NORMAL},     {OC_CHECK, 64, 128, false, false, 1e-6f, OC_NORMAL},
    {OC_CHECK, 65, 130, true, false, 1e-6f, OC_SPIKE},    {OC_CHECK, 5, 256, true, true, 1e-6f, OC_LARGE},
    {OC_CHECK, 4, 96, false, true, 1e-6f, OC_TINY},       {OC_CHECK, 4, 33, true, true, 1e-6f, OC_ZERO},
    {OC_CHECK, 7, 100, true, true, 0.5f, OC_NORMAL},      {OC_CHECK, 2, 31, false, true, 4, OC_EQUAL},
    {OC_CHECK, 130, 64, true, true, 1e-6f, OC_NORMAL},    {OC_CHECK, 9, 640, true, true, 1e-6f, OC_NORMAL},
    {OC_CHECK, 5, 2048, true, true, 1e-6f, OC_SPIKE},     {OC_CHECK, 3, 2560, true, false, 1e-6f, OC_NORMAL},
    {OC_SLOW, 33, 7168, true, true, 1e-6f, OC_NORMAL},    {OC_SLOW, 3, 8448, true, true, 1e-6f, OC_NORMAL},
    {OC_BENCH, 1, 512, true, true, 1e-6f, OC_NORMAL},     {OC_BENCH, 2048, 512, true, true, 1e-6f, OC_NORMAL},
    {OC_BENCH, 256, 7168, false, true, 1e-6f, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_mat x0, gamma;
    oc_pair delta;
    oc_outs x, y; /* x is in and out */
} fixture;

static fl_rmsnorm_args make_args(const fixture *f, const oc_mat *delta, const oc_mat *x, const oc_mat *y) {
    return (fl_rmsnorm_args){.x = x->data,
                             .x_stride = x->stride,
                             .delta = f->s->delta ? delta->data : NULL,
                             .gamma = f->s->gamma ? f->gamma.data : NULL,
                             .eps = f->s->eps,
                             .rows = f->s->rows,
                             .dim = f->s->dim,
                             .y = y->data,
                             .y_stride = y->stride};
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    f.x0 = oc_input(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    f.delta = oc_act(run, s->rows, s->dim, s->dim, s->fill);
    f.gamma = oc_input(run, FL_DTYPE_F32, 1, s->dim, s->dim);
    oc_fill_mat(run, &f.x0, s->fill);
    oc_fill_mat(run, &f.gamma, OC_NORMAL);
    f.x = oc_outs_make(run, FL_DTYPE_F32, s->rows, s->dim, s->dim + 5);
    f.y = oc_outs_make(run, run->be->act_dtype, s->rows, s->dim, s->dim + 3);
    oc_copy(&f.x.be, &f.x0);
    oc_copy(&f.x.one, &f.x0);
    oc_copy(&f.x.ref, &f.x0);
    return f;
}

/* y, and x as it must be left: exactly. */
static void expect(const fixture *f, const oc_mat *x, const oc_mat *y) {
    for (int32_t r = 0; r < f->s->rows; r++) {
        double squares = 0;
        for (int32_t j = 0; j < f->s->dim; j++) {
            float sum = (float)oc_get(&f->x0, r, j);
            if (f->s->delta) sum += (float)oc_get(&f->delta.ref, r, j);
            oc_set(x, r, j, (double)sum);
            squares += pow((double)sum, 2);
        }
        for (int32_t j = 0; j < f->s->dim; j++) {
            double normed = oc_get(x, r, j) / sqrt(squares / f->s->dim + (double)f->s->eps);
            oc_set(y, r, j, f->s->gamma ? normed * oc_get(&f->gamma, 0, j) : normed);
        }
    }
}

/* So many rows at once, of which the rows are a multiple: the same bits. */
static void check_rows(oc_run *run, const fixture *f, int32_t at_once) {
    oc_mat x = oc_output(run, FL_DTYPE_F32, f->s->rows, f->s->dim, f->s->dim);
    oc_mat y = oc_output(run, f->y.be.dtype, f->s->rows, f->s->dim, f->s->dim);
    oc_copy(&x, &f->x0);
    for (int32_t r = 0; r < f->s->rows; r += at_once) {
        fl_rmsnorm_args args = make_args(f, &f->delta.be, &x, &y);
        args.rows = at_once;
        args.x = oc_at(&x, r, 0);
        args.y = oc_at(&y, r, 0);
        if (args.delta) args.delta = oc_at(&f->delta.be, r, 0);
        OC_OK(run, run->be->op->rmsnorm(run->be, &args));
    }
    oc_same(run, &y, &f->y.be);
    oc_same(run, &x, &f->x.be);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "rmsnorm rows=%d dim=%d%s%s eps=%g %s", s->rows, s->dim,
                 s->delta ? " delta" : "", s->gamma ? " gamma" : "", (double)s->eps, oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    fl_rmsnorm_args args = make_args(&f, &f.delta.be, &f.x.be, &f.y.be);
    fl_rmsnorm_args one = make_args(&f, &f.delta.be, &f.x.one, &f.y.one);
    fl_rmsnorm_args ref = make_args(&f, &f.delta.ref, &f.x.ref, &f.y.ref);
    OC_OK(run, run->be->op->rmsnorm(run->be, &args));
    OC_OK(run, run->one->op->rmsnorm(run->one, &one));
    OC_OK(run, run->ref->op->rmsnorm(run->ref, &ref));
    oc_mat x = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    oc_mat y = oc_output(run, FL_DTYPE_F32, s->rows, s->dim, s->dim);
    expect(&f, &x, &y);
    oc_outs_near(run, &f.y, oc_row_bound(run, &f.y.ref, 4e-6, f.y.be.dtype));
    oc_near(run, &f.y.ref, &y, oc_row_bound(run, &y, 1e-7, FL_DTYPE_F32));
    oc_same(run, &f.x.be, &x);
    oc_same(run, &f.x.ref, &x);
    oc_guards(run, &f.x.be);
    if (s->kind != OC_BENCH) {
        check_rows(run, &f, 1);
        check_rows(run, &f, s->rows);
    }
    while (oc_timing(run, fl_rmsnorm_cost(&args))) OC_OK(run, run->be->op->rmsnorm(run->be, &args));
}

/* Codes are those of the act output, beside it or alone; the row's address and the rows beside it change nothing. */
static void check_codes(oc_run *run, int32_t rows, int32_t dim, int32_t gap, oc_fill fill) {
    if (!oc_case(run, dim > 4096 ? OC_SLOW : OC_CHECK, "rmsnorm codes rows=%d dim=%d gap=%d %s", rows, dim,
                 gap, oc_fill_name(fill)))
        return;
    oc_mat x = oc_input(run, FL_DTYPE_F32, rows, dim, dim + gap),
           gamma = oc_input(run, FL_DTYPE_F32, 1, dim, dim);
    oc_mat y = oc_output(run, run->be->act_dtype, rows, dim, dim + gap);
    oc_codes both = oc_codes_make(run, rows, dim, 0), alone = oc_codes_make(run, rows, dim, 3);
    oc_fill_mat(run, &x, fill);
    oc_fill_mat(run, &gamma, OC_NORMAL);
    fl_rmsnorm_args args = {.x = x.data, .x_stride = x.stride, .gamma = gamma.data, .eps = 1e-6f, .dim = dim};
    args.rows = rows;
    args.y = y.data;
    args.y_stride = y.stride;
    args.y_codes = both.at;
    if (!run->be->w8a8 && !run->is_reference) {
        OC_REFUSED(run, run->be->op->rmsnorm(run->be, &args), "rmsnorm: backend");
        oc_untouched(run, &y);
        return;
    }
    OC_OK(run, run->be->op->rmsnorm(run->be, &args));
    const oc_codes want = oc_codes_of(run, &y, 0);
    oc_guards(run, &y);
    oc_codes_same(run, &both, &want);
    args.y = NULL;
    args.y_codes = alone.at;
    OC_OK(run, run->one->op->rmsnorm(run->one, &args));
    oc_codes_same(run, &alone, &want);
}

/* (3, 4, 0, 0) has a mean square of 6.25, (1, 1, 1, 1) + 1 of 4. */
static void check_literal(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "rmsnorm by hand")) return;
    const float before[8] = {3, 4, 0, 0, 1, 1, 1, 1};
    const float factors[4] = {5, 10, 1, -2}, want[8] = {6, 16, 0, 0, 5, 10, 1, -2};
    oc_mat y = oc_output(run, run->be->act_dtype, 2, 4, 4);
    oc_mat delta = oc_input(run, run->be->act_dtype, 2, 4, 4);
    float *x = oc_given(run, before, sizeof before);
    for (int32_t i = 0; i < 4; i++) {
        oc_set(&delta, 0, i, 0);
        oc_set(&delta, 1, i, 1);
    }
    fl_rmsnorm_args args = {.x = x, .x_stride = 4, .rows = 2, .dim = 4};
    args.delta = delta.data;
    args.gamma = oc_given(run, factors, sizeof factors);
    args.y = y.data;
    args.y_stride = 4;
    OC_OK(run, run->be->op->rmsnorm(run->be, &args));
    for (int32_t i = 0; i < 8; i++)
        OC_TRUE(run, fabs(oc_get(&y, i / 4, i % 4) - (double)want[i]) <= 1e-6 * fabs((double)want[i]));
    OC_TRUE(run, (int32_t)x[1] == 4 && (int32_t)x[7] == 2);
    args.rows = 0;
    OC_REFUSED(run, run->be->op->rmsnorm(run->be, &args), "rows");
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "rmsnorm limits and cost")) return;
    float some = 0;
    fl_rmsnorm_args good = {.x_stride = 6, .y_stride = 6, .eps = 1e-6f, .rows = 3, .dim = 6};
    OC_OK(run, fl_rmsnorm_validate(&good));
    OC_ACCEPTED_WITH(run, rmsnorm, good, rows, 1);
    OC_REFUSED_WITH(run, rmsnorm, good, rows, 0, "rmsnorm: rows");
    OC_ACCEPTED_WITH(run, rmsnorm, good, dim, 1);
    OC_REFUSED_WITH(run, rmsnorm, good, dim, 0, "rmsnorm: dim");
    OC_REFUSED_WITH(run, rmsnorm, good, dim, (1 << 20) + 1, "rmsnorm: dim");
    OC_REFUSED_WITH(run, rmsnorm, good, x_stride, 5, "rmsnorm: x_stride");
    OC_REFUSED_WITH(run, rmsnorm, good, y_stride, 5, "rmsnorm: y_stride");
    OC_ACCEPTED_WITH(run, rmsnorm, good, eps, 0);
    OC_REFUSED_WITH(run, rmsnorm, good, eps, -1e-6f, "rmsnorm: eps");
    OC_REFUSED_WITH(run, rmsnorm, good, eps, INFINITY, "rmsnorm: eps");
    OC_REFUSED_WITH(run, rmsnorm, good, eps, NAN, "rmsnorm: eps");
    oc_cost(run, fl_rmsnorm_cost(&good), 18 * 3, 18 * 6);
    good.delta = &some;
    oc_cost(run, fl_rmsnorm_cost(&good), 18 * 4, 18 * 12);
    good.gamma = &some;
    oc_cost(run, fl_rmsnorm_cost(&good), 18 * 5, 18 * 12 + 24);
    good.delta = NULL;
    oc_cost(run, fl_rmsnorm_cost(&good), 18 * 4, 18 * 6 + 24);
    uint8_t code = 0;
    good = (fl_rmsnorm_args){.x_stride = 256, .y_stride = 256, .rows = 5, .dim = 256};
    good.y = &some;
    good.y_codes = (fl_codes){.codes = &code, .scale = &some, .scale_stride = 8};
    oc_cost(run, fl_rmsnorm_cost(&good), 5 * 256 * 3, 5 * (256 * 6 + 256 + 8));
    OC_REFUSED_WITH(run, rmsnorm, good, y_codes.scale_stride, 4, "rmsnorm: scale_stride of codes");
    OC_REFUSED_WITH(run, rmsnorm, good, y_codes.scale_stride, 9, "rmsnorm: scale_stride of codes");
    OC_REFUSED_WITH(run, rmsnorm, good, dim, 192, "rmsnorm: inputs of codes");
    OC_REFUSED_WITH(run, rmsnorm, good, y_stride, 0, "rmsnorm: y_stride");
    good.y = NULL;
    OC_ACCEPTED_WITH(run, rmsnorm, good, y_stride, 0);
    oc_cost(run, fl_rmsnorm_cost(&good), 5 * 256 * 3, 5 * (256 * 4 + 256 + 8));
}

void fl_rmsnorm_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_literal(run);
    static const int32_t dims[] = {128, 256, 512, 640, 1536, 2048, 2560, 7168, 8448};
    for (int32_t i = 0; i < 9; i++)
        for (int32_t gap = 0; gap < 2; gap++)
            check_codes(run, 1 + i * 3, dims[i], gap * 5, (oc_fill)(i % OC_N_FILLS));
    check_limits(run);
}
