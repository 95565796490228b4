#include "op/attn_absorbed/attn_absorbed.h"

#include "op/kv_format.h"
#include "op/validate.h"

enum { DIM_TILE = 16 };

int64_t fl_attn_absorbed_scratch_bytes(int32_t rows, int32_t n_heads, int32_t latent_dim, int32_t pos_max) {
    int64_t splits = pos_max / FL_ATTN_ABSORBED_SPLIT_TOKENS + 1;
    /* o of a split, rounded up to whole vectors, and one vector more for m and l */
    int64_t floats = ((int64_t)latent_dim + DIM_TILE - 1) / DIM_TILE * DIM_TILE + DIM_TILE;
    return rows * splits * n_heads * floats * (int64_t)sizeof(float);
}

fl_err fl_attn_absorbed_validate(const fl_attn_absorbed_args *a) {
    const char *op = "attn_absorbed";
    int64_t covered = 0;
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_need_range(op, "rows", a->rows, 1, INT32_MAX / a->n_heads));
    FL_TRY(fl_kv_layer_validate(op, &a->kv));
    FL_TRY(fl_kv_rows_validate(op, a->seqs, a->n_seqs, a->rows));
    for (int32_t i = 0; i < a->n_seqs; i++) covered += a->seqs[i].n_rows;
    return fl_need_range(op, "rows (sum of seqs[].n_rows)", a->rows, covered, covered);
}

fl_cost fl_attn_absorbed_cost(const fl_attn_absorbed_args *a) {
    double pairs = 0, keys = 0, rows = a->rows, heads = a->n_heads;
    double latent = a->kv.latent_dim, rope = a->kv.rope_dim;
    for (int32_t i = 0; i < a->n_seqs; i++) {
        double n = a->seqs[i].n_rows, pos = a->seqs[i].pos;
        keys += pos + n;
        pairs += n * (pos + 1) + n * (n - 1) / 2; /* row j sees pos + j + 1 keys */
    }
    double row_bytes = (2 * latent + rope) * FL_COST_ACT_BYTES + (a->lse ? sizeof(float) : 0);
    return (fl_cost){.flops = 2 * pairs * heads * (2 * latent + rope),
                     .bytes = keys * fl_kv_token_bytes(&a->kv) + rows * heads * row_bytes};
}
