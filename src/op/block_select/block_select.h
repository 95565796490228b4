/* block_select: scores of blocks to lists of blocks. For the tile of rows from position p on and head h, of the blocks
 * of block_tokens keys that begin at or before the tile's last row, block j is listed if
 *   it is forced: it begins before sink_tokens, or its last key is less than window_tokens before p (a view's window
 *   of row p touches it), or it does not lie wholly before the tile (the tile's own blocks); or
 *   score[i][h][j] >= max of score[i][h][..] over the blocks wholly before the tile + log2_alpha[h], in exact
 *   arithmetic.
 * With `density` thresholds are not read: of the blocks that are not forced those with the best scores are listed
 * (equal scores: the lower block), ceil(density[h] * n) of them, n being the blocks that begin at or before the tile's
 * last row, in double; below 0 and NaN count as 0, above 1 as 1. This is for benchmarks of models whose scores mean
 * nothing.
 * Listed blocks are written as ids of FL_KV_PAGE_TOKENS-token blocks, ascending: block_tokens / FL_KV_PAGE_TOKENS ids a
 * block, but none that begins behind the tile's last row. A head with dense[h] gets n = -1 and no ids. If more than
 * `capacity` ids would be listed the forced ones and then as many whole blocks as fit stay, best scores first (equal
 * scores: the lower block), and *overflow grows by the ids left out; capacity must hold the forced ones (validated).
 * `random_seed` not 0 is the control of the evaluation: as many blocks as would have been listed, the forced ones the
 * same, the others drawn at random from those that are not forced, by seed, position of the tile and head. A tile's
 * lists depend on that tile alone. Exact, checked bitwise. Cost: bytes scores and lists (planned_blocks) once. */
#ifndef FL_OP_BLOCK_SELECT_H
#define FL_OP_BLOCK_SELECT_H

#include "op/op_types.h"

typedef struct fl_block_select_args {
    int32_t rows, pos; /* multiples of FL_ATTN_LIST_ROWS, up to FL_ATTN_LIST_TOKENS_MAX together */
    int32_t n_heads;
    int32_t block_tokens; /* a multiple of FL_KV_PAGE_TOKENS, at most FL_BLOCK_TOKENS_MAX */
    int32_t n_blocks;     /* of `score`: all that lie wholly before the last tile, or more; may be 0 then */
    const float *score;   /* [rows / FL_ATTN_LIST_ROWS][n_heads][n_blocks], of block_score */
    const float *log2_alpha; /* [n_heads], <= 0; -INFINITY lists every block */
    const bool *dense;       /* [n_heads] or NULL = none */
    int32_t sink_tokens, window_tokens;
    const float *density; /* [n_heads] shares, or NULL = by threshold */
    uint64_t random_seed;
    fl_attn_list list; /* ids and n are written */
    int64_t *overflow; /* grows; or NULL */
    /* Grow by what was done, where it is done (a counting backend lists nothing); both or none. */
    int64_t *listed;  /* [n_heads] ids listed, of a dense head all that its tiles see */
    int64_t *visible; /* ids that the tiles see, of one head */
} fl_block_select_args;

/* Ids that are always listed for one tile: sinks, window and the tile itself; the most that any position of the tile
 * makes of them. */
int32_t fl_block_select_forced(int32_t block_tokens, int32_t sink_tokens, int32_t window_tokens);

/* Adds to `listed` and `visible` what the finished lists hold: for the backends that run on the host. */
void fl_block_select_count(const fl_block_select_args *a);

/* Blocks beside the forced ones that a share lists in the tile at position `pos`, of those that can be chosen. */
int32_t fl_block_select_quota(float share, int32_t block_tokens, int32_t pos);

fl_err fl_block_select_validate(const fl_block_select_args *a);
fl_cost fl_block_select_cost(const fl_block_select_args *a);

#endif
