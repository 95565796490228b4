/* embed: x[r][:] = table[ids[r]][:], widened to f32: the start of the residual stream. Exact, so checked
 * bitwise. Cost: bytes rows (dim (table + 4) + 4). */
#ifndef FL_OP_EMBED_H
#define FL_OP_EMBED_H

#include "op/op_types.h"

typedef struct fl_embed_args {
    const int32_t *ids; /* [rows], each 0 <= id < n_vocab */
    const void
        *table; /* [n_vocab][dim] of table_dtype (F32, BF16 or F16), any alignment: mapped from the file */
    fl_dtype table_dtype;
    int32_t rows, dim, n_vocab;
    float *x; /* [rows][dim] */
} fl_embed_args;

fl_err fl_embed_validate_ids(const fl_embed_args *a);
fl_err fl_embed_validate(const fl_embed_args *a);
fl_cost fl_embed_cost(const fl_embed_args *a);

#endif
