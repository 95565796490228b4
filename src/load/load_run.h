/* Sends requests to a server as a crowd of clients would, over connections that it keeps, and notes when what
 * arrived. Open loop: requests come at random times of a given rate whether or not the server keeps up, and each is
 * timed from when it was due, so that a stalled server cannot hide its stall. Closed loop: so many clients, each with
 * its next request as soon as it has its answer. */
#ifndef FL_LOAD_LOAD_RUN_H
#define FL_LOAD_LOAD_RUN_H

#include "eval/haystack.h"
#include "load/http_call.h"
#include "load/load_mix.h"

typedef enum fl_load_outcome {
    FL_LOAD_RUNNING,
    FL_LOAD_DONE,    /* a whole answer */
    FL_LOAD_REFUSED, /* 429 or 503 */
    FL_LOAD_FAILED,  /* another status, an error in the stream, a broken connection */
    FL_LOAD_LATE     /* not ended when waiting ended */
} fl_load_outcome;

/* One request; times since the run's start. */
typedef struct fl_load_record {
    int32_t class_index;
    fl_load_outcome outcome;
    double due_s, sent_s, first_s, end_s;                /* first_s: of the first token, 0 = none came */
    int64_t prompt_tokens, cached_tokens, answer_tokens; /* as the server counts */
} fl_load_record;

/* Gaps between tokens of one class, seconds. */
typedef struct fl_load_gaps {
    float *gaps; /* [n] */
    int64_t n, room;
} fl_load_gaps;

typedef struct fl_load_result {
    fl_load_record *records; /* [n], in the order they were due */
    int64_t n, room;
    fl_load_gaps gaps[FL_LOAD_CLASSES_MAX];
    double duration_s; /* while requests came */
    double cpu_s;      /* of this process, all of its threads, meanwhile and until the last answer */
    double *tokens_at; /* [n_tokens] when each token of an answer came, in order */
    int64_t n_tokens, tokens_room;
    char first_error[256]; /* what the first failed request was told; "" = none failed */
} fl_load_result;

typedef struct fl_load_options {
    const fl_http_server *server;
    const fl_load_mix *mix;
    const fl_haystack *text;   /* prompts are pieces of it */
    const char *model;         /* as /v1/models names it */
    double bytes_per_token;    /* of that text under the server's tokenizer */
    double rate;               /* requests a second; 0 = closed loop */
    int32_t clients;           /* closed loop: how many; open loop: most at a time, those beyond fail */
    double duration_s, wait_s; /* requests come for so long; then answers are waited for */
    uint64_t seed;
    void (*on_progress)(void *context, double done_fraction, int64_t running, int64_t ended);
    void *context;
    const volatile bool *stop; /* NULL, or ends the run early when it becomes true */
} fl_load_options;

/* The caller closes *out in any case. FL_ERR_NOMEM, FL_ERR_IO (no sockets). */
fl_err fl_load_run(const fl_load_options *options, fl_load_result *out);
void fl_load_result_close(fl_load_result *result);

#endif
