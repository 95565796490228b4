/* The front's link to its worker: a child process that holds the engine. The front has no model in its memory
 * and no GPU context, so a worker that dies of a bad kernel, of memory or of a lost device takes no connection
 * with it: the link ends what was running with a named error and starts the next worker.
 *
 *   front process                                    worker process (server/worker_main.h)
 *   callers --submit--> queue --link thread--=socket=-- reader --> fl_submit
 *   callers <--event fn--------link thread--=socket=-- pump <-- fl_engine_wait
 *
 * Threads: any may call any function here, event functions too (they run without a lock held); but only one may close.
 * Memory is bounded: requests by requests_max, messages to a worker that does not read by queue_bytes_max. Nothing here
 * waits for a client, and a worker that waits for this process only keeps what its requests already have room for. */
#ifndef FL_SERVER_WORKER_LINK_H
#define FL_SERVER_WORKER_LINK_H

#include <firstlight/firstlight.h>

typedef struct fl_worker_link fl_worker_link;

/* An event of a request: on the link's own thread, in the order in which the engine made them, FL_EVENT_DONE last and
 * exactly once, whatever happens to the worker. `marks` [n_marks] is the timeline, with DONE only. All is borrowed for
 * the call. Be quick and never block: every other request waits behind it. PROGRESS events are at least 50 ms apart. */
typedef void fl_link_event_fn(void *context, const fl_event *event, const fl_mark *marks, int32_t n_marks);

/* The link's state changed, or a worker ended (then status.error says why): read fl_worker_link_status. Called on the
 * link's thread without a lock. Be quick. */
typedef void fl_link_state_fn(void *context);

/* Fill with fl_link_options_default, then change what you need. */
typedef struct fl_link_options {
    fl_settings settings; /* of the worker's engine; texts are copied; `progress` is not used */
    const char *const
        *command; /* argv of the worker, NULL-terminated, copied; it finds its end of the socket at fd 3.
                                   NULL (default) = this program with FL_WORKER_ARGUMENT */
    int32_t
        requests_max; /* in flight, 1..65536; default 8192. The engine's own queue (settings.requests_max) is
                                   the smaller bound */
    int64_t queue_bytes_max;   /* of messages that the worker has not read yet; default 256 MiB */
    int32_t load_failures_max; /* loads that fail one after the other until the link gives up; default 5 */
    double backoff_max_s;      /* between restarts: 0, 1, 2, 4 ... at most this; default 30 */
    double silence_max_s;      /* a ready worker that says nothing so long is killed; default 30 */
    double stuck_max_s;        /* so is one with work whose engine finishes no layer so long; default 300 */
    double close_max_s; /* for its end after close (the disk tier may have pages to store), then it is killed;
                                   default 40 */
    fl_link_state_fn *on_state; /* or NULL (default) */
    void *on_state_context;
} fl_link_options;

void fl_link_options_default(fl_link_options *options);

#define FL_WORKER_ARGUMENT "--worker-of-serve" /* what the program is started with to be a worker */

typedef enum fl_link_state {
    FL_LINK_LOADING,    /* the first worker loads */
    FL_LINK_READY,      /* requests are taken */
    FL_LINK_RESTARTING, /* a worker ended; the next one loads or waits to be started */
    FL_LINK_FAILED      /* given up; `error` says why */
} fl_link_state;

typedef struct fl_link_status {
    fl_link_state state;
    double load_fraction;  /* of the weights, 0..1; 1 when ready */
    int32_t worker_pid;    /* 0 = none now */
    int32_t n_restarts;    /* workers started after the first */
    fl_err err;            /* why the last worker ended, or FL_ERR_OK; kept while the next one runs */
    char error[512];       /* the same in words; "" = none has */
    bool has_info;         /* a worker was ready once: the rest is of the last one */
    fl_engine_info info;   /* its texts are borrowed until the link is closed */
    fl_engine_load load;   /* at most a second old while ready */
    fl_meters meters;      /* of the same moment */
    double load_age_s;     /* since then */
    int64_t prompt_tokens; /* of all workers together, as in fl_engine_load */
    int64_t cached_tokens;
    int64_t computed_tokens;
    int64_t answer_tokens;
    int32_t n_requests; /* in flight here */
} fl_link_status;

/* Starts the link and returns at once; the worker loads in the background and on_state tells of it. The link reaps its
 * child, so SIGCHLD must not be ignored. On success the caller owns *out. */
fl_err fl_worker_link_open(const fl_link_options *options, fl_worker_link **out);

/* Queues a request for the worker; params are copied. On success `on_event` gets its events until DONE, the
 * first perhaps before this returns. What the engine refuses (FL_ERR_INVALID, _LIMIT, _AGAIN) comes as DONE
 * with FL_FINISH_ERROR. FL_ERR_AGAIN: the worker is not ready, or too much is in flight. FL_ERR_UNSUPPORTED:
 * on_logits. After FL_LINK_FAILED: the code and words of that failure. */
fl_err fl_worker_link_submit(fl_worker_link *link, const fl_request_params *params,
                             fl_link_event_fn *on_event, void *context, uint64_t *id);

/* Asks a request to end; its DONE comes within a step. Unknown ids are ignored, as those of requests that are done. */
void fl_worker_link_cancel(fl_worker_link *link, uint64_t id);

void fl_worker_link_status(fl_worker_link *link, fl_link_status *out);

/* Seconds that a prompt of n_tokens new tokens takes to read when alone, between the points of load.cost_s; 0 =
 * unknown. */
double fl_link_prefill_s(const fl_engine_load *load, int64_t n_tokens);

/* Ends what is in flight (DONE, FL_FINISH_CANCELLED), the worker, and the link. NULL is fine. Not from an
 * event function. */
void fl_worker_link_close(fl_worker_link *link);

#endif
