/* The cost model: the forward pass run on the counting backend. The memory reserved at start, the guard, predicted cost
 * and `inspect --memory` all come from here, so they cannot disagree with what a step does. */
#ifndef FL_PLAN_DRY_RUN_H
#define FL_PLAN_DRY_RUN_H

#include "kv/kv_pool.h"
#include "model/graph.h"

typedef struct fl_dry_run fl_dry_run;

/* The rows of a step that matter for its cost. */
typedef struct fl_dry_rows {
    int32_t document_rows, document_pos;
    int32_t tail_rows, tail_pos;
    int32_t decode_rows, decode_pos; /* one row of each of so many requests, all at this position */
    int32_t n_logits;
} fl_dry_rows;

typedef struct fl_dry_cost {
    int64_t scratch_bytes; /* high-water mark of the step's arena */
    int64_t held_bytes;    /* what of it is in use between two layers */
    fl_count ops;          /* FLOPs and bytes, in all and an op */
} fl_dry_cost;

/* A model's KV in a format, with the format's usual groups and no outliers. */
fl_kv_shape fl_kv_shape_of_config(const fl_config *config, fl_kv_format format);

/* For a backend with the formats of `like`, rows that attend as `attend` says (borrowed; NULL = everything). On success
 * the caller owns *out. */
fl_err fl_dry_run_open(const fl_config *config, const fl_backend *like, const fl_kv_shape *kv,
                       const fl_attend *attend, fl_dry_run **out);
void fl_dry_run_close(fl_dry_run *dry);

int64_t fl_dry_run_weights_bytes(const fl_dry_run *dry);

/* Of the routed experts of all layers; 0 without any. */
int64_t fl_dry_run_expert_bytes(const fl_dry_run *dry);

/* Whether a device may keep a step of so many FLOPs as a recording of a prompt (fl_graph_wants), which is *piece. */
bool fl_dry_run_wants_graph(const fl_dry_run *dry, const fl_dry_rows *rows, double flops,
                            fl_graph_piece *piece);

/* Blocks of a prompt of so many tokens, and bytes of the means of them that its steps keep (model/kept_means.h); 0
 * without block lists. */
int32_t fl_dry_run_kept_blocks(const fl_dry_run *dry, int64_t ctx_tokens);
int64_t fl_dry_run_kept_bytes(const fl_dry_run *dry, const fl_kv_shape *kv, int64_t ctx_tokens);

/* The rows that this recording has: those of the piece's bucket. */
fl_dry_rows fl_dry_run_bucket(const fl_dry_run *dry, const fl_graph_piece *piece, int32_t n_logits);

/* Document rows come in multiples of it (fl_policy_tile_rows). */
int32_t fl_dry_run_tile_rows(const fl_dry_run *dry);

/* decode_rows: FL_DECODE_ROWS_MAX at most. */
fl_err fl_dry_run_step(fl_dry_run *dry, const fl_dry_rows *rows, fl_dry_cost *out);

/* The same for any pieces (op_types.h; pages are not looked at), the n_document document pieces first. */
typedef struct fl_dry_pieces {
    const fl_kv_rows *seqs; /* [n_seqs] in row order */
    int32_t n_seqs, n_document;
    int32_t n_logits;
} fl_dry_pieces;

fl_err fl_dry_run_pieces(fl_dry_run *dry, const fl_dry_pieces *pieces, fl_dry_cost *out);

/* The arena's bytes of such a step and nothing else: costs are not counted, which takes a step of many rows a thousand
 * times as long. */
typedef struct fl_dry_scratch {
    int64_t peak_bytes, held_bytes; /* as in fl_dry_cost */
} fl_dry_scratch;
fl_err fl_dry_run_scratch(fl_dry_run *dry, const fl_dry_rows *rows, fl_dry_scratch *out);

void fl_count_add(fl_count *sum, const fl_count *more);
void fl_count_add_times(fl_count *sum, const fl_count *more, double times);

/* A prompt from position `pos` on: document rows up to document_end, the rest tail. */
typedef struct fl_dry_prompt {
    int32_t pos, document_end, n_tokens;
    int32_t span_tokens; /* document rows of a step, at most */
} fl_dry_prompt;

/* The step at `pos`, which is before n_tokens: its rows, and the position behind them. With the logits of the prompt's
 * last row. */
fl_dry_rows fl_dry_prompt_step(const fl_dry_prompt *prompt, int32_t pos, int32_t *next);

/* The sum over the steps that the engine cuts a prompt into when it runs alone, with the logits of its last row. */
fl_err fl_dry_run_prompt(fl_dry_run *dry, const fl_dry_prompt *prompt, fl_count *out);

/* The counting backend that steps run on, to be watched; it lives as long as the dry run. */
fl_backend *fl_dry_run_backend(fl_dry_run *dry);

#endif
