/* The server: front and worker link together, from options to a port. */
#ifndef FL_SERVER_SERVE_H
#define FL_SERVER_SERVE_H

#include "server/http.h"
#include "server/worker_link.h"

typedef struct fl_serve fl_serve;

/* Texts are borrowed until close. Fill with fl_serve_options_default, then set at least link.settings.model_path. */
typedef struct fl_serve_options {
    fl_http_options http;     /* handlers are set by open */
    fl_link_options link;     /* on_state too */
    const char *const *names; /* [n_names] the model's in answers; none: the last part of its path */
    int n_names;
    const char *const *keys; /* [n_keys] of clients; with key_file NULL and none, everyone may */
    int n_keys;
    const char *key_file;     /* NULL = none */
    const char *const *hosts; /* [n_hosts] names that a Host may have, beside addresses and localhost, where
                                 allowed_host.h restricts them */
    int n_hosts;
    int64_t body_bytes_max;
    int32_t requests_max; /* answers in flight, running and queued */
    int64_t tokens_max;   /* prompt tokens in flight before their first token; 0 = 16 contexts */
    double wait_max_s;    /* predicted wait beyond which requests are refused; 0 = no limit */
    double comment_s;     /* a stream says something at least so often; default 4 */
    int64_t
        answer_tokens_default; /* most tokens of an answer to a chat that does not say; default 4,096; 0 = all
                                * the room */
    int n_threads;             /* that read, render and tokenise; default 2 */
    bool log_json, log_debug;
    int log_fd;                /* default standard error; -1 = no log */
    const char *notify_socket; /* of systemd; NULL = none */
} fl_serve_options;

void fl_serve_options_default(fl_serve_options *options);

/* Listens, starts the worker and returns; the model loads in the background. On success the caller owns *out. */
fl_err fl_serve_open(const fl_serve_options *options, fl_serve **out);
int32_t fl_serve_port(const fl_serve *serve);

/* FL_ERR_OK while there is hope; else why the worker was given up, with the detail set. */
fl_err fl_serve_failure(fl_serve *serve);

/* Takes no more connections and requests; what runs goes on. */
void fl_serve_drain(fl_serve *serve);

/* Requests that are being answered. */
int64_t fl_serve_busy(const fl_serve *serve);

/* Cuts off what still runs, ends the worker, frees. Accepts NULL. */
void fl_serve_close(fl_serve *serve);

#endif
