#include "op/weight_pack/weight_pack.h"

#include <math.h>
#include <string.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    fl_dtype dtype;
    int32_t rows, cols;
    int32_t row0, block_rows, block_cols; /* block_rows 0 = no block scales */
    bool col_scale, transpose;
    int32_t n_before, n_after; /* features of the weight on both sides of the part */
} shape;

static const shape shapes[] = {
    {OC_CHECK, FL_DTYPE_F32, 1, 1, 0, 0, 0, false, false, 0, 0},
    {OC_CHECK, FL_DTYPE_BF16, 64, 32, 0, 0, 0, false, false, 0, 0},
    {OC_CHECK, FL_DTYPE_F16, 33, 17, 0, 0, 0, true, false, 5, 3},
    {OC_CHECK, FL_DTYPE_F8_E4M3, 70, 130, 0, 128, 128, false, false, 0, 0},
    {OC_CHECK, FL_DTYPE_F8_E4M3, 40, 300, 120, 128, 128, true, false, 64, 20},
    {OC_CHECK, FL_DTYPE_F8_E4M3, 65, 31, 7, 16, 8, true, true, 0, 0},
    {OC_CHECK, FL_DTYPE_F32, 20, 70, 0, 0, 0, true, true, 13, 66},
    {OC_CHECK, FL_DTYPE_BF16, 128, 64, 256, 128, 128, false, true, 0, 0},
    {OC_CHECK, FL_DTYPE_F32, 9, 5, 3, 4, 2, false, false, 2, 1},
    {OC_CHECK, FL_DTYPE_F8_E4M3, 70, 96, 120, 128, 32, true, false, 64, 7},
    {OC_CHECK, FL_DTYPE_F16, 64, 100, 5, 16, 32, false, true, 28, 1},
    {OC_BENCH, FL_DTYPE_F8_E4M3, 1024, 512, 0, 128, 128, false, false, 0, 0},
    {OC_BENCH, FL_DTYPE_BF16, 8192, 512, 0, 0, 0, false, false, 0, 0},
};

/* What each code of a format means, from sign, exponent and mantissa. */
static double decode(fl_dtype dtype, uint32_t bits) {
    static const int32_t mantissas[FL_N_DTYPES] = {23, 7, 10, 3}, biases[FL_N_DTYPES] = {127, 127, 15, 7};
    static const int32_t widths[FL_N_DTYPES] = {32, 16, 16, 8};
    int32_t m = mantissas[dtype],
            exponent = (int32_t)(bits << (32 - widths[dtype]) << 1 >> 1 >> (32 - widths[dtype]) >> m);
    double fraction = (double)(bits & ((1u << m) - 1)) / (1u << m);
    double value =
        exponent ? ldexp(1 + fraction, exponent - biases[dtype]) : ldexp(fraction, 1 - biases[dtype]);
    return bits >> (widths[dtype] - 1) ? -value : value;
}

/* Codes of moderate size, subnormals of the short formats among them. */
static uint32_t random_code(oc_run *run, fl_dtype dtype) {
    uint32_t sign = (uint32_t)oc_below(run, 2), low = (uint32_t)oc_below(run, 1 << 23);
    uint32_t e = (uint32_t)oc_below(run, 12);
    switch (dtype) {
    case FL_DTYPE_F32: return sign << 31 | (120 + e) << 23 | low;
    case FL_DTYPE_BF16: return sign << 15 | (120 + e) << 7 | (low & 0x7f);
    case FL_DTYPE_F16: return sign << 15 | (e < 2 ? 0 : 10 + e) << 10 | (low & 0x3ff);
    default: return sign << 7 | e << 3 | (low & 7);
    }
}

typedef struct fixture {
    const shape *s;
    int32_t n, k;
    float *values; /* [rows][cols] as the checkpoint means them, scales applied */
    fl_weight_pack_args args;
} fixture;

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s, .n = s->n_before + (s->transpose ? s->cols : s->rows) + s->n_after};
    f.k = s->transpose ? s->rows : s->cols;
    size_t element = fl_dtype_bytes(s->dtype);
    int32_t scale_rows = s->block_rows ? (s->row0 + s->rows - 1) / s->block_rows + 1 : 1;
    int32_t scale_stride = s->block_rows ? (s->cols - 1) / s->block_cols + 2 : 1;
    uint8_t *src = oc_memory_fenced(run, s->rows * s->cols * (int64_t)element + 1), *scales;
    scales = oc_memory(run, scale_rows * scale_stride * 4 + 1);
    float *scale_values = oc_memory(run, scale_rows * scale_stride * 4),
          *col_scale = oc_memory(run, s->cols * 4);
    for (int32_t i = 0; i < scale_rows * scale_stride; i++) scale_values[i] = (float)(0.1 + oc_uniform(run));
    memcpy(scales + 1, scale_values, (size_t)(scale_rows * scale_stride) * sizeof(float));
    for (int32_t j = 0; j < s->cols; j++) col_scale[j] = (float)oc_normal(run);
    f.values = oc_memory(run, s->rows * s->cols * (int64_t)sizeof(float));
    for (int32_t i = 0; i < s->rows * s->cols; i++) {
        int32_t row = i / s->cols, col = i % s->cols;
        uint32_t code = random_code(run, s->dtype);
        memcpy(src + 1 + (size_t)i * element, &code, element);
        f.values[i] = (float)decode(s->dtype, code);
        if (s->block_rows)
            f.values[i] *= scale_values[(s->row0 + row) / s->block_rows * scale_stride + col / s->block_cols];
        if (s->col_scale) f.values[i] *= col_scale[col];
    }
    f.args = (fl_weight_pack_args){.src = src + 1, .src_dtype = s->dtype, .rows = s->rows, .cols = s->cols};
    f.args.scale_inv = s->block_rows ? (const float *)(const void *)(scales + 1) : NULL;
    f.args.scale_stride = scale_stride;
    f.args.block_rows = s->block_rows;
    f.args.block_cols = s->block_cols;
    f.args.row0 = s->row0;
    f.args.col_scale = s->col_scale ? col_scale : NULL;
    f.args.transpose = s->transpose;
    f.args.n_offset = s->n_before;
    return f;
}

