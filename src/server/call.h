/* One exchange as the front sees it, from its head to its end; for requests to the worker also the answers
 * being made. */
#ifndef FL_SERVER_CALL_H
#define FL_SERVER_CALL_H

#include "server/api_response.h"
#include "server/route.h"

/* One answer of a request that asks for n, or for several prompts. */
typedef struct fl_choice {
    fl_call *call;
    int32_t index;
    /* Guarded by the call's lock. */
    uint64_t id; /* the link's */
    bool submitted, done;
    double fraction;        /* of its prefill */
    int64_t done_tokens;    /* of its prompt */
    double first_s, last_s; /* fl_now_s() of the first and the newest token; 0 = none yet */
} fl_choice;

struct fl_call {
    fl_front *front;
    fl_http_exchange *exchange;
    const fl_route *route; /* NULL = none */
    unsigned char random[16];
    int status; /* of the answer */
    bool admitted;
    fl_ticket ticket;
    fl_api_request request;
    fl_prompt_tokens *prompts; /* [n_prompts] */
    int32_t n_prompts;
    double read_s, submitted_s; /* fl_now_s() when the request thread began and ended with it */

    pthread_mutex_t lock; /* guards what follows; taken before the exchange's and the admission's */
    char id[48];          /* the answer's, and the log's */
    char error[256];      /* what went wrong, for the log */
    fl_api_answer *answer;
    fl_buffer out;
    fl_choice *choices; /* [n_choices] */
    int32_t n_choices;
    int32_t n_left;        /* choices that are not done */
    bool gone;             /* nobody reads the answer: cancel, and write no more */
    bool begun;            /* the stream's head is out */
    bool finished;         /* the answer is complete */
    int64_t prompt_tokens; /* of all prompts */

    fl_call *next, *previous; /* in the front's list, which holds the exchange; guarded by calls_lock */
};

/* The exchange's user pointer, and freed with it. On the event thread. NULL: no memory. */
fl_call *fl_call_new(fl_front *front, fl_http_exchange *exchange, const fl_route *route);
void fl_call_free(fl_call *call);

/* Gives its share of the bounds back: before the answer's last bytes, since who has read them may ask again at once. By
 * the thread that answers. */
void fl_call_leave(fl_call *call);

/* Cancels what the worker still does for it, and writes no more. Any thread. */
void fl_call_cancel(fl_call *call);

/* Nobody reads its answer any more. Any thread. */
bool fl_call_is_gone(fl_call *call);

/* call_timeline.c: one comment of the event stream with the marks of a choice, after the front's own, in seconds
 * since the request arrived: ": timeline [{"name":"tokenize","start_s":0,"end_s":0.01,"tokens":123}, ..]". */
void fl_timeline_write(const fl_call *call, const fl_mark *marks, int32_t n_marks, fl_buffer *out);

/* Says where a silent stream is. */
void fl_call_tick(fl_call *call, double now_s);

#endif
