#include "op/moe_route/moe_route.h"

#include <math.h>

#include "op/validate.h"

static fl_err validate_groups(const fl_moe_route_args *a) {
    const char *op = "moe_route";
    if (a->select == FL_MOE_GREEDY) return FL_ERR_OK;
    FL_TRY(fl_need_range(op, "n_groups", a->n_groups, 1, a->n_experts));
    FL_TRY(fl_need_multiple(op, "n_experts (with n_groups)", a->n_experts, a->n_groups));
    FL_TRY(fl_need_range(op, "top_groups", a->top_groups, 1, a->n_groups));
    int32_t per_group = a->n_experts / a->n_groups;
    if (a->select == FL_MOE_GROUP_TOP2)
        FL_TRY(fl_need_range(op, "experts a group", per_group, 2, FL_MOE_EXPERTS_MAX));
    return fl_need_range(op, "top_k (with top_groups)", a->top_k, 1, (int64_t)a->top_groups * per_group);
}

fl_err fl_moe_route_validate(const fl_moe_route_args *a) {
    const char *op = "moe_route";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "dim", a->dim, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_need_range(op, "n_experts", a->n_experts, 1, FL_MOE_EXPERTS_MAX));
    FL_TRY(fl_need_range(op, "top_k", a->top_k, 1, a->n_experts));
    FL_TRY(fl_need_stride(op, "x_stride", a->x_stride, a->dim));
    FL_TRY(fl_need_range(op, "score", (int64_t)a->score, FL_MOE_SIGMOID, FL_MOE_SOFTMAX));
    FL_TRY(fl_need_range(op, "select", (int64_t)a->select, FL_MOE_GREEDY, FL_MOE_GROUP_TOP2));
    FL_TRY(validate_groups(a));
    if (!isfinite(a->factor))
        return FL_FAIL(FL_ERR_INVALID, "moe_route: factor is %g, must be finite", (double)a->factor);
    return FL_ERR_OK;
}

fl_cost fl_moe_route_cost(const fl_moe_route_args *a) {
    double rows = a->rows, dim = a->dim, experts = a->n_experts;
    double slot_bytes = sizeof(int32_t) + sizeof(float);
    return (fl_cost){.flops = 2 * rows * experts * dim,
                     .bytes = rows * (dim * FL_COST_ACT_BYTES + a->top_k * slot_bytes) +
                              experts * (dim + (a->bias ? 1 : 0)) * sizeof(float)};
}
