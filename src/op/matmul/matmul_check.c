#include "op/matmul/matmul.h"

#include <math.h>

#include "op/matmul/matmul_w8a8_check.h"
#include "op/rope/rope.h"
#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, n, k, groups; /* groups 0: no group_rows */
    fl_matmul_out out;
    oc_fill fill;
    int32_t gap; /* between rows */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 1, 16, 32, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 2, 64, 33, 0, FL_MATMUL_ACT, OC_NORMAL, 7},
    {OC_CHECK, 3, 100, 70, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 1, 256, 96, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 7, 130, 512, 0, FL_MATMUL_F32, OC_SPIKE, 7},
    {OC_CHECK, 63, 66, 64, 0, FL_MATMUL_ACT, OC_NORMAL, 7},
    {OC_CHECK, 64, 64, 128, 0, FL_MATMUL_F32, OC_LARGE, 7},
    {OC_CHECK, 65, 192, 160, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 130, 48, 256, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 5, 32, 64, 0, FL_MATMUL_SWIGLU, OC_LARGE, 7},
    {OC_CHECK, 5, 32, 64, 0, FL_MATMUL_ACT, OC_ZERO, 7},
    {OC_CHECK, 5, 32, 64, 0, FL_MATMUL_F32, OC_TINY, 7},
    {OC_CHECK, 40, 64, 64, 7, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 70, 96, 33, 3, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 4, 80, 64, 16, FL_MATMUL_ACT, OC_NORMAL, 7},
    {OC_CHECK, 1, 1, 32, 0, FL_MATMUL_ACT, OC_NORMAL, 7},
    {OC_CHECK, 65, 128, 160, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 5, 384, 64, 0, FL_MATMUL_SWIGLU, OC_LARGE, 7},
    {OC_CHECK, 40, 128, 64, 7, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 3, 256, 96, 5, FL_MATMUL_SWIGLU, OC_SPIKE, 7},
    {OC_CHECK, 150, 96, 64, 3, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_SLOW, 300, 520, 1030, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_SLOW, 257, 512, 512, 16, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_BENCH, 1, 1024, 512, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_BENCH, 1, 8192, 512, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_BENCH, 4, 512, 512, 4, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_BENCH, 512, 1024, 512, 0, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_BENCH, 2048, 512, 512, 16, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 70, 128, 96, 0, FL_MATMUL_F32, OC_NORMAL, 0}, /* rows side by side */
    {OC_CHECK, 9, 192, 64, 0, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_CHECK, 40, 64, 64, 5, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_CHECK, 100, 128, 32, 4, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_CHECK, 200, 256, 64, 2, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 2, 1088, 64, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_CHECK, 40, 1100, 32, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 130, 136, 1096, 0, FL_MATMUL_F32, OC_NORMAL, 0}, /* aligned, many steps of k with a rest */
    {OC_CHECK, 20, 200, 672, 0, FL_MATMUL_ACT, OC_SPIKE, 8},
    {OC_CHECK, 131, 272, 712, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 300, 160, 328, 5, FL_MATMUL_SWIGLU, OC_NORMAL, 8},
    {OC_CHECK, 6, 72, 640, 3, FL_MATMUL_F32, OC_LARGE, 0},
    {OC_CHECK, 67, 133, 64, 0, FL_MATMUL_F32, OC_NORMAL, 8}, /* aligned inputs, outputs less and less so */
    {OC_CHECK, 67, 71, 72, 0, FL_MATMUL_ACT, OC_NORMAL, 8},
    {OC_CHECK, 3, 74, 72, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 8},
    {OC_CHECK, 33, 102, 64, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_CHECK, 66, 204, 64, 2, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_CHECK, 1, 200, 2056, 0, FL_MATMUL_F32, OC_NORMAL, 0}, /* few rows, of few groups among many */
    {OC_CHECK, 8, 136, 1096, 0, FL_MATMUL_ACT, OC_SPIKE, 8},
    {OC_CHECK, 5, 100, 264, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 24, 272, 712, 7, FL_MATMUL_SWIGLU, OC_NORMAL, 8},
    {OC_CHECK, 12, 64, 64, 300, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_CHECK, 64, 40, 520, 2, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_SLOW, 1000, 2200, 96, 0, FL_MATMUL_ACT, OC_NORMAL, 0}, /* many tiles */
    {OC_SLOW, 700, 1664, 160, 6, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
};

