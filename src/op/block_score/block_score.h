/* block_score: how much each tile of rows wants each block, by head, from the blocks' means. For tile i (rows [i *
 * FL_ATTN_LIST_ROWS, ...) of the call), head h and block j of block_tokens keys:
 *   score[i][h][j] = log2 sum over the tile's rows r of 2^(q[r][h] . [k_nope[j][h] | k_pe[j]])
 * if the whole block lies before the tile, else -INFINITY (such blocks are always attended). q carries softmax_scale
 * * log2(e). A score depends on its tile, head and block alone, bit by bit: so do the order of its sum and what its
 * exponents stand from, which keeps them finite whatever the scores are. Rows: whole tiles only. After FlashPrefill
 * V2's selection rule (mean keys, 128-row tiles). Tolerance: 1e-4 absolute for f32 act, 2e-2 for bf16. nope_dim and
 * rope_dim even on avx512; others refused by name there. Cost: flops 2 (tile rows x visible blocks) n_heads (nope_dim +
 * rope_dim); bytes q, means and scores once.
 *
 * By codes, on backends with w8a8 where nope_dim + rope_dim is a multiple of 32 and at most 192; other heads as above
 * there too. A group of codes.h, as wide as it is, are the dimensions of a mean [k_nope[j][h] | k_pe[j]], with scale
 * k[j][h], and all q of a tile's rows and head, with scale t[i][h]. With the codes' exact products
 *   score[i][h][j] = log2 sum over the tile's rows r of 2^((code_q[r][h] . code_k[j][h]) k[j][h] t[i][h])
 * One scale does for a tile: codes keep four bits of all that is no less than 2^-14.8 of its largest value. Only rows
 * that much smaller lose more by it, and they score near 0 for every block, before and after.
 * Tolerance beside the formula: 2^-10 of |q| |k|, the longest of a tile's rows and the mean in rounded values (the
 * matrix units of fp8 keep about 13 bits of a sum, see matmul.h), and 1e-3. On cuda q is 16-byte aligned then. */
#ifndef FL_OP_BLOCK_SCORE_H
#define FL_OP_BLOCK_SCORE_H

#include "op/op_types.h"

typedef struct fl_block_score_args {
    int32_t rows, pos; /* multiples of FL_ATTN_LIST_ROWS, up to FL_ATTN_LIST_TOKENS_MAX together */
    int32_t n_heads, nope_dim, rope_dim, v_dim;
    const void *q;    /* [rows][n_heads][nope_dim + rope_dim] act, pre-scaled */
    const void *kv;   /* [n_blocks][n_heads][nope_dim + v_dim] act: kv_b of the mean latents; v is not read */
    const void *k_pe; /* [n_blocks][rope_dim] act: mean k_pe */
    int32_t block_tokens; /* a multiple of FL_KV_PAGE_TOKENS, at most FL_BLOCK_TOKENS_MAX */
    int32_t n_blocks;     /* from block 0 on; at least 1 */
    float *score;         /* [rows / FL_ATTN_LIST_ROWS][n_heads][n_blocks] */
    void *scratch;        /* fl_block_score_scratch_bytes, 64-byte aligned */
} fl_block_score_args;

/* Dimensions of heads that are scored by codes: multiples of, and at most. */
enum { FL_BLOCK_SCORE_CODES_STEP = 32, FL_BLOCK_SCORE_CODES_MAX = 192 };

bool fl_block_score_by_codes(const fl_backend *be, const fl_block_score_args *a);

int64_t fl_block_score_scratch_bytes(const fl_block_score_args *a);
fl_err fl_block_score_validate(const fl_block_score_args *a);
fl_cost fl_block_score_cost(const fl_block_score_args *a);

/* Blocks that lie wholly before tile `tile` of the call: its finite scores. */
int32_t fl_block_score_visible(const fl_block_score_args *a, int32_t tile);

#endif
