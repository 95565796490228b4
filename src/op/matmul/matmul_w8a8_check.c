#include "op/matmul/matmul_w8a8_check.h"

#include <math.h>

#include "base/half.h"

typedef struct shape {
    oc_kind kind;
    int32_t rows, n, k, groups; /* groups 0: no group_rows */
    fl_matmul_out out;
    oc_fill fill;
    int32_t gap; /* between rows; 0 also lays the groups' weights side by side, as a model does */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 16, 128, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 3, 160, 256, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 2, 136, 384, 0, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_CHECK, 5, 128, 512, 0, FL_MATMUL_ACT, OC_SPIKE, 8},
    {OC_CHECK, 4, 128, 128, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 7},
    {OC_CHECK, 64, 96, 640, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_CHECK, 65, 256, 256, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 8},
    {OC_CHECK, 70, 416, 512, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 130, 512, 384, 0, FL_MATMUL_SWIGLU, OC_SPIKE, 0},
    {OC_CHECK, 129, 264, 128, 0, FL_MATMUL_ACT, OC_LARGE, 0},
    {OC_CHECK, 6, 64, 256, 0, FL_MATMUL_F32, OC_TINY, 4},
    {OC_CHECK, 6, 64, 256, 0, FL_MATMUL_ACT, OC_ZERO, 8},
    {OC_CHECK, 3, 256, 128, 0, FL_MATMUL_SWIGLU, OC_ZERO, 0},
    {OC_CHECK, 40, 512, 256, 7, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 150, 256, 256, 3, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 4, 96, 128, 16, FL_MATMUL_ACT, OC_NORMAL, 0},
    {OC_CHECK, 300, 128, 256, 2, FL_MATMUL_SWIGLU, OC_NORMAL, 8},
    {OC_CHECK, 530, 144, 128, 3, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_CHECK, 9, 384, 1280, 5, FL_MATMUL_F32, OC_EQUAL, 0},
    {OC_CHECK, 33, 8, 128, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_CHECK, 66, 1, 128, 0, FL_MATMUL_F32, OC_NORMAL, 7},
    {OC_CHECK, 257, 256, 896, 4, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 1, 256, 256, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 70, 576, 384, 0, FL_MATMUL_F32, OC_NORMAL, 0},   /* three heads of 192 */
    {OC_CHECK, 70, 768, 128, 5, FL_MATMUL_SWIGLU, OC_SPIKE, 0}, /* many tiles shorter than the ring on cuda */
    {OC_CHECK, 8, 272, 2048, 0, FL_MATMUL_ACT, OC_NORMAL, 0},   /* few rows, of few groups among many */
    {OC_CHECK, 20, 512, 1408, 40, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_CHECK, 64, 256, 1152, 3, FL_MATMUL_SWIGLU, OC_SPIKE, 0},
    {OC_SLOW, 700, 1280, 256, 6, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
    {OC_SLOW, 1030, 256, 4096, 0, FL_MATMUL_SWIGLU, OC_NORMAL, 0}, /* tiles of 256 rows on cuda */
    {OC_SLOW, 1030, 200, 256, 0, FL_MATMUL_F32, OC_NORMAL, 0},
    {OC_SLOW, 1100, 384, 128, 0, FL_MATMUL_ACT, OC_NORMAL, 7},
    {OC_SLOW, 2100, 256, 640, 2, FL_MATMUL_SWIGLU, OC_NORMAL, 0},
};

/* Rows and features for which a device with 132 multiprocessors chooses these tiles. */
static const shape tiled[] = {
    {OC_SLOW, 516, 2304, 640, 0, FL_MATMUL_ACT, OC_SPIKE, 8},    /* 128 x 128 */
    {OC_SLOW, 1000, 3000, 1024, 0, FL_MATMUL_ACT, OC_NORMAL, 8}, /* 128 x 192, the last one in part */
    {OC_SLOW, 2100, 3072, 256, 0, FL_MATMUL_ACT, OC_NORMAL, 8},  /* 192 x 128 */
    {OC_SLOW, 2100, 1024, 512, 2, FL_MATMUL_ACT, OC_NORMAL, 8},  /* 192 x 128, clusters */
    {OC_SLOW, 2000, 2048, 3200, 0, FL_MATMUL_ACT, OC_NORMAL, 8}, /* 256 x 128, clusters, but for f32 */
    {OC_SLOW, 1300, 768, 640, 2, FL_MATMUL_ACT, OC_NORMAL, 8},   /* for groups: 128 x 128 */
    {OC_SLOW, 1300, 1536, 128, 2, FL_MATMUL_ACT, OC_NORMAL, 8},  /* 128 x 192 */
    {OC_SLOW, 2000, 1536, 3200, 2, FL_MATMUL_ACT, OC_NORMAL, 8}, /* 256 x 128, clusters, but for f32 */
};