typedef struct fixture {
    const shape *s;
    int32_t width;
    oc_pair x;
    oc_weights w;
    int32_t *group_rows;
    oc_outs y;
    oc_mat expected;
    double *bound;
} fixture;

/* Random sizes, some groups empty. */
static int32_t *make_groups(oc_run *run, int32_t groups, int32_t rows) {
    int32_t *starts = oc_memory(run, (groups + 1) * (int64_t)sizeof *starts);
    for (int32_t r = 0; r < rows; r++) starts[1 + oc_below(run, groups) / 2 * 2 % groups]++;
    for (int32_t g = 0; g < groups; g++) starts[g + 1] += starts[g];
    return starts;
}

static int32_t group_of(const fixture *f, int32_t row) {
    int32_t group = 0;
    while (f->group_rows && f->group_rows[group + 1] <= row) group++;
    return group;
}

/* u = x w of one row and feature, and how far f32 sums may be off. */
static double product(const fixture *f, int32_t row, int32_t i, double *error) {
    const float *w = f->w.values + ((int64_t)group_of(f, row) * f->s->n + i) * f->s->k;
    double sum = 0, size = 0;
    for (int32_t j = 0; j < f->s->k; j++) {
        double term = oc_get(&f->x.ref, row, j) * (double)w[j];
        sum += term;
        size += fabs(term);
    }
    *error = f->s->k * 0x1p-24 * size;
    return sum;
}

static void expect(const fixture *f, fl_dtype dtype) {
    for (int32_t r = 0; r < f->s->rows; r++)
        for (int32_t i = 0; i < f->width; i++) {
            double error, value = product(f, r, i, &error);
            if (f->s->out == FL_MATMUL_SWIGLU) {
                double up_error, up = product(f, r, f->width + i, &up_error);
                value = fl_matmul_check_swiglu(value, up, up_error, &error);
            }
            oc_set(&f->expected, r, i, value);
            f->bound[r * f->width + i] = error + oc_rounding(dtype, fabs(value) + error) + 0x1p-149;
        }
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s, .width = s->out == FL_MATMUL_SWIGLU ? s->n / 2 : s->n};
    fl_dtype dtype = s->out == FL_MATMUL_F32 ? FL_DTYPE_F32 : run->be->act_dtype;
    f.x = oc_act(run, s->rows, s->k, s->k + s->gap, s->fill);
    f.w = oc_weights_make(run, s->groups ? s->groups : 1, s->n, s->k, OC_NORMAL);
    f.group_rows = s->groups ? make_groups(run, s->groups, s->rows) : NULL;
    f.y = oc_outs_make(run, dtype, s->rows, f.width, f.width + s->gap);
    f.expected = oc_output(run, FL_DTYPE_F32, s->rows, f.width, f.width);
    f.bound = oc_memory(run, (int64_t)s->rows * f.width * (int64_t)sizeof *f.bound);
    if (s->kind != OC_BENCH) expect(&f, dtype);
    return f;
}

static fl_matmul_args make_args(const fixture *f, const oc_mat *x, const fl_weight *w, const oc_mat *y) {
    return (fl_matmul_args){.x = x->data,
                            .x_stride = x->stride,
                            .w = w,
                            .n_groups = f->s->groups ? f->s->groups : 1,
                            .group_rows = f->group_rows,
                            .rows = f->s->rows,
                            .out = f->s->out,
                            .y = y->data,
                            .y_stride = y->stride};
}

