/* Decode steps as recordings. A step of a few rows is hundreds of short ops, and issuing them takes the host longer
 * than running them takes a GPU. So a device that can records them, once for each shape: the number of rows, and a
 * ceiling for their positions. Later steps of the shape are one replay. Ids, rotations, page tables and positions are
 * read from the step's arena, where they lie at the same place for every step of a shape; scratch, and what is
 * launched, have room for the ceiling. A recording runs the kernels that a plain step runs, on the same numbers: same
 * bits. */
#ifndef FL_MODEL_GRAPH_H
#define FL_MODEL_GRAPH_H

#include "model/forward.h"

/* Rows of a step that may be recorded; recordings kept, those not used for longest go first. */
enum { FL_GRAPH_ROWS_MAX = 64, FL_GRAPHS_MAX = 32 };

typedef struct fl_graphs_info {
    int64_t n_replayed, n_recorded;
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

/* One row each of some timelines, none of a document, logits of all of them in order. `graphs` may be NULL. */
bool fl_graphs_take(const fl_graphs *graphs, const fl_step *step);

/* The largest position that shares a shape with `pos`: at most an eighth of the splits too many. */
int32_t fl_graphs_ceiling(const fl_graphs *graphs, int32_t pos);

/* Pinned host memory in which what such a step uploads is gathered. */
uint8_t *fl_graphs_host(const fl_graphs *graphs, int64_t *bytes);

/* What is the same in all steps that a recording serves. */
typedef struct fl_graph_shape {
    int32_t rows, ceiling;
    int64_t arena_bytes; /* in use before the step */
} fl_graph_shape;

typedef fl_err fl_graph_fn(void *context);

/* Issues a step's ops through `issue`, or replays them. The first step of a shape runs plainly; after a fault nothing
 * more is recorded. */
fl_err fl_graphs_run(fl_graphs *graphs, const fl_graph_shape *shape, fl_graph_fn *issue, void *context);

#endif
