#include "op/weight_pack/weight_pack.h"

#include "op/validate.h"

static fl_err validate_scales(const fl_weight_pack_args *a) {
    const char *op = "weight_pack";
    if (!a->scale_inv) return FL_ERR_OK;
    FL_TRY(fl_need_count(op, "block_rows", a->block_rows));
    FL_TRY(fl_need_count(op, "block_cols", a->block_cols));
    FL_TRY(fl_need_range(op, "row0", a->row0, 0, INT32_MAX - a->rows));
    return fl_need_stride(op, "scale_stride", a->scale_stride, (a->cols - 1) / a->block_cols + 1);
}

fl_err fl_weight_pack_validate(const fl_weight_pack_args *a) {
    const char *op = "weight_pack";
    FL_TRY(fl_need_range(op, "rows", a->rows, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_need_range(op, "cols", a->cols, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_need_range(op, "src_dtype", (int64_t)a->src_dtype, 0, FL_N_DTYPES - 1));
    FL_TRY(validate_scales(a));
    FL_TRY(fl_weights_validate(op, a->w, 1));
    int32_t part_n = a->transpose ? a->cols : a->rows, part_k = a->transpose ? a->rows : a->cols;
    FL_TRY(fl_need_range(op, "w->k", a->w->k, part_k, part_k));
    return fl_need_range(op, "n_offset", a->n_offset, 0, (int64_t)a->w->n - part_n);
}

fl_cost fl_weight_pack_cost(const fl_weight_pack_args *a) {
    double elements = (double)a->rows * a->cols;
    double multiplies = (a->scale_inv ? 1 : 0) + (a->col_scale ? 1 : 0);
    return (fl_cost){.flops = elements * multiplies,
                     .bytes = elements * ((double)fl_dtype_bytes(a->src_dtype) + FL_COST_WEIGHT_BYTES)};
}
