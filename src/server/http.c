#include "server/http.h"

#include "base/clock.h"
#include "server/http_private.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 4096, SEND_BUFFER_BYTES = 256 << 10 };

void fl_http_options_default(fl_http_options *o) {
    *o = (fl_http_options){.host = "127.0.0.1",
                           .port = 8000,
                           .connections_max = 16384,
                           .head_bytes_max = 32 << 10,
                           .body_bytes_all_max = (int64_t)512 << 20,
                           .stream_bytes_max = 256 << 10,
                           .head_s = 15,
                           .body_s = 120,
                           .idle_s = 75,
                           .send_s = 120};
}

static fl_err listen_on(const struct addrinfo *a, int *out) {
    const int on = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return FL_FAIL(FL_ERR_IO, "socket: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        fl_err err = FL_FAIL(FL_ERR_IO, "cannot listen: %s", strerror(errno));
        close(fd);
        return err;
    }
    *out = fd;
    return FL_ERR_OK;
}

static fl_err open_listener(fl_http *http) {
    const fl_http_options *o = &http->options;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    struct sockaddr_storage name;
    socklen_t name_bytes = sizeof name;
    char service[16];
    snprintf(service, sizeof service, "%d", o->port);
    int failed = getaddrinfo(*o->host ? o->host : NULL, service, &hints, &list);
    if (failed) return FL_FAIL(FL_ERR_IO, "host '%s': %s", o->host, gai_strerror(failed));
    fl_err err = listen_on(list, &http->listen_fd);
    freeaddrinfo(list);
    if (err != FL_ERR_OK)
        return FL_FAIL(err, "--host %s --port %d: cannot listen there: %s", o->host, o->port,
                       strerror(errno));
    if (getsockname(http->listen_fd, (struct sockaddr *)&name, &name_bytes) != 0)
        return FL_FAIL(FL_ERR_IO, "getsockname: %s", strerror(errno));
    const void *at = &name;
    http->port = ntohs(name.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_port
                                                  : ((const struct sockaddr_in *)at)->sin_port);
    return FL_ERR_OK;
}

/* Nagle's algorithm would hold small chunks back for 40 ms; a dead peer must be noticed while nothing is sent. */
static void set_up_socket(int fd) {
    const int on = 1, idle_s = 30, interval_s = 10, probes = 3, send_bytes = SEND_BUFFER_BYTES;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **own,
                          enum MHD_ConnectionNotificationCode code) {
    fl_http *http = context;
    (void)own;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int fd = info ? info->connect_fd : -1;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        atomic_fetch_add(&http->n_connections, 1);
        set_up_socket(fd);
        fl_http_slot_open(http, fd);
    } else {
        atomic_fetch_sub(&http->n_connections, 1);
        fl_http_slot_close(http, fd);
    }
}

static void *on_target(void *context, const char *target, struct MHD_Connection *connection) {
    return fl_http_exchange_new(context, connection, target);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **own,
                         enum MHD_RequestTerminationCode code) {
    fl_http *http = context;
    fl_http_exchange *e = *own;
    (void)connection;
    *own = NULL;
    if (!e) return;
    fl_http_watch_forget(e);
    fl_http_slot_set_reading(e, true);
    fl_http_slot_set_deadline(e, http->options.idle_s);
    pthread_mutex_lock(&e->lock);
    bool complete = code == MHD_REQUEST_TERMINATED_COMPLETED_OK && !e->cut;
    e->done = true;
    pthread_mutex_unlock(&e->lock);
    if (complete) fl_http_uncount_body(e); /* before the next body is read, by this thread */
    if (e->handled) {
        http->options.handlers.ended(http->options.handlers.context, e, complete);
        atomic_fetch_sub(&http->n_exchanges, 1);
    }
    fl_http_release(e);
}

static fl_err start_daemon(fl_http *http) {
    const fl_http_options *o = &http->options;
    double slowest_s = o->idle_s > o->send_s ? o->idle_s : o->send_s;
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_SUSPEND_RESUME, 0, NULL, NULL, fl_http_on_access, http,
        MHD_OPTION_LISTEN_SOCKET, http->listen_fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections_max,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)o->head_bytes_max, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)slowest_s + 1, MHD_OPTION_URI_LOG_CALLBACK, on_target, http, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, http, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_END);
    if (!http->daemon) return FL_FAIL(FL_ERR_IO, "the HTTP daemon does not start: %s", strerror(errno));
    http->listen_fd = -1;
    return FL_ERR_OK;
}

fl_err fl_http_open(const fl_http_options *options, fl_http **out) {
    fl_err err;
    fl_http *http = calloc(1, sizeof *http);
    if (!http) return FL_FAIL(FL_ERR_NOMEM, "the HTTP server");
    http->options = *options;
    http->listen_fd = http->epoll_fd = http->wake_fd = http->timer_fd = -1;
    pthread_mutex_init(&http->slots_lock, NULL);
    pthread_mutex_init(&http->to_send_lock, NULL);
    FL_TRY_GOTO(open_listener(http));
    FL_TRY_GOTO(fl_http_watch_open(http));
    *out = http; /* handlers look for it, and the first may be called before start_daemon returns */
    FL_TRY_GOTO(start_daemon(http));
    return FL_ERR_OK;
fail:
    *out = NULL;
    fl_http_close(http);
    return err;
}

int32_t fl_http_port(const fl_http *http) {
    return http->port;
}

void fl_http_drain(fl_http *http) {
    if (atomic_exchange(&http->draining, true) || !http->daemon) return;
    int fd = MHD_quiesce_daemon(http->daemon);
    if (fd >= 0) close(fd);
}

bool fl_http_draining(const fl_http *http) {
    return atomic_load(&http->draining);
}

void fl_http_get_load(const fl_http *http, fl_http_load *out) {
    out->exchanges = atomic_load(&http->n_exchanges);
    out->connections = atomic_load(&http->n_connections);
    out->body_bytes = atomic_load(&http->n_body_bytes);
}

/* The library refuses to stop while a connection waits: wakes them until none does. */
static void wake_all(fl_http *http) {
    double until_s = fl_now_s() + 5;
    atomic_store(&http->closing, true);
    while (atomic_load(&http->n_exchanges) > 0 && fl_now_s() < until_s) {
        for (int fd = 0; fd < http->n_slots; fd++) {
            pthread_mutex_lock(&http->slots_lock);
            fl_http_exchange *e = http->slots[fd].open ? http->slots[fd].exchange : NULL;
            if (e) fl_http_hold(e);
            pthread_mutex_unlock(&http->slots_lock);
            if (!e) continue;
            (void)fl_http_exchange_cut(e);
            fl_http_release(e);
        }
        usleep(2000);
    }
}

void fl_http_stop(fl_http *http) {
    if (http->daemon) {
        wake_all(http);
        MHD_stop_daemon(http->daemon);
        http->daemon = NULL;
    }
    fl_http_watch_stop(http);
}

void fl_http_close(fl_http *http) {
    if (!http) return;
    fl_http_stop(http);
    fl_http_watch_close(http);
    if (http->listen_fd >= 0) close(http->listen_fd);
    pthread_mutex_destroy(&http->slots_lock);
    pthread_mutex_destroy(&http->to_send_lock);
    free(http);
}
