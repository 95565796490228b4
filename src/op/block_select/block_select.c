#include "op/block_select/block_select.h"

#include <math.h>

#include "op/validate.h"

/* Blocks that begin before `tokens`. */
static int64_t blocks_before(int64_t tokens, int32_t block_tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
}

/* Tokens of the window's blocks and the tile's own, when `inside` tokens of a block lie before the tile. */
static int64_t near_tokens(int32_t block_tokens, int64_t window_tokens, int32_t inside) {
    int64_t reach = window_tokens - 1 - inside; /* of the last whole block's end, and so many tokens on */
    int64_t window = reach > 0 ? blocks_before(reach, block_tokens) : 0;
    return window * block_tokens + inside + FL_ATTN_LIST_ROWS;
}

int32_t fl_block_select_forced(int32_t block_tokens, int32_t sink_tokens, int32_t window_tokens) {
    int64_t most = 0;
    int32_t step = block_tokens % FL_ATTN_LIST_ROWS == 0 ? FL_ATTN_LIST_ROWS : FL_KV_PAGE_TOKENS;
    for (int32_t inside = 0; inside < block_tokens; inside += step) {
        int64_t tokens = near_tokens(block_tokens, window_tokens, inside);
        if (tokens > most) most = tokens;
    }
    most += blocks_before(sink_tokens, block_tokens) * block_tokens;
    return (int32_t)(most / FL_KV_PAGE_TOKENS);
}

int32_t fl_block_select_quota(float share, int32_t block_tokens, int32_t pos) {
    int32_t begun = (pos + FL_ATTN_LIST_ROWS - 1) / block_tokens + 1;
    return (int32_t)ceil((double)fminf(fmaxf(share, 0), 1) * begun);
}

fl_err fl_block_select_validate(const fl_block_select_args *a) {
    const char *op = "block_select";
    FL_TRY(fl_list_rows_validate(op, a->rows, a->pos));
    FL_TRY(fl_need_range(op, "n_heads", a->n_heads, 1, FL_OP_HEADS_MAX));
    FL_TRY(fl_block_tokens_validate(op, a->block_tokens));
    int32_t visible = (a->pos + a->rows - FL_ATTN_LIST_ROWS) / a->block_tokens;
    FL_TRY(fl_need_range(op, "n_blocks", a->n_blocks, visible, FL_ATTN_LIST_TOKENS_MAX / a->block_tokens));
    FL_TRY(fl_need_range(op, "sink_tokens", a->sink_tokens, 0, INT32_MAX));
    FL_TRY(fl_need_range(op, "window_tokens", a->window_tokens, 0, INT32_MAX));
    int32_t forced = fl_block_select_forced(a->block_tokens, a->sink_tokens, a->window_tokens);
    int32_t all = (a->pos + a->rows) / FL_KV_PAGE_TOKENS;
    return fl_need_range(op, "list.capacity", a->list.capacity, forced < all ? forced : all, INT32_MAX);
}

fl_cost fl_block_select_cost(const fl_block_select_args *a) {
    int32_t tiles = a->rows / FL_ATTN_LIST_ROWS;
    double lists = (double)a->n_heads * tiles;
    double score_bytes = (double)a->n_blocks * sizeof(float),
           id_bytes = a->list.planned_blocks * sizeof(uint16_t);
    return (fl_cost){.bytes = lists * (score_bytes + id_bytes + sizeof(int32_t))};
}

void fl_block_select_count(const fl_block_select_args *a) {
    if (!a->listed) return;
    for (int32_t i = 0; i < a->rows / FL_ATTN_LIST_ROWS * a->n_heads; i++) {
        int32_t end = a->pos + (i / a->n_heads + 1) * FL_ATTN_LIST_ROWS;
        a->listed[i % a->n_heads] += a->list.n[i] < 0 ? end / FL_KV_PAGE_TOKENS : a->list.n[i];
        if (i % a->n_heads == 0) *a->visible += end / FL_KV_PAGE_TOKENS;
    }
}
