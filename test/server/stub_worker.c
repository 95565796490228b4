/* A worker process without a model: it speaks the wire and makes tokens at a fixed rate for any number of requests, so
 * that tests load the server and not an engine, and it breaks in ways that are asked for. A request's answer is
 * max_tokens tokens with the ids 0, 1, 2 ...; a token's text is "ID:MICROSECONDS ", the second number the time (clock
 * of base/clock.h) at which it was written to the socket.
 * As the engine does it refuses what its queue has no room for (settings.queue_tokens_max). Options:
 *   --rate R       tokens a second of each request (default 20)
 *   --ttft S       seconds until the first token (default 0.05), with PROGRESS events meanwhile
 *   --load S       seconds of loading (default 0)
 *   --ctx N        context, tokens (default 131072); longer prompts are refused
 *   --cost S       predicted prefill seconds of 1,024 tokens (default 0.01)
 *   --fail-load N  loading fails with the error code -N
 *   --crash N, --exit N, --garble N, --quiet N, --stray N, --stuck N   after N tokens in all: abort, exit with code 69,
 *                  write what is no message, say nothing more, send an event of no request, make no more tokens
 *   --graph-fault N   after N tokens in all: no more graphs are made */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/wire.h"
#include "server/worker_child.h"

enum { STREAMS_MAX = 16384, TICK_MS = 1 };
static const double PROGRESS_S = 0.1, LOAD_S = 0.25;

typedef struct options {
    double rate, ttft_s, load_s, cost_s;
    long ctx, fail_load, crash, exit, garble, quiet, stray, stuck, graph_fault; /* 0 = no */
} options;

typedef struct stream {
    uint64_t id;
    int64_t n_prompt, n_made, n_max;
    double submit_s, next_s, ttft_s;
    bool cancelled;
} stream;

static options o = {.rate = 20, .ttft_s = 0.05, .cost_s = 0.01, .ctx = 131072};
static stream streams[STREAMS_MAX];
static int32_t n_streams;
static int64_t n_tokens, n_prompts;
static int64_t queue_max = INT64_MAX; /* prompt tokens that may wait for a first token */
static fl_buffer out;
static _Alignas(8) uint8_t in[(64 << 20) + (1 << 20)];
static size_t n_in;

static void send_all(void) {
    for (size_t at = 0; at < out.n;) {
        ssize_t n = send(FL_WORKER_FD, out.bytes + at, out.n - at, MSG_NOSIGNAL);
        if (n > 0) at += (size_t)n;
        else if (n < 0 && errno != EINTR) _exit(0);
    }
    fl_buffer_clear(&out);
}

static void tell_load(void) {
    fl_engine_load l = {.kv_pages = 4096, .kv_pages_free = 4096 - n_streams % 4096, .n_running = n_streams};
    l.n_layers = n_tokens;
    l.answer_tokens = n_tokens;
    l.prompt_tokens = n_prompts;
    for (int64_t t = 1024; l.n_costs < FL_COST_POINTS_MAX; t *= 2) {
        int64_t n = t < o.ctx ? t : o.ctx;
        l.cost_tokens[l.n_costs] = n;
        l.cost_s[l.n_costs++] = o.cost_s * (double)n / 1024;
        if (n == o.ctx) break;
    }
    const fl_meters meters = {.planned_bytes = 1 << 30, .peak_bytes = 1 << 29, .steps = n_tokens};
    (void)fl_wire_put_load(&out, &l, &meters);
}

static bool graphs_failed(void) {
    return o.graph_fault > 0 && n_tokens >= o.graph_fault;
}

static void tell_ready(void) {
    const fl_engine_info info = {.model_type = "stub",
                                 .backend = "stub",
                                 .kv_dtype = "bf16",
                                 .ctx_tokens = o.ctx,
                                 .kv_tokens = 4096 * 64,
                                 .n_vocab = 1 << 20,
                                 .bos_token = -1,
                                 .policy = "full",
                                 .graph_warning = graphs_failed() ? "the stub was told to" : NULL,
                                 .graph_outside = graphs_failed() ? "a step of the stub" : NULL,
                                 .block_density = 1};
    (void)fl_wire_put_ready(&out, &info);
}

