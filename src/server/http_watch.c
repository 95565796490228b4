/* The watch: a thread that sees clients leave and sends streams (http_stream.c). The HTTP library does not look at a
 * connection that waits for its answer, and an answer may take minutes to begin; a socket that the client closed raises
 * EPOLLRDHUP at once. */
#include "base/clock.h"
#include "server/http_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { SOON_NS = 1000000, TICK_MS = 250, EVENTS = 64, FDS_MAX = 1 << 20, FDS_OWN = 256 };

static const double LEFT_S = 1;

/* What an event that is not a connection's says. */
static const uint64_t STOP = UINT64_MAX, SEND = UINT64_MAX - 1;

/* The slot of the exchange's connection, NULL if the descriptor has another one by now. Needs slots_lock. */
static fl_http_slot *slot_of(const fl_http_exchange *e) {
    if (e->fd < 0 || e->fd >= e->http->n_slots) return NULL;
    fl_http_slot *slot = &e->http->slots[e->fd];
    return slot->open && slot->generation == e->generation ? slot : NULL;
}

/* Needs slots_lock. */
static void arm(const fl_http *http, int fd, int how, uint32_t events) {
    struct epoll_event event = {.events = events | EPOLLONESHOT,
                                .data.u64 = (uint64_t)http->slots[fd].generation << 32 | (uint32_t)fd};
    (void)epoll_ctl(http->epoll_fd, how, fd, &event);
}

void fl_http_slot_open(fl_http *http, int fd) {
    if (fd < 0 || fd >= http->n_slots) return;
    pthread_mutex_lock(&http->slots_lock);
    fl_http_slot *slot = &http->slots[fd];
    *slot = (fl_http_slot){.generation = slot->generation + 1, .open = true, .reading = true};
    slot->deadline_s = fl_now_s() + http->options.head_s;
    arm(http, fd, EPOLL_CTL_ADD, EPOLLRDHUP);
    pthread_mutex_unlock(&http->slots_lock);
}

void fl_http_slot_close(fl_http *http, int fd) {
    if (fd < 0 || fd >= http->n_slots) return;
    pthread_mutex_lock(&http->slots_lock);
    http->slots[fd].open = false;
    http->slots[fd].exchange = NULL;
    pthread_mutex_unlock(&http->slots_lock);
}

uint32_t fl_http_slot_generation(fl_http *http, int fd) {
    if (fd < 0 || fd >= http->n_slots) return 0;
    pthread_mutex_lock(&http->slots_lock);
    uint32_t generation = http->slots[fd].generation;
    pthread_mutex_unlock(&http->slots_lock);
    return generation;
}

void fl_http_slot_set_deadline(fl_http_exchange *e, double seconds) {
    pthread_mutex_lock(&e->http->slots_lock);
    fl_http_slot *slot = slot_of(e);
    if (slot && slot->left && slot->reading && seconds > LEFT_S) seconds = LEFT_S;
    if (slot) slot->deadline_s = seconds > 0 ? fl_now_s() + seconds : 0;
    pthread_mutex_unlock(&e->http->slots_lock);
}

void fl_http_slot_set_reading(fl_http_exchange *e, bool reading) {
    pthread_mutex_lock(&e->http->slots_lock);
    fl_http_slot *slot = slot_of(e);
    if (slot) slot->reading = reading;
    pthread_mutex_unlock(&e->http->slots_lock);
}

void fl_http_watch_add(fl_http_exchange *e) {
    pthread_mutex_lock(&e->http->slots_lock);
    fl_http_slot *slot = slot_of(e);
    if (slot && !slot->exchange) {
        slot->exchange = e;
        if (slot->left) arm(e->http, e->fd, EPOLL_CTL_MOD, EPOLLRDHUP); /* told again, now of the exchange */
    }
    pthread_mutex_unlock(&e->http->slots_lock);
}

void fl_http_watch_room(fl_http_exchange *e) {
    pthread_mutex_lock(&e->http->slots_lock);
    const fl_http_slot *slot = slot_of(e);
    if (slot && slot->exchange == e) arm(e->http, e->fd, EPOLL_CTL_MOD, EPOLLRDHUP | EPOLLOUT);
    pthread_mutex_unlock(&e->http->slots_lock);
}

void fl_http_watch_forget(fl_http_exchange *e) {
    pthread_mutex_lock(&e->http->slots_lock);
    fl_http_slot *slot = slot_of(e);
    if (slot && slot->exchange == e) slot->exchange = NULL;
    pthread_mutex_unlock(&e->http->slots_lock);
}

/* With the lock held the descriptor cannot be closed and used again meanwhile. */
static void reset_fd(int fd) {
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)shutdown(fd, SHUT_RDWR);
}

void fl_http_reset(fl_http_exchange *e) {
    pthread_mutex_lock(&e->http->slots_lock);
    if (slot_of(e)) reset_fd(e->fd);
    pthread_mutex_unlock(&e->http->slots_lock);
}

/* The slot of an event, with a reference to its exchange, if it has one: the client has left, or its socket has room.
 * The library, which reads what there is and then waits for more, misses an end that came together with the last bytes:
 * a client that leaves in the middle of a request is given a second, in which the library may find the request whole.
 * */
