/* block_mean: means of whole blocks of stored keys, from the pages as stored (contract: quantise, then attend). For
 * block b of block_tokens positions from b * block_tokens on:
 *   latent[b] = 1/n sum of the stored latents, k_pe[b] = 1/n sum of the stored k_pe
 * K and V of every head are linear in the latent, so kv_b of latent[b] is the exact mean of the block's keys and
 * values.
 * Sums in f32, in order of position within a page, then page by page; one rounding to act. Tolerance: 1e-6 relative
 * to the largest input for f32 act, 2^-8 of the result besides for bf16. Cost: flops n_blocks block_tokens (latent_dim
 * + rope_dim); bytes the pages once, the means once. */
#ifndef FL_OP_BLOCK_MEAN_H
#define FL_OP_BLOCK_MEAN_H

#include "op/op_types.h"

typedef struct fl_block_mean_args {
    fl_kv_layer kv;
    const int32_t *pages;    /* page of position p: pages[p / FL_KV_PAGE_TOKENS] */
    int32_t block_tokens;    /* a multiple of FL_KV_PAGE_TOKENS, at most FL_BLOCK_TOKENS_MAX */
    int32_t block, n_blocks; /* blocks [block, block + n_blocks), all whole */
    void *latent;            /* [n_blocks][latent_dim] act */
    void *k_pe;              /* [n_blocks][rope_dim] act */
} fl_block_mean_args;

fl_err fl_block_mean_validate(const fl_block_mean_args *a);
fl_cost fl_block_mean_cost(const fl_block_mean_args *a);

#endif
