#include "op/moe_combine/moe_combine.h"

#include "op/validate.h"

fl_err fl_moe_combine_validate(const fl_moe_combine_args *a) {
    const char *op = "moe_combine";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "top_k", a->top_k, 0, INT32_MAX / a->rows));
    return fl_need_range(op, "dim", a->dim, 1, FL_OP_DIM_MAX);
}

fl_err fl_moe_combine_validate_places(const fl_moe_combine_args *a) {
    int32_t slots = a->rows * a->top_k;
    for (int32_t i = 0; i < slots; i++)
        FL_TRY(fl_need_range("moe_combine", "place[]", a->place[i], 0, slots - 1));
    return FL_ERR_OK;
}

fl_cost fl_moe_combine_cost(const fl_moe_combine_args *a) {
    double rows = a->rows, act_row = (double)a->dim * FL_COST_ACT_BYTES;
    double slot_bytes = act_row + sizeof(float) + sizeof(int32_t); /* expert row, weight, place */
    double row_bytes = 2.0 * a->dim * sizeof(float) + (a->shared ? act_row : 0); /* x in and out */
    return (fl_cost){.flops = rows * a->dim * (2 * a->top_k + 1),
                     .bytes = rows * (a->top_k * slot_bytes + row_bytes)};
}
