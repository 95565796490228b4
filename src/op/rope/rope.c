#include "op/rope/rope.h"

#include <math.h>

#include "op/validate.h"

fl_err fl_rope_validate(const fl_rope_args *a) {
    const char *op = "rope";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_need_range(op, "nope_dim", a->nope_dim, 0, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "rope_dim", a->rope_dim, 2, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_multiple(op, "rope_dim", a->rope_dim, 2));
    int64_t width = (int64_t)a->n_heads * (a->nope_dim + a->rope_dim), heads_before = a->n_heads - 1;
    FL_TRY(fl_need_stride(op, "x_stride", a->x_stride, width));
    FL_TRY(fl_need_stride(op, "y_stride", a->y_stride, width));
    if (a->y_pe) {
        int32_t head = a->y_pe_head_stride;
        FL_TRY(fl_need_range(op, "y_pe_head_stride", head, a->rope_dim, FL_OP_DIM_MAX));
        FL_TRY(fl_need_stride(op, "y_pe_stride", a->y_pe_stride, heads_before * head + a->rope_dim));
    }
    if (!isfinite(a->scale))
        return FL_FAIL(FL_ERR_INVALID, "rope: scale is %g, must be finite", (double)a->scale);
    return FL_ERR_OK;
}

fl_cost fl_rope_cost(const fl_rope_args *a) {
    double rows = a->rows, heads = a->n_heads, nope = a->nope_dim, rope = a->rope_dim;
    /* A pair takes four multiplies and two adds, and the scale two multiplies more: 4 an element. */
    return (fl_cost){
        .flops = rows * heads * (nope + 4 * rope),
        .bytes = rows * (heads * (nope + rope) * (sizeof(float) + FL_COST_ACT_BYTES) + rope * sizeof(float))};
}
