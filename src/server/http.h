/* HTTP/1.1 for the front process: a daemon on libmicrohttpd that nothing else of firstlight sees. Its own
 * event thread reads heads and bodies and writes answers; it never waits for a handler. A second thread, the
 * watch, sees clients leave while nothing is being sent to them, closes connections that are too slow, and
 * calls `tick`.
 *
 * An exchange is one request and its answer. head() -> body() -> answer or stream -> ended(). Handlers run on
 * the event thread and must be quick; answers and stream writes may come from any thread. Everything that
 * grows has a bound. */
#ifndef FL_SERVER_HTTP_H
#define FL_SERVER_HTTP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fl_http fl_http;
typedef struct fl_http_exchange fl_http_exchange;

/* The head of a request, already past http_guard.h. Texts live as long as the exchange. */
typedef struct fl_http_head {
    const char *method;        /* "GET" */
    const char *path;          /* as sent, from the slash to the question mark; never decoded */
    const char *authorization; /* NULL = none */
    const char *content_type;  /* NULL = none */
    const char *host;          /* NULL = none */
    int64_t content_length;    /* 0 = no body, -1 = in chunks */
    char peer[64];             /* the client's address */
    double arrived_s;          /* fl_now_s() when the request line was read */
} fl_http_head;

typedef struct fl_http_handlers {
    void *context;
    /* The head is there. Either answers (fl_http_answer; the body is then dropped) or returns the most body
     * bytes that it wants; a longer body is answered with 413, once it was read and dropped if it is no longer than
     * twice that. */
    int64_t (*head)(void *context, fl_http_exchange *exchange);
    /* The body is there, and head() has not answered. */
    void (*body)(void *context, fl_http_exchange *exchange);
    /* On the watch thread, after body(), at most once: the client has left before its answer was complete.
     * ended() may come meanwhile on the event thread. */
    void (*gone)(void *context, fl_http_exchange *exchange);
    /* From the event thread, once: the answer is over. `complete`: all of it went out. */
    void (*ended)(void *context, fl_http_exchange *exchange, bool complete);
    /* The last call for this exchange, when nobody holds it any more: frees what `user` points to. */
    void (*free)(void *context, fl_http_exchange *exchange);
    /* On the watch thread, about four times a second. */
    void (*tick)(void *context);
    /* The answer for a refusal of the HTTP layer itself: calls fl_http_answer with a body in the API's own form. */
    void (*refuse)(void *context, fl_http_exchange *exchange, int status, const char *reason);
} fl_http_handlers;

typedef struct fl_http_options {
    const char *host;           /* numeric address or name; "" = all addresses */
    int32_t port;               /* 0 = any free one */
    int32_t connections_max;    /* open at once; more wait to be taken */
    int64_t head_bytes_max;     /* of one request */
    int64_t body_bytes_all_max; /* of bodies in memory, over all exchanges; beyond: 503 */
    int64_t stream_bytes_max;   /* of one stream, written and not yet sent; beyond: the stream is cut off */
    double head_s, body_s;      /* from connecting to the end of the head; from there to the body's end */
    double idle_s;              /* between two requests of a connection */
    double send_s;              /* for a whole answer, and for the rest of an ended stream */
    fl_http_handlers handlers;
} fl_http_options;

void fl_http_options_default(fl_http_options *options);

/* Listens and starts both threads. FL_ERR_IO: the address cannot be used (detail says why). */
fl_err fl_http_open(const fl_http_options *options, fl_http **out);

/* The port listened on. */
int32_t fl_http_port(const fl_http *http);

/* Accepts no more connections; those there are served on. Requests that come later on them see fl_http_draining. */
void fl_http_drain(fl_http *http);
bool fl_http_draining(const fl_http *http);

/* Exchanges between head() and ended(); open connections; bytes of bodies in memory. */
typedef struct fl_http_load {
    int64_t exchanges, connections, body_bytes;
} fl_http_load;
void fl_http_get_load(const fl_http *http, fl_http_load *out);

/* Cuts off what still runs (ended() is called for each) and joins the threads: no handler is called any more
 * but free(). Exchanges that someone holds may still be used, without effect, until close. */
void fl_http_stop(fl_http *http);

/* Stops and frees. All exchanges must have been released. Accepts NULL. */
void fl_http_close(fl_http *http);

const fl_http_head *fl_http_get_head(const fl_http_exchange *exchange);

/* A pointer of the handlers' own. */
void fl_http_set_user(fl_http_exchange *exchange, void *user);
void *fl_http_get_user(const fl_http_exchange *exchange);

/* An exchange may be used until ended() returns, and longer by who holds it. */
void fl_http_hold(fl_http_exchange *exchange);
void fl_http_release(fl_http_exchange *exchange);

/* The body, until fl_http_drop_body or the exchange's end. A dropped body still counts in the bound over all
 * bodies, since what was made of it takes as much: until its answer is out or, of one that was cut off, until nobody
 * holds the exchange any more. */
const char *fl_http_get_body(const fl_http_exchange *exchange, size_t *n_bytes);
void fl_http_drop_body(fl_http_exchange *exchange);

enum { FL_HTTP_FIELDS_MAX = 4, FL_HTTP_FIELD_BYTES = 192 };

/* One more header field of an answer. */
typedef struct fl_http_extra {
    const char *name; /* static */
    char value[FL_HTTP_FIELD_BYTES];
} fl_http_extra;

typedef struct fl_http_answer {
    int status;
    const char *content_type; /* static; NULL = "application/json" */
    char *body;               /* malloc'ed, passes to the exchange; NULL = empty */
    size_t body_bytes;
    fl_http_extra extra[FL_HTTP_FIELDS_MAX]; /* a NULL name ends the list */
    bool close;                              /* the connection ends with this answer */
    int64_t
        drain_bytes; /* an answer given in head(): up to so many body bytes are read and dropped before it is sent,
                            so that it is not lost in a reset; a longer body: sent at once and closed */
} fl_http_answer;

/* Answers once; what comes second is dropped (its body freed). */
void fl_http_answer_send(fl_http_exchange *exchange, const fl_http_answer *answer);

/* Begins an answer of unknown length: status 200 and these fields, sent with the first write, so write at once. */
void fl_http_stream_begin(fl_http_exchange *exchange, const char *content_type);

typedef enum fl_http_written {
    FL_HTTP_WRITTEN,
    FL_HTTP_LEFT,    /* the client has left, or the stream was ended or cut off before: dropped */
    FL_HTTP_TOO_SLOW /* stream_bytes_max were waiting (or there was no memory): cut off by this write */
} fl_http_written;

/* Adds bytes. */
fl_http_written fl_http_stream_write(fl_http_exchange *exchange, const char *bytes, size_t n_bytes);

/* fl_now_s() of the last write. */
double fl_http_stream_written_s(fl_http_exchange *exchange);

/* What was written is still sent, then the answer ends. */
void fl_http_stream_end(fl_http_exchange *exchange);

#endif
