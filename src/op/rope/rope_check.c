#include "op/rope/rope.h"

#include <math.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, heads, nope, rope;
    float scale;
    oc_fill fill;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 0, 2, 1, OC_NORMAL},           {OC_CHECK, 65, 1, 0, 32, 1, OC_NORMAL},
    {OC_CHECK, 7, 8, 64, 32, 0.147f, OC_NORMAL},    {OC_CHECK, 3, 5, 128, 64, 0.2f, OC_SPIKE},
    {OC_CHECK, 64, 2, 5, 6, -1.5f, OC_NORMAL},      {OC_CHECK, 9, 3, 64, 32, 0.25f, OC_LARGE},
    {OC_CHECK, 2, 16, 128, 64, 1, OC_TINY},         {OC_CHECK, 4, 2, 17, 10, 1, OC_ZERO},
    {OC_CHECK, 63, 4, 32, 16, 2, OC_EQUAL},         {OC_SLOW, 100, 128, 128, 64, 0.1f, OC_NORMAL},
    {OC_BENCH, 2048, 8, 64, 32, 0.147f, OC_NORMAL}, {OC_BENCH, 2048, 1, 0, 32, 1, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_mat x, table;
    oc_outs y;
} fixture;

static fl_rope_args make_args(const fixture *f, const oc_mat *y) {
    return (fl_rope_args){.x = f->x.data,
                          .x_stride = f->x.stride,
                          .table = f->table.data,
                          .rows = f->s->rows,
                          .n_heads = f->s->heads,
                          .nope_dim = f->s->nope,
                          .rope_dim = f->s->rope,
                          .scale = f->s->scale,
                          .y = y->data,
                          .y_stride = y->stride};
}

/* By complex numbers; bound relative to the pair's norm. */
static void expect(const fixture *f, const oc_mat *y, double *bound, double relative, fl_dtype dtype) {
    int32_t head_dim = f->s->nope + f->s->rope, width = f->s->heads * head_dim;
    for (int32_t r = 0; r < f->s->rows; r++)
        for (int32_t j = 0; j < width; j++) {
            int32_t i = j % head_dim - f->s->nope;
            double value = oc_get(&f->x, r, j) * (double)f->s->scale, size = fabs(value);
            if (i >= 0) {
                double re = oc_get(&f->x, r, j - i % 2), im = oc_get(&f->x, r, j - i % 2 + 1);
                double c = oc_get(&f->table, r, i / 2 * 2), s = oc_get(&f->table, r, i / 2 * 2 + 1);
                value = (double)f->s->scale * (i % 2 == 0 ? re * c - im * s : im * c + re * s);
                size = fabs((double)f->s->scale) * hypot(re, im);
            }
            oc_set(y, r, j, value);
            bound[r * width + j] = relative * size + oc_rounding(dtype, fabs(value) + relative * size);
        }
}

static void check_rows(oc_run *run, const fixture *f) {
    oc_mat y = oc_output(run, f->y.be.dtype, f->y.be.rows, f->y.be.width, f->y.be.width);
    for (int32_t r = 0; r < f->s->rows; r++) {
        fl_rope_args args = make_args(f, &y);
        args.rows = 1;
        args.x = oc_at(&f->x, r, 0);
        args.table = oc_at(&f->table, r, 0);
        args.y = oc_at(&y, r, 0);
        OC_OK(run, run->be->op->rope(run->be, &args));
    }
    oc_same(run, &y, &f->y.be);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "rope rows=%d heads=%d dims=%d+%d scale=%g %s", s->rows, s->heads, s->nope,
                 s->rope, (double)s->scale, oc_fill_name(s->fill)))
        return;
    int32_t width = s->heads * (s->nope + s->rope);
    bool aligned = s->rows % 2 == 0; /* strides of whole vectors, and others */
    fixture f = {.s = s};
    f.x = oc_input(run, FL_DTYPE_F32, s->rows, width, width + (aligned ? 8 : 9));
    f.table = oc_input(run, FL_DTYPE_F32, s->rows, s->rope, s->rope);
    f.y = oc_outs_make(run, run->be->act_dtype, s->rows, width, width + (aligned ? 8 : 3));
    oc_fill_mat(run, &f.x, s->fill);
    for (int32_t r = 0; r < s->rows; r++)
        for (int32_t i = 0; i < s->rope; i += 2) {
            double angle = oc_uniform(run) * 1000;
            oc_set(&f.table, r, i, cos(angle));
            oc_set(&f.table, r, i + 1, sin(angle));
        }
    fl_rope_args args = make_args(&f, &f.y.be), one = make_args(&f, &f.y.one), ref = make_args(&f, &f.y.ref);
    OC_OK(run, run->be->op->rope(run->be, &args));
    OC_OK(run, run->one->op->rope(run->one, &one));
    OC_OK(run, run->ref->op->rope(run->ref, &ref));
    oc_mat y = oc_output(run, FL_DTYPE_F32, s->rows, width, width);
    double *bound = oc_memory(run, (int64_t)s->rows * width * (int64_t)sizeof *bound);
    expect(&f, &y, bound, 2e-6, f.y.be.dtype);
    oc_outs_near(run, &f.y, bound);
    expect(&f, &y, bound, 1e-7, FL_DTYPE_F32);
    oc_near(run, &f.y.ref, &y, bound);
    if (s->kind != OC_BENCH) check_rows(run, &f);
    while (oc_timing(run, fl_rope_cost(&args))) OC_OK(run, run->be->op->rope(run->be, &args));
}

