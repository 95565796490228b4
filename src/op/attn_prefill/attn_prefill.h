/* attn_prefill: non-absorbed attention of many rows over some keys: the one kernel of every document pattern. For row
 * r at position p = pos + r and head h, over the keys t of the call that the row sees:
 *   s_t = q[r][h] . [k_nope[t][h] | k_pe[t]] + key_bias[h]   (q carries softmax_scale * log2(e): exponents of 2)
 *   m = max s_t, l = sum 2^(s_t - m), o = sum 2^(s_t - m) v[t][h]
 * and the running (m, l, o) of earlier calls is merged as M = max(m, m'), l = l 2^(m - M) + l' 2^(m' - M), o alike.
 * `first` starts the running state, `last` writes out = o / l, or codes of that (codes.h), and, if wanted, lse = m +
 * log2(l).
 *
 * Which keys. Key i of the call lies at position key_pos + i * key_step.
 *   no list        keys seen by `view` (op_types.h)
 *   list, keys     keys seen by `view` whose block is listed for the row's tile and head, all of them in a dense head
 *   list, means    key i is the mean of the key_step tokens from its position on. Seen iff the whole block lies
 *                  before the row's tile, is not listed and the head is not dense. key_bias holds log2(key_step)
 *                  then, since one pseudo-key stands for that many tokens. `view` is not looked at. A block of
 *                  more than one page is listed if its first page is.
 * A tile of keys that no row of a row tile sees costs nothing.
 *
 * Two calls at once. `then` is a call over the same rows, heads and state that would be made right behind this one,
 * and is made here: the bits are those of two calls. A backend may keep the running state at hand between them.
 *
 * Order and bits. Keys are taken in tiles of FL_ATTN_TILE_TOKENS in order, calls in the order made. Key 0 of the
 * first call is position 0: its score is where each row's exponents start, whether the row sees it or not. So a row's
 * bits depend on its position and on the keys it sees only, not on the rows beside it or on how prefill was chunked,
 * and lists or ranges that cover everything give the bits of full attention. Instead of the maximum a backend may
 * take any m that a row's own keys determine and that keeps 2^(s_t - m) in range. A call in which a row sees nothing
 * changes no bit of it. A row should have seen a key after the last call, its own for instance; one that has not gets
 * out = 0 and lse = -INFINITY, which attn_merge counts as nothing.
 *
 * Tolerance (per output, relative to max |v| of the row's head): 1e-5 for f32 act; 2e-2 for bf16 act, where P is
 * rounded to bf16 before PV (2^-9 a weight) and the output once more. lse: 1e-4 for f32 act, 1e-2 for bf16. Head
 * shapes: 192/128, 96/64 (nope + rope / v) fast on avx512; others refused by name there; reference takes all. Cost:
 * flops 2 (seen pairs) n_heads (nope_dim + rope_dim + v_dim), with a list as if its planned_blocks were spread evenly
 * over what a row sees (the counting backend has no ids); bytes each key and row once, and the state read unless
 * `first`, written unless `last`. With `then` the cost of both, but for the state between them; scratch for either. */
#ifndef FL_OP_ATTN_PREFILL_H
#define FL_OP_ATTN_PREFILL_H

#include "op/codes.h"

enum { FL_ATTN_SPLIT_TOKENS = 4096, FL_ATTN_TILE_TOKENS = 64 };

typedef struct fl_attn_prefill_args {
    int32_t rows,
        pos; /* row r is at position pos + r; any pos, with a list a multiple of FL_ATTN_LIST_ROWS */
    int32_t n_heads, nope_dim, rope_dim, v_dim;
    const void *q;    /* [rows][n_heads][nope_dim + rope_dim] act, pre-scaled */
    const void *kv;   /* [n_keys][n_heads][nope_dim + v_dim] act: k_nope | v of each head (output of kv_b) */
    const void *k_pe; /* [n_keys][rope_dim] act */
    int32_t
        key_pos; /* position of key 0; with key_step 1 a multiple of FL_ATTN_TILE_TOKENS; 0 when `first` */
    int32_t key_step; /* positions from one key to the next; 0 counts as 1; of means a multiple of
                         FL_KV_PAGE_TOKENS that divides key_pos */
    int32_t n_keys;   /* at most the backend's split_tokens; rows that lie before a key do not see it */
    fl_attn_view view;
    const fl_attn_list *list; /* NULL = none; tile i holds rows [i * FL_ATTN_LIST_ROWS, ...) */
    bool means;               /* with a list: keys are means of blocks that are not listed */
    const float *key_bias;    /* [n_heads] or NULL = 0 */
    bool first, last;
    void *state; /* running m, l, o, fl_attn_prefill_state_bytes; layout private to the backend */
    void *out;   /* [rows][n_heads][v_dim] act, written when `last` */
    fl_codes
        out_codes; /* of out as rows of n_heads * v_dim, in its place; v_dim FL_SCALE_BLOCK; w8a8 backends */
    float *lse;    /* [rows][n_heads] in base 2, written when `last`; or NULL */
    void *scratch; /* fl_attn_prefill_scratch_bytes: repacked K and V of the call, and what each row sees */
    const struct fl_attn_prefill_args *then; /* NULL, or the call behind this one */
} fl_attn_prefill_args;

/* Sizes that hold for every backend; 64-byte aligned buffers. */
int64_t fl_attn_prefill_state_bytes(int32_t rows, int32_t n_heads, int32_t v_dim);
int64_t fl_attn_prefill_scratch_bytes(const fl_attn_prefill_args *a);

fl_err fl_attn_prefill_validate(const fl_attn_prefill_args *a);
fl_cost fl_attn_prefill_cost(const fl_attn_prefill_args *a);

/* Host backends take FL_ATTN_SPLIT_TOKENS keys a call. */
fl_err fl_attn_prefill_need_split(const fl_attn_prefill_args *a);

/* Whether row r sees key i in head h by the rules above: the definition, for the reference and for tests. */
bool fl_attn_prefill_sees(const fl_attn_prefill_args *a, int32_t r, int32_t h, int32_t i);

#endif
