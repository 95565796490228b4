#include "server/worker_main.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/wire.h"
#include "server/worker_child.h"

enum { READY_MAX = 256, FLUSH_BYTES = 256 << 10, OUT_MAX = 16 << 20 };
static const double LOAD_S = 0.25, PROGRESS_S = 0.05;

typedef struct slot {
    bool used;
    uint64_t id;
    fl_session *session;
    fl_request *request;
    double progress_s; /* when progress was last told */
} slot;

typedef struct worker {
    int socket;
    fl_engine *engine;
    atomic_bool ending;      /* the pump is to stop */
    pthread_mutex_t sending; /* a batch of messages goes out as a whole */
    pthread_mutex_t lock;    /* guards slots: the reader fills them, the pump empties them */
    slot *slots;             /* [FL_WIRE_IDS_MAX], at the low bits of a request's id */
    uint8_t *body;           /* the reader's */
    size_t body_bytes;
    double loading_s;
    /* the pump's */
    fl_buffer out;
    fl_request *ready[READY_MAX];
    fl_mark marks[FL_WIRE_MARKS_MAX];
    double load_s;
    const char *graph_warning, *graph_outside; /* as last told */
} worker;

/* ---- the socket ---- */

/* Waits for a front that does not read. For one that is gone nothing is sent; the reader sees its end. */
static void send_all(worker *w, fl_buffer *out) {
    pthread_mutex_lock(&w->sending);
    for (size_t at = 0; at < out->n;) {
        ssize_t n = send(w->socket, out->bytes + at, out->n - at, MSG_NOSIGNAL);
        if (n > 0) at += (size_t)n;
        else if (n < 0 && errno != EINTR) break;
    }
    pthread_mutex_unlock(&w->sending);
    fl_buffer_clear(out);
}

/* FL_ERR_CANCELLED: the front closed its end. */
static fl_err receive(worker *w, uint8_t *to, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = recv(w->socket, to + at, bytes - at, 0);
        if (n > 0) at += (size_t)n;
        else if (n == 0 || errno != EINTR) return FL_FAIL(FL_ERR_CANCELLED, "the front is gone");
    }
    return FL_ERR_OK;
}

/* The next message, its body in w->body until the one after. */
static fl_err next_message(worker *w, fl_wire_header *out) {
    uint8_t header[FL_WIRE_HEADER_BYTES];
    FL_TRY(receive(w, header, sizeof header));
    FL_TRY(fl_wire_get_header(header, out));
    if (out->body_bytes > w->body_bytes) {
        free(w->body);
        w->body = malloc(out->body_bytes);
        w->body_bytes = w->body ? out->body_bytes : 0;
        if (!w->body) return FL_FAIL(FL_ERR_NOMEM, "a message of %u bytes", out->body_bytes);
    }
    return receive(w, w->body, out->body_bytes);
}

/* ---- the pump ---- */

static void put_load(worker *w, fl_engine_load *load) {
    fl_meters meters;
    fl_engine_get_load(w->engine, load);
    fl_engine_get_meters(w->engine, &meters);
    (void)fl_wire_put_load(&w->out, load, &meters);
}

static void put_ready(worker *w) {
    fl_engine_info info;
    fl_engine_get_info(w->engine, &info);
    w->graph_warning = info.graph_warning;
    w->graph_outside = info.graph_outside;
    (void)fl_wire_put_ready(&w->out, &info);
}

/* What an engine finds out about its graphs is said as soon as the front hears of its load. */
static void put_warnings(worker *w) {
    fl_engine_info info;
    fl_engine_get_info(w->engine, &info);
    if (info.graph_warning != w->graph_warning || info.graph_outside != w->graph_outside) put_ready(w);
}

/* An event that cannot be told (its text is too long): the request ends with that. */
static void put_failure(worker *w, uint64_t id) {
    const fl_event event = {.type = FL_EVENT_DONE,
                            .token = -1,
                            .finish = FL_FINISH_ERROR,
                            .err = FL_ERR_LIMIT,
                            .err_detail = "an event of this request is too long to be told"};
    (void)fl_wire_put_done(&w->out, id, &event, NULL, 0);
}

