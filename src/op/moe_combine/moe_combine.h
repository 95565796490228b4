/* moe_combine: x[r][:] += shared[r][:] (or 0) + sum over slots s = 0.. in order of weights[r][s] * y[place[r][s]][:]:
 * what a feed-forward half adds to the residual stream. The sum is f32 and begins with shared, x is added to it last;
 * the fixed order keeps a row's bits independent of the batch. A dense layer has no slots (top_k 0), its output is
 * `shared`. Tolerance 1e-6 relative to the sum of |terms|, x's included. Cost: flops rows dim (2 top_k + 1); bytes
 * rows (top_k (act dim + 8) + 8 dim, act dim more with shared). */
#ifndef FL_OP_MOE_COMBINE_H
#define FL_OP_MOE_COMBINE_H

#include "op/op_types.h"

typedef struct fl_moe_combine_args {
    const void *y;        /* [rows * top_k][dim] expert outputs, act */
    const int32_t *place; /* [rows][top_k], each 0 <= place < rows * top_k */
    const float *weights; /* [rows][top_k] */
    const void *shared;   /* [rows][dim] act, or NULL */
    int32_t rows, dim;
    int32_t top_k; /* 0: y, place and weights are not looked at */
    float *x;      /* [rows][dim] residual stream */
} fl_moe_combine_args;

fl_err fl_moe_combine_validate_places(const fl_moe_combine_args *a);
fl_err fl_moe_combine_validate(const fl_moe_combine_args *a);
fl_cost fl_moe_combine_cost(const fl_moe_combine_args *a);

#endif
