/* The link's thread: starts workers, moves messages, ends what a dead worker leaves, and starts the next. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/link_private.h"

enum { IN_FIRST_BYTES = 256 << 10, QUEUE_KEPT_BYTES = 4 << 20, LOOK_MS = 200 };
static const double HEALTHY_S = 30; /* ready for so long: the next restart is at once again */

static void set_state(fl_worker_link *l, fl_link_state state) {
    pthread_mutex_lock(&l->lock);
    l->state = state;
    pthread_mutex_unlock(&l->lock);
}

static void tell_state(const fl_worker_link *l) {
    if (l->o.on_state) l->o.on_state(l->o.on_state_context);
}

static bool is_closing(fl_worker_link *l) {
    pthread_mutex_lock(&l->lock);
    bool closing = l->closing;
    pthread_mutex_unlock(&l->lock);
    return closing;
}

/* ---- what the worker says ---- */

static fl_err give_event(fl_worker_link *l, uint64_t id, const fl_event *event, const fl_mark *marks,
                         int32_t n_marks) {
    fl_link_event_fn *on_event = NULL;
    void *context = NULL;
    uint64_t at = id % FL_WIRE_IDS_MAX;
    pthread_mutex_lock(&l->lock);
    fl_link_slot *slot = at < (uint64_t)l->o.requests_max ? &l->slots[at] : NULL;
    if (slot && id != 0 && slot->id == id) {
        on_event = slot->on_event;
        context = slot->context;
        slot->last = *event;
        if (event->type == FL_EVENT_DONE) fl_link_free_slot(l, slot);
    }
    pthread_mutex_unlock(&l->lock);
    if (!on_event) return FL_FAIL(FL_ERR_DATA, "an event of a request that is not in flight");
    on_event(context, event, marks, n_marks);
    return FL_ERR_OK;
}

/* Said again when something about the engine has changed: its warnings. */
static fl_err on_ready(fl_worker_link *l, const uint8_t *body, size_t n) {
    fl_wire_ready ready;
    bool first = l->ready_s == 0;
    FL_TRY(fl_wire_get_ready(body, n, &ready));
    fl_engine_info *info = &ready.info;
    pthread_mutex_lock(&l->lock);
    info->model_type = fl_link_keep_text(l, info->model_type);
    info->backend = fl_link_keep_text(l, info->backend);
    info->kv_dtype = fl_link_keep_text(l, info->kv_dtype);
    info->policy = fl_link_keep_text(l, info->policy);
    info->position_warning = fl_link_keep_text(l, info->position_warning);
    info->graph_warning = fl_link_keep_text(l, info->graph_warning);
    info->graph_outside = fl_link_keep_text(l, info->graph_outside);
    l->status.info = *info;
    l->status.has_info = true;
    l->status.load_fraction = 1;
    pthread_mutex_unlock(&l->lock);
    if (first) {
        l->ready_s = l->moved_s = fl_now_s();
        l->n_load_failures = 0;
        set_state(l, FL_LINK_READY);
    }
    tell_state(l);
    return FL_ERR_OK;
}

static fl_err on_load(fl_worker_link *l, const uint8_t *body, size_t n) {
    fl_engine_load load;
    fl_meters meters;
    FL_TRY(fl_wire_get_load(body, n, &load, &meters));
    double now_s = fl_now_s();
    if (load.n_layers != l->moved_layers || load.n_running + load.n_waiting == 0) l->moved_s = now_s;
    l->moved_layers = load.n_layers;
    pthread_mutex_lock(&l->lock);
    l->status.load = load;
    l->status.meters = meters;
    l->status.meters.comm_slowest = fl_link_keep_text(l, meters.comm_slowest);
    l->load_s = now_s;
    pthread_mutex_unlock(&l->lock);
    return FL_ERR_OK;
}

static fl_err on_loading(fl_worker_link *l, const uint8_t *body, size_t n) {
    double fraction = 0;
    FL_TRY(fl_wire_get_loading(body, n, &fraction));
    pthread_mutex_lock(&l->lock);
    l->status.load_fraction = fraction;
    pthread_mutex_unlock(&l->lock);
    return FL_ERR_OK;
}

