/* Requests of tests through the link to a worker: what came of each, collected on the link's thread. All functions fail
 * the running cmocka test when something goes wrong. */
#ifndef TEST_LINK_CLIENT_H
#define TEST_LINK_CLIENT_H

#include <pthread.h>

#include "server/worker_link.h"

enum { GOT_TOKENS = 512 };

typedef struct got {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t id;
    int32_t tokens[GOT_TOKENS];
    float logprobs[GOT_TOKENS];
    int32_t n_tokens, n_progress, n_done, n_marks;
    int64_t marked_tokens; /* of the timeline's marks first_token and decode */
    char text[16384];
    fl_event last; /* numbers only */
    char detail[1024];
    bool late; /* an event came after DONE */
} got;

void got_init(got *g);
void got_free(got *g);
void got_event(void *got, const fl_event *event, const fl_mark *marks, int32_t n_marks);

/* Waits until so many tokens or DONE; fails after 60 s. */
void got_wait_tokens(got *g, int32_t n);
void got_wait_progress(got *g);
void got_wait_done(got *g);

/* Submits a greedy request of n_tokens ids that does not end before max_tokens. */
void link_submit(fl_worker_link *link, const int32_t *ids, int64_t n, int64_t max_tokens, got *g);

/* Waits until the state is reached; fails after 60 s. */
fl_link_status link_wait(fl_worker_link *link, fl_link_state state);
/* Waits until the link is READY with at least n restarts. */
fl_link_status link_wait_restarts(fl_worker_link *link, int32_t n);
/* Waits until all pages are free or only cached. */
void link_wait_pages(fl_worker_link *link);

/* No child process is left, not even a dead one. */
void link_no_child(void);

#endif
