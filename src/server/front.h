/* The front: what a request meets between the HTTP layer and the worker. Private to
 * src/server/{route,call,handle}*.c and serve.c, which makes one.
 *
 *   event thread   head: route, key, limits, admission           body: cheap routes answer here
 *   request thread JSON -> struct, template, tokens, submit
 *   link thread    events -> chunks or the collected answer
 *   watch thread   clients that left, progress comments, deadlines
 *
 * None of them waits for another. */
#ifndef FL_SERVER_FRONT_H
#define FL_SERVER_FRONT_H

#include "server/api_chat.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/auth.h"
#include "server/http.h"
#include "server/job_pool.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/worker_link.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FL_FRONT_NAMES_MAX = 16 };

typedef struct fl_call fl_call;
typedef struct fl_route fl_route;

/* Bounds of what is in flight, and when a request is turned away. */
typedef struct fl_front_limits {
    int64_t body_bytes_max;
    int32_t requests_max;          /* answers in flight: running and queued */
    int64_t tokens_max;            /* prompt tokens in flight before their first token; 0 = 16 contexts */
    double wait_max_s;             /* predicted; 0 = no limit */
    double comment_s;              /* a stream is silent no longer than this */
    int64_t answer_tokens_default; /* of a request that does not say; 0 = all the room */
} fl_front_limits;

/* What is in flight, as admission counts it. */
typedef struct fl_admission {
    pthread_mutex_t lock; /* guards what follows */
    int64_t n_requests, n_tokens;
    double queued_s[FL_BINS_MAX]; /* predicted seconds of prefill still to do, by the engine's bins */
} fl_admission;

typedef struct fl_front {
    fl_front_limits limits;
    fl_api_settings api;
    const char
        *names[FL_FRONT_NAMES_MAX]; /* the model's, the first is the one that answers carry; borrowed */
    int n_names;
    bool check_host;          /* see allowed_host.h */
    const char *const *hosts; /* [n_hosts] borrowed */
    int n_hosts;
    int64_t created;      /* seconds since 1970 */
    char fingerprint[32]; /* of answers */
    bool add_bos;         /* as tokenizer_config.json says */
    int32_t bos_token;
    fl_http *http;
    fl_worker_link *link;
    fl_tokenizer *tokenizer;
    fl_chat *chat;
    fl_api_template shows; /* of its template */
    char no_chat[256];     /* why there is no chat template; "" = there is one */
    fl_auth *auth;
    fl_metrics *metrics;
    fl_log *log;
    fl_job_pool *jobs;
    unsigned char random[1024]; /* n_random bytes not yet used; the event thread's */
    size_t n_random;
    fl_admission admission;
    pthread_mutex_t calls_lock; /* guards the list of calls with an answer in the making */
    fl_call *calls;
} fl_front;

/* The handlers of the HTTP layer; their context is the front. */
int64_t fl_front_head(void *context, fl_http_exchange *exchange);
void fl_front_body(void *context, fl_http_exchange *exchange);
void fl_front_gone(void *context, fl_http_exchange *exchange);
void fl_front_ended(void *context, fl_http_exchange *exchange, bool complete);
void fl_front_free(void *context, fl_http_exchange *exchange);
void fl_front_tick(void *context);
void fl_front_refuse(void *context, fl_http_exchange *exchange, int status, const char *reason);

/* Answers with an error object. retry_after_s 0 = no such field. `drain` as in fl_http_answer. */
void fl_front_answer_error(fl_http_exchange *exchange, const fl_api_error *error, double retry_after_s,
                           int64_t drain_bytes);

/* Answers 200 with the buffer's bytes, which pass on; a buffer that failed becomes an error. content_type NULL
 * = JSON. */
void fl_front_answer(fl_http_exchange *exchange, const char *content_type, fl_buffer *body);

/* Whether the request names one of the front's models, or none; else *error says 404. */
bool fl_front_knows_model(const fl_front *front, const char *model, fl_api_error *error);

/* admission.c: a request's share of the bounds. */
typedef struct fl_ticket {
    int64_t n_requests, n_tokens;
    int32_t bin;
    double cost_s, left_s;
} fl_ticket;

void fl_admission_open(fl_admission *admission);
void fl_admission_close(fl_admission *admission);

/* Before the body is read: n_tokens is a guess from its length. false: refused, *error and *retry_after_s say
 * how, and the metric is counted. */
bool fl_admission_enter(fl_front *front, int64_t n_tokens, fl_ticket *out, fl_api_error *error,
                        double *retry_after_s);

/* When requests and tokens are known. Same result; a refused ticket is still held. */
bool fl_admission_settle(fl_front *front, int32_t n_requests, int64_t n_tokens, fl_ticket *ticket,
                         fl_api_error *error, double *retry_after_s);

/* Of its prefill `fraction` is done, 1 from the first token on. */
void fl_admission_progress(fl_front *front, fl_ticket *ticket, double fraction);
void fl_admission_leave(fl_front *front, fl_ticket *ticket);

/* What a prompt of n_tokens that came now would wait. */
double fl_admission_wait_s(fl_front *front, int64_t n_tokens);

/* request_tokens.c: from a checked request to token ids. */
typedef struct fl_prompt_tokens {
    int32_t *ids; /* [n], owned */
    int64_t n;
    int64_t document_tokens; /* as in fl_request_params */
} fl_prompt_tokens;

/* Prompt `index` of the request: a conversation has one. FL_ERR_INVALID, FL_ERR_LIMIT: the client's fault. */
fl_err fl_front_tokenize(const fl_front *front, const fl_api_request *request, int32_t index,
                         fl_prompt_tokens *out);

#endif
