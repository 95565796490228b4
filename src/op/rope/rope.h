/* rope: y = scale * [x_nope | R(pos) x_pe] per row and head, rounded to act once. Interleaved pairs: for i <
 * rope_dim/2 y[2i] = x[2i] c - x[2i+1] s,  y[2i+1] = x[2i] s + x[2i+1] c,  c = table[r][i].cos, s =
 * table[r][i].sin. The table holds one rotation a row (made in double by the engine: positions and YaRN are
 * its business). Rotated parts may go to another place than the rest, where absorbed queries take them. For
 * queries `scale` is softmax_scale * log2(e): all attention scores in firstlight are exponents of 2. Keys are
 * rotated by kv_write. Tolerance: 2e-6 relative to the pair's norm for f32, one bf16 rounding (2^-8) for bf16. Cost:
 * flops rows n_heads (nope_dim + 4 rope_dim); bytes rows (n_heads (nope_dim + rope_dim) (4 + act) + 4
 * rope_dim). */
#ifndef FL_OP_ROPE_H
#define FL_OP_ROPE_H

#include "op/op_types.h"

typedef struct fl_rope_args {
    const float *x; /* [rows], x_stride apart; [n_heads][nope_dim + rope_dim] */
    int64_t x_stride;
    const float *table; /* [rows][rope_dim / 2][2]: cos, sin */
    int32_t rows, n_heads;
    int32_t nope_dim, rope_dim; /* rope_dim even */
    float scale;
    void *y; /* [rows], y_stride apart; [n_heads][nope_dim + rope_dim], act */
    int64_t y_stride;
    /* NULL, or where rotated parts go, while y keeps what it held in their places: [rows], y_pe_stride apart;
     * [n_heads], y_pe_head_stride apart; [rope_dim], act */
    void *y_pe;
    int64_t y_pe_stride;
    int32_t y_pe_head_stride;
} fl_rope_args;

/* The same with y_pe inside y if there was none. */
static inline fl_rope_args fl_rope_apart(const fl_rope_args *a, fl_dtype act) {
    fl_rope_args apart = *a;
    if (a->y_pe) return apart;
    apart.y_pe = (uint8_t *)a->y + a->nope_dim * (int64_t)fl_dtype_bytes(act);
    apart.y_pe_stride = a->y_stride;
    apart.y_pe_head_stride = a->nope_dim + a->rope_dim;
    return apart;
}

fl_err fl_rope_validate(const fl_rope_args *a);
fl_cost fl_rope_cost(const fl_rope_args *a);

#endif
