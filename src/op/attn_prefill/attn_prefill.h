/* attn_prefill: non-absorbed causal attention of many rows over one KV split (DESIGN 5.1: fixed splits,
 * merged in index order). For row r at position p = pos + r and head h, over the split's keys t with t <= p:
 *   s_t = q[r][h] . [k_nope[t][h] | k_pe[t]]      (q carries softmax_scale * log2(e): scores are exponents of
 * 2) m = max s_t, l = sum 2^(s_t - m), o = sum 2^(s_t - m) v[t][h] and the running (m, l, o) of earlier
 * splits is merged as M = max(m, m'), l = l 2^(m - M) + l' 2^(m' - M), o alike. `first` starts the running
 * state, `last` writes out = o / l. Keys are taken in fixed tiles of FL_ATTN_TILE_TOKENS aligned to absolute
 * positions with an online softmax inside the split, so a row's bits depend on its position only, not on rows
 * beside it or how prefill was chunked. Every row sees at least key 0, so l > 0 after the last split.
 * Instead of the maximum a backend may take any m that its own keys determine and that keeps 2^(s_t - m) in range.
 * Tolerance (per output, relative to max |v| of the row's head): 1e-5 for f32 act; 2e-2 for bf16 act, where P
 * is rounded to bf16 before PV (2^-9 a weight) and the output once more. Head shapes: 192/128, 96/64 (nope +
 * rope / v) fast on avx512; others refused by name there; reference takes all. Cost: flops 2 (visible pairs)
 * n_heads (nope_dim
 * + rope_dim + v_dim); bytes each key and row once, and the state read unless `first`, written unless `last`.
 */
#ifndef FL_OP_ATTN_PREFILL_H
#define FL_OP_ATTN_PREFILL_H

#include "op/op_types.h"

enum { FL_ATTN_SPLIT_TOKENS = 4096, FL_ATTN_TILE_TOKENS = 64 };

typedef struct fl_attn_prefill_args {
    int32_t rows, pos; /* row r is at position pos + r; any pos */
    int32_t n_heads, nope_dim, rope_dim, v_dim;
    const void *q;    /* [rows][n_heads][nope_dim + rope_dim] act, pre-scaled */
    const void *kv;   /* [n_keys][n_heads][nope_dim + v_dim] act: k_nope | v of each head (output of kv_b) */
    const void *k_pe; /* [n_keys][rope_dim] act */
    int32_t key_pos;  /* position of key 0 here; multiple of FL_ATTN_SPLIT_TOKENS */
    int32_t n_keys;   /* 1..FL_ATTN_SPLIT_TOKENS; rows that lie before a key do not see it */
    bool first, last;
    void *state;   /* running m, l, o, fl_attn_prefill_state_bytes; layout private to the backend */
    void *out;     /* [rows][n_heads][v_dim] act, written when `last` */
    void *scratch; /* fl_attn_prefill_scratch_bytes: repacked K and V of the split */
} fl_attn_prefill_args;

/* Sizes that hold for every backend; 64-byte aligned buffers. */
int64_t fl_attn_prefill_state_bytes(int32_t rows, int32_t n_heads, int32_t v_dim);
int64_t fl_attn_prefill_scratch_bytes(const fl_attn_prefill_args *a);

fl_err fl_attn_prefill_validate(const fl_attn_prefill_args *a);
fl_cost fl_attn_prefill_cost(const fl_attn_prefill_args *a);

#endif
