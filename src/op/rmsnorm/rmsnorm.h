/* rmsnorm: x += delta (if delta); y = x / sqrt(mean(x^2) + eps) * gamma (if gamma), in act, as codes of that
 * (codes.h), or both.
 * The residual stream stays f32; the sum of squares is taken in at least f32 with a fixed order, so a row's
 * result does not depend on the other rows. Residual entries reach 1e4: squares must not overflow f16, f32 is
 * enough. Tolerance: f32 output 4e-6 relative to the row's largest |y| (sum order), bf16 output one bf16
 * rounding (2^-8).
 * Cost: flops 3 an element, 4 with delta, one more with gamma; bytes rows dim (4 + act, 4 + act more with delta), codes
 * and their scales, + 4 dim with gamma. */
#ifndef FL_OP_RMSNORM_H
#define FL_OP_RMSNORM_H

#include "op/codes.h"

typedef struct fl_rmsnorm_args {
    float *x; /* [rows], x_stride apart; updated in place when delta is set, else only read */
    int64_t x_stride;
    const void *delta;  /* [rows][dim] act, or NULL */
    const float *gamma; /* [dim] or NULL */
    float eps;
    int32_t rows, dim;
    void *y; /* [rows], y_stride apart, act; NULL = only codes are wanted */
    int64_t y_stride;
    fl_codes y_codes; /* of y, on backends with w8a8 */
} fl_rmsnorm_args;

fl_err fl_rmsnorm_validate(const fl_rmsnorm_args *a);
fl_cost fl_rmsnorm_cost(const fl_rmsnorm_args *a);

#endif
