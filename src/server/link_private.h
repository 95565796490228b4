/* The link's insides, shared by its two files: worker_link.c, which callers enter, and link_thread.c. */
#ifndef FL_SERVER_LINK_PRIVATE_H
#define FL_SERVER_LINK_PRIVATE_H

#include <pthread.h>

#include "server/wire.h"
#include "server/worker_child.h"
#include "server/worker_link.h"

enum { FL_LINK_TEXTS_MAX = 64 };

/* A request in flight. */
typedef struct fl_link_slot {
    uint64_t id; /* 0 = free */
    fl_link_event_fn *on_event;
    void *context;
    fl_event last; /* numbers of the last event, for the one that the link makes when the worker dies */
    double submit_s;
    bool cancelled; /* the worker was, or will be, told */
} fl_link_slot;

struct fl_worker_link {
    fl_link_options o; /* without settings and command */
    fl_buffer hello;   /* what every worker is told first: the settings */
    char **command;    /* owned; NULL = this program */
    pthread_t thread;
    bool started;
    int wake; /* eventfd: there is something to send, or to close */

    pthread_mutex_t lock; /* guards what follows, up to the thread's own */
    fl_link_state state;
    bool closing;
    fl_buffer out;       /* messages that the thread has not taken yet; requests leave room for cancels */
    fl_link_slot *slots; /* [requests_max]; a request's slot is the low bits of its id */
    int32_t *free_slots; /* [n_free] */
    int32_t n_free;
    uint64_t n_submitted;
    fl_link_status status;          /* state, load_age_s, n_requests are filled in when asked for */
    fl_engine_load before;          /* counters of workers that ended, summed */
    double load_s;                  /* when status.load came; 0 = none */
    char *texts[FL_LINK_TEXTS_MAX]; /* that status.info points to; none ever goes before close */
    int32_t n_texts;

    /* the thread's own */
    fl_worker_child child;
    fl_buffer sending; /* [sent, n) goes next */
    size_t sent;
    uint8_t *in; /* [in_capacity], the first in_bytes are received and not read */
    size_t in_bytes, in_capacity;
    fl_wire_done done; /* the last one read */
    bool load_failed;  /* this worker said so, in status.err and error */
    double heard_s;    /* when it last said anything */
    double ready_s;    /* when it became ready; 0 = not yet */
    double moved_s;    /* when its engine last finished a layer or had no work */
    int64_t moved_layers;
    int32_t n_ends, n_load_failures; /* in a row */
};

/* link_thread.c */
void *fl_link_thread(void *link);

/* worker_link.c, for the thread. Under the lock: frees the slot of a request. */
void fl_link_free_slot(fl_worker_link *link, fl_link_slot *slot);
/* Under the lock: a copy of `text` that lives as long as the link. NULL stays NULL. */
const char *fl_link_keep_text(fl_worker_link *link, const char *text);

#endif
