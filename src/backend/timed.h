/* An op table that measures: each entry times the real one, adds it to the sums that the meters show, and tells the
 * trace when there is one. Put into a backend once, at start.
 *
 * On the host an op's time is between its call and its return. A device runs behind the host, so there marks are set
 * in its queue and read when the step is done: an op's time is the device's own, and nothing waits for it. Marks cost
 * the host a microsecond each; steps of a few rows, which are bound by what the host issues, get them only while
 * somebody looks: a trace, or a benchmark that watches. Without, and where a recording is replayed, such a step is
 * one span. */
#ifndef FL_BACKEND_TIMED_H
#define FL_BACKEND_TIMED_H

#include "backend/backend.h"
#include "base/trace.h"

enum { FL_TIMED_PENDING_MAX = 4096, FL_TIMED_COMM_MAX = 16 };

/* Time in each op, seconds, since the last reset. */
typedef struct fl_op_times {
#define X(op) _Atomic double op;
#include "op/oplist.inc"
#undef X
} fl_op_times;

/* A span that is being measured. */
typedef struct fl_timed_span {
    const char *name; /* static */
    fl_trace_kind kind;
    _Atomic double *sum; /* of the op; NULL = none */
    float flops, bytes;  /* for the trace; 0 = not told */
    int64_t count;
    double begin_s; /* on the host */
    int32_t mark;   /* on the device: its begin, the end is the next one; -1 = none */
    int32_t round;  /* which use of the marks */
    bool called;    /* on_call was told of it, on_time is next */
} fl_timed_span;

/* Time in one kind of communication. */
typedef struct fl_timed_comm {
    _Atomic(const char *) name; /* static; NULL = free */
    _Atomic double time_s;
} fl_timed_comm;

typedef void fl_timed_time_fn(void *context, double time_s);

typedef struct fl_timed {
    fl_op_table table;
    const fl_op_table *real;
    /* Written by the thread that issues ops, read by any. */
    fl_op_times times_s;
    _Atomic double kind_s[FL_TRACE_N_METERED];
    _Atomic double step_s; /* wall time of steps */
    atomic_llong n_steps;
    fl_timed_comm comm[FL_TIMED_COMM_MAX];
    /* Told of every call with its time, or NULL; the user's, as is its context. A device's times come when its marks
     * are read, to on_time, in the order of the calls; hold_s > 0: it begins with a step's ops so much later, and when
     * the host has issued all of them by then they run back to back, and no time is one of waiting for the host. */
    fl_op_call_fn *on_call;
    fl_timed_time_fn *on_time;
    void *context;
    double hold_s;
    double most_rows,
        mean_rows; /* of the hottest expert and of an average one, over the calls that were watched */
    /* The issuing thread's own. */
    bool watching, marking; /* marking: this step's ops get marks */
    bool held;              /* this step was */
    fl_timed_span step;
    int32_t depth; /* of steps: one inside another is part of it */
    int32_t n_ops; /* of this step, with marks */
    int32_t n_marks, round;
    double first_mark_s;    /* when mark 0 was set, on the host: the device had nothing to do */
    fl_timed_span *pending; /* [FL_TIMED_PENDING_MAX] on a device: measured, not read yet */
    int32_t n_pending;
} fl_timed;

/* From here on the backend's ops are timed, until the end, which gives the backend its table back. FL_ERR_NOMEM. */
fl_err fl_timed_open(fl_backend *be, fl_timed **out);
void fl_timed_close(fl_timed *timed, fl_backend *be);

/* Forgets all sums. */
void fl_timed_reset(fl_timed *timed);

/* A step begins: `rows` in it, and whether there are so many that its ops always get marks. Then all of it is issued;
 * it ends when the device is done with it, and marks are read. These and the next two may be called on any backend. */
void fl_timed_step_begin(fl_backend *be, int32_t rows, bool many);
void fl_timed_step_issued(fl_backend *be);
void fl_timed_step_end(fl_backend *be);

/* A span inside of a step that is no op: a layer, or something between ranks. name, kind and count are set. */
void fl_timed_begin(fl_backend *be, fl_timed_span *span);
void fl_timed_end(fl_backend *be, fl_timed_span *span);

/* For benchmarks: ops of all steps get marks, so none are recorded, and how even routing was is read, for which the
 * host waits once a layer, unless on_call is told of calls. */
void fl_timed_watch(fl_backend *be, bool watching);

/* Rows of the hottest expert over the mean, as routed since the last reset; 0 = nothing was watched. */
double fl_timed_skew(const fl_timed *timed);

#endif