static fl_event event_of(const stream *s, fl_event_type type, double now_s) {
    double fraction = s->ttft_s > 0 ? 1 : (now_s - s->submit_s) / (o.ttft_s + 1e-3);
    return (fl_event){.type = type,
                      .token = -1,
                      .text = "",
                      .prompt_tokens = s->n_prompt,
                      .done_tokens = (int64_t)(fraction * (double)s->n_prompt),
                      .done_fraction = fraction,
                      .answer_tokens = s->n_made,
                      .ttft_s = s->ttft_s,
                      .elapsed_s = now_s - s->submit_s};
}

static void finish(stream *s, fl_finish finish, double now_s) {
    const fl_mark mark = {
        .name = "decode", .start_s = s->ttft_s, .end_s = now_s - s->submit_s, .tokens = s->n_made};
    fl_event e = event_of(s, FL_EVENT_DONE, now_s);
    e.finish = finish;
    (void)fl_wire_put_done(&out, s->id, &e, &mark, 1);
    *s = streams[--n_streams];
}

/* What was asked for happens once so many tokens were made. */
static void misbehave(void) {
    static const char garbage[] = "this is not what a worker says, at least not in these words";
    const fl_event stray = {.type = FL_EVENT_PROGRESS, .token = -1};
    if (o.crash > 0 && n_tokens >= o.crash) abort();
    if (o.exit > 0 && n_tokens >= o.exit) _exit(FL_WORKER_EXIT_LOST);
    if (o.garble > 0 && n_tokens >= o.garble) fl_buffer_add(&out, garbage, sizeof garbage);
    if (o.stray > 0 && n_tokens >= o.stray) (void)fl_wire_put_event(&out, 3 * FL_WIRE_IDS_MAX + 3, &stray);
    while (o.quiet > 0 && n_tokens >= o.quiet) pause();
}

static void make_token(stream *s, double now_s) {
    char text[64];
    fl_event e;
    if (s->ttft_s == 0) s->ttft_s = now_s - s->submit_s;
    e = event_of(s, FL_EVENT_TOKEN, now_s);
    e.token = (int32_t)s->n_made++;
    e.answer_tokens = s->n_made;
    e.text = text;
    e.text_bytes = (size_t)snprintf(text, sizeof text, "%d:%.0f ", e.token, now_s * 1e6);
    (void)fl_wire_put_event(&out, s->id, &e);
    s->next_s += 1 / o.rate;
    n_tokens++;
    misbehave();
}

static void tick(void) {
    double now_s = fl_now_s();
    if (o.stuck > 0 && n_tokens >= o.stuck) return;
    for (int32_t i = n_streams - 1; i >= 0; i--) {
        stream *s = &streams[i];
        bool reading = now_s < s->submit_s + o.ttft_s;
        if (s->cancelled) finish(s, FL_FINISH_CANCELLED, now_s);
        else if (now_s < s->next_s) continue;
        else if (reading) {
            fl_event e = event_of(s, FL_EVENT_PROGRESS, now_s);
            (void)fl_wire_put_event(&out, s->id, &e);
            s->next_s =
                now_s + PROGRESS_S < s->submit_s + o.ttft_s ? now_s + PROGRESS_S : s->submit_s + o.ttft_s;
        } else {
            make_token(s, now_s);
            if (s->n_made >= s->n_max) finish(s, FL_FINISH_LENGTH, now_s);
        }
    }
}

static void refuse(uint64_t id, fl_err err, const char *words) {
    const fl_event e = {
        .type = FL_EVENT_DONE, .token = -1, .finish = FL_FINISH_ERROR, .err = err, .err_detail = words};
    (void)fl_wire_put_done(&out, id, &e, NULL, 0);
}

static int64_t waiting_tokens(void) {
    int64_t n = 0;
    for (int32_t i = 0; i < n_streams; i++) n += streams[i].ttft_s == 0 ? streams[i].n_prompt : 0;
    return n;
}

static void on_submit(const fl_wire_header *h, const uint8_t *body) {
    fl_wire_submit m;
    int64_t waiting = waiting_tokens();
    if (fl_wire_get_submit(body, h->body_bytes, &m) != FL_ERR_OK) exit(FL_WORKER_EXIT_PROTOCOL);
    if (m.params.n_tokens >= o.ctx)
        refuse(h->id, FL_ERR_LIMIT, "the prompt is longer than the stub's context");
    else if (waiting > 0 && m.params.n_tokens > queue_max - waiting)
        refuse(h->id, FL_ERR_AGAIN, "too many prompt tokens wait for the stub");
    else if (n_streams == STREAMS_MAX) refuse(h->id, FL_ERR_AGAIN, "the stub's queue is full");
    else {
        double now_s = fl_now_s();
        n_prompts += m.params.n_tokens;
        streams[n_streams++] = (stream){.id = h->id,
                                        .n_prompt = m.params.n_tokens,
                                        .n_max = m.params.max_tokens,
                                        .submit_s = now_s,
                                        .next_s = now_s};
    }
}