static fl_err on_failed(fl_worker_link *l, const uint8_t *body, size_t n) {
    fl_wire_failed failed;
    FL_TRY(fl_wire_get_failed(body, n, &failed));
    pthread_mutex_lock(&l->lock);
    l->status.err = failed.err;
    snprintf(l->status.error, sizeof l->status.error, "%s", failed.detail ? failed.detail : "");
    pthread_mutex_unlock(&l->lock);
    l->load_failed = true;
    return FL_ERR_OK;
}

static fl_err on_message(fl_worker_link *l, const fl_wire_header *h, const uint8_t *body) {
    fl_event event;
    size_t n = h->body_bytes;
    bool ready = l->ready_s > 0;
    switch (h->type) {
    case FL_WIRE_LOAD: return on_load(l, body, n);
    case FL_WIRE_EVENT:
        if (!ready) break;
        FL_TRY(fl_wire_get_event(body, n, &event));
        return give_event(l, h->id, &event, NULL, 0);
    case FL_WIRE_DONE:
        if (!ready) break;
        FL_TRY(fl_wire_get_done(body, n, &l->done));
        return give_event(l, h->id, &l->done.event, l->done.marks, l->done.n_marks);
    case FL_WIRE_LOADING:
        if (ready) break;
        return on_loading(l, body, n);
    case FL_WIRE_FAILED:
        if (ready) break;
        return on_failed(l, body, n);
    case FL_WIRE_READY: return on_ready(l, body, n);
    default: break;
    }
    return FL_FAIL(FL_ERR_DATA, "a message of kind %d, which is not due", (int)h->type);
}

/* ---- the socket ---- */

static fl_err read_messages(fl_worker_link *l) {
    size_t at = 0, need = 0;
    fl_wire_header h;
    while (l->in_bytes - at >= FL_WIRE_HEADER_BYTES) {
        FL_TRY(fl_wire_get_header(l->in + at, &h));
        need = FL_WIRE_HEADER_BYTES + (size_t)h.body_bytes;
        if (h.type == FL_WIRE_SUBMIT) return FL_FAIL(FL_ERR_DATA, "a message of kind %d", (int)h.type);
        if (l->in_bytes - at < need) break;
        FL_TRY(on_message(l, &h, l->in + at + FL_WIRE_HEADER_BYTES));
        at += need;
        need = 0;
    }
    memmove(l->in, l->in + at, l->in_bytes - at);
    l->in_bytes -= at;
    if (need > l->in_capacity) { /* at most FL_WIRE_EVENT_MAX and a header */
        uint8_t *in = realloc(l->in, need);
        if (!in) return FL_FAIL(FL_ERR_NOMEM, "a message of %zu bytes", need);
        l->in = in;
        l->in_capacity = need;
    }
    return FL_ERR_OK;
}

/* *ended: the worker closed its end. */
static fl_err receive(fl_worker_link *l, bool *ended) {
    ssize_t n = recv(l->child.fd, l->in + l->in_bytes, l->in_capacity - l->in_bytes, MSG_DONTWAIT);
    *ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    if (n <= 0) return FL_ERR_OK;
    l->in_bytes += (size_t)n;
    l->heard_s = fl_now_s();
    return read_messages(l);
}

/* Takes what callers queued once all before it is sent. */
static void take_queue(fl_worker_link *l) {
    if (l->sent < l->sending.n) return;
    if (l->sending.cap > QUEUE_KEPT_BYTES) fl_buffer_free(&l->sending);
    fl_buffer_clear(&l->sending);
    l->sent = 0;
    pthread_mutex_lock(&l->lock);
    fl_buffer queued = l->out;
    l->out = l->sending;
    pthread_mutex_unlock(&l->lock);
    l->sending = queued;
}