/* Where element (i, j) lies: panels of n_block features, in them groups of k_pair inputs. */
static int64_t place(const fl_weight_layout *l, int32_t k, int32_t i, int32_t j) {
    int64_t k_padded = (k + l->k_align - 1) / l->k_align * l->k_align, panel = (int64_t)l->n_block * k_padded;
    return i / l->n_block * panel + j / l->k_pair * (int64_t)(l->n_block * l->k_pair) +
           i % l->n_block * l->k_pair + j % l->k_pair;
}

/* Padding and features of other parts stay 0. */
static void expect(const fixture *f, const fl_weight_layout *layout, const oc_mat *packed) {
    memset(packed->data, 0, (size_t)packed->width * sizeof(float));
    oc_mat elements = *packed;
    elements.dtype = layout->dtype;
    for (int32_t i = 0; i < f->s->rows * f->s->cols; i++) {
        int32_t row = i / f->s->cols, col = i % f->s->cols;
        int32_t n = f->s->n_before + (f->s->transpose ? col : row), k = f->s->transpose ? row : col;
        oc_set(&elements, 0, place(layout, f->k, n, k), (double)f->values[i]);
    }
}

/* x = unit vectors: y is W^T, exactly. */
static void check_matmul(oc_run *run, const fixture *f, const fl_weight *w) {
    if (f->k > 150) return;
    oc_pair x = oc_act(run, f->k, f->k, f->k, OC_ZERO);
    for (int32_t j = 0; j < f->k; j++) oc_set(&x.ref, j, j, 1);
    oc_act_sync(&x);
    oc_mat y = oc_output(run, FL_DTYPE_F32, f->k, f->n, f->n);
    fl_matmul_args args = {.x = x.be.data, .x_stride = f->k, .w = w, .n_groups = 1, .rows = f->k};
    args.y = y.data;
    args.y_stride = f->n;
    if (!oc_ran(run, run->be->op->matmul(run->be, &args), f->k % 32 == 0)) return;
    oc_mat rounded = oc_output(run, run->be->layout.dtype, 1, 1, 1);
    for (int32_t i = 0; i < f->s->rows * f->s->cols; i++) {
        int32_t row = i / f->s->cols, col = i % f->s->cols;
        int32_t n = f->s->n_before + (f->s->transpose ? col : row), k = f->s->transpose ? row : col;
        oc_set(&rounded, 0, 0, (double)f->values[i]);
        if (fabs(oc_get(&y, k, n) - oc_get(&rounded, 0, 0)) <= 0) continue;
        oc_fail(run, "element n=%d k=%d is %.9g, expected %.9g", n, k, oc_get(&y, k, n),
                oc_get(&rounded, 0, 0));
        return;
    }
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "weight_pack %s %dx%d row0=%d blocks=%dx%d%s%s between %d and %d",
                 fl_dtype_name(s->dtype), s->rows, s->cols, s->row0, s->block_rows, s->block_cols,
                 s->col_scale ? " col_scale" : "", s->transpose ? " transposed" : "", s->n_before,
                 s->n_after))
        return;
    fixture f = make_fixture(run, s);
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    for (int32_t i = 0; i < 3; i++) {
        int64_t bytes = fl_backend_weight_bytes(backends[i], f.n, f.k);
        oc_mat packed = oc_block(run, bytes / 4 * 4 + 4), want = oc_block(run, bytes / 4 * 4 + 4);
        memset(packed.data, 0, (size_t)packed.width * sizeof(float));
        expect(&f, &backends[i]->layout, &want);
        fl_weight w = {.data = packed.data, .n = f.n, .k = f.k};
        f.args.w = &w;
        OC_OK(run, backends[i]->op->weight_pack(backends[i], &f.args));
        oc_guards(run, &packed);
        oc_same(run, &packed, &want);
        if (i > 0) continue;
        check_matmul(run, &f, &w);
        while (oc_timing(run, fl_weight_pack_cost(&f.args)))
            OC_OK(run, run->be->op->weight_pack(run->be, &f.args));
    }
}

