#include "op/matmul_head/matmul_head.h"

#include "op/validate.h"

/* Two ways to lay rows and heads out: heads inside a row, or rows inside a head. Either way the outer stride
 * must hold all the inner pieces. */
static fl_err validate_strides(const char *field, int64_t row_stride, int64_t head_stride,
                               const fl_matmul_head_args *a, int32_t width) {
    const char *op = "matmul_head";
    FL_TRY(fl_need_stride(op, field, row_stride, width));
    FL_TRY(fl_need_stride(op, field, head_stride, width));
    if (row_stride >= head_stride)
        return fl_need_stride(op, field, row_stride, (a->n_heads - 1) * head_stride + width);
    return fl_need_stride(op, field, head_stride, (a->rows - 1) * row_stride + width);
}

fl_err fl_matmul_head_validate(const fl_matmul_head_args *a) {
    const char *op = "matmul_head";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_weights_validate(op, a->w, a->n_heads));
    FL_TRY(validate_strides("x_row_stride, x_head_stride", a->x_row_stride, a->x_head_stride, a, a->w[0].k));
    return validate_strides("y_row_stride, y_head_stride", a->y_row_stride, a->y_head_stride, a, a->w[0].n);
}

fl_cost fl_matmul_head_cost(const fl_matmul_head_args *a) {
    double rows = a->rows, heads = a->n_heads, n = a->w[0].n, k = a->w[0].k;
    return (fl_cost){.flops = 2 * rows * heads * n * k,
                     .bytes = heads * (n * k * FL_COST_WEIGHT_BYTES + rows * (n + k) * FL_COST_ACT_BYTES)};
}