static void on_hello(const fl_wire_header *h, const uint8_t *body) {
    fl_wire_hello hello;
    if (fl_wire_get_hello(body, h->body_bytes, &hello) != FL_ERR_OK) exit(FL_WORKER_EXIT_PROTOCOL);
    if (hello.settings.queue_tokens_max > 0) queue_max = hello.settings.queue_tokens_max;
}

/* All whole messages that came; true if one was HELLO. */
static bool read_messages(void) {
    fl_wire_header h;
    size_t at = 0;
    bool hello = false;
    ssize_t n = recv(FL_WORKER_FD, in + n_in, sizeof in - n_in, 0);
    if (n <= 0) _exit(0);
    n_in += (size_t)n;
    while (n_in - at >= FL_WIRE_HEADER_BYTES) {
        if (fl_wire_get_header(in + at, &h) != FL_ERR_OK) exit(FL_WORKER_EXIT_PROTOCOL);
        if (n_in - at < FL_WIRE_HEADER_BYTES + (size_t)h.body_bytes) break;
        if (h.type == FL_WIRE_SUBMIT) on_submit(&h, in + at + FL_WIRE_HEADER_BYTES);
        for (int32_t i = 0; h.type == FL_WIRE_CANCEL && i < n_streams; i++)
            if (streams[i].id == h.id) streams[i].cancelled = true;
        if (h.type == FL_WIRE_HELLO) on_hello(&h, in + at + FL_WIRE_HEADER_BYTES);
        hello = hello || h.type == FL_WIRE_HELLO;
        at += FL_WIRE_HEADER_BYTES + (size_t)h.body_bytes;
    }
    memmove(in, in + at, n_in - at);
    n_in -= at;
    return hello;
}

static void load(void) {
    const struct timespec nap = {.tv_nsec = 10000000};
    double begin_s = fl_now_s();
    while (!read_messages()) continue;
    while (fl_now_s() < begin_s + o.load_s) {
        double done = (fl_now_s() - begin_s) / o.load_s;
        (void)fl_wire_put_loading(&out, done < 1 ? done : 1);
        send_all();
        nanosleep(&nap, NULL);
    }
    if (o.fail_load > 0) {
        (void)fl_wire_put_failed(&out, (fl_err)-o.fail_load, "the stub was told to fail");
        send_all();
        exit(1);
    }
    tell_load();
    tell_ready();
    send_all();
}

static void set(const char *name, const char *value) {
    static const struct {
        const char *name;
        double *real;
        long *whole;
    } all[] = {{"--rate", &o.rate, NULL},
               {"--ttft", &o.ttft_s, NULL},
               {"--load", &o.load_s, NULL},
               {"--cost", &o.cost_s, NULL},
               {"--ctx", NULL, &o.ctx},
               {"--fail-load", NULL, &o.fail_load},
               {"--crash", NULL, &o.crash},
               {"--exit", NULL, &o.exit},
               {"--garble", NULL, &o.garble},
               {"--quiet", NULL, &o.quiet},
               {"--stray", NULL, &o.stray},
               {"--stuck", NULL, &o.stuck},
               {"--graph-fault", NULL, &o.graph_fault}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, name) != 0) continue;
        if (all[i].real) *all[i].real = strtod(value, NULL);
        else *all[i].whole = strtol(value, NULL, 10);
        return;
    }
    fprintf(stderr, "stub_worker: no option %s\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    double load_s = 0;
    for (int i = 1; i + 1 < argc; i += 2) set(argv[i], argv[i + 1]);
    fl_buffer_init(&out, 64 << 20);
    load();
    for (;;) {
        struct pollfd fd = {.fd = FL_WORKER_FD, .events = POLLIN};
        if (poll(&fd, 1, n_streams > 0 ? TICK_MS : 100) > 0) (void)read_messages();
        tick();
        double now_s = fl_now_s();
        if (now_s - load_s >= LOAD_S) {
            load_s = now_s;
            tell_load();
            if (graphs_failed()) tell_ready();
        }
        send_all();
    }
}