/* Every row alone, with its own group's weight, and the whole in two halves: the same bits. */
static void check_rows(oc_run *run, const fixture *f) {
    if (!run->be->deterministic) return;
    oc_mat y = oc_output(run, f->y.be.dtype, f->s->rows, f->width, f->width);
    for (int32_t r = 0; r < f->s->rows; r++) {
        fl_matmul_args args = make_args(f, &f->x.be, &f->w.be[group_of(f, r)], &y);
        args.x = oc_at(&f->x.be, r, 0);
        args.y = oc_at(&y, r, 0);
        args.rows = args.n_groups = 1;
        args.group_rows = NULL;
        OC_OK(run, run->be->op->matmul(run->be, &args));
    }
    oc_guards(run, &y);
    oc_same(run, &y, &f->y.be);
    if (f->group_rows || f->s->rows < 2) return;
    oc_reset(&y);
    fl_matmul_args args = make_args(f, &f->x.be, f->w.be, &y);
    args.rows = 1 + oc_below(run, f->s->rows - 1);
    OC_OK(run, run->be->op->matmul(run->be, &args));
    args.x = oc_at(&f->x.be, args.rows, 0);
    args.y = oc_at(&y, args.rows, 0);
    args.rows = f->s->rows - args.rows;
    OC_OK(run, run->be->op->matmul(run->be, &args));
    oc_same(run, &y, &f->y.be);
}

/* Heads that n features may be; false: none that this check knows. */
static bool choose_heads(int32_t n, fl_matmul_rope *rope) {
    static const int32_t dims[][2] = {{128, 64}, {16, 8}, {32, 64}, {6, 2}, {2, 2}, {1, 2}, {0, 2}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        rope->nope_dim = dims[i][0];
        rope->rope_dim = dims[i][1];
        if (n % (dims[i][0] + dims[i][1]) == 0) return true;
    }
    return false;
}

void fl_matmul_check_rope(oc_run *run, const fl_matmul_args *f32, int64_t gap) {
    fl_matmul_args fused = *f32;
    int32_t n = f32->w->n, rows = f32->rows;
    if (!choose_heads(n, &fused.rope)) return;
    oc_mat table = oc_input(run, FL_DTYPE_F32, rows, fused.rope.rope_dim, fused.rope.rope_dim);
    oc_mat y = oc_output(run, run->be->act_dtype, rows, n, n + gap);
    oc_mat two = oc_output(run, run->be->act_dtype, rows, n, n + gap);
    oc_fill_mat(run, &table, OC_NORMAL);
    fused.out = FL_MATMUL_ROPE;
    fused.rope.table = table.data;
    fused.rope.scale = 0.3f;
    fused.y = y.data;
    fused.y_stride = y.stride;
    if (!run->be->matmul_rope && run->be->op != run->ref->op) {
        OC_REFUSED(run, run->be->op->matmul(run->be, &fused), "rope epilogue");
        return;
    }
    fl_rope_args rope = {.x = f32->y, .x_stride = f32->y_stride, .table = table.data, .rows = rows};
    rope.nope_dim = fused.rope.nope_dim;
    rope.rope_dim = fused.rope.rope_dim;
    rope.n_heads = n / (rope.nope_dim + rope.rope_dim);
    rope.scale = fused.rope.scale;
    rope.y = two.data;
    rope.y_stride = two.stride;
    OC_OK(run, run->be->op->matmul(run->be, f32));
    OC_OK(run, run->be->op->rope(run->be, &rope));
    OC_OK(run, run->be->op->matmul(run->be, &fused));
    oc_guards(run, &y);
    /* an odd nope_dim may take another kernel */
    if (run->be->deterministic && rope.nope_dim % 2 == 0) oc_same(run, &y, &two);
    else oc_near(run, &y, &two, oc_row_bound(run, &two, 4e-3, y.dtype)); /* a rounding each */
}

