/* An op table that measures: each entry times the real one, and on a device waits for it; how even routing was is read
 * beside the time. Put into a backend while
 * nothing runs on it. */
#ifndef FL_BACKEND_TIMED_H
#define FL_BACKEND_TIMED_H

#include "backend/backend.h"

/* Wall time in each op, seconds, since the last reset. */
typedef struct fl_op_times {
#define X(op) double op;
#include "op/oplist.inc"
#undef X
} fl_op_times;

typedef struct fl_timed {
    fl_op_table table; /* first: the entries find the rest through it */
    const fl_op_table *real;
    fl_op_times times_s;
    fl_op_call_fn *on_call; /* told of every call with its time, or NULL; the user's, as is its context */
    void *context;
    double most_rows, mean_rows; /* of the hottest expert and of an average one, over all moe_permute calls */
} fl_timed;

/* From here on the backend's ops are timed into `timed`, which must live until fl_timed_end. */
void fl_timed_begin(fl_timed *timed, fl_backend *be);
void fl_timed_end(fl_timed *timed, fl_backend *be);
void fl_timed_reset(fl_timed *timed);

/* Rows of the hottest expert over the mean, as routed since the last reset; 0 = nothing was. */
double fl_timed_skew(const fl_timed *timed);

#endif
