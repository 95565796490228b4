/* One HTTP/1.1 request on a socket of its own that never blocks, for an event loop that has thousands. The answer's
 * body comes in pieces, chunked or not. HTTP as far as a load generator needs it: http only, no redirects, one request
 * at a time on a connection. */
#ifndef FL_LOAD_HTTP_CALL_H
#define FL_LOAD_HTTP_CALL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Where a server is: from "http://HOST[:PORT][/]". */
typedef struct fl_http_server {
    struct sockaddr_storage address;
    socklen_t address_bytes;
    char host[256]; /* as the Host header says it */
    char key[256];  /* sent as "Authorization: Bearer"; "" = none */
} fl_http_server;

/* Resolves a URL. FL_ERR_INVALID: it is not of that form. FL_ERR_IO: no such host. key: NULL = none. */
fl_err fl_http_server_parse(const char *url, const char *key, fl_http_server *out);

typedef enum fl_http_state {
    FL_HTTP_CONNECT,
    FL_HTTP_SEND,
    FL_HTTP_HEAD,
    FL_HTTP_BODY,
    FL_HTTP_DONE
} fl_http_state;

enum { FL_HTTP_HEAD_BYTES = 16384 };

/* A piece of the body, borrowed for the call. Another code than FL_ERR_OK ends the call with it. */
typedef fl_err fl_http_body_fn(void *context, const char *bytes, size_t n);

typedef struct fl_http_call {
    int fd;      /* -1 = closed */
    bool reused; /* the connection had a request before this one */
    bool keep;   /* the server leaves the connection open behind this answer */
    fl_http_state state;
    char *out; /* [out_bytes], owned: head and body of the request */
    size_t out_bytes, out_sent, head_bytes;
    int32_t status;       /* 0 = no answer yet */
    double retry_after_s; /* 0 = not said */
    bool chunked;
    int64_t left; /* of the body or of the chunk; -1 = until the connection closes */
    int32_t chunk_part;
    fl_http_body_fn *on_body;
    void *context;
    char head[FL_HTTP_HEAD_BYTES]; /* of the answer */
} fl_http_call;

/* A request on the connection that *call still has (fl_http_call_end), or, where fd is -1, on a new one. body: NULL =
 * GET. Sets all but on_body and context. Call fl_http_call_end or _close when it is over. FL_ERR_IO: no socket, or
 * refused at once. */
fl_err fl_http_call_open(const fl_http_server *server, const char *path, const char *body, size_t body_bytes,
                         fl_http_call *call);

/* Whether it failed for no other reason than that the server had closed a connection used before. */
bool fl_http_call_is_stale(const fl_http_call *call);

/* The same request once more, on a new connection. */
fl_err fl_http_call_again(const fl_http_server *server, fl_http_call *call);

/* Frees what the request took; its connection stays open if the server leaves it so. */
void fl_http_call_end(fl_http_call *call);
void fl_http_call_close(fl_http_call *call);

/* EPOLLIN or EPOLLOUT: what to wait for. */
uint32_t fl_http_call_events(const fl_http_call *call);

/* Goes on as far as the socket lets it. FL_ERR_IO: the connection broke; FL_ERR_DATA: the answer is no HTTP. */
fl_err fl_http_call_step(fl_http_call *call);

/* Waits for the end of it, `timeout_s` at most; *text is malloc'ed, NUL-terminated and passes to the caller. */
fl_err fl_http_fetch(const fl_http_server *server, const char *path, const char *body, double timeout_s,
                     int32_t *status, char **text);

#endif