static void end_request(worker *w, slot *s, fl_request *r) {
    pthread_mutex_lock(&w->lock);
    fl_request_close(r);
    (void)fl_session_close(s->session);
    *s = (slot){0};
    pthread_mutex_unlock(&w->lock);
}

/* False: the request's last event was told and the request is gone. */
static bool tell(worker *w, slot *s, fl_request *r, const fl_event *e) {
    fl_err err = FL_ERR_OK;
    if (e->type == FL_EVENT_PROGRESS) {
        double now_s = fl_now_s();
        if (now_s - s->progress_s < PROGRESS_S) return true;
        s->progress_s = now_s;
    }
    if (e->type == FL_EVENT_DONE) {
        int32_t n = fl_request_timeline(r, w->marks, FL_WIRE_MARKS_MAX);
        err = fl_wire_put_done(&w->out, s->id, e, w->marks, n < FL_WIRE_MARKS_MAX ? n : FL_WIRE_MARKS_MAX);
    } else {
        err = fl_wire_put_event(&w->out, s->id, e);
    }
    if (err != FL_ERR_OK) put_failure(w, s->id);
    if (err == FL_ERR_OK && e->type != FL_EVENT_DONE) return true;
    end_request(w, s, r);
    return false;
}

static void drain(worker *w, fl_request *r) {
    fl_event e;
    slot *s = fl_request_context(r);
    while (fl_poll(r, 0, &e) == FL_ERR_OK && e.type != FL_EVENT_NONE && tell(w, s, r, &e))
        if (w->out.n >= FLUSH_BYTES) send_all(w, &w->out);
}

static void *pump(void *argument) {
    worker *w = argument;
    fl_engine_load load = {0};
    /* The tokens of a step come one by one, some 0.1 ms apart: to be woken and to wake the front for each would cost
     * several times what telling it costs. The first after a rest goes at once. */
    const struct timespec gather = {.tv_nsec = 1000000};
    pthread_setname_np(pthread_self(), "fl-pump");
    while (!atomic_load(&w->ending)) {
        int32_t n = fl_engine_wait(w->engine, LOAD_S, w->ready, READY_MAX);
        /* The device is lost and all that ran was told so: a new process gets one that works. */
        if (n == 0 && load.lost && load.n_running + load.n_waiting == 0) _exit(FL_WORKER_EXIT_LOST);
        for (int32_t i = 0; i < n; i++) drain(w, w->ready[i]);
        double now_s = fl_now_s();
        if (now_s - w->load_s >= LOAD_S) {
            w->load_s = now_s;
            put_load(w, &load);
            put_warnings(w);
        }
        send_all(w, &w->out);
        if (n > 0) nanosleep(&gather, NULL);
    }
    return NULL;
}

/* ---- the reader ---- */

static fl_err submit(worker *w, slot *s, uint64_t id, fl_wire_submit *m) {
    *s = (slot){.used = true, .id = id};
    m->params.context = s;
    fl_err err = fl_session_open(w->engine, &s->session);
    if (err == FL_ERR_OK) err = fl_submit(s->session, &m->params, &s->request);
    if (err == FL_ERR_OK) return FL_ERR_OK;
    if (s->session) fl_session_close(s->session);
    *s = (slot){0};
    return err;
}

/* Held while the engine takes the request, so that the pump cannot end it before the slot is whole. */
static fl_err on_submit(worker *w, const fl_wire_header *h) {
    fl_wire_submit m;
    slot *s = &w->slots[h->id % FL_WIRE_IDS_MAX];
    fl_err err = fl_wire_get_submit(w->body, h->body_bytes, &m);
    char detail[512] = "";
    pthread_mutex_lock(&w->lock);
    bool used = s->used;
    if (err == FL_ERR_OK && !used) err = submit(w, s, h->id, &m);
    pthread_mutex_unlock(&w->lock);
    if (used) return FL_FAIL(FL_ERR_DATA, "a request's id is in use");
    if (err == FL_ERR_OK) return FL_ERR_OK;
    strncpy(detail, fl_err_detail(), sizeof detail - 1);
    const fl_event event = {
        .type = FL_EVENT_DONE, .token = -1, .finish = FL_FINISH_ERROR, .err = err, .err_detail = detail};
    fl_buffer out;
    fl_buffer_init(&out, OUT_MAX);
    err = fl_wire_put_done(&out, h->id, &event, NULL, 0);
    send_all(w, &out);
    fl_buffer_free(&out);
    return err;
}

