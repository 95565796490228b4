/* attn_absorbed: attention of few rows (decode, the dense tail, questions on a cached document) over the stored
 * pages, in the latent space. For row r at position p and head h, over the keys t <= p that `view` sees and that are
 * multiples of key_step:
 *   s_t = q[r][h] . [latent[t] | k_pe[t]]  (q pre-scaled: exponents of 2),  out[r][h] = sum softmax2(s)_t latent[t]
 * Keys are read as stored: quantised pages are dequantised on the way, rounded to act or closer to what they stand for
 * (codes multiplied as they are, scales applied to q's and P's side). Work is cut into fixed splits
 * of FL_ATTN_ABSORBED_SPLIT_TOKENS keys at absolute positions, each with its own (m, l, o), merged in index order:
 * threads never change a bit. The split is shorter than attn_prefill's because one decode row must fill all cores; a
 * backend may have longer ones for rows that read enough keys, by the row's position, the view and the heads alone; one
 * that is not deterministic may also go by how many rows share keys.
 * Pages that no row sees are not read. lse (if set) is the log-sum-exp in base 2 (of the rounded weights: exact to
 * 6e-3 for bf16 act); a row that sees no key gets out 0 and lse -INFINITY. Tolerance (relative to max |latent|): 1e-5
 * for f32 act; 2e-2 for bf16 act (P rounded to bf16). Cost: flops 2 (seen pairs) n_heads (2 latent_dim + rope_dim);
 * bytes the keys of each timeline once as stored, rows once. */
#ifndef FL_OP_ATTN_ABSORBED_H
#define FL_OP_ATTN_ABSORBED_H

#include "op/op_types.h"

enum { FL_ATTN_ABSORBED_SPLIT_TOKENS = 512 };

typedef struct fl_attn_absorbed_args {
    const fl_kv_rows *seqs; /* [n_seqs]; rows of different timelines in one call */
    int32_t n_seqs;
    int32_t rows; /* all rows, sum of seqs[].n_rows */
    int32_t n_heads;
    fl_kv_layer kv;
    fl_attn_view view;
    int32_t key_step; /* 0 counts as 1 */
    const void *q;    /* [rows][n_heads][latent_dim + rope_dim] act, pre-scaled, indexed by seqs[].row + i */
    void *out;        /* [rows][n_heads][latent_dim] act */
    float *lse;       /* [rows][n_heads] or NULL */
    void *scratch;    /* fl_attn_absorbed_scratch_bytes */
} fl_attn_absorbed_args;

/* Partial results of all splits, for `rows` rows whose largest position is pos_max. */
int64_t fl_attn_absorbed_scratch_bytes(int32_t rows, int32_t n_heads, int32_t latent_dim, int32_t pos_max);

fl_err fl_attn_absorbed_validate(const fl_attn_absorbed_args *a);
fl_cost fl_attn_absorbed_cost(const fl_attn_absorbed_args *a);

#endif
