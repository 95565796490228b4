/* One request and its answer: who holds it, whole answers. */
#include "base/clock.h"
#include "server/http_private.h"

#include <stdlib.h>
#include <string.h>

fl_http_exchange *fl_http_exchange_new(fl_http *http, struct MHD_Connection *connection, const char *target) {
    fl_http_exchange *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->http = http;
    e->connection = connection;
    e->target = strdup(target);
    if (!e->target) {
        free(e);
        return NULL;
    }
    pthread_mutex_init(&e->lock, NULL);
    fl_buffer_init(&e->body, 0);
    fl_buffer_init(&e->out, (size_t)http->options.stream_bytes_max);
    atomic_init(&e->n_refs, 1);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    e->fd = info ? info->connect_fd : -1;
    e->generation = fl_http_slot_generation(http, e->fd);
    e->head.arrived_s = fl_now_s();
    return e;
}

void fl_http_hold(fl_http_exchange *e) {
    atomic_fetch_add(&e->n_refs, 1);
}

void fl_http_uncount_body(fl_http_exchange *e) {
    atomic_fetch_sub(&e->http->n_body_bytes, e->counted_bytes);
    e->counted_bytes = 0;
}

void fl_http_release(fl_http_exchange *e) {
    if (!e || atomic_fetch_sub(&e->n_refs, 1) != 1) return;
    if (e->handled) e->http->options.handlers.free(e->http->options.handlers.context, e);
    fl_http_drop_body(e);
    fl_http_uncount_body(e);
    if (!e->queued) free(e->answer.body); /* afterwards the library frees it */
    fl_buffer_free(&e->out);
    free(e->target);
    free(e->path);
    free(e->authorization);
    free(e->content_type);
    free(e->host);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

const fl_http_head *fl_http_get_head(const fl_http_exchange *e) {
    return &e->head;
}

void fl_http_set_user(fl_http_exchange *e, void *user) {
    e->user = user;
}

void *fl_http_get_user(const fl_http_exchange *e) {
    return e->user;
}

const char *fl_http_get_body(const fl_http_exchange *e, size_t *n_bytes) {
    *n_bytes = e->body.n;
    return e->body.n ? e->body.bytes : "";
}

void fl_http_drop_body(fl_http_exchange *e) {
    fl_buffer_free(&e->body);
}

void fl_http_exchange_wake(fl_http_exchange *e) {
    if (!e->suspended) return;
    e->suspended = false;
    MHD_resume_connection(e->connection);
}

void fl_http_answer_send(fl_http_exchange *e, const fl_http_answer *answer) {
    pthread_mutex_lock(&e->lock);
    bool taken = !e->answered && !e->streaming && !e->done;
    if (taken) {
        e->answered = true;
        e->answer = *answer;
        fl_http_exchange_wake(e);
    }
    pthread_mutex_unlock(&e->lock);
    if (!taken) free(answer->body);
}

bool fl_http_exchange_cut(fl_http_exchange *e) {
    pthread_mutex_lock(&e->lock);
    bool first = !e->gone && !e->done;
    e->gone = e->cut = true;
    if (!e->done) fl_http_exchange_wake(e);
    pthread_mutex_unlock(&e->lock);
    return first;
}

static struct MHD_Response *make_whole(fl_http_exchange *e) {
    const fl_http_answer *a = &e->answer;
    struct MHD_Response *r =
        a->body ? MHD_create_response_from_buffer(a->body_bytes, a->body, MHD_RESPMEM_MUST_FREE)
                : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!r) return NULL;
    (void)MHD_add_response_header(r, "Content-Type", a->content_type ? a->content_type : "application/json");
    for (int i = 0; i < FL_HTTP_FIELDS_MAX && a->extra[i].name; i++)
        (void)MHD_add_response_header(r, a->extra[i].name, a->extra[i].value);
    return r;
}

/* Of the event thread, without the lock: the library locks its response here and while it calls on_read. */
static enum MHD_Result queue(fl_http_exchange *e, bool stream) {
    struct MHD_Response *r = stream ? fl_http_stream_response(e) : make_whole(e);
    if (!r) return MHD_NO;
    e->queued = true;
    if (stream) fl_http_watch_add(e);
    else fl_http_watch_forget(e); /* the library sees to it now */
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if ((!stream && e->answer.close) || atomic_load(&e->http->draining))
        (void)MHD_add_response_header(r, "Connection", "close");
    if (!stream) fl_http_slot_set_deadline(e, e->http->options.send_s);
    enum MHD_Result result = MHD_queue_response(e->connection, stream ? 200 : (unsigned)e->answer.status, r);
    MHD_destroy_response(r);
    return result;
}

enum MHD_Result fl_http_exchange_proceed(fl_http_exchange *e) {
    pthread_mutex_lock(&e->lock);
    bool cut = e->cut || atomic_load(&e->http->closing), ready = e->answered || e->streaming;
    bool stream = !e->answered;
    if (!cut && !ready) {
        fl_http_watch_add(e);
        e->suspended = true;
        MHD_suspend_connection(e->connection);
    }
    pthread_mutex_unlock(&e->lock);
    if (cut) return MHD_NO;
    return ready && !e->queued ? queue(e, stream) : MHD_YES;
}
