#include "op/embed/embed.h"

#include "op/validate.h"

enum { VOCAB_MAX = 1 << 24 };

fl_err fl_embed_validate(const fl_embed_args *a) {
    const char *op = "embed";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "dim", a->dim, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_need_range(op, "n_vocab", a->n_vocab, 1, VOCAB_MAX));
    if (a->table_dtype == FL_DTYPE_F32 || a->table_dtype == FL_DTYPE_BF16 || a->table_dtype == FL_DTYPE_F16)
        return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "embed: table_dtype is %d, must be F32, BF16 or F16",
                   (int)a->table_dtype);
}

fl_err fl_embed_validate_ids(const fl_embed_args *a) {
    for (int32_t r = 0; r < a->rows; r++)
        FL_TRY(fl_need_range("embed", "ids[]", a->ids[r], 0, a->n_vocab - 1));
    return FL_ERR_OK;
}

fl_cost fl_embed_cost(const fl_embed_args *a) {
    double entry_bytes = (double)fl_dtype_bytes(a->table_dtype) + sizeof(float);
    return (fl_cost){.flops = 0, .bytes = (double)a->rows * (a->dim * entry_bytes + sizeof(int32_t))};
}