static void check_shape(oc_run *run, const shape *s) {
    static const char *const out_names[] = {"f32", "act", "swiglu"};
    if (!oc_case(run, s->kind, "matmul rows=%d n=%d k=%d gap=%d groups=%d out=%s %s", s->rows, s->n, s->k,
                 s->gap, s->groups, out_names[s->out], oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    fl_matmul_args args = make_args(&f, &f.x.be, f.w.be, &f.y.be);
    fl_matmul_args one = make_args(&f, &f.x.be, f.w.be, &f.y.one);
    fl_matmul_args ref = make_args(&f, &f.x.ref, f.w.ref, &f.y.ref);
    bool listed = s->k % 32 == 0 && (s->out != FL_MATMUL_SWIGLU || s->n % 128 == 0);
    if (!oc_ran(run, run->be->op->matmul(run->be, &args), listed)) return;
    OC_OK(run, run->one->op->matmul(run->one, &one));
    OC_OK(run, run->ref->op->matmul(run->ref, &ref));
    if (s->kind == OC_BENCH) { /* too large for the exact bound */
        oc_outs_near(run, &f.y, oc_row_bound(run, &f.y.ref, 1e-3, f.y.be.dtype));
    } else {
        oc_outs_near(run, &f.y, f.bound);
        oc_near(run, &f.y.ref, &f.expected, oc_row_bound(run, &f.expected, 1e-6, FL_DTYPE_F32));
        check_rows(run, &f);
        if (s->out == FL_MATMUL_F32) fl_matmul_check_rope(run, &args, s->gap);
    }
    while (oc_timing(run, fl_matmul_cost(&args))) OC_OK(run, run->be->op->matmul(run->be, &args));
}

/* Rows and features for which a device with 132 multiprocessors chooses these tiles. */
static const shape tiled[] = {
    {OC_SLOW, 2000, 2048, 328, 0, FL_MATMUL_ACT, OC_NORMAL, 8}, /* 128 x 256, clusters */
    {OC_SLOW, 380, 11264, 72, 0, FL_MATMUL_ACT, OC_NORMAL, 8},  /* 128 x 256 */
    {OC_SLOW, 1000, 3036, 200, 0, FL_MATMUL_ACT, OC_NORMAL, 8}, /* 128 x 192, the last one in part */
    {OC_SLOW, 500, 4096, 200, 0, FL_MATMUL_ACT, OC_NORMAL, 8},  /* 128 x 128 */
    {OC_SLOW, 900, 2560, 72, 5, FL_MATMUL_ACT, OC_NORMAL, 8},   /* the same four for groups */
    {OC_SLOW, 200, 4096, 72, 8, FL_MATMUL_ACT, OC_NORMAL, 8},
    {OC_SLOW, 200, 2560, 72, 8, FL_MATMUL_ACT, OC_NORMAL, 8},
    {OC_SLOW, 200, 1536, 72, 8, FL_MATMUL_ACT, OC_NORMAL, 8},
};

/* Of at most 64 rows of one group from `row` on, whose end is returned. */
static int32_t make_piece(fl_matmul_args *args, int32_t row, const fl_weight *w, const int32_t *group_rows,
                          int32_t rows) {
    int32_t group = 0;
    while (group_rows && group_rows[group + 1] <= row) group++;
    int32_t end = group_rows ? group_rows[group + 1] : rows;
    args->w = &w[group];
    args->n_groups = 1;
    args->group_rows = NULL;
    args->rows = end - row < 64 ? end - row : 64;
    return row + args->rows;
}

/* A device chooses tiles by rows and features: all rows at once have the bits of 64 at a time, whose sums are checked
 * above. */
static void check_tiles(oc_run *run, const shape *s) {
    static const fl_matmul_out outs[] = {FL_MATMUL_F32, FL_MATMUL_ACT, FL_MATMUL_SWIGLU};
    if (!run->be->device || !run->be->deterministic) return;
    if (!oc_case(run, s->kind, "matmul tiles rows=%d n=%d k=%d groups=%d", s->rows, s->n, s->k, s->groups))
        return;
    oc_pair x = oc_act(run, s->rows, s->k, s->k + s->gap, s->fill);
    oc_weights w = oc_weights_make(run, s->groups ? s->groups : 1, s->n, s->k, OC_NORMAL);
    int32_t *group_rows = s->groups ? make_groups(run, s->groups, s->rows) : NULL;
    for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
        fl_dtype dtype = outs[i] == FL_MATMUL_F32 ? FL_DTYPE_F32 : run->be->act_dtype;
        int32_t width = fl_matmul_width(outs[i], s->n);
        oc_mat whole = oc_output(run, dtype, s->rows, width, width);
        oc_mat pieces = oc_output(run, dtype, s->rows, width, width);
        fl_matmul_args args = {.x_stride = x.be.stride, .out = outs[i], .y_stride = width};
        for (int32_t r = 0, end; r < s->rows; r = end) {
            end = make_piece(&args, r, w.be, group_rows, s->rows);
            args.x = oc_at(&x.be, r, 0);
            args.y = oc_at(&pieces, r, 0);
            OC_OK(run, run->be->op->matmul(run->be, &args));
        }
        args.w = w.be;
        args.n_groups = s->groups ? s->groups : 1;
        args.group_rows = group_rows;
        args.rows = s->rows;
        args.x = x.be.data;
        args.y = whole.data;
        OC_OK(run, run->be->op->matmul(run->be, &args));
        oc_guards(run, &whole);
        oc_same(run, &whole, &pieces);
        if (outs[i] == FL_MATMUL_F32 && !s->groups) fl_matmul_check_rope(run, &args, 0);
    }
}

/* Small whole numbers, exact in every format: y = x W^T by hand. Features 0, 1 and 64, 65 are used, and inputs 0 to 2.
 */
static void check_literal(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "matmul by hand")) return;
    oc_pair x = oc_act(run, 2, 32, 32, OC_ZERO);
    oc_weights w = oc_weights_make(run, 1, 128, 32, OC_ZERO);
    const double x_values[2][3] = {{1, 2, 3}, {-1, 0.5, 4}};
    const float w_values[4][3] = {{1, 0, 0}, {0, 2, -1}, {3, 1, 1}, {1, 1, 0.25f}};
    const double y_values[2][4] = {{1, 1, 8, 3.75}, {-1, -3, 1.5, 0.5}};
    for (int32_t r = 0; r < 2; r++)
        for (int32_t j = 0; j < 3; j++) oc_set(&x.ref, r, j, x_values[r][j]);
    for (int32_t i = 0; i < 12; i++) w.values[(i / 6 * 64 + i / 3 % 2) * 32 + i % 3] = w_values[i / 3][i % 3];
    oc_act_sync(&x);
    oc_weights_pack(run, &w, 1);
    oc_mat y = oc_output(run, FL_DTYPE_F32, 2, 128, 128),
           swiglu = oc_output(run, run->be->act_dtype, 2, 64, 64);
    fl_matmul_args args = {.x = x.be.data, .x_stride = 32, .w = w.be, .n_groups = 1, .rows = 2};
    args.y = y.data;
    args.y_stride = 128;
    OC_OK(run, run->be->op->matmul(run->be, &args));
    for (int32_t i = 0; i < 256; i++) {
        int32_t feature = i % 128, used = feature % 64 < 2 ? feature / 64 * 2 + feature % 64 : -1;
        OC_TRUE(run, fabs(oc_get(&y, i / 128, feature) - (used < 0 ? 0 : y_values[i / 128][used])) < 1e-6);
    }
    args.out = FL_MATMUL_SWIGLU;
    args.y = swiglu.data;
    args.y_stride = 64;
    OC_OK(run, run->be->op->matmul(run->be, &args));
    /* silu(1) = 0.731059, silu(-1) = -0.268941, silu(-3) = -0.142278; within a bf16 rounding */
    OC_TRUE(run, fabs(oc_get(&swiglu, 0, 0) - 8 * 0.731059) < 0.02);
    OC_TRUE(run, fabs(oc_get(&swiglu, 0, 1) - 3.75 * 0.731059) < 0.01);
    OC_TRUE(run, fabs(oc_get(&swiglu, 1, 0) + 1.5 * 0.268941) < 0.002);
    OC_TRUE(run, fabs(oc_get(&swiglu, 1, 1) + 0.5 * 0.142278) < 0.001);
    OC_TRUE(run, fabs(oc_get(&swiglu, 1, 2)) <= 0);
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "matmul limits")) return;
    fl_weight w[3] = {{NULL, 8, 4, NULL}, {NULL, 8, 4, NULL}, {NULL, 8, 4, NULL}};
    fl_matmul_args good = {.w = w, .n_groups = 3, .rows = 5, .x_stride = 4, .y_stride = 8};
    OC_OK(run, fl_matmul_validate(&good));
    OC_ACCEPTED_WITH(run, matmul, good, rows, 1);
    OC_REFUSED_WITH(run, matmul, good, rows, 0, "matmul: rows");
    OC_ACCEPTED_WITH(run, matmul, good, n_groups, 1);
    OC_REFUSED_WITH(run, matmul, good, n_groups, 0, "matmul: n_groups");
    OC_REFUSED_WITH(run, matmul, good, x_stride, 3, "matmul: x_stride");
    OC_REFUSED_WITH(run, matmul, good, y_stride, 7, "matmul: y_stride");
    OC_REFUSED_WITH(run, matmul, good, out, FL_MATMUL_SWIGLU_CODES, "matmul: codes without w[].scale");
    OC_REFUSED_WITH(run, matmul, good, out, (fl_matmul_out)5, "matmul: out");
    fl_matmul_args turned = good;
    turned.out = FL_MATMUL_ROPE;
    turned.rope = (fl_matmul_rope){.nope_dim = 2, .rope_dim = 2, .scale = 1};
    OC_OK(run, fl_matmul_validate(&turned));
    OC_REFUSED_WITH(run, matmul, turned, rope.nope_dim, -1, "matmul: rope.nope_dim");
    OC_REFUSED_WITH(run, matmul, turned, rope.nope_dim, 1, "matmul: w[].n with rope");
    OC_REFUSED_WITH(run, matmul, turned, rope.rope_dim, 0, "matmul: rope.rope_dim");
    OC_REFUSED_WITH(run, matmul, turned, rope.rope_dim, 3, "matmul: rope.rope_dim");
    OC_REFUSED_WITH(run, matmul, turned, rope.scale, INFINITY, "matmul: rope.scale");
    OC_REFUSED_WITH(run, matmul, turned, y_stride, 7, "matmul: y_stride");
    OC_REFUSED_WITH(run, matmul, good, out, (fl_matmul_out)-1, "matmul: out");
    fl_matmul_args swiglu = good;
    swiglu.out = FL_MATMUL_SWIGLU;
    swiglu.y_stride = 4;
    OC_OK(run, fl_matmul_validate(&swiglu));
    OC_REFUSED_WITH(run, matmul, swiglu, y_stride, 3, "matmul: y_stride");
    OC_REFUSED_WITH(run, matmul, swiglu, out, FL_MATMUL_ACT, "matmul: y_stride");
    w[0].n = w[1].n = w[2].n = 7;
    OC_REFUSED(run, fl_matmul_validate(&swiglu), "matmul: w[].n");
    OC_OK(run, fl_matmul_validate(&good));
    const fl_weight same = {NULL, 7, 4, NULL},
                    others[] = {
                        {NULL, 6, 4, NULL}, {NULL, 8, 4, NULL}, {NULL, 7, 3, NULL}, {NULL, 7, 5, NULL}};
    for (int32_t i = 0; i < 8; i++) { /* the second and the third group */
        w[1] = w[2] = same;
        w[1 + i / 4] = others[i % 4];
        OC_REFUSED(run, fl_matmul_validate(&good), i % 4 < 2 ? "matmul: w[].n" : "matmul: w[].k");
    }
    w[0] = (fl_weight){NULL, 0, 4, NULL};
    OC_REFUSED_WITH(run, matmul, good, n_groups, 1, "matmul: w[].n");
    w[0] = (fl_weight){NULL, 8, 0, NULL};
    OC_REFUSED_WITH(run, matmul, good, n_groups, 1, "matmul: w[].k");
    w[0] = (fl_weight){NULL, 1, 1, NULL};
    OC_ACCEPTED_WITH(run, matmul, good, n_groups, 1);
}

