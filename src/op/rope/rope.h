/* rope: y = scale * [x_nope | R(pos) x_pe] per row and head, rounded to act once. Interleaved pairs: for i <
 * rope_dim/2 y[2i] = x[2i] c - x[2i+1] s,  y[2i+1] = x[2i] s + x[2i+1] c,  c = table[r][i].cos, s =
 * table[r][i].sin. The table holds one rotation a row (made in double by the engine: positions and YaRN are
 * its business). Heads lie side by side, or x_head_stride and y_head_stride apart: a part of wider heads. For
 * queries `scale` is softmax_scale * log2(e): all attention scores in firstlight are exponents of 2. For k_pe
 * scale is 1. Tolerance: 2e-6 relative to the pair's norm for f32, one bf16 rounding (2^-8) for bf16. Cost:
 * flops rows n_heads (nope_dim + 4 rope_dim); bytes rows (n_heads (nope_dim + rope_dim) (4 + act) + 4
 * rope_dim). */
#ifndef FL_OP_ROPE_H
#define FL_OP_ROPE_H

#include "op/op_types.h"

typedef struct fl_rope_args {
    const float *x; /* [rows], x_stride apart; [n_heads][nope_dim + rope_dim] */
    int64_t x_stride;
    int32_t x_head_stride, y_head_stride; /* 0 = nope_dim + rope_dim */
    const float *table;                   /* [rows][rope_dim / 2][2]: cos, sin */
    int32_t rows, n_heads;
    int32_t nope_dim; /* 0 for k_pe */
    int32_t rope_dim; /* even */
    float scale;
    void *y; /* [rows], y_stride apart; [n_heads][nope_dim + rope_dim], act */
    int64_t y_stride;
} fl_rope_args;

static inline int32_t fl_rope_head_stride(const fl_rope_args *a, int32_t stride) {
    return stride > 0 ? stride : a->nope_dim + a->rope_dim;
}

fl_err fl_rope_validate(const fl_rope_args *a);
fl_cost fl_rope_cost(const fl_rope_args *a);

#endif
