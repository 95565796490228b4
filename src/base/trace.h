/* A trace: events of one clock in a ring of fixed size, written by any thread, the oldest overwritten when it is full.
 * Off until started; off it costs a caller one branch that is always predicted. An event is one cache line, written
 * without a lock: a slot is claimed by an atomic count, and readers see whole events or none.
 *
 * fl_trace_write makes Chrome trace JSON of it, which ui.perfetto.dev and chrome://tracing open: a process a rank, a
 * line a lane. A lane is a thread, or a queue of a device. */
#ifndef FL_BASE_TRACE_H
#define FL_BASE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* What the time went to. The first ones share out a step: the meters. */
typedef enum fl_trace_kind {
    FL_TRACE_OTHER,
    FL_TRACE_ATTENTION,
    FL_TRACE_LINEAR,
    FL_TRACE_EXPERTS,  /* routing and the experts' own products */
    FL_TRACE_KV,       /* stored keys and values */
    FL_TRACE_COMM,     /* between ranks */
    FL_TRACE_RECORDED, /* ops that a device replays in one go */
    FL_TRACE_N_METERED,
    FL_TRACE_STEP = FL_TRACE_N_METERED,
    FL_TRACE_LAYER,
    FL_TRACE_POOL, /* one thread's part of an op */
    FL_TRACE_TEXT,
    FL_TRACE_LOAD,
    FL_TRACE_REQUEST,
    FL_TRACE_PHASE, /* of a request */
    FL_TRACE_N_KINDS
} fl_trace_kind;

/* Lanes: the thread that issues ops and its pool's members by their index, threads of callers, queues of devices. */
enum { FL_LANE_CALLER = 1024, FL_LANE_DEVICE = 2048, FL_LANES_MAX = 4096 };

typedef struct fl_trace_event {
    const char *name; /* static */
    fl_trace_kind kind;
    int32_t lane;
    double begin_s, end_s; /* of fl_now_s */
    uint64_t id;        /* 0 = a span of its lane, nested in those around it; else a request's, in no lane */
    float flops, bytes; /* 0 = not told */
    int64_t count;      /* rows of a step, tokens of a request or text, number of a layer; else 0 */
} fl_trace_event;

typedef struct fl_trace_slot fl_trace_slot;

typedef struct fl_trace {
    atomic_bool on;
    int32_t rank;         /* the process of all lanes; set while off */
    fl_trace_slot *slots; /* [capacity] kept from the first start to the close */
    int64_t capacity;     /* a power of two */
    double start_s;       /* time 0 of what is written */
    uint64_t first;       /* index of the first event since the start */
    _Alignas(64) atomic_ullong next;
    atomic_ullong n_busy; /* events given up: their slot was still being written */
} fl_trace;

enum { FL_TRACE_EVENTS_MIN = 1024, FL_TRACE_EVENTS_DEFAULT = 1 << 18, FL_TRACE_EVENTS_MAX = 1 << 24 };

/* Off, with no memory but itself. The caller closes *out after the last thread that may add to it. */
fl_err fl_trace_open(fl_trace **out);
void fl_trace_close(fl_trace *trace);

/* Forgets what there is and takes events from now on. The first start reserves the ring, 64 bytes an event, rounded up
 * to a power of two (0 = FL_TRACE_EVENTS_DEFAULT); later ones keep it. FL_ERR_INVALID: outside of the limits above.
 * Not while another thread starts, stops or writes. */
fl_err fl_trace_start(fl_trace *trace, int64_t events);
void fl_trace_stop(fl_trace *trace);

/* NULL is a trace that is never on. */
static inline bool fl_trace_on(const fl_trace *trace) {
    return trace && atomic_load_explicit(&trace->on, memory_order_relaxed);
}

/* From any thread; nothing while off. */
void fl_trace_add(fl_trace *trace, const fl_trace_event *event);

/* The calling thread's lane: what it was set to, or one among callers that it gets at its first call. */
void fl_trace_set_lane(int32_t lane);
int32_t fl_trace_lane(void);

/* fl_now_s if on, else 0: for the begin of a span. */
double fl_trace_now(const fl_trace *trace);

/* A span of the calling thread from begin_s, of fl_trace_now, to now. Nothing if it began while the trace was off. */
void fl_trace_span(fl_trace *trace, fl_trace_kind kind, const char *name, double begin_s, int64_t count);

typedef struct fl_trace_counts {
    int64_t kept; /* in the ring */
    int64_t lost; /* overwritten by newer ones, or given up */
} fl_trace_counts;
fl_trace_counts fl_trace_get_counts(const fl_trace *trace);

/* Event i of those kept, 0 = the oldest. False: it was overwritten meanwhile, or is just being written. */
bool fl_trace_get(const fl_trace *trace, int64_t i, fl_trace_event *out);

/* Writes all there is, one event at a time; threads may go on adding. FL_ERR_IO names the file. */
fl_err fl_trace_write(const fl_trace *trace, const char *path);

#endif
