#include "op/matmul_head/matmul_head.h"

#include <math.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, heads, n, k;
    bool heads_outer; /* [heads][rows][width] instead of [rows][heads][width] */
    oc_fill fill;
    int32_t gap; /* between lines */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, 1, false, OC_NORMAL, 5},        {OC_CHECK, 1, 8, 128, 64, false, OC_NORMAL, 5},
    {OC_CHECK, 3, 8, 64, 128, false, OC_NORMAL, 5},     {OC_CHECK, 5, 2, 512, 128, false, OC_SPIKE, 5},
    {OC_CHECK, 2, 2, 128, 512, true, OC_NORMAL, 5},     {OC_CHECK, 65, 3, 40, 24, true, OC_LARGE, 5},
    {OC_CHECK, 17, 4, 33, 70, false, OC_TINY, 5},       {OC_CHECK, 4, 2, 64, 32, true, OC_ZERO, 5},
    {OC_CHECK, 65, 3, 64, 32, true, OC_LARGE, 5},       {OC_CHECK, 130, 2, 64, 64, false, OC_NORMAL, 5},
    {OC_CHECK, 1, 8, 128, 64, false, OC_NORMAL, 0}, /* lines side by side */
    {OC_CHECK, 130, 3, 64, 96, false, OC_NORMAL, 0},    {OC_CHECK, 140, 2, 192, 64, true, OC_NORMAL, 0},
    {OC_CHECK, 9, 5, 128, 160, true, OC_SPIKE, 8},      {OC_CHECK, 66, 2, 40, 24, false, OC_NORMAL, 8},
    {OC_CHECK, 17, 4, 33, 72, false, OC_NORMAL, 8},     {OC_SLOW, 64, 16, 512, 128, false, OC_NORMAL, 5},
    {OC_BENCH, 1, 8, 128, 64, false, OC_NORMAL, 0},     {OC_BENCH, 1, 128, 512, 128, false, OC_NORMAL, 0},
    {OC_BENCH, 32, 128, 128, 512, false, OC_NORMAL, 0},
};

typedef struct fixture {
    const shape *s;
    oc_pair x;
    oc_weights w;
    oc_outs y;
} fixture;

/* Matrices of rows * heads lines; line of (r, h) by the shape's order. */
static int64_t line_of(const shape *s, int32_t r, int32_t h) {
    return s->heads_outer ? (int64_t)h * s->rows + r : (int64_t)r * s->heads + h;
}

static fl_matmul_head_args make_args(const fixture *f, const oc_mat *x, const fl_weight *w, const oc_mat *y) {
    const shape *s = f->s;
    return (fl_matmul_head_args){.x = x->data,
                                 .x_row_stride = line_of(s, 1, 0) * x->stride,
                                 .x_head_stride = line_of(s, 0, 1) * x->stride,
                                 .w = w,
                                 .n_heads = s->heads,
                                 .rows = s->rows,
                                 .y = y->data,
                                 .y_row_stride = line_of(s, 1, 0) * y->stride,
                                 .y_head_stride = line_of(s, 0, 1) * y->stride};
}

static void expect(const fixture *f, const oc_mat *expected, double *bound) {
    const shape *s = f->s;
    for (int32_t r = 0; r < s->rows; r++)
        for (int32_t h = 0; h < s->heads; h++)
            for (int32_t i = 0; i < s->n; i++) {
                const float *w = f->w.values + ((int64_t)h * s->n + i) * s->k;
                int64_t line = line_of(s, r, h);
                double sum = 0, size = 0;
                for (int32_t j = 0; j < s->k; j++) {
                    double term = oc_get(&f->x.ref, line, j) * (double)w[j];
                    sum += term;
                    size += fabs(term);
                }
                double error = s->k * 0x1p-24 * size;
                oc_set(expected, line, i, sum);
                bound[line * s->n + i] = error + oc_rounding(f->y.be.dtype, fabs(sum) + error) + 0x1p-149;
            }
}