typedef struct fixture {
    const shape *s;
    int32_t width, blocks, n_groups;
    oc_pair x;
    fl_weight *w;
    int32_t *group_rows;
    oc_outs y;
    double *x_values, *x_scale; /* [rows][k], [rows][blocks]: codes and scales as the contract makes them */
    oc_mat expected;
    double *bound;
} fixture;

static void make_weights(oc_run *run, fixture *f) {
    const shape *s = f->s;
    int64_t code_bytes = (int64_t)s->n * s->k;
    int64_t scales = (s->n + FL_SCALE_BLOCK - 1) / FL_SCALE_BLOCK * fl_scale_stride(s->k);
    int64_t step = fl_align_up(code_bytes, 64) + fl_align_up(scales * (int64_t)sizeof(float), 64);
    uint8_t *all = s->gap == 0 ? oc_memory_fenced(run, f->n_groups * step) : NULL;
    f->w = oc_memory(run, f->n_groups * (int64_t)sizeof *f->w);
    for (int32_t g = 0; g < f->n_groups; g++) {
        uint8_t *codes = all ? all + g * step : oc_memory_fenced(run, code_bytes);
        float *scale = all ? (float *)(void *)(codes + fl_align_up(code_bytes, 64))
                           : oc_memory_fenced(run, scales * (int64_t)sizeof(float));
        for (int64_t i = 0; i < code_bytes; i++) codes[i] = fl_e4m3_of_f32((float)(oc_normal(run) * 100));
        for (int64_t i = 0; i < scales; i++) {
            bool used = i % fl_scale_stride(s->k) < f->blocks;
            scale[i] = used ? (float)(1e-3 + 1e-2 * oc_uniform(run)) : NAN;
        }
        f->w[g] = (fl_weight){.data = codes, .n = s->n, .k = s->k, .scale = scale};
    }
}

/* Random sizes, some groups empty. */
static void make_groups(oc_run *run, fixture *f) {
    int32_t groups = f->n_groups;
    if (f->s->groups == 0) return;
    f->group_rows = oc_memory(run, (groups + 1) * (int64_t)sizeof *f->group_rows);
    for (int32_t r = 0; r < f->s->rows; r++) f->group_rows[1 + oc_below(run, groups) / 2 * 2 % groups]++;
    for (int32_t g = 0; g < groups; g++) f->group_rows[g + 1] += f->group_rows[g];
}

static int32_t group_of(const fixture *f, int32_t row) {
    int32_t group = 0;
    while (f->group_rows && f->group_rows[group + 1] <= row) group++;
    return group;
}

static void quantise(oc_run *run, fixture *f) {
    int32_t rows = f->s->rows, k = f->s->k;
    f->x_values = oc_memory(run, (int64_t)rows * k * (int64_t)sizeof(double));
    f->x_scale = oc_memory(run, (int64_t)rows * f->blocks * (int64_t)sizeof(double));
    for (int32_t r = 0; r < rows; r++)
        for (int32_t b = 0; b < f->blocks; b++) {
            float largest = 0x1p-100f;
            for (int32_t i = 0; i < FL_SCALE_BLOCK; i++)
                largest = fmaxf(largest, fabsf((float)oc_get(&f->x.ref, r, b * FL_SCALE_BLOCK + i)));
            float inverse = 448 / largest, scale = largest / 448;
            f->x_scale[r * f->blocks + b] = (double)scale;
            for (int32_t i = b * FL_SCALE_BLOCK; i < (b + 1) * FL_SCALE_BLOCK; i++) {
                uint8_t code = fl_e4m3_of_f32((float)oc_get(&f->x.ref, r, i) * inverse);
                f->x_values[(int64_t)r * k + i] = (double)fl_f32_of_e4m3(code);
            }
        }
}