/* Rotated parts elsewhere are the same parts; neither place is touched beside them. */
static void check_apart(oc_run *run) {
    for (int32_t odd = 0; odd < 2; odd++) {
        if (!oc_case(run, OC_CHECK, "rope parts apart%s", odd ? ", odd strides" : "")) continue;
        const int32_t rows = 3, heads = 5, nope = 12, rope = 8, dim = nope + rope, pe_head = 40 + odd;
        oc_mat x = oc_input(run, FL_DTYPE_F32, rows, heads * dim, heads * dim);
        oc_mat table = oc_input(run, FL_DTYPE_F32, rows, rope, rope);
        oc_mat whole = oc_output(run, run->be->act_dtype, rows, heads * dim, heads * dim);
        oc_mat rest = oc_output(run, run->be->act_dtype, rows, heads * dim, heads * dim);
        oc_mat pe = oc_output(run, run->be->act_dtype, rows, heads * pe_head, heads * pe_head);
        oc_fill_mat(run, &x, OC_NORMAL);
        oc_fill_mat(run, &table, OC_NORMAL);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t j = 0; j < heads * dim; j++) oc_set(&rest, r, j, 7);
            for (int32_t j = 0; j < heads * pe_head; j++) oc_set(&pe, r, j, 7);
        }
        fl_rope_args args = {.x = x.data, .x_stride = x.stride, .table = table.data, .rows = rows};
        args.n_heads = heads;
        args.nope_dim = nope;
        args.rope_dim = rope;
        args.scale = 0.5f;
        args.y = whole.data;
        args.y_stride = whole.stride;
        OC_OK(run, run->be->op->rope(run->be, &args));
        args.y = rest.data;
        args.y_pe = pe.data;
        args.y_pe_stride = pe.stride;
        args.y_pe_head_stride = pe_head;
        OC_OK(run, run->be->op->rope(run->be, &args));
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t j = 0; j < heads * dim; j++)
                OC_TRUE(run, oc_get(&rest, r, j) == (j % dim < nope ? oc_get(&whole, r, j) : 7));
            for (int32_t j = 0; j < heads * pe_head; j++) {
                int32_t in_head = j % pe_head, from = j / pe_head * dim + nope + in_head;
                OC_TRUE(run, oc_get(&pe, r, j) == (in_head < rope ? oc_get(&whole, r, from) : 7));
            }
        }
    }
}

/* A quarter turn, and a turn by the angle of (0.6, 0.8). */
static void check_literal(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "rope by hand")) return;
    const float x[10] = {7, 1, 2, 5, 10, -3, 4, 8, -5, 10};
    const float table[8] = {0, 1, 0.6f, 0.8f, 0, -1, 1, 0};
    const double want[10] = {14, -4, 2, -10, 20, -6, 16, -8, -10, 20};
    oc_mat y = oc_output(run, run->be->act_dtype, 2, 5, 5);
    fl_rope_args args = {.x_stride = 5, .rows = 2, .n_heads = 1, .nope_dim = 1};
    args.x = oc_given(run, x, sizeof x);
    args.table = oc_given(run, table, sizeof table);
    args.rope_dim = 4;
    args.scale = 2;
    args.y = y.data;
    args.y_stride = 5;
    OC_OK(run, run->be->op->rope(run->be, &args));
    for (int32_t i = 0; i < 10; i++) OC_TRUE(run, fabs(oc_get(&y, i / 5, i % 5) - want[i]) < 1e-5);
    args.rows = 0;
    OC_REFUSED(run, run->be->op->rope(run->be, &args), "rows");
}