/* As much as the socket has room for. That the worker is gone is seen when reading. */
static void send_queue(fl_worker_link *l) {
    for (take_queue(l); l->sent < l->sending.n; take_queue(l)) {
        ssize_t n = send(l->child.fd, l->sending.bytes + l->sent, l->sending.n - l->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        l->sent += (size_t)n;
    }
}

static void clear_wake(const fl_worker_link *l) {
    uint64_t n_wakes;
    ssize_t n = read(l->wake, &n_wakes, sizeof n_wakes);
    (void)n;
}

/* ---- a worker's life ---- */

/* A ready worker is never silent, and one with work never stands still. While it loads it may be both. */
static fl_err check_alive(const fl_worker_link *l) {
    double now_s = fl_now_s();
    if (l->ready_s == 0) return FL_ERR_OK;
    if (now_s - l->heard_s > l->o.silence_max_s)
        return FL_FAIL(FL_ERR_INTERNAL, "it said nothing for %.0f s", now_s - l->heard_s);
    if (now_s - l->moved_s > l->o.stuck_max_s)
        return FL_FAIL(FL_ERR_INTERNAL, "its engine finished no layer for %.0f s", now_s - l->moved_s);
    return FL_ERR_OK;
}

/* Until the worker ends (FL_ERR_OK), the link closes (FL_ERR_OK), or the worker is broken. */
static fl_err serve(fl_worker_link *l) {
    bool ended = false;
    while (!ended && !is_closing(l)) {
        send_queue(l);
        struct pollfd fds[] = {
            {.fd = l->child.fd, .events = (short)(POLLIN | (l->sent < l->sending.n ? POLLOUT : 0))},
            {.fd = l->wake, .events = POLLIN}};
        if (poll(fds, 2, LOOK_MS) < 0 && errno != EINTR)
            return FL_FAIL(FL_ERR_IO, "cannot wait for it: %s", strerror(errno));
        if (fds[1].revents) clear_wake(l);
        if (fds[0].revents & ~POLLOUT) FL_TRY(receive(l, &ended));
        FL_TRY(check_alive(l));
    }
    return FL_ERR_OK;
}

static fl_err start(fl_worker_link *l) {
    l->sent = l->in_bytes = 0;
    l->ready_s = 0;
    l->load_failed = false;
    l->moved_layers = -1;
    l->heard_s = fl_now_s();
    fl_buffer_clear(&l->sending);
    if (!l->in) {
        l->in = malloc(IN_FIRST_BYTES);
        l->in_capacity = l->in ? IN_FIRST_BYTES : 0;
    }
    if (!l->in) return FL_FAIL(FL_ERR_NOMEM, "the link to the worker");
    fl_buffer_add(&l->sending, l->hello.bytes, l->hello.n);
    FL_TRY(fl_buffer_check(&l->sending));
    FL_TRY(fl_worker_child_start(l->command, &l->child));
    pthread_mutex_lock(&l->lock);
    l->status.worker_pid = (int32_t)l->child.pid;
    l->status.load_fraction = 0;
    pthread_mutex_unlock(&l->lock);
    return FL_ERR_OK;
}

/* Reaps the worker and says in status.err and error why it ended, unless it said so itself. */
static void end_worker(fl_worker_link *l, fl_err broken) {
    char why[256] = "", how[128];
    bool lost = false, closing = is_closing(l);
    if (broken != FL_ERR_OK) snprintf(why, sizeof why, "%s", fl_err_detail());
    double grace_s = closing && l->ready_s > 0 ? l->o.close_max_s : closing || broken != FL_ERR_OK ? 0 : 1;
    fl_worker_child_end(&l->child, grace_s, how, sizeof how, &lost);
    pthread_mutex_lock(&l->lock);
    fl_link_status *s = &l->status;
    s->worker_pid = 0;
    if (!l->load_failed && !closing) {
        s->err = lost ? FL_ERR_DEVICE : FL_ERR_INTERNAL;
        if (broken != FL_ERR_OK) snprintf(s->error, sizeof s->error, "the worker process was ended: %s", why);
        else snprintf(s->error, sizeof s->error, "the worker process ended with %s", how);
    }
    l->before.prompt_tokens += s->load.prompt_tokens;
    l->before.cached_tokens += s->load.cached_tokens;
    l->before.computed_tokens += s->load.computed_tokens;
    l->before.answer_tokens += s->load.answer_tokens;
    s->load.prompt_tokens = s->load.cached_tokens = s->load.computed_tokens = s->load.answer_tokens = 0;
    s->load.n_running = s->load.n_waiting = s->load.kv_pages_cached = 0;
    s->load.kv_pages_free = s->load.kv_pages;
    pthread_mutex_unlock(&l->lock);
}

/* The DONE of a request whose worker is gone. */
static fl_event last_event(const fl_worker_link *l, const fl_link_slot *slot, const char *words) {
    fl_event e = slot->last;
    e.type = FL_EVENT_DONE;
    e.token = -1;
    e.text = "";
    e.text_bytes = 0;
    e.n_top = 0;
    e.finish = words ? FL_FINISH_ERROR : FL_FINISH_CANCELLED;
    e.err = words ? l->status.err : FL_ERR_OK;
    e.err_detail = words;
    e.elapsed_s = fl_now_s() - slot->submit_s;
    return e;
}

/* Ends all that is in flight: nothing new comes, the state is not READY any more. */
static void end_requests(fl_worker_link *l, bool closing) {
    char words[sizeof l->status.error + 128];
    snprintf(words, sizeof words, "%s while this request ran; it is restarted, please send the request again",
             l->status.error);
    pthread_mutex_lock(&l->lock);
    fl_buffer_clear(&l->out);
    pthread_mutex_unlock(&l->lock);
    for (int32_t i = 0; i < l->o.requests_max; i++) {
        pthread_mutex_lock(&l->lock);
        fl_link_slot slot = l->slots[i];
        fl_event event = last_event(l, &slot, closing ? NULL : words);
        if (slot.id != 0) fl_link_free_slot(l, &l->slots[i]);
        pthread_mutex_unlock(&l->lock);
        if (slot.id != 0) slot.on_event(slot.context, &event, NULL, 0);
    }
}

/* Errors of loading that the next worker would meet again. */
static bool is_lasting(fl_err err) {
    return err == FL_ERR_DATA || err == FL_ERR_CONFIG || err == FL_ERR_UNSUPPORTED || err == FL_ERR_INVALID ||
           err == FL_ERR_LIMIT;
}

/* Seconds until the next worker starts; negative = none does. */
static double plan_restart(fl_worker_link *l) {
    double now_s = fl_now_s();
    bool was_ready = l->ready_s > 0;
    if (was_ready && now_s - l->ready_s > HEALTHY_S) l->n_ends = 0;
    l->n_ends++;
    if (!was_ready) l->n_load_failures++;
    if (l->load_failed && is_lasting(l->status.err)) return -1;
    if (l->n_load_failures >= l->o.load_failures_max) return -1;
    double wait_s = 0;
    for (int32_t i = 1; i < l->n_ends && wait_s < l->o.backoff_max_s; i++)
        wait_s = wait_s > 0 ? 2 * wait_s : 1;
    return wait_s < l->o.backoff_max_s ? wait_s : l->o.backoff_max_s;
}

/* Until the time is over (negative = never) or the link closes. */
static void pause_until(fl_worker_link *l, double end_s) {
    while (!is_closing(l)) {
        double left_s = end_s < 0 ? 1 : end_s - fl_now_s();
        if (left_s <= 0) return;
        struct pollfd fd = {.fd = l->wake, .events = POLLIN};
        poll(&fd, 1, left_s < 1 ? (int)(left_s * 1000) + 1 : 1000);
        clear_wake(l);
    }
}

void *fl_link_thread(void *argument) {
    fl_worker_link *l = argument;
    pthread_setname_np(pthread_self(), "fl-link");
    while (!is_closing(l)) {
        fl_err err = start(l);
        if (err == FL_ERR_OK) err = serve(l);
        bool closing = is_closing(l);
        /* No new requests from here on, and then the end of those that are there. */
        if (!closing && l->ready_s > 0) set_state(l, FL_LINK_RESTARTING);
        end_worker(l, err);
        end_requests(l, closing);
        if (closing) break;
        double wait_s = plan_restart(l);
        if (wait_s < 0) set_state(l, FL_LINK_FAILED);
        tell_state(l);
        if (wait_s < 0) {
            pause_until(l, -1);
            break;
        }
        pause_until(l, fl_now_s() + wait_s);
        pthread_mutex_lock(&l->lock);
        l->status.n_restarts += !l->closing;
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}