static fl_http_exchange *take_event(fl_http *http, uint64_t who, uint32_t events) {
    fl_http_exchange *e = NULL;
    uint32_t fd = (uint32_t)who, generation = (uint32_t)(who >> 32);
    pthread_mutex_lock(&http->slots_lock);
    fl_http_slot *slot = fd < (uint32_t)http->n_slots ? &http->slots[fd] : NULL;
    if (slot && slot->open && slot->generation == generation) {
        double soon_s = fl_now_s() + LEFT_S;
        e = slot->exchange;
        if (e) fl_http_hold(e);
        if (events == EPOLLOUT) arm(http, (int)fd, EPOLL_CTL_MOD, EPOLLRDHUP);
        else slot->left = true;
        if (slot->left && slot->reading && !(slot->deadline_s > 0 && slot->deadline_s < soon_s))
            slot->deadline_s = soon_s;
    }
    pthread_mutex_unlock(&http->slots_lock);
    return e;
}

static void on_socket(fl_http *http, uint64_t who, uint32_t events) {
    fl_http_exchange *e = take_event(http, who, events);
    if (!e) return;
    if (events == EPOLLOUT) {
        pthread_mutex_lock(&e->lock);
        fl_http_stream_send(e);
        pthread_mutex_unlock(&e->lock);
    } else if (fl_http_exchange_cut(e)) http->options.handlers.gone(http->options.handlers.context, e);
    fl_http_release(e);
}

void fl_http_send_soon(fl_http_exchange *e) {
    fl_http *http = e->http;
    const struct itimerspec soon = {.it_value.tv_nsec = SOON_NS};
    if (e->sending || e->blocked || !e->suspended) return;
    e->sending = true;
    fl_http_hold(e);
    pthread_mutex_lock(&http->to_send_lock);
    bool first = !http->to_send;
    e->send_next = http->to_send;
    http->to_send = e;
    pthread_mutex_unlock(&http->to_send_lock);
    if (first) (void)timerfd_settime(http->timer_fd, 0, &soon, NULL);
}

static void send_streams(fl_http *http) {
    uint64_t n_times;
    ssize_t got = read(http->timer_fd, &n_times, sizeof n_times);
    (void)got; /* it is only there to be looked for */
    pthread_mutex_lock(&http->to_send_lock);
    fl_http_exchange *next, *e = http->to_send;
    http->to_send = NULL;
    pthread_mutex_unlock(&http->to_send_lock);
    for (; e; e = next) {
        next = e->send_next;
        pthread_mutex_lock(&e->lock);
        e->sending = false;
        fl_http_stream_send(e);
        pthread_mutex_unlock(&e->lock);
        fl_http_release(e);
    }
}

static void cut_the_slow(fl_http *http) {
    double now = fl_now_s();
    pthread_mutex_lock(&http->slots_lock);
    for (int fd = 0; fd < http->n_slots; fd++) {
        fl_http_slot *slot = &http->slots[fd];
        if (!slot->open || slot->deadline_s == 0 || slot->deadline_s > now) continue;
        slot->deadline_s = 0;
        reset_fd(fd);
    }
    pthread_mutex_unlock(&http->slots_lock);
}

static void *watch_main(void *context) {
    fl_http *http = context;
    struct epoll_event events[EVENTS];
    double next_s = fl_now_s();
    while (!atomic_load(&http->stop)) {
        int n = epoll_wait(http->epoll_fd, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++)
            if (events[i].data.u64 == SEND) send_streams(http);
            else if (events[i].data.u64 != STOP) on_socket(http, events[i].data.u64, events[i].events);
        if (fl_now_s() < next_s) continue;
        next_s = fl_now_s() + 1e-3 * TICK_MS;
        cut_the_slow(http);
        http->options.handlers.tick(http->options.handlers.context);
    }
    return NULL;
}

/* Room for a slot a descriptor, and as many descriptors as connections can need. */
static fl_err open_slots(fl_http *http) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)http->options.connections_max + FDS_OWN;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return FL_FAIL(FL_ERR_IO, "getrlimit: %s", strerror(errno));
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    http->n_slots = limit.rlim_cur < FDS_MAX ? (int)limit.rlim_cur : FDS_MAX;
    if (http->options.connections_max > http->n_slots - FDS_OWN && http->n_slots > 2 * FDS_OWN)
        http->options.connections_max = http->n_slots - FDS_OWN;
    http->slots = calloc((size_t)http->n_slots, sizeof *http->slots);
    return http->slots ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "%d connections", http->n_slots);
}

fl_err fl_http_watch_open(fl_http *http) {
    struct epoll_event stop = {.events = EPOLLIN, .data.u64 = STOP};
    struct epoll_event send = {.events = EPOLLIN, .data.u64 = SEND};
    FL_TRY(open_slots(http));
    http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    http->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    http->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (http->epoll_fd < 0 || http->wake_fd < 0 || http->timer_fd < 0 ||
        epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->wake_fd, &stop) != 0 ||
        epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->timer_fd, &send) != 0)
        return FL_FAIL(FL_ERR_IO, "epoll: %s", strerror(errno));
    int failed = pthread_create(&http->watch, NULL, watch_main, http);
    if (failed) return FL_FAIL(FL_ERR_IO, "the watch thread: %s", strerror(failed));
    http->watching = true;
    return FL_ERR_OK;
}

void fl_http_watch_stop(fl_http *http) {
    const uint64_t one = 1;
    if (!http->watching) return;
    http->watching = false;
    atomic_store(&http->stop, true);
    ssize_t written = write(http->wake_fd, &one, sizeof one);
    (void)written; /* the thread also wakes by itself */
    pthread_join(http->watch, NULL);
    send_streams(http); /* lets go of those that are left */
}

void fl_http_watch_close(fl_http *http) {
    if (http->epoll_fd >= 0) close(http->epoll_fd);
    if (http->wake_fd >= 0) close(http->wake_fd);
    if (http->timer_fd >= 0) close(http->timer_fd);
    free(http->slots);
}
