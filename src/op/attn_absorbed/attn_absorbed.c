#include "op/attn_absorbed/attn_absorbed.h"

#include "op/attn_absorbed/attn_absorbed_keys.h"
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
    FL_TRY(fl_attn_view_validate(op, &a->view));
    FL_TRY(fl_need_range(op, "key_step", a->key_step, 0, INT32_MAX));
    FL_TRY(fl_kv_rows_validate(op, a->seqs, a->n_seqs, a->rows));
    for (int32_t i = 0; i < a->n_seqs; i++) covered += a->seqs[i].n_rows;
    return fl_need_range(op, "rows (sum of seqs[].n_rows)", a->rows, covered, covered);
}

/* Multiples of `step` in [begin, end). */
static double keys_between(int64_t begin, int64_t end, int64_t step) {
    int64_t before_end = (end + step - 1) / step, before_begin = (begin + step - 1) / step;
    return begin < end ? (double)(before_end - before_begin) : 0;
}

/* The (row, key) pairs of a timeline, and its keys that some row sees: runs only move up, so what a row adds to those
 * of the rows before it begins where theirs end. Sinks that the first row sees near are among its other keys. */
static void count_keys(const fl_attn_absorbed_args *a, const fl_kv_rows *seq, double *pairs, double *keys) {
    int32_t step = fl_absorbed_step(a), covered[2] = {0, 0};
    fl_absorbed_keys first = fl_absorbed_keys_of(&a->view, seq->pos);
    for (int32_t row = 0; row < seq->n_rows; row++) {
        fl_absorbed_keys seen = fl_absorbed_keys_of(&a->view, seq->pos + row);
        for (int i = 0; i < 2; i++) {
            int32_t begin = seen.begin[i], end = seen.end[i];
            *pairs += keys_between(begin, end, step);
            if (begin < covered[i]) begin = covered[i];
            if (i == 0 && end > first.begin[1]) end = first.begin[1];
            *keys += keys_between(begin, end, step);
            covered[i] = seen.end[i] > covered[i] ? seen.end[i] : covered[i];
        }
    }
}

fl_cost fl_attn_absorbed_cost(const fl_attn_absorbed_args *a) {
    double pairs = 0, keys = 0, rows = a->rows, heads = a->n_heads;
    double latent = a->kv.latent_dim, rope = a->kv.rope_dim;
    for (int32_t i = 0; i < a->n_seqs; i++) count_keys(a, &a->seqs[i], &pairs, &keys);
    double row_bytes = (2 * latent + rope) * FL_COST_ACT_BYTES + (a->lse ? sizeof(float) : 0);
    return (fl_cost){.flops = 2 * pairs * heads * (2 * latent + rope),
                     .bytes = keys * fl_kv_token_bytes(&a->kv) + rows * heads * row_bytes};
}