static void on_cancel(worker *w, uint64_t id) {
    slot *s = &w->slots[id % FL_WIRE_IDS_MAX];
    pthread_mutex_lock(&w->lock);
    if (s->used && s->id == id) fl_cancel(s->request);
    pthread_mutex_unlock(&w->lock);
}

/* Until the front closes its end (FL_ERR_CANCELLED) or what comes is no message that is due. */
static fl_err read_all(worker *w) {
    fl_wire_header h;
    for (;;) {
        FL_TRY(next_message(w, &h));
        if (h.type == FL_WIRE_CANCEL) on_cancel(w, h.id);
        else if (h.type == FL_WIRE_SUBMIT) FL_TRY(on_submit(w, &h));
        else return FL_FAIL(FL_ERR_DATA, "a message of kind %d, which is not due", (int)h.type);
    }
}

/* In order, so that what the disk tier still has to store is stored. The pump has stopped. */
static void close_all(worker *w) {
    for (int32_t i = 0; i < FL_WIRE_IDS_MAX; i++)
        if (w->slots[i].used) fl_cancel(w->slots[i].request);
    for (int32_t i = 0; i < FL_WIRE_IDS_MAX; i++)
        if (w->slots[i].used) end_request(w, &w->slots[i], w->slots[i].request);
    fl_engine_close(w->engine);
    fl_buffer_free(&w->out);
    free(w->slots);
    free(w->body);
}

/* ---- the start ---- */

static void on_progress(void *context, int64_t done_bytes, int64_t total_bytes) {
    worker *w = context;
    double now_s = fl_now_s();
    if (now_s - w->loading_s < PROGRESS_S || total_bytes <= 0) return;
    w->loading_s = now_s;
    (void)fl_wire_put_loading(&w->out, (double)done_bytes / (double)total_bytes);
    send_all(w, &w->out);
}

static fl_err load(worker *w) {
    fl_wire_header h;
    fl_wire_hello hello;
    FL_TRY(next_message(w, &h));
    if (h.type != FL_WIRE_HELLO) return FL_FAIL(FL_ERR_DATA, "the front says something before its settings");
    FL_TRY(fl_wire_get_hello(w->body, h.body_bytes, &hello));
    hello.settings.progress = on_progress;
    hello.settings.progress_context = w;
    return fl_engine_open(&hello.settings, &w->engine);
}

static void tell_ready(worker *w) {
    fl_engine_load state;
    put_load(w, &state);
    put_ready(w);
    send_all(w, &w->out);
}

static int fail(worker *w, fl_err err) {
    (void)fl_wire_put_failed(&w->out, err, fl_err_detail());
    send_all(w, &w->out);
    return fl_err_exit_code(err);
}

int fl_worker_process(int socket) {
    static worker w;
    pthread_t thread;
    w = (worker){.socket = socket,
                 .sending = PTHREAD_MUTEX_INITIALIZER,
                 .lock = PTHREAD_MUTEX_INITIALIZER,
                 .slots = calloc(FL_WIRE_IDS_MAX, sizeof(slot))};
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    fl_buffer_init(&w.out, OUT_MAX);
    fl_err err = w.slots ? load(&w) : FL_FAIL(FL_ERR_NOMEM, "the worker's requests");
    if (err != FL_ERR_OK) return fail(&w, err);
    tell_ready(&w);
    if (pthread_create(&thread, NULL, pump, &w) != 0)
        return fail(&w, FL_FAIL(FL_ERR_NOMEM, "cannot start the worker's pump"));
    err = read_all(&w);
    if (err != FL_ERR_CANCELLED)
        _exit(FL_WORKER_EXIT_PROTOCOL); /* no orderly end for a front that is broken */
    atomic_store(&w.ending, true);
    pthread_join(thread, NULL);
    close_all(&w);
    return 0;
}
