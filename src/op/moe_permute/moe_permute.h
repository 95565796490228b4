/* moe_permute: orders the (row, slot) pairs by expert, stably, and gathers their rows:
 *   y[place[r][s]][:] = x[r][:], place counts pairs of smaller experts, then of smaller (r, s). Exact,
 * checked bitwise. On backends with w8a8 also x given as codes (codes.h): then codes and scales are what is gathered.
 * Cost: bytes rows (row + top_k (row + 8)) + 4 (n_experts + 1), row = dim act or that of codes. */
#ifndef FL_OP_MOE_PERMUTE_H
#define FL_OP_MOE_PERMUTE_H

#include "op/codes.h"

typedef struct fl_moe_permute_args {
    const int32_t *ids; /* [rows][top_k] expert of each slot, 0 <= id < n_experts */
    int32_t rows, top_k, n_experts, dim;
    const void *x; /* [rows], x_stride apart, act */
    int64_t x_stride;
    int32_t *group_rows;       /* [n_experts + 1] first place of each expert */
    int32_t *place;            /* [rows][top_k] */
    void *y;                   /* [rows * top_k][dim] act */
    fl_codes x_codes, y_codes; /* of rows and of rows * top_k: in place of x and y where x_codes are there */
} fl_moe_permute_args;

fl_err fl_moe_permute_validate_ids(const fl_moe_permute_args *a);
fl_err fl_moe_permute_validate(const fl_moe_permute_args *a);
fl_cost fl_moe_permute_cost(const fl_moe_permute_args *a);

#endif