/* u of one row and feature, and how far a sum may be off. */
static double product(const fixture *f, int32_t row, int32_t i, double *error) {
    const fl_weight *w = &f->w[group_of(f, row)];
    const uint8_t *codes = (const uint8_t *)w->data + (int64_t)i * w->k;
    double total = 0;
    *error = 0;
    for (int32_t b = 0; b < f->blocks; b++) {
        double sum = 0, size = 0;
        for (int32_t c = b * FL_SCALE_BLOCK; c < (b + 1) * FL_SCALE_BLOCK; c++) {
            double term = f->x_values[(int64_t)row * w->k + c] * (double)fl_f32_of_e4m3(codes[c]);
            sum += term;
            size += fabs(term);
        }
        double scale = f->x_scale[row * f->blocks + b] *
                       (double)w->scale[i / FL_SCALE_BLOCK * fl_scale_stride(w->k) + b];
        total += sum * scale;
        *error += size * scale * (0x1p-10 + f->blocks * 0x1p-22);
    }
    return total;
}

static void expect(const fixture *f) {
    for (int32_t r = 0; r < f->s->rows; r++)
        for (int32_t i = 0; i < f->width; i++) {
            double error, value = product(f, r, i, &error);
            if (f->s->out == FL_MATMUL_SWIGLU) {
                double up_error, up = product(f, r, f->width + i, &up_error);
                value = fl_matmul_check_swiglu(value, up, up_error, &error);
            }
            oc_set(&f->expected, r, i, value);
            f->bound[(int64_t)r * f->width + i] =
                error + oc_rounding(f->y.be.dtype, fabs(value) + error) + 0x1p-149;
        }
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s,
                 .width = s->out == FL_MATMUL_SWIGLU ? s->n / 2 : s->n,
                 .blocks = s->k / FL_SCALE_BLOCK,
                 .n_groups = s->groups ? s->groups : 1};
    fl_dtype dtype = s->out == FL_MATMUL_F32 ? FL_DTYPE_F32 : run->be->act_dtype;
    f.x = oc_act(run, s->rows, s->k, s->k + s->gap, s->fill);
    make_weights(run, &f);
    make_groups(run, &f);
    f.y = oc_outs_make(run, dtype, s->rows, f.width, f.width + s->gap);
    f.expected = oc_output(run, FL_DTYPE_F32, s->rows, f.width, f.width);
    f.bound = oc_memory(run, (int64_t)s->rows * f.width * (int64_t)sizeof *f.bound);
    quantise(run, &f);
    expect(&f);
    return f;
}

static fl_matmul_args make_args(oc_run *run, const fixture *f, const oc_mat *x, const oc_mat *y) {
    fl_matmul_args args = {.x = x->data,
                           .x_stride = x->stride,
                           .w = f->w,
                           .n_groups = f->n_groups,
                           .group_rows = f->group_rows,
                           .rows = f->s->rows,
                           .out = f->s->out,
                           .y = y->data,
                           .y_stride = y->stride};
    args.scratch = oc_block(run, fl_align_up(fl_matmul_scratch_bytes(&args), 4)).data;
    return args;
}

/* Every row alone, with its own group's weight: the same bits. */
static void check_rows(oc_run *run, const fixture *f) {
    if (!run->be->deterministic) return;
    oc_mat y = oc_output(run, f->y.be.dtype, f->s->rows, f->width, f->width);
    fl_matmul_args all = make_args(run, f, &f->x.be, &y);
    for (int32_t r = 0; r < f->s->rows; r++) {
        fl_matmul_args args = all;
        args.w = &f->w[group_of(f, r)];
        args.x = oc_at(&f->x.be, r, 0);
        args.y = oc_at(&y, r, 0);
        args.rows = args.n_groups = 1;
        args.group_rows = NULL;
        OC_OK(run, run->be->op->matmul(run->be, &args));
    }
    oc_guards(run, &y);
    oc_same(run, &y, &f->y.be);
}

