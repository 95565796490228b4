/* weight_pack: dequantises (part of) a checkpoint matrix and stores it in the backend's layout, once, at
 * load: W[i][j] = src[i][j] * scale_inv[(row0 + i) / block_rows][j / block_cols] * col_scale[j] and, with
 * `transpose`, the packed matrix is W^T. The product is formed in f32 and rounded once to the packed format
 * (f32 on reference, bf16 elsewhere). Several parts may be packed into one weight at different n_offset (gate
 * | up, q_a | kv_a); rows not covered stay as they are, so the caller hands in zeroed memory. Checked bitwise
 * through matmul with unit vectors. Cost: one flop an element for each of the two scales; bytes rows cols
 * (src + w). */
#ifndef FL_OP_WEIGHT_PACK_H
#define FL_OP_WEIGHT_PACK_H

#include "op/op_types.h"

typedef struct fl_weight_pack_args {
    const void *src; /* first row of the part, [rows][cols] of src_dtype, any alignment */
    fl_dtype src_dtype;
    int32_t rows, cols;
    const float
        *scale_inv; /* block scales of the whole tensor, [ceil][scale_stride], any alignment; NULL = none */
    int32_t scale_stride; /* scale columns */
    int32_t block_rows, block_cols;
    int32_t row0;           /* index of the first row in the whole tensor, for the scales */
    const float *col_scale; /* [cols] or NULL */
    bool transpose;         /* false: n = rows, k = cols; true: n = cols, k = rows */
    int32_t n_offset;       /* first n of the part in *w */
    fl_weight *w;           /* w->n, w->k and w->data set by the caller */
} fl_weight_pack_args;

fl_err fl_weight_pack_validate(const fl_weight_pack_args *a);
fl_cost fl_weight_pack_cost(const fl_weight_pack_args *a);

#endif
