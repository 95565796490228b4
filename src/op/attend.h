/* What the rows of a step attend: the numbers a policy (attn/policy.h) comes to. The model turns them into calls of the
 * attention ops and knows no policy by name. All 0 = every row attends everything before it. */
#ifndef FL_OP_ATTEND_H
#define FL_OP_ATTEND_H

#include "op/op_types.h"

typedef struct fl_attend {
    /* Document rows: the near keys of `view`, and of the others those at multiples of anchor_step (0 = none). */
    fl_attn_view view;
    int32_t anchor_step;
    /* Or chosen blocks, `view` being all 0: listed for each tile of rows and head by the means of the blocks, the others
     * attended as one pseudo-key each. */
    bool blocks;
    int32_t block_tokens; /* 64 or 128 */
    int32_t sink_tokens, window_tokens;
    int32_t list_capacity;   /* ids of FL_KV_PAGE_TOKENS-token blocks a tile and head */
    double planned_density;  /* share of visible blocks that a list is expected to hold, for costs */
    uint64_t random_seed;    /* not 0: the evaluation's control */
    const float *log2_alpha; /* [layers][heads] */
    const float
        *mean_bias; /* [layers][heads], added to a pseudo-key's score: log2(block_tokens) and calibration */
    const bool *dense; /* [layers][heads]: heads that attend everything */
    /* Tail rows attend everything, or (tail_sparse, not with blocks) as document rows do. */
    bool tail_sparse;
    /* Positions: 0 = one rotation for all distances; else keys nearer than this are rotated exactly, farther ones by the
     * step's far tables. */
    int32_t near_tokens;
    const float *temperature;             /* [layers] factors of the softmax scale, or NULL */
    int64_t *listed, *visible, *overflow; /* grow by ids listed, ids visible, ids left out; or NULL */
} fl_attend;

#endif