/* Each row alone gives the same bits. */
static void check_rows(oc_run *run, const fixture *f) {
    oc_mat y = oc_output(run, f->y.be.dtype, f->y.be.rows, f->y.be.width, f->y.be.stride);
    for (int32_t r = 0; r < f->s->rows; r++) {
        fl_matmul_head_args args = make_args(f, &f->x.be, f->w.be, &y);
        args.x = oc_at(&f->x.be, line_of(f->s, r, 0), 0);
        args.y = oc_at(&y, line_of(f->s, r, 0), 0);
        args.rows = 1;
        OC_OK(run, run->be->op->matmul_head(run->be, &args));
    }
    oc_same(run, &y, &f->y.be);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "matmul_head rows=%d heads=%d n=%d k=%d gap=%d %s %s", s->rows, s->heads, s->n,
                 s->k, s->gap, s->heads_outer ? "heads outer" : "rows outer", oc_fill_name(s->fill)))
        return;
    int64_t lines = (int64_t)s->rows * s->heads;
    fixture f = {.s = s};
    f.x = oc_act(run, lines, s->k, s->k + s->gap, s->fill);
    f.w = oc_weights_make(run, s->heads, s->n, s->k, OC_NORMAL);
    f.y = oc_outs_make(run, run->be->act_dtype, lines, s->n, s->n + s->gap);
    oc_mat expected = oc_output(run, FL_DTYPE_F32, lines, s->n, s->n);
    double *bound = oc_memory(run, lines * s->n * (int64_t)sizeof *bound);
    if (s->kind != OC_BENCH) expect(&f, &expected, bound);
    fl_matmul_head_args args = make_args(&f, &f.x.be, f.w.be, &f.y.be);
    fl_matmul_head_args one = make_args(&f, &f.x.be, f.w.be, &f.y.one);
    fl_matmul_head_args ref = make_args(&f, &f.x.ref, f.w.ref, &f.y.ref);
    bool listed = s->n % 64 == 0 && s->k % 32 == 0;
    if (!oc_ran(run, run->be->op->matmul_head(run->be, &args), listed)) return;
    OC_OK(run, run->one->op->matmul_head(run->one, &one));
    OC_OK(run, run->ref->op->matmul_head(run->ref, &ref));
    if (s->kind == OC_BENCH) { /* too large for the exact bound */
        oc_outs_near(run, &f.y, oc_row_bound(run, &f.y.ref, 1e-3, f.y.be.dtype));
    } else {
        oc_outs_near(run, &f.y, bound);
        oc_near(run, &f.y.ref, &expected, oc_row_bound(run, &expected, 1e-6, FL_DTYPE_F32));
        check_rows(run, &f);
    }
    while (oc_timing(run, fl_matmul_head_cost(&args))) OC_OK(run, run->be->op->matmul_head(run->be, &args));
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "matmul_head limits")) return;
    fl_weight w[3] = {{NULL, 6, 4, NULL}, {NULL, 6, 4, NULL}, {NULL, 6, 4, NULL}};
    fl_matmul_head_args good = {.x_row_stride = 12, .x_head_stride = 4, .w = w, .n_heads = 3, .rows = 5};
    good.y_row_stride = 18;
    good.y_head_stride = 6;
    OC_OK(run, fl_matmul_head_validate(&good));
    OC_ACCEPTED_WITH(run, matmul_head, good, rows, 1);
    OC_REFUSED_WITH(run, matmul_head, good, rows, 0, "matmul_head: rows");
    OC_ACCEPTED_WITH(run, matmul_head, good, n_heads, 1);
    OC_REFUSED_WITH(run, matmul_head, good, n_heads, 0, "matmul_head: n_heads");
    OC_REFUSED_WITH(run, matmul_head, good, n_heads, 4097, "matmul_head: n_heads");
    OC_REFUSED_WITH(run, matmul_head, good, x_row_stride, 11, "matmul_head: x_row_stride");
    OC_REFUSED_WITH(run, matmul_head, good, x_head_stride, 3, "x_head_stride");
    OC_REFUSED_WITH(run, matmul_head, good, x_row_stride, 3, "matmul_head: x_row_stride");
    OC_REFUSED_WITH(run, matmul_head, good, y_row_stride, 17, "matmul_head: y_row_stride");
    OC_REFUSED_WITH(run, matmul_head, good, y_head_stride, 5, "y_head_stride");
    fl_matmul_head_args outer = good; /* [heads][rows] */
    outer.x_row_stride = 4;
    outer.x_head_stride = 20;
    outer.y_row_stride = 6;
    outer.y_head_stride = 30;
    OC_OK(run, fl_matmul_head_validate(&outer));
    OC_REFUSED_WITH(run, matmul_head, outer, x_head_stride, 19, "x_head_stride");
    OC_REFUSED_WITH(run, matmul_head, outer, y_head_stride, 29, "y_head_stride");
    OC_REFUSED_WITH(run, matmul_head, outer, rows, 6, "x_head_stride");
    w[2].n = 7;
    OC_REFUSED(run, fl_matmul_head_validate(&good), "matmul_head: w[].n");
    w[2] = (fl_weight){NULL, 6, 3, NULL};
    OC_REFUSED(run, fl_matmul_head_validate(&good), "matmul_head: w[].k");
}

static void check_cost(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "matmul_head cost")) return;
    fl_weight w[3] = {{NULL, 6, 4, NULL}, {NULL, 6, 4, NULL}, {NULL, 6, 4, NULL}};
    fl_matmul_head_args args = {.w = w, .n_heads = 3, .rows = 5};
    oc_cost(run, fl_matmul_head_cost(&args), 720, 144 + 300);
}

static void check_refuses(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "matmul_head refuses no rows")) return;
    fl_weight w = {NULL, 6, 4, NULL};
    fl_matmul_head_args args = {.x_row_stride = 4, .x_head_stride = 4, .w = &w, .n_heads = 1};
    args.y_row_stride = args.y_head_stride = 6;
    OC_REFUSED(run, run->be->op->matmul_head(run->be, &args), "rows");
}

void fl_matmul_head_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_limits(run);
    check_cost(run);
    check_refuses(run);
}
