#include "op/attn_prefill/attn_prefill.h"

#include "op/validate.h"

/* Fast backends pad rows and dimensions to whole tiles and vectors. */
enum { ROW_TILE = 64, DIM_TILE = 64 };

static int64_t round_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

int64_t fl_attn_prefill_state_bytes(int32_t rows, int32_t n_heads, int32_t v_dim) {
    /* o of every row and head, and one vector more for m and l */
    int64_t floats_a_row = round_up(v_dim, DIM_TILE) + DIM_TILE;
    return round_up(rows, ROW_TILE) * n_heads * floats_a_row * (int64_t)sizeof(float);
}

int64_t fl_attn_prefill_scratch_bytes(const fl_attn_prefill_args *a) {
    int64_t k_dim = round_up((int64_t)a->nope_dim + a->rope_dim, DIM_TILE),
            v_dim = round_up(a->v_dim, DIM_TILE);
    return round_up(a->n_keys, FL_ATTN_TILE_TOKENS) * a->n_heads * (k_dim + v_dim) * (int64_t)sizeof(float);
}

fl_err fl_attn_prefill_validate(const fl_attn_prefill_args *a) {
    const char *op = "attn_prefill";
    FL_TRY(fl_need_count(op, "rows", a->rows));
    FL_TRY(fl_need_range(op, "pos", a->pos, 0, INT32_MAX - a->rows));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_need_range(op, "nope_dim", a->nope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "rope_dim", a->rope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "v_dim", a->v_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "n_keys", a->n_keys, 1, FL_ATTN_SPLIT_TOKENS));
    FL_TRY(fl_need_range(op, "key_pos", a->key_pos, 0, INT32_MAX - a->n_keys));
    FL_TRY(fl_need_multiple(op, "key_pos", a->key_pos, FL_ATTN_SPLIT_TOKENS));
    /* Position 0 is the only key that every row sees: it must be in the split that starts the state. */
    if (a->first) FL_TRY(fl_need_range(op, "key_pos of the first split", a->key_pos, 0, 0));
    return FL_ERR_OK;
}

/* Keys of the split that the row at position p sees. */
static int64_t visible_keys(const fl_attn_prefill_args *a, int64_t p) {
    int64_t visible = p - a->key_pos + 1;
    return visible < 0 ? 0 : visible > a->n_keys ? a->n_keys : visible;
}

fl_cost fl_attn_prefill_cost(const fl_attn_prefill_args *a) {
    double pairs = 0, rows = a->rows, heads = a->n_heads, nope = a->nope_dim, rope = a->rope_dim,
           v = a->v_dim;
    for (int32_t r = 0; r < a->rows; r++) pairs += (double)visible_keys(a, (int64_t)a->pos + r);
    double key_bytes = (heads * (nope + v) + rope) * FL_COST_ACT_BYTES;
    double row_bytes = (nope + rope + (a->last ? v : 0)) * FL_COST_ACT_BYTES; /* q and out */
    double state_passes = (a->first ? 0 : 1) + (a->last ? 0 : 1);             /* read, written */
    return (fl_cost){.flops = 2 * pairs * heads * (nope + rope + v),
                     .bytes = a->n_keys * key_bytes +
                              rows * heads * (row_bytes + state_passes * (v + 2) * sizeof(float))};
}