/* Row ranges are read by every backend, so every backend refuses wrong ones. */
static void check_groups(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "matmul group_rows")) return;
    oc_pair x = oc_act(run, 5, 32, 32, OC_NORMAL);
    oc_weights w = oc_weights_make(run, 3, 8, 32, OC_NORMAL);
    oc_mat y = oc_output(run, FL_DTYPE_F32, 5, 8, 8);
    const int32_t good[4] = {0, 0, 5, 5}, *group_rows = oc_given(run, good, sizeof good);
    fl_matmul_args args = {.x = x.be.data, .x_stride = 32, .w = w.be, .n_groups = 3, .rows = 5, .y = y.data};
    args.y_stride = 8;
    OC_REFUSED(run, run->be->op->matmul(run->be, &args), "n_groups without group_rows");
    args.n_groups = 2;
    OC_REFUSED(run, run->be->op->matmul(run->be, &args), "n_groups without group_rows");
    args.n_groups = 3;
    args.group_rows = group_rows;
    const int32_t bad[][4] = {{1, 2, 3, 5}, {-1, 2, 3, 5}, {0, 3, 2, 5},
                              {0, 6, 6, 6}, {0, 1, 2, 4},  {0, 2, -1, 5}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        args.group_rows = oc_given(run, bad[i], sizeof bad[i]);
        OC_REFUSED(run, run->be->op->matmul(run->be, &args), "group_rows[");
    }
    args.rows = 0;
    OC_REFUSED(run, run->be->op->matmul(run->be, &args), "rows");
    if (!run->be->device) oc_untouched(run, &y); /* a device finds it while it writes */
    args.rows = 5;
    args.group_rows = group_rows;
    OC_OK(run, run->be->op->matmul(run->be, &args));
}

