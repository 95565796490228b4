/* matmul_head: y[r][h][:] = x[r][h][:] W_h^T for every head h: absorbs q_nope into the latent space (n =
 * latent, k = nope) and takes the latent output back (n = v, k = latent). Same order and tolerance rules as
 * matmul. Shapes: avx512 takes k in multiples of 32 and n in multiples of 64, refuses others by name;
 * the other backends take all. Cost: flops 2 rows n_heads n k; bytes n_heads (n k w + rows (n + k) act). */
#ifndef FL_OP_MATMUL_HEAD_H
#define FL_OP_MATMUL_HEAD_H

#include "op/op_types.h"

typedef struct fl_matmul_head_args {
    const void *x; /* act, element (r, h, j) at r * x_row_stride + h * x_head_stride + j */
    int64_t x_row_stride, x_head_stride;
    const fl_weight *w; /* [n_heads], all of the same n and k */
    int32_t n_heads, rows;
    void *y; /* act, element (r, h, j) at r * y_row_stride + h * y_head_stride + j */
    int64_t y_row_stride, y_head_stride;
} fl_matmul_head_args;

fl_err fl_matmul_head_validate(const fl_matmul_head_args *a);
fl_cost fl_matmul_head_cost(const fl_matmul_head_args *a);

#endif