/* R(a) x . R(b) y depends on a - b only, and R keeps lengths. */
static void check_relative(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "rope relative positions")) return;
    const int32_t dim = 8, positions[4] = {3, 10, 1003, 1010};
    oc_mat x = oc_input(run, FL_DTYPE_F32, 4, dim, dim), table = oc_input(run, FL_DTYPE_F32, 4, dim, dim);
    oc_mat y = oc_output(run, run->be->act_dtype, 4, dim, dim);
    oc_fill_mat(run, &x, OC_NORMAL);
    double plain = 0, near = 0, far = 0, turned = 0;
    for (int32_t r = 0; r < 4; r++)
        for (int32_t j = 0; j < dim; j++) {
            int32_t pair = j / 2;
            double angle = positions[r] * pow(10, -pair);
            oc_set(&table, r, j, j % 2 == 0 ? cos(angle) : sin(angle));
            oc_set(&x, r, j, oc_get(&x, r % 2, j));
        }
    fl_rope_args args = {.x = x.data, .x_stride = dim, .table = table.data, .rows = 4, .n_heads = 1};
    args.rope_dim = dim;
    args.scale = 1;
    args.y = y.data;
    args.y_stride = dim;
    OC_OK(run, run->be->op->rope(run->be, &args));
    for (int32_t j = 0; j < dim; j++) {
        plain += pow(oc_get(&x, 0, j), 2);
        turned += pow(oc_get(&y, 0, j), 2);
        near += oc_get(&y, 0, j) * oc_get(&y, 1, j);
        far += oc_get(&y, 2, j) * oc_get(&y, 3, j);
    }
    double tolerance = (run->be->act_dtype == FL_DTYPE_F32 ? 1e-5 : 2e-2) * (1 + plain);
    OC_TRUE(run, fabs(plain - turned) < tolerance);
    OC_TRUE(run, fabs(near - far) < 4 * tolerance);
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "rope limits and cost")) return;
    fl_rope_args good = {
        .x_stride = 30, .y_stride = 30, .rows = 4, .n_heads = 3, .nope_dim = 6, .rope_dim = 4};
    good.scale = 1;
    OC_OK(run, fl_rope_validate(&good));
    OC_ACCEPTED_WITH(run, rope, good, rows, 1);
    OC_REFUSED_WITH(run, rope, good, rows, 0, "rope: rows");
    OC_ACCEPTED_WITH(run, rope, good, n_heads, 1);
    OC_REFUSED_WITH(run, rope, good, n_heads, 0, "rope: n_heads");
    OC_REFUSED_WITH(run, rope, good, n_heads, 4097, "rope: n_heads");
    OC_ACCEPTED_WITH(run, rope, good, nope_dim, 0);
    OC_REFUSED_WITH(run, rope, good, nope_dim, -1, "rope: nope_dim");
    OC_REFUSED_WITH(run, rope, good, nope_dim, 1025, "rope: nope_dim");
    OC_ACCEPTED_WITH(run, rope, good, rope_dim, 2);
    OC_REFUSED_WITH(run, rope, good, rope_dim, 0, "rope: rope_dim");
    OC_REFUSED_WITH(run, rope, good, rope_dim, 3, "rope: rope_dim");
    OC_REFUSED_WITH(run, rope, good, rope_dim, 1026, "rope: rope_dim");
    OC_REFUSED_WITH(run, rope, good, x_stride, 29, "rope: x_stride");
    OC_REFUSED_WITH(run, rope, good, y_stride, 29, "rope: y_stride");
    OC_REFUSED_WITH(run, rope, good, scale, INFINITY, "rope: scale");
    oc_cost(run, fl_rope_cost(&good), 4 * 3 * (6 + 16), 4 * (3 * 10 * 6 + 16));
    float elsewhere[1];
    good.y_pe = elsewhere;
    good.y_pe_head_stride = 9;
    good.y_pe_stride = 22;
    OC_OK(run, fl_rope_validate(&good));
    OC_REFUSED_WITH(run, rope, good, y_pe_stride, 21, "rope: y_pe_stride");
    OC_REFUSED_WITH(run, rope, good, y_pe_head_stride, 3, "rope: y_pe_head_stride");
    OC_REFUSED_WITH(run, rope, good, y_pe_head_stride, 10, "rope: y_pe_stride");
}

void fl_rope_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_apart(run);
    check_literal(run);
    check_relative(run);
    check_limits(run);
}
