/* attn_merge: attention over disjoint sets of keys, joined: out = sum_i w_i out_i with w_i = 2^(lse_i - M) / sum_j
 * 2^(lse_j - M), M = max lse. A part whose lse is -INFINITY saw nothing and counts 0 (its out is not read); if all
 * did, out = 0 and lse = -INFINITY. Parts in
 * index order, so the bits depend on the row alone. lse (if wanted) = M + log2 sum. Tolerance: 1e-6 of max |out_i|
 * for f32 act, 2^-8 for bf16. Cost: flops 2 n_parts rows n_heads dim; bytes parts and result once. */
#ifndef FL_OP_ATTN_MERGE_H
#define FL_OP_ATTN_MERGE_H

#include "op/op_types.h"

enum { FL_ATTN_MERGE_PARTS_MAX = 8 };

typedef struct fl_attn_merge_args {
    int32_t n_parts, rows, n_heads, dim;
    const void *part[FL_ATTN_MERGE_PARTS_MAX];      /* [rows][n_heads][dim] act */
    const float *part_lse[FL_ATTN_MERGE_PARTS_MAX]; /* [rows][n_heads] in base 2 */
    void *out;                                      /* [rows][n_heads][dim] act; may be part[0] */
    float *lse;                                     /* [rows][n_heads] or NULL; may be part_lse[0] */
} fl_attn_merge_args;

fl_err fl_attn_merge_validate(const fl_attn_merge_args *a);
fl_cost fl_attn_merge_cost(const fl_attn_merge_args *a);

#endif
