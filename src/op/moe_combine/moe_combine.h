/* moe_combine: out[r][:] = shared[r][:] (or 0) + sum over slots s = 0.. in order of weights[r][s] *
 * y[place[r][s]][:], in f32. The fixed order keeps a row's bits independent of the batch. Tolerance 1e-6
 * relative to the sum of |terms|. Cost: flops 2 rows top_k dim; bytes rows (top_k (act dim + 8) + 4 dim (8 dim
 * with shared)). */
#ifndef FL_OP_MOE_COMBINE_H
#define FL_OP_MOE_COMBINE_H

#include "op/op_types.h"

typedef struct fl_moe_combine_args {
    const void *y;        /* [rows * top_k][dim] expert outputs, act */
    const int32_t *place; /* [rows][top_k], each 0 <= place < rows * top_k */
    const float *weights; /* [rows][top_k] */
    const float *shared;  /* [rows][dim] or NULL */
    int32_t rows, top_k, dim;
    float *out; /* [rows][dim]; may be `shared` */
} fl_moe_combine_args;

fl_err fl_moe_combine_validate_places(const fl_moe_combine_args *a);
fl_err fl_moe_combine_validate(const fl_moe_combine_args *a);
fl_cost fl_moe_combine_cost(const fl_moe_combine_args *a);

#endif
