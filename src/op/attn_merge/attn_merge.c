#include "op/attn_merge/attn_merge.h"

#include "op/validate.h"

fl_err fl_attn_merge_validate(const fl_attn_merge_args *a) {
    const char *op = "attn_merge";
    FL_TRY(fl_need_range(op, "n_parts", a->n_parts, 1, FL_ATTN_MERGE_PARTS_MAX));
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    return fl_need_range(op, "dim", a->dim, 1, FL_ATTN_HEAD_DIM_MAX);
}

fl_cost fl_attn_merge_cost(const fl_attn_merge_args *a) {
    double lines = (double)a->rows * a->n_heads, parts = a->n_parts, dim = a->dim;
    double line_bytes = dim * FL_COST_ACT_BYTES + (double)sizeof(float); /* of a part, or of the result */
    return (fl_cost){.flops = 2 * parts * lines * dim,
                     .bytes = lines * (parts * line_bytes + (a->lse ? line_bytes : dim * FL_COST_ACT_BYTES))};
}