/* Given codes are those that matmul makes: the same bits where they do not depend on which kernel runs. */
static void check_given(oc_run *run, const fixture *f, fl_matmul_args args) {
    const oc_codes x = oc_codes_of(run, &f->x.ref, f->s->rows % 4);
    oc_mat y = oc_output(run, f->y.be.dtype, f->s->rows, f->width, f->y.be.stride);
    args.x = NULL;
    args.x_stride = 0;
    args.x_codes = x.at;
    args.scratch = NULL;
    args.y = y.data;
    OC_TRUE(run, fl_matmul_scratch_bytes(&args) == 0);
    OC_OK(run, run->be->op->matmul(run->be, &args));
    oc_guards(run, &y);
    if (run->be->deterministic) oc_same(run, &y, &f->y.be);
    else oc_near(run, &y, &f->expected, f->bound);
    if (f->s->out != FL_MATMUL_SWIGLU || f->width % FL_SCALE_BLOCK != 0) return;
    const oc_codes made = oc_codes_make(run, f->s->rows, f->width, 1), want = oc_codes_of(run, &f->y.be, 0);
    args.out = FL_MATMUL_SWIGLU_CODES;
    args.y = NULL;
    args.y_stride = 0;
    args.y_codes = made.at;
    OC_OK(run, run->be->op->matmul(run->be, &args));
    oc_codes_same(run, &made, &want);
}