/* Known codes: 1, 448 (the largest), the smallest subnormal, -1.75. */
static void check_codes(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "weight_pack codes by hand")) return;
    const uint8_t e4m3[4] = {0x38, 0x7e, 0x01, 0xbe};
    const uint16_t f16[4] = {0x3c00, 0x5f00, 0x1800, 0xbf00}, bf16[4] = {0x3f80, 0x43e0, 0x3b00, 0xbfe0};
    const void *const codes[] = {e4m3, f16, bf16};
    const fl_dtype dtypes[] = {FL_DTYPE_F8_E4M3, FL_DTYPE_F16, FL_DTYPE_BF16};
    const double want[4] = {1, 448, 0x1p-9, -1.75};
    for (int32_t c = 0; c < 3; c++) {
        oc_mat packed = oc_block(run, fl_backend_weight_bytes(run->be, 1, 4));
        fl_weight w = {.data = packed.data, .n = 1, .k = 4};
        fl_weight_pack_args args = {.src = codes[c], .src_dtype = dtypes[c], .rows = 1, .cols = 4, .w = &w};
        OC_OK(run, run->be->op->weight_pack(run->be, &args));
        packed.dtype = run->be->layout.dtype;
        for (int32_t j = 0; j < 4; j++)
            OC_TRUE(run, fabs(oc_get(&packed, 0, place(&run->be->layout, 4, 0, j)) - want[j]) <= 0);
        args.rows = 0;
        OC_REFUSED(run, run->be->op->weight_pack(run->be, &args), "weight_pack: rows");
    }
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "weight_pack limits and cost")) return;
    float scale = 0;
    fl_weight w = {NULL, 20, 9, NULL};
    fl_weight_pack_args good = {
        .src_dtype = FL_DTYPE_F8_E4M3, .rows = 6, .cols = 9, .scale_inv = &scale, .w = &w};
    good.scale_stride = 3;
    good.block_rows = good.block_cols = 4;
    good.row0 = 2;
    good.n_offset = 14;
    OC_OK(run, fl_weight_pack_validate(&good));
    OC_ACCEPTED_WITH(run, weight_pack, good, rows, 1);
    OC_REFUSED_WITH(run, weight_pack, good, rows, 0, "weight_pack: rows");
    OC_REFUSED_WITH(run, weight_pack, good, cols, 0, "weight_pack: cols");
    OC_REFUSED_WITH(run, weight_pack, good, cols, 8, "weight_pack: w->k");
    OC_REFUSED_WITH(run, weight_pack, good, cols, 10, "weight_pack: w->k");
    OC_REFUSED_WITH(run, weight_pack, good, src_dtype, FL_N_DTYPES, "weight_pack: src_dtype");
    OC_REFUSED_WITH(run, weight_pack, good, scale_stride, 2, "weight_pack: scale_stride");
    OC_REFUSED_WITH(run, weight_pack, good, block_rows, 0, "weight_pack: block_rows");
    OC_ACCEPTED_WITH(run, weight_pack, good, block_rows, 1);
    OC_REFUSED_WITH(run, weight_pack, good, block_cols, 0, "weight_pack: block_cols");
    OC_REFUSED_WITH(run, weight_pack, good, row0, -1, "weight_pack: row0");
    OC_ACCEPTED_WITH(run, weight_pack, good, row0, 0);
    OC_ACCEPTED_WITH(run, weight_pack, good, row0, INT32_MAX - 6);
    OC_REFUSED_WITH(run, weight_pack, good, row0, INT32_MAX - 5, "weight_pack: row0");
    OC_REFUSED_WITH(run, weight_pack, good, n_offset, 15, "weight_pack: n_offset");
    OC_REFUSED_WITH(run, weight_pack, good, n_offset, -1, "weight_pack: n_offset");
    OC_ACCEPTED_WITH(run, weight_pack, good, n_offset, 0);
    OC_REFUSED_WITH(run, weight_pack, good, transpose, true, "weight_pack: w->k");
    oc_cost(run, fl_weight_pack_cost(&good), 54, 54 * 3);
    good.col_scale = &scale;
    oc_cost(run, fl_weight_pack_cost(&good), 108, 54 * 3);
    good.scale_inv = NULL;
    good.src_dtype = FL_DTYPE_F32;
    oc_cost(run, fl_weight_pack_cost(&good), 54, 54 * 6);
    OC_ACCEPTED_WITH(run, weight_pack, good, block_cols, 0);
    w.k = 6;
    good.transpose = true;
    good.n_offset = 11;
    OC_OK(run, fl_weight_pack_validate(&good));
    OC_REFUSED_WITH(run, weight_pack, good, n_offset, 12, "weight_pack: n_offset");
}

void fl_weight_pack_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_codes(run);
    check_limits(run);
}
