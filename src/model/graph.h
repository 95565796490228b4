/* Steps as recordings. A step of a few rows is hundreds of short ops, and issuing them takes the host longer than
 * running them takes a GPU. So a device that can records them, once for each shape: the numbers of rows, and a ceiling
 * for their positions. Later steps of the shape are one replay. Ids, rotations, page tables and positions are read from
 * the step's arena, where they lie at the same place for every step of a shape; scratch, and what is launched, have
 * room for the ceiling. A recording runs the kernels that a plain step runs, on the same numbers: same bits.
 *
 * Two kinds of steps: decode, one row of each of some timelines; and a piece of one prompt, alone or with answers'
 * rows behind it, that is filled up to a bucket (fl_graphs_bucket) with rows that nobody reads. */
#ifndef FL_MODEL_GRAPH_H
#define FL_MODEL_GRAPH_H

#include "model/forward.h"

enum {
    FL_GRAPH_ROWS_MAX = 64, /* of a decode step, and beside a piece of a prompt */
    FL_GRAPH_DOCUMENT_ROWS_MAX = 8192,
    FL_GRAPH_TAIL_ROWS_MAX = 256,
    FL_GRAPH_TOKENS_MAX =
        65536, /* a piece of a prompt and what is beside it end before: attn_absorbed's tasks are one split there */
    FL_GRAPHS_MAX = 64 /* recordings kept; of those not used for some thousand steps the oldest go first */
};

typedef struct fl_graphs_info {
    int64_t n_replayed, n_recorded;
    int64_t n_prompt_replayed; /* of n_replayed */
    int64_t n_kept_most;       /* recordings at a time, so far */
    int64_t
        n_plain; /* steps that had no recording: the first of a shape, those of new shapes after a fault */
    const char *fault; /* why nothing is recorded any more; NULL = none */
} fl_graphs_info;

/* FL_ERR_UNSUPPORTED: the backend records nothing. Positions are below ctx_tokens. The backend must outlive *out, which
 * the caller owns. */
fl_err fl_graphs_open(fl_backend *be, const fl_config *config, int32_t ctx_tokens, fl_graphs **out);
void fl_graphs_close(fl_graphs *graphs);

/* Drops all recordings: what rows attend has changed. Not while a step runs. */
void fl_graphs_forget(fl_graphs *graphs);

fl_graphs_info fl_graphs_get_info(const fl_graphs *graphs);

/* ---- for stage.c and forward.c ---- */

/* A piece of a prompt: document rows, then tail rows, from position `pos` on; then a row of each of some answers. */
typedef struct fl_graph_piece {
    int32_t document_rows, tail_rows, pos;
    int32_t decode_rows, decode_pos; /* the largest of their positions */
} fl_graph_piece;

/* Whether a piece whose layers take so many FLOPs may have a bucket: not if the device works far longer on a layer than
 * the host issues it, if it is too long or it or an answer lies too far down its timeline. */
bool fl_graph_wants(const fl_attend *attend, const fl_graph_piece *piece, double layer_flops);

/* The bucket of a piece: the rows that its step is to have. At most a quarter too many; beside answers at most half, of
 * which there are up to twice as many, since more shapes meet there. Document rows with block lists are never filled
 * up: what lists hold is counted. */
fl_graph_piece fl_graph_bucket(const fl_attend *attend, const fl_graph_piece *piece);

/* The bucket of a piece that may have one. False: it has too many rows, the context ends too soon, or nothing is
 * recorded now. `graphs` may be NULL. */
bool fl_graphs_bucket(const fl_graphs *graphs, const fl_attend *attend, const fl_graph_piece *piece,
                      fl_graph_piece *bucket);

/* One row each of some timelines, none of a document, logits of all of them in order; or a piece in its bucket.
 * `graphs` may be NULL. */
bool fl_graphs_take(const fl_graphs *graphs, const fl_step *step);

/* The largest position that shares a shape with `pos`: at most an eighth of the splits too many; beside answers, where
 * more shapes meet, as many again. */
int32_t fl_graphs_ceiling(const fl_graphs *graphs, int32_t pos, bool beside);

/* Pinned host memory in which what a step uploads is gathered: of at most FL_GRAPH_TAIL_ROWS_MAX rows all, of more the
 * page tables and what comes behind them. */
uint8_t *fl_graphs_host(const fl_graphs *graphs, int64_t *bytes);

/* What is the same in all steps that a recording serves. */
typedef struct fl_graph_shape {
    int32_t rows, document_rows, document_pos, n_seqs, n_logit_rows, ceiling;
    int32_t known_means; /* blocks whose means were kept (model/kept_means.h): they are not made again */
    int64_t arena_bytes; /* in use before the step */
} fl_graph_shape;

typedef fl_err fl_graph_fn(void *context);

/* Issues a step's ops through `issue`, or replays them. The first step of a shape runs plainly, and so do all of shapes
 * for which there is no room; after a fault nothing more is recorded. */
fl_err fl_graphs_run(fl_graphs *graphs, const fl_graph_shape *shape, fl_graph_fn *issue, void *context);

#endif