static void check_shape(oc_run *run, const shape *s) {
    static const char *const out_names[] = {"f32", "act", "swiglu"};
    if (!oc_case(run, s->kind, "matmul w8a8 rows=%d n=%d k=%d gap=%d groups=%d out=%s %s", s->rows, s->n,
                 s->k, s->gap, s->groups, out_names[s->out], oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    fl_matmul_args args = make_args(run, &f, &f.x.be, &f.y.be);
    fl_matmul_args one = make_args(run, &f, &f.x.be, &f.y.one);
    fl_matmul_args ref = make_args(run, &f, &f.x.ref, &f.y.ref);
    if (!run->be->w8a8 && !run->is_reference) {
        OC_REFUSED(run, run->be->op->matmul(run->be, &args), "block scales");
        return;
    }
    OC_OK(run, run->be->op->matmul(run->be, &args));
    OC_OK(run, run->one->op->matmul(run->one, &one));
    OC_OK(run, run->ref->op->matmul(run->ref, &ref));
    oc_outs_near(run, &f.y, f.bound);
    oc_near(run, &f.y.ref, &f.expected, oc_row_bound(run, &f.expected, 1e-6, FL_DTYPE_F32));
    check_rows(run, &f);
    check_given(run, &f, args);
    if (s->out == FL_MATMUL_F32) fl_matmul_check_rope(run, &args, s->gap);
}

/* All rows at once, and 64 at a time. */
static void check_pieces(oc_run *run, fixture *f, fl_matmul_out out) {
    fl_dtype dtype = out == FL_MATMUL_F32 ? FL_DTYPE_F32 : run->be->act_dtype;
    int32_t rows = f->s->rows, width = fl_matmul_width(out, f->s->n);
    oc_mat whole = oc_output(run, dtype, rows, width, width),
           pieces = oc_output(run, dtype, rows, width, width);
    fl_matmul_args args = make_args(run, f, &f->x.be, &whole);
    args.out = out;
    OC_OK(run, run->be->op->matmul(run->be, &args));
    args.n_groups = 1;
    args.group_rows = NULL;
    for (int32_t r = 0; r < rows; r += args.rows) {
        int32_t g = group_of(f, r), end = f->group_rows ? f->group_rows[g + 1] : rows;
        args.rows = end - r < 64 ? end - r : 64;
        args.w = &f->w[g];
        args.x = oc_at(&f->x.be, r, 0);
        args.y = oc_at(&pieces, r, 0);
        OC_OK(run, run->be->op->matmul(run->be, &args));
    }
    oc_guards(run, &whole);
    oc_same(run, &whole, &pieces);
}

/* A device chooses tiles by rows and features: a row's bits are those of few rows, whose sums are checked above. */
static void check_tiles(oc_run *run, const shape *s) {
    if (!run->be->device || !run->be->deterministic || !run->be->w8a8) return;
    if (!oc_case(run, s->kind, "matmul w8a8 tiles rows=%d n=%d k=%d groups=%d", s->rows, s->n, s->k,
                 s->groups))
        return;
    fixture f = {
        .s = s, .width = s->n, .blocks = s->k / FL_SCALE_BLOCK, .n_groups = s->groups ? s->groups : 1};
    f.x = oc_act(run, s->rows, s->k, s->k + s->gap, s->fill);
    make_weights(run, &f);
    make_groups(run, &f);
    check_pieces(run, &f, FL_MATMUL_F32);
    check_pieces(run, &f, FL_MATMUL_ACT);
    if (s->n % FL_SCALE_BLOCK == 0) check_pieces(run, &f, FL_MATMUL_SWIGLU);
    if (s->groups) return;
    oc_mat y = oc_output(run, FL_DTYPE_F32, s->rows, s->n, s->n);
    fl_matmul_args args = make_args(run, &f, &f.x.be, &y);
    args.out = FL_MATMUL_F32;
    fl_matmul_check_rope(run, &args, 0);
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "matmul w8a8 limits")) return;
    float scale[4] = {0};
    fl_weight w[2] = {{NULL, 8, 384, scale}, {NULL, 8, 384, scale}};
    fl_matmul_args args = {.w = w, .n_groups = 2, .rows = 5, .x_stride = 384, .y_stride = 8};
    OC_OK(run, fl_matmul_validate(&args));
    OC_TRUE(run, fl_scale_stride(384) == 4 && fl_scale_stride(512) == 4 && fl_scale_stride(640) == 8);
    /* codes of 5 rows, 64-byte aligned; 3 blocks of 8 scales */
    OC_TRUE(run, fl_matmul_scratch_bytes(&args) == 1920 + 3 * 8 * 4);
    args.scratch = oc_memory(run, 1920 + 3 * 8 * 4);
    bool made;
    fl_codes codes = fl_matmul_codes_of(&args, &made);
    OC_TRUE(run, made && codes.codes == args.scratch && (uint8_t *)codes.scale == codes.codes + 1920);
    OC_TRUE(run, codes.scale_stride == 8);
    oc_cost(run, fl_matmul_cost(&args), 2 * 5 * 8 * 384, 2 * 8 * 384 + 5 * (384 * 2 + 8 * 4));
    fl_matmul_args given = args;
    given.x_codes = codes;
    given.x_stride = 0;
    OC_OK(run, fl_matmul_validate(&given));
    OC_TRUE(run, fl_matmul_codes_of(&given, &made).scale == codes.scale && !made);
    OC_TRUE(run, fl_matmul_scratch_bytes(&given) == 0);
    oc_cost(run, fl_matmul_cost(&given), 2 * 5 * 8 * 384, 2 * 8 * 384 + 5 * (384 + 12 + 8 * 4));
    OC_REFUSED_WITH(run, matmul, given, x_codes.scale_stride, 4, "matmul: scale_stride of codes");
    w[0].n = w[1].n = 512;
    given.out = FL_MATMUL_SWIGLU_CODES;
    given.y_codes = codes;
    given.y_stride = 0;
    OC_OK(run, fl_matmul_validate(&given));
    oc_cost(run, fl_matmul_cost(&given), 2 * 5 * 512 * 384, 2 * 512 * 384 + 5 * (384 + 12 + 256 + 8));
    OC_REFUSED_WITH(run, matmul, given, y_codes.scale_stride, 4, "matmul: scale_stride of codes");
    w[0].n = w[1].n = 384;
    OC_REFUSED(run, fl_matmul_validate(&given), "matmul: inputs of codes");
    w[0].n = w[1].n = 8;
    w[1].scale = NULL;
    OC_REFUSED(run, fl_matmul_validate(&args), "matmul: w[].scale");
    w[0].scale = NULL;
    OC_OK(run, fl_matmul_validate(&args));
    OC_TRUE(run, fl_matmul_scratch_bytes(&args) == 0);
    w[0].scale = w[1].scale = scale;
    w[0].k = w[1].k = 320;
    OC_REFUSED(run, fl_matmul_validate(&args), "matmul: w[].k");
}

void fl_matmul_w8a8_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    for (size_t i = 0; i < sizeof tiled / sizeof *tiled; i++) check_tiles(run, &tiled[i]);
    check_limits(run);
}
