/* Which path does what: one table. */
#ifndef FL_SERVER_ROUTE_H
#define FL_SERVER_ROUTE_H

#include "server/front.h"

/* Bits of fl_route.flags. */
enum {
    FL_ROUTE_OPEN = 1 << 0,   /* no API key is asked for */
    FL_ROUTE_SLOW = 1 << 1,   /* on a request thread */
    FL_ROUTE_ANSWER = 1 << 2, /* goes to the worker: admission applies */
    FL_ROUTE_PREFIX = 1 << 3, /* everything below the path too */
};

/* A file that travels in the program. */
typedef struct fl_asset {
    const char *content_type;
    const unsigned char *bytes;
    size_t n_bytes;
    const char *content_security_policy;
} fl_asset;

struct fl_route {
    const char *method, *path;
    unsigned flags;
    fl_api_kind kind; /* of a POST */
    void (*handle)(fl_front *front, fl_http_exchange *exchange);
    const fl_asset *asset; /* served as it is, where handle is NULL */
};

/* [fl_routes_n] */
extern const fl_route fl_routes[];
extern const int fl_routes_n;

/* The path's route for the method. NULL: *allowed is the methods that the path has ("GET, HEAD"), "" for a path that is
 * not there. */
const fl_route *fl_route_find(const char *method, const char *path, const char **allowed);

/* Handlers, by file. */
void fl_handle_health(fl_front *front, fl_http_exchange *exchange); /* handle_status.c */
void fl_handle_ready(fl_front *front, fl_http_exchange *exchange);
void fl_handle_version(fl_front *front, fl_http_exchange *exchange);
void fl_handle_metrics(fl_front *front, fl_http_exchange *exchange);
void fl_handle_models(fl_front *front, fl_http_exchange *exchange);
void fl_handle_tokenize(fl_front *front, fl_http_exchange *exchange); /* handle_text.c */
void fl_handle_detokenize(fl_front *front, fl_http_exchange *exchange);
void fl_handle_answer(fl_front *front, fl_http_exchange *exchange); /* call.c */

#endif
