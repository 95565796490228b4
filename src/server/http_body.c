/* Heads and bodies as they come in. */
#include "server/http_guard.h"
#include "server/http_private.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef struct field_list {
    fl_http_field items[FL_HTTP_GUARD_FIELDS_MAX + 1];
    size_t n;
} field_list;

static enum MHD_Result on_field(void *context, enum MHD_ValueKind kind, const char *name, size_t name_bytes,
                                const char *value, size_t value_bytes) {
    field_list *list = context;
    (void)kind;
    if (list->n > FL_HTTP_GUARD_FIELDS_MAX) return MHD_NO;
    list->items[list->n++] = (fl_http_field){name, value ? value : "", name_bytes, value ? value_bytes : 0};
    return MHD_YES;
}

static char *copy_field(const fl_http_field *f) {
    return f ? strndup(f->value, f->value_bytes) : NULL;
}

static void set_peer(fl_http_exchange *e) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(e->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (!info || !info->client_addr) return;
    const struct sockaddr *a = info->client_addr;
    socklen_t n = a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (getnameinfo(a, n, e->head.peer, sizeof e->head.peer, NULL, 0, NI_NUMERICHOST) != 0)
        e->head.peer[0] = '\0';
}

static bool copy_head(fl_http_exchange *e, const char *method, const fl_http_verdict *v) {
    snprintf(e->method, sizeof e->method, "%s", v->status ? "" : method);
    e->path = strndup(v->path, v->status ? strlen(v->path) : v->path_bytes);
    e->authorization = copy_field(v->authorization);
    e->content_type = copy_field(v->content_type);
    e->host = copy_field(v->host);
    e->expects_continue = v->expects_continue;
    e->head.method = e->method;
    e->head.path = e->path;
    e->head.authorization = e->authorization;
    e->head.content_type = e->content_type;
    e->head.host = e->host;
    e->head.content_length = v->content_length;
    set_peer(e);
    return e->path && (e->authorization || !v->authorization) && (e->content_type || !v->content_type) &&
           (e->host || !v->host);
}

/* The HTTP layer's own refusal; the connection ends with it. */
static void refuse(fl_http_exchange *e, int status, const char *reason) {
    const fl_http_handlers *h = &e->http->options.handlers;
    h->refuse(h->context, e, status, reason);
    pthread_mutex_lock(&e->lock);
    e->answer.close = true;
    pthread_mutex_unlock(&e->lock);
}

static enum MHD_Result on_head(fl_http_exchange *e, const char *method, const char *version) {
    const fl_http_handlers *h = &e->http->options.handlers;
    field_list list = {.n = 0};
    fl_http_verdict verdict;
    e->headed = true;
    e->chunked = strcmp(version, "HTTP/1.1") == 0;
    (void)MHD_get_connection_values_n(e->connection, MHD_HEADER_KIND, on_field, &list);
    const union MHD_ConnectionInfo *size =
        MHD_get_connection_info(e->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const fl_http_raw_head raw = {method,     e->target, version,
                                  list.items, list.n,    size ? size->header_size : 0};
    fl_http_guard(&raw, &verdict);
    if (!copy_head(e, method, &verdict)) return MHD_NO;
    e->handled = true;
    atomic_fetch_add(&e->http->n_exchanges, 1);
    if (verdict.status) refuse(e, verdict.status, verdict.reason);
    else {
        e->body_bytes_max = h->head(h->context, e);
        e->body.max = (size_t)e->body_bytes_max;
        if (!e->answered && verdict.content_length > e->body_bytes_max) {
            refuse(e, 413, "the body is longer than this server takes");
            /* Most clients look for an answer behind their body. */
            e->answer.drain_bytes = 2 * e->body_bytes_max;
        }
    }
    fl_http_slot_set_deadline(e, e->http->options.body_s);
    bool refused = verdict.status != 0; /* then nothing is known of a body */
    if (!e->answered || (verdict.content_length == 0 && !refused))
        return MHD_YES; /* the call behind the body goes on */
    e->drain_bytes = e->answer.drain_bytes;
    if (refused || e->expects_continue || verdict.content_length > e->drain_bytes) {
        e->answer.close = true;
        return fl_http_exchange_proceed(e);
    }
    return MHD_YES;
}

/* Within the bound over all bodies. */
static bool add_to_body(fl_http_exchange *e, const char *bytes, size_t n) {
    fl_http *http = e->http;
    int_fast64_t all = atomic_fetch_add(&http->n_body_bytes, (int_fast64_t)n) + (int_fast64_t)n;
    if (all <= http->options.body_bytes_all_max) fl_buffer_add(&e->body, bytes, n);
    else e->body.failure = FL_ERR_LIMIT;
    if (e->body.failure == FL_ERR_OK) {
        e->counted_bytes += (int64_t)n;
        return true;
    }
    atomic_fetch_sub(&http->n_body_bytes, (int_fast64_t)n);
    return false;
}

/* A body in chunks may grow without having said so: it is refused where the bound is crossed, and what still comes is
 * dropped, up to the same bound. */
static enum MHD_Result on_upload(fl_http_exchange *e, const char *bytes, size_t n) {
    if (!e->answered) {
        if (n > (size_t)e->body_bytes_max - e->body.n)
            refuse(e, 413, "the body is longer than this server takes");
        else if (!add_to_body(e, bytes, n)) refuse(e, 503, "too many bytes are being read; try again later");
        if (e->answered) {
            e->drain_bytes = e->body_bytes_max;
            fl_http_drop_body(e); /* nothing will be made of it */
            fl_http_uncount_body(e);
        }
    }
    if (e->answered) {
        e->drain_bytes -= (int64_t)n;
        return e->drain_bytes >= 0 ? MHD_YES : MHD_NO;
    }
    return MHD_YES;
}

enum MHD_Result fl_http_on_access(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **own) {
    fl_http_exchange *e = *own;
    (void)context;
    (void)connection;
    (void)url;
    if (!e) return MHD_NO;
    if (!e->headed) return on_head(e, method, version);
    if (*upload_bytes > 0) {
        size_t n = *upload_bytes;
        *upload_bytes = 0;
        return on_upload(e, upload, n);
    }
    if (!e->bodied) {
        e->bodied = true;
        fl_http_slot_set_reading(e, false);
        fl_http_slot_set_deadline(e, 0);
        if (!e->answered) e->http->options.handlers.body(e->http->options.handlers.context, e);
    }
    return fl_http_exchange_proceed(e);
}
