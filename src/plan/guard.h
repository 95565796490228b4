/* The guard of the step scratch: no step runs that the reserved memory does not hold. What a step takes is found as the
 * reservation was, by the forward pass on the counting backend, here over one layer of each kind, since layers take the
 * same memory one after the other. A step that is over is cut; a request of which not even the smallest step fits is
 * refused before it is queued. Any thread. */
#ifndef FL_PLAN_GUARD_H
#define FL_PLAN_GUARD_H

#include "plan/memory_plan.h"

typedef struct fl_guard fl_guard;

/* Arguments as of fl_dry_run_open. `level_bytes` is the safe level: what is reserved. On success the caller owns *out.
 * FL_ERR_LIMIT: it does not hold a row of each of `requests_max` requests at the context's end, so that answers could
 * come to a halt (detail has the sums). */
typedef struct fl_guard_options {
    const fl_config *config;
    const fl_backend *like;
    const fl_kv_shape *kv;
    const fl_attend *attend; /* borrowed */
    int64_t level_bytes;
    int32_t ctx_tokens, requests_max;
    int32_t tile_rows; /* document rows come in multiples of it */
} fl_guard_options;
fl_err fl_guard_open(const fl_guard_options *options, fl_guard **out);
void fl_guard_close(fl_guard *guard);

/* A step that may be a recording has the positions of its tail rows in the arena too, and which rows are wanted. */
enum { FL_GUARD_RECORDED_BYTES = (FL_TAIL_ROWS_MAX + FL_DRAWN_ROWS_MAX + 32) * 4 };

/* What a step takes, bytes; without document rows as one that may be a recording. */
fl_err fl_guard_need(fl_guard *guard, const fl_dry_rows *rows, int64_t *bytes);

/* Cuts a step until it fits: document rows by tiles (tail rows behind them go), then tail rows. Decoding rows stay. At
 * least a tile or a tail row is left: *fits says whether that is enough. decode_pos is the largest. */
fl_err fl_guard_cut(fl_guard *guard, fl_dry_rows *rows, bool *fits);

/* Whether a step of answers runs between the layers of a step of a prompt: it has what that one does not hold then. */
fl_err fl_guard_between(fl_guard *guard, const fl_dry_rows *prompt, const fl_dry_rows *answers, bool *fits);

/* A prompt of which rows [0, document_end) are document, and an answer up to `end`; scored: with logits of all rows.
 * FL_ERR_LIMIT with the sums if its smallest steps do not fit even alone. */
fl_err fl_guard_admit(fl_guard *guard, int32_t document_end, int32_t end, bool scored);

typedef struct fl_guard_counts {
    int64_t checked; /* steps */
    int64_t merged;  /* of them with rows of several requests */
    int64_t run;     /* of them by the counting backend; the others are no larger than one that was */
    int64_t cut;
} fl_guard_counts;
fl_guard_counts fl_guard_get_counts(fl_guard *guard);

#endif
