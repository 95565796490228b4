/* What the rows of a step attend: the numbers a policy (attn/policy.h) comes to. The model turns them into calls of
 * the attention ops and knows no policy by name. All 0 = every row attends everything before it. */
#ifndef FL_OP_ATTEND_H
#define FL_OP_ATTEND_H

#include "op/op_types.h"

/* What calibration measures beside a step, on the last tile of rows of each document piece: the attention that block
 * lists keep at each alpha of a grid. Sums over rows, by alpha, layer and head: [n_alphas][layers][heads]. */
typedef struct fl_attend_probe {
    int32_t n_alphas;
    const float *log2_alpha; /* [n_alphas] */
    double *kept;            /* sum of 2^(lse of listed keys - lse of all keys) */
    double *bias,
        *weight; /* sum of w log2(mass of the keys not listed / mass of their means) and of w, the share of
                                the mass that is not listed */
    int64_t *listed;  /* blocks of 64 listed in the tiles */
    int64_t *visible; /* [n_alphas][layers] blocks of 64 visible in the tiles, of one head */
    int64_t *rows;    /* [layers] that were measured */
} fl_attend_probe;

typedef struct fl_attend {
    /* Document rows: the near keys of `view`, and of the others those at multiples of anchor_step (0 = none). */
    fl_attn_view view;
    int32_t anchor_step;
    /* Or chosen blocks, `view` being all 0: listed for each tile of rows and head by the means of the blocks, the
     * others attended as one pseudo-key each. */
    bool blocks;
    int32_t block_tokens; /* 64 or 128 */
    int32_t sink_tokens, window_tokens;
    int32_t list_capacity;  /* ids of FL_KV_PAGE_TOKENS-token blocks a tile and head */
    double planned_density; /* share of visible blocks that a list is expected to hold, for costs */
    /* [layers][heads] or NULL: shares of blocks listed whatever they score, for benchmarks of synthetic models */
    const float *density;
    uint64_t random_seed;    /* not 0: the evaluation's control */
    const float *log2_alpha; /* [layers][heads] */
    const float
        *mean_bias; /* [layers][heads], added to a pseudo-key's score: log2(block_tokens) and calibration */
    const bool *dense; /* [layers][heads]: heads that attend everything */
    /* Tail rows attend everything, or (tail_sparse, not with blocks) as document rows do. */
    bool tail_sparse;
    /* Positions: 0 = one rotation for all distances; else keys nearer than this are rotated exactly, farther ones by
     * the step's far tables. */
    int32_t near_tokens;
    const float *temperature; /* [layers] factors of the softmax scale, or NULL */
    bool drop_means;          /* blocks that are not listed are left out */
    fl_attend_probe *probe;   /* or NULL */
    /* Grow by ids listed [layers][heads], visible [layers] (of one head), left out for want of room; or NULL. */
    int64_t *listed, *visible, *overflow;
} fl_attend;

#endif
