#include "op/block_score/block_score.h"

#include "backend/backend.h"
#include "op/validate.h"

/* Fast backends pad blocks to whole vectors; no vector group is wider. */
enum { BLOCK_TILE = 64 };

int64_t fl_block_score_scratch_bytes(const fl_block_score_args *a) {
    int64_t blocks = ((int64_t)a->n_blocks + BLOCK_TILE - 1) / BLOCK_TILE * BLOCK_TILE;
    return blocks * a->n_heads * ((int64_t)a->nope_dim + a->rope_dim) * (int64_t)sizeof(float);
}

bool fl_block_score_by_codes(const fl_backend *be, const fl_block_score_args *a) {
    int32_t dim = a->nope_dim + a->rope_dim;
    return be->w8a8 && dim % FL_BLOCK_SCORE_CODES_STEP == 0 && dim <= FL_BLOCK_SCORE_CODES_MAX;
}

fl_err fl_block_score_validate(const fl_block_score_args *a) {
    const char *op = "block_score";
    FL_TRY(fl_list_rows_validate(op, a->rows, a->pos));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_need_range(op, "nope_dim", a->nope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "rope_dim", a->rope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "v_dim", a->v_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_block_tokens_validate(op, a->block_tokens));
    return fl_need_range(op, "n_blocks", a->n_blocks, 1, FL_ATTN_LIST_TOKENS_MAX / a->block_tokens);
}

int32_t fl_block_score_visible(const fl_block_score_args *a, int32_t tile) {
    int32_t before = (a->pos + tile * FL_ATTN_LIST_ROWS) / a->block_tokens;
    return before < a->n_blocks ? before : a->n_blocks;
}

fl_cost fl_block_score_cost(const fl_block_score_args *a) {
    double pairs = 0, rows = a->rows, heads = a->n_heads, blocks = a->n_blocks, nope = a->nope_dim,
           rope = a->rope_dim, tiles = rows / FL_ATTN_LIST_ROWS;
    for (int32_t i = 0; i < a->rows / FL_ATTN_LIST_ROWS; i++)
        pairs += (double)FL_ATTN_LIST_ROWS * fl_block_score_visible(a, i);
    double act_elements = rows * heads * (nope + rope) + blocks * (heads * nope + rope);
    return (fl_cost){.flops = 2 * pairs * heads * (nope + rope),
                     .bytes = act_elements * FL_COST_ACT_BYTES + tiles * heads * blocks * sizeof(float)};
}
