/* What the files http*.c share. */
#ifndef FL_SERVER_HTTP_PRIVATE_H
#define FL_SERVER_HTTP_PRIVATE_H

#include "base/buffer.h"
#include "server/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

/* What is known of an open connection, found by its file descriptor. */
typedef struct fl_http_slot {
    uint32_t generation; /* counts the connections that had this descriptor */
    bool open;
    bool reading;               /* a request is being read, or waited for */
    bool left;                  /* the client was seen to leave */
    fl_http_exchange *exchange; /* while one is watched */
    double deadline_s;          /* the connection is cut off then; 0 = never */
} fl_http_slot;

struct fl_http {
    fl_http_options options;
    struct MHD_Daemon *daemon;
    int listen_fd; /* -1 once the daemon has it */
    int32_t port;
    int epoll_fd, wake_fd, timer_fd;
    bool watching;
    pthread_t watch;
    /* Guards slots. May be taken with an exchange's lock held, never the other way round. */
    pthread_mutex_t slots_lock;
    fl_http_slot *slots; /* [n_slots] by file descriptor */
    int n_slots;
    pthread_mutex_t to_send_lock; /* guards to_send; may be taken with an exchange's lock held */
    fl_http_exchange *to_send;    /* streams that have something to send, in a list that holds them */
    atomic_int_fast64_t n_exchanges, n_connections, n_body_bytes;
    atomic_bool draining, closing, stop;
};

struct fl_http_exchange {
    fl_http *http;
    struct MHD_Connection *connection;
    atomic_int n_refs;
    int fd;
    uint32_t generation; /* of its slot */
    void *user;

    /* The event thread's own. */
    fl_http_head head;
    char method[17];
    char *target, *path, *authorization, *content_type, *host; /* owned */
    bool headed, handled, bodied; /* head read; head() was called; body complete */
    bool expects_continue;
    int64_t body_bytes_max, drain_bytes;
    fl_buffer body;
    int64_t counted_bytes; /* of it, in the bound over all */
    bool queued;           /* the library has the answer, and frees its body */
    bool chunked;          /* a stream goes out in chunks: HTTP/1.1 */

    pthread_mutex_t lock; /* guards what follows */
    bool answered;        /* `answer` is there */
    fl_http_answer answer;
    bool streaming, stream_ended;
    const char *stream_type;
    fl_buffer out; /* what waits to be sent, as it goes over the wire */
    double written_s;
    bool sending;                /* in http->to_send */
    fl_http_exchange *send_next; /* there; guarded by to_send_lock */
    bool blocked;                /* the socket is full: the watch waits for room */
    bool suspended;              /* the library waits for us, and leaves the socket alone */
    bool cut;                    /* nothing more is sent */
    bool gone;                   /* gone() was or is being called */
    bool done;                   /* the library has let go: `connection` is not valid any more */
};

/* http_exchange.c */
fl_http_exchange *fl_http_exchange_new(fl_http *http, struct MHD_Connection *connection, const char *target);

/* Takes the body out of the bound over all bodies. */
void fl_http_uncount_body(fl_http_exchange *exchange);

/* Gives the library the answer if there is one, else has it wait. */
enum MHD_Result fl_http_exchange_proceed(fl_http_exchange *exchange);

/* Nothing more is sent, and a waiting library goes on and finds out. Tells whether this call was the first. */
bool fl_http_exchange_cut(fl_http_exchange *exchange);

/* Has a waiting library go on. Needs the exchange's lock. */
void fl_http_exchange_wake(fl_http_exchange *exchange);

/* http_stream.c: a stream's response for the library; NULL: no memory. */
struct MHD_Response *fl_http_stream_response(fl_http_exchange *exchange);

/* Sends what the socket has room for. Needs the exchange's lock. */
void fl_http_stream_send(fl_http_exchange *exchange);

/* http_body.c: the library's callback for heads and bodies. */
enum MHD_Result fl_http_on_access(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **own);

/* http_watch.c */
fl_err fl_http_watch_open(fl_http *http);
void fl_http_watch_stop(fl_http *http);
void fl_http_watch_close(fl_http *http);
void fl_http_slot_open(fl_http *http, int fd);
void fl_http_slot_close(fl_http *http, int fd);
uint32_t fl_http_slot_generation(fl_http *http, int fd);

/* Whether the exchange's connection has (more of) a request to come. */
void fl_http_slot_set_reading(fl_http_exchange *exchange, bool reading);

/* The exchange's connection is cut off `seconds` from now; 0 = never. */
void fl_http_slot_set_deadline(fl_http_exchange *exchange, double seconds);

/* From here to forget, the client's leaving is seen. */
void fl_http_watch_add(fl_http_exchange *exchange);
void fl_http_watch_forget(fl_http_exchange *exchange);

/* What a stream has to send goes out within a millisecond: tokens of many streams share one waking of the watch's
 * thread. Needs the exchange's lock. */
void fl_http_send_soon(fl_http_exchange *exchange);

/* fl_http_stream_send is called once the socket has room. Needs the exchange's lock. */
void fl_http_watch_room(fl_http_exchange *exchange);

/* Ends the connection with a reset. */
void fl_http_reset(fl_http_exchange *exchange);

#endif