static void check_cost(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "matmul cost")) return;
    fl_weight w[3] = {{NULL, 10, 4, NULL}, {NULL, 10, 4, NULL}, {NULL, 10, 4, NULL}};
    fl_matmul_args args = {.w = w, .n_groups = 3, .rows = 7};
    oc_cost(run, fl_matmul_cost(&args), 560, 240 + 7 * (8 + 40));
    args.out = FL_MATMUL_ACT;
    oc_cost(run, fl_matmul_cost(&args), 560, 240 + 7 * (8 + 20));
    args.out = FL_MATMUL_SWIGLU;
    oc_cost(run, fl_matmul_cost(&args), 560, 240 + 7 * (8 + 10));
    args.out = FL_MATMUL_ROPE;
    args.rope = (fl_matmul_rope){.nope_dim = 3, .rope_dim = 2};
    oc_cost(run, fl_matmul_cost(&args), 560, 240 + 7 * (8 + 20 + 8));
    args.out = FL_MATMUL_SWIGLU;
    args.rows = 2; /* at most two groups are read */
    oc_cost(run, fl_matmul_cost(&args), 160, 160 + 2 * (8 + 10));
}

void fl_matmul_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    for (size_t i = 0; i < sizeof tiled / sizeof *tiled; i++) check_tiles(run, &tiled[i]);
    check_literal(run);
    check_limits(run);
    check_groups(run);
    check_cost(run);
    fl_matmul_w8a8_check(run);
}
