#include "op/moe_permute/moe_permute.h"

#include "op/validate.h"

fl_err fl_moe_permute_validate(const fl_moe_permute_args *a) {
    const char *op = "moe_permute";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "n_experts", a->n_experts, 1, FL_MOE_EXPERTS_MAX));
    FL_TRY(fl_need_range(op, "top_k", a->top_k, 1, INT32_MAX / a->rows));
    FL_TRY(fl_need_range(op, "dim", a->dim, 1, FL_OP_DIM_MAX));
    if (!a->x_codes.codes) return fl_need_stride(op, "x_stride", a->x_stride, a->dim);
    FL_TRY(fl_codes_validate(op, &a->x_codes, a->rows, a->dim));
    return fl_codes_validate(op, &a->y_codes, a->rows * a->top_k, a->dim);
}

fl_err fl_moe_permute_validate_ids(const fl_moe_permute_args *a) {
    for (int32_t i = 0; i < a->rows * a->top_k; i++)
        FL_TRY(fl_need_range("moe_permute", "ids[]", a->ids[i], 0, a->n_experts - 1));
    return FL_ERR_OK;
}

fl_cost fl_moe_permute_cost(const fl_moe_permute_args *a) {
    double row_bytes = a->x_codes.codes ? fl_codes_row_bytes(a->dim) : (double)a->dim * FL_COST_ACT_BYTES;
    double slot_bytes = row_bytes + 2 * sizeof(int32_t); /* a gathered row, its id and its place */
    return (fl_cost){.flops = 0,
                     .bytes = a->rows * (row_bytes + a->top_k * slot_bytes) +
                              (a->n_experts + 1.0) * sizeof(int32_t)};
}
