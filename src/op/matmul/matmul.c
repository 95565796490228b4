#include "op/matmul/matmul.h"

#include <math.h>

#include "backend/backend.h"
#include "op/validate.h"

/* All weights have block scales, or none. */
static fl_err validate_scales(const char *op, const fl_matmul_args *a) {
    for (int32_t i = 1; i < a->n_groups; i++)
        FL_TRY(fl_need_range(op, "w[].scale set", a->w[i].scale != NULL, a->w[0].scale != NULL,
                             a->w[0].scale != NULL));
    return a->w[0].scale ? fl_need_multiple(op, "w[].k", a->w[0].k, FL_SCALE_BLOCK) : FL_ERR_OK;
}

/* Codes that are there go with weights that have block scales. */
static fl_err validate_codes(const char *op, const fl_matmul_args *a) {
    const fl_weight *w = &a->w[0];
    bool y = a->out == FL_MATMUL_SWIGLU_CODES;
    if (!a->x_codes.codes && !y) return FL_ERR_OK;
    FL_TRY(fl_need_range(op, "codes without w[].scale", w->scale == NULL, 0, 0));
    if (a->x_codes.codes) FL_TRY(fl_codes_validate(op, &a->x_codes, a->rows, w->k));
    return y ? fl_codes_validate(op, &a->y_codes, a->rows, w->n / 2) : FL_ERR_OK;
}

static fl_err validate_rope(const char *op, const fl_matmul_args *a) {
    const fl_matmul_rope *r = &a->rope;
    if (a->out != FL_MATMUL_ROPE) return FL_ERR_OK;
    FL_TRY(fl_need_range(op, "rope.nope_dim", r->nope_dim, 0, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "rope.rope_dim", r->rope_dim, 2, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_multiple(op, "rope.rope_dim", r->rope_dim, 2));
    FL_TRY(fl_need_multiple(op, "w[].n with rope", a->w[0].n, r->nope_dim + r->rope_dim));
    if (isfinite(r->scale)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "matmul: rope.scale is %g, must be finite", (double)r->scale);
}

fl_err fl_matmul_validate(const fl_matmul_args *a) {
    const char *op = "matmul";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "n_groups", a->n_groups, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_weights_validate(op, a->w, a->n_groups));
    FL_TRY(validate_scales(op, a));
    FL_TRY(fl_need_range(op, "out", (int64_t)a->out, FL_MATMUL_F32, FL_MATMUL_ROPE));
    if (!a->x_codes.codes) FL_TRY(fl_need_stride(op, "x_stride", a->x_stride, a->w[0].k));
    if (fl_matmul_is_swiglu(a->out)) FL_TRY(fl_need_multiple(op, "w[].n", a->w[0].n, 2));
    FL_TRY(validate_codes(op, a));
    FL_TRY(validate_rope(op, a));
    if (a->out == FL_MATMUL_SWIGLU_CODES) return FL_ERR_OK;
    return fl_need_stride(op, "y_stride", a->y_stride, fl_matmul_width(a->out, a->w[0].n));
}

fl_err fl_matmul_validate_groups(const fl_matmul_args *a) {
    const char *op = "matmul";
    if (!a->group_rows) return fl_need_range(op, "n_groups without group_rows", a->n_groups, 1, 1);
    FL_TRY(fl_need_range(op, "group_rows[0]", a->group_rows[0], 0, 0));
    for (int32_t g = 0; g < a->n_groups; g++)
        FL_TRY(fl_need_range(op, "group_rows[]", a->group_rows[g + 1], a->group_rows[g], a->rows));
    return fl_need_range(op, "group_rows[n_groups]", a->group_rows[a->n_groups], a->rows, a->rows);
}

static double y_row_bytes(const fl_matmul_args *a) {
    double width = fl_matmul_width(a->out, a->w[0].n);
    return a->out == FL_MATMUL_F32            ? width * sizeof(float)
           : a->out == FL_MATMUL_SWIGLU_CODES ? fl_codes_row_bytes(width)
                                              : width * FL_COST_ACT_BYTES;
}

fl_cost fl_matmul_cost(const fl_matmul_args *a) {
    double rows = a->rows, n = a->w[0].n, k = a->w[0].k;
    double weight_bytes = a->w[0].scale ? 1 : FL_COST_WEIGHT_BYTES;
    double groups = a->n_groups < a->rows ? a->n_groups : a->rows; /* a group without rows is not read */
    double x_row = a->x_codes.codes ? fl_codes_row_bytes(k) : k * FL_COST_ACT_BYTES;
    double table_row = a->out == FL_MATMUL_ROPE ? a->rope.rope_dim * (double)sizeof(float) : 0;
    return (fl_cost){.flops = 2 * rows * n * k,
                     .bytes = groups * n * k * weight_bytes + rows * (x_row + y_row_bytes(a) + table_row),
                     .fp8_flops = a->w[0].scale ? 2 * rows * n * k : 0};
}

fl_err fl_matmul_need_plain(const fl_backend *be, const fl_matmul_args *a) {
    if (a->out == FL_MATMUL_ROPE && !be->matmul_rope)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: backend %s has no rope epilogue", be->name);
    if (!a->w[0].scale) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: backend %s does not take e4m3 weights with block scales",
                   be->name);
}

fl_codes fl_matmul_codes_of(const fl_matmul_args *a, bool *made) {
    *made = a->x_codes.codes == NULL;
    return *made ? fl_codes_at(a->scratch, a->rows, a->w[0].k) : a->x_codes;
}

int64_t fl_matmul_scratch_bytes(const fl_matmul_args *a) {
    return a->w[0].scale && !a->x_codes.codes ? fl_codes_bytes(a->rows, a->w[0].k) : 0;
}
