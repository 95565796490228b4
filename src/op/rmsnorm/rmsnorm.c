#include "op/rmsnorm/rmsnorm.h"

#include <math.h>

#include "op/validate.h"

fl_err fl_rmsnorm_validate(const fl_rmsnorm_args *a) {
    const char *op = "rmsnorm";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "dim", a->dim, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_need_stride(op, "x_stride", a->x_stride, a->dim));
    if (a->y_codes.codes) FL_TRY(fl_codes_validate(op, &a->y_codes, a->rows, a->dim));
    if (a->y || !a->y_codes.codes) FL_TRY(fl_need_stride(op, "y_stride", a->y_stride, a->dim));
    if (!isfinite(a->eps) || a->eps < 0)
        return FL_FAIL(FL_ERR_INVALID, "rmsnorm: eps is %g, must be finite and not negative", (double)a->eps);
    return FL_ERR_OK;
}

fl_cost fl_rmsnorm_cost(const fl_rmsnorm_args *a) {
    double elements = (double)a->rows * a->dim;
    double flops = 3, bytes = sizeof(float); /* square, add, scale; read x */
    double codes_bytes = a->y_codes.codes ? a->rows * fl_codes_row_bytes(a->dim) : 0;
    if (a->y || !a->y_codes.codes) bytes += FL_COST_ACT_BYTES;
    if (a->delta) {
        flops += 1;
        bytes += FL_COST_ACT_BYTES + sizeof(float); /* read delta, write x */
    }
    if (a->gamma) flops += 1;
    return (fl_cost){.flops = elements * flops,
                     .bytes =
                         elements * bytes + codes_bytes + (a->gamma ? (double)a->dim * sizeof(float) : 0)};
}
