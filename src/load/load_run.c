#include "load/load_run.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "eval/eval_random.h"

enum { LINE_BYTES_MAX = 1 << 20, EVENTS_MAX = 256, CARDS_MAX = 1 << 20 };

/* One client and its connection, which stays open from one of its requests to the next. */
typedef struct client {
    fl_http_call call;
    uint32_t watched; /* events that epoll looks for; 0 = not there */
    struct run *run;
    int64_t record;
    char *line; /* [line_room] the line of the stream so far */
    size_t line_bytes, line_room;
    double token_s; /* when its last token came */
    bool whole, used;
} client;

typedef struct run {
    const fl_load_options *o;
    fl_load_result *out;
    client *clients; /* [o->clients] */
    int32_t *unused; /* [n_unused] indices of clients */
    int32_t n_unused;
    int epoll;
    double start_s, next_s; /* next_s: when the next request is due, open loop */
    fl_eval_random random;
    int64_t ended;
    uint8_t *deck; /* [deck_left] classes of the next requests, the last one first */
    int32_t deck_cards, deck_left;
} run;

/* Open loop: one deck is the run. Closed loop: two of the rarest class. */
static int32_t count_cards(const fl_load_options *o) {
    double least = 1, n = o->rate * o->duration_s;
    for (int32_t i = 0; i < o->mix->n; i++)
        if (o->mix->classes[i].share > 0) least = fmin(least, o->mix->classes[i].share);
    if (o->rate <= 0) n = 2 / least;
    return (int32_t)fmin(fmax(round(n), 1), CARDS_MAX);
}

static double since_start_s(const run *r) {
    return fl_now_s() - r->start_s;
}

/* ---- what arrives ---------------------------------------------------------------------------------------------- */

static fl_err grow(void **array, int64_t n, int64_t *room, size_t size) {
    if (n < *room) return FL_ERR_OK;
    int64_t more = *room > 0 ? *room * 2 : 1024;
    void *grown = realloc(*array, (size_t)more * size);
    if (!grown) return FL_FAIL(FL_ERR_NOMEM, "results of the load");
    *array = grown;
    *room = more;
    return FL_ERR_OK;
}

static fl_err note_token(client *c) {
    fl_load_result *out = c->run->out;
    fl_load_record *record = &out->records[c->record];
    fl_load_gaps *gaps = &out->gaps[record->class_index];
    double now_s = since_start_s(c->run);
    FL_TRY(grow((void **)&out->tokens_at, out->n_tokens, &out->tokens_room, sizeof *out->tokens_at));
    out->tokens_at[out->n_tokens++] = now_s;
    record->answer_tokens++;
    if (record->first_s == 0) record->first_s = now_s;
    else {
        FL_TRY(grow((void **)&gaps->gaps, gaps->n, &gaps->room, sizeof *gaps->gaps));
        gaps->gaps[gaps->n++] = (float)(now_s - c->token_s);
    }
    c->token_s = now_s;
    return FL_ERR_OK;
}

static void note_usage(fl_load_record *record, const json_t *usage) {
    record->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
    record->answer_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    record->cached_tokens =
        json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static void note_error(fl_load_result *out, const char *text, size_t n) {
    size_t room = sizeof out->first_error - 1;
    if (out->first_error[0] || n == 0) return;
    memcpy(out->first_error, text, n < room ? n : room);
    out->first_error[n < room ? n : room] = '\0';
}

/* The JSON of one event of the stream. */
static fl_err take_event(client *c, const char *text, size_t n) {
    fl_load_result *out = c->run->out;
    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) {
        c->whole = true;
        return FL_ERR_OK;
    }
    json_t *event = json_loadb(text, n, 0, NULL);
    if (!event || json_object_get(event, "error")) {
        note_error(out, text, n);
        json_decref(event);
        return FL_FAIL(FL_ERR_DATA, "an error in the stream");
    }
    const json_t *usage = json_object_get(event, "usage");
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *piece = json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    fl_err err = FL_ERR_OK;
    if (piece && piece[0]) err = note_token(c);
    if (json_is_object(usage)) note_usage(&out->records[c->record], usage);
    json_decref(event);
    return err;
}

static fl_err take_line(client *c) {
    static const char data[] = "data: ";
    size_t n = c->line_bytes, skip = sizeof data - 1;
    if (n > 0 && c->line[n - 1] == '\r') n--;
    c->line_bytes = 0;
    return n >= skip && memcmp(c->line, data, skip) == 0 ? take_event(c, c->line + skip, n - skip)
                                                         : FL_ERR_OK;
}

static fl_err take_body(void *context, const char *bytes, size_t n) {
    client *c = context;
    if (c->call.status != 200) {
        note_error(c->run->out, bytes, c->call.status == 429 || c->call.status == 503 ? 0 : n);
        return FL_ERR_OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n') {
            FL_TRY(take_line(c));
            continue;
        }
        if (c->line_bytes == LINE_BYTES_MAX)
            return FL_FAIL(FL_ERR_LIMIT, "a line over %d bytes", LINE_BYTES_MAX);
        if (c->line_bytes == c->line_room) {
            size_t room = c->line_room > 0 ? c->line_room * 2 : 1024;
            char *grown = realloc(c->line, room);
            if (!grown) return FL_FAIL(FL_ERR_NOMEM, "a line of %zu bytes", room);
            c->line = grown;
            c->line_room = room;
        }
        c->line[c->line_bytes++] = bytes[i];
    }
    return FL_ERR_OK;
}

/* ---- what is sent ---------------------------------------------------------------------------------------------- */

/* A piece of the running text, whole code points, from a drawn place or (shared) always the same. */
static json_t *make_text(run *r, int64_t tokens, bool shared) {
    const fl_haystack *text = r->o->text;
    size_t bytes = (size_t)((double)tokens * r->o->bytes_per_token);
    if (bytes > text->n_bytes) bytes = text->n_bytes;
    size_t at = 0;
    if (!shared) at = (size_t)fl_eval_random_below(&r->random, (int64_t)(text->n_bytes - bytes) + 1);
    at = fl_haystack_cut(text, at);
    size_t end = fl_haystack_cut(text, at + bytes);
    return json_pack("{s:s, s:o}", "type", "text", "text", json_stringn(text->text + at, end - at));
}

static char *make_body(run *r, const fl_load_class *k) {
    int64_t tokens = fl_eval_random_range(&r->random, k->prompt_min, k->prompt_max);
    int64_t answer = fl_eval_random_range(&r->random, k->answer_min, k->answer_max);
    int64_t shared = k->shared_tokens < tokens ? k->shared_tokens : tokens;
    json_t *parts = json_array();
    if (shared > 0) json_array_append_new(parts, make_text(r, shared, true));
    if (tokens > shared) json_array_append_new(parts, make_text(r, tokens - shared, false));
    json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "text", "text", "What is this text about?"));
    json_t *body = json_pack("{s:s, s:b, s:{s:b}, s:I, s:i, s:b, s:I, s:[{s:s, s:o}]}", "model", r->o->model,
                             "stream", 1, "stream_options", "include_usage", 1, "max_tokens",
                             (json_int_t)answer, "temperature", 0, "ignore_eos", 1, "priority",
                             (json_int_t)k->priority, "messages", "role", "user", "content", parts);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

/* As many of each class as its share says, at random places: a deck. So a rare class of long prompts is as much of the
 * load as was asked for, and not as luck has it. */
static void shuffle_deck(run *r) {
    const fl_load_mix *mix = r->o->mix;
    double end = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < mix->n; i++) {
        end += mix->classes[i].share * r->deck_cards;
        while (n < r->deck_cards && (n < lround(end) || i + 1 == mix->n)) r->deck[n++] = (uint8_t)i;
    }
    for (int32_t i = n; i-- > 1;) {
        int32_t other = (int32_t)fl_eval_random_below(&r->random, i + 1);
        uint8_t card = r->deck[i];
        r->deck[i] = r->deck[other];
        r->deck[other] = card;
    }
    r->deck_left = n;
}

static int32_t draw_class(run *r) {
    if (r->deck_left == 0) shuffle_deck(r);
    return r->deck[--r->deck_left];
}

static void end_client(client *c, fl_load_outcome outcome) {
    run *r = c->run;
    fl_load_record *record = &r->out->records[c->record];
    record->outcome = outcome;
    record->end_s = since_start_s(r);
    fl_http_call_end(&c->call);
    if (c->call.fd < 0) c->watched = 0;
    c->used = false;
    r->unused[r->n_unused++] = (int32_t)(c - r->clients);
    r->ended++;
}

static fl_err watch(run *r, client *c) {
    struct epoll_event event = {.events = fl_http_call_events(&c->call), .data.ptr = c};
    if (event.events == c->watched) return FL_ERR_OK;
    if (epoll_ctl(r->epoll, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->call.fd, &event) != 0)
        return FL_FAIL(FL_ERR_IO, "epoll: %s", strerror(errno));
    c->watched = event.events;
    return FL_ERR_OK;
}

static fl_load_outcome outcome_of(const client *c, fl_err err) {
    if (c->call.status == 429 || c->call.status == 503) return FL_LOAD_REFUSED;
    return err == FL_ERR_OK && c->call.status == 200 && c->whole ? FL_LOAD_DONE : FL_LOAD_FAILED;
}

static fl_err step_client(run *r, client *c) {
    if (!c->used) { /* the server ended a connection that waited for a next request */
        fl_http_call_close(&c->call);
        c->watched = 0;
        return FL_ERR_OK;
    }
    fl_err err = fl_http_call_step(&c->call);
    if (err != FL_ERR_OK && fl_http_call_is_stale(&c->call)) {
        c->watched = 0;
        err = fl_http_call_again(r->o->server, &c->call);
    }
    if (err == FL_ERR_NOMEM) return err;
    if (err == FL_ERR_OK && c->call.state != FL_HTTP_DONE) return watch(r, c);
    fl_load_outcome outcome = outcome_of(c, err);
    if (err != FL_ERR_OK && outcome == FL_LOAD_FAILED)
        note_error(r->out, fl_err_detail(), strlen(fl_err_detail()));
    end_client(c, outcome);
    return FL_ERR_OK;
}

static fl_err send_request(run *r, double due_s) {
    fl_load_result *out = r->out;
    FL_TRY(grow((void **)&out->records, out->n, &out->room, sizeof *out->records));
    fl_load_record *record = &out->records[out->n++];
    *record = (fl_load_record){.class_index = draw_class(r), .due_s = due_s};
    char *body = make_body(r, &r->o->mix->classes[record->class_index]);
    if (!body) return FL_FAIL(FL_ERR_NOMEM, "a request");
    if (r->n_unused == 0) {
        static const char full[] = "more requests at a time than --concurrency allows";
        record->outcome = FL_LOAD_FAILED;
        record->sent_s = record->end_s = due_s;
        note_error(out, full, sizeof full - 1);
        free(body);
        return FL_ERR_OK;
    }
    client *c = &r->clients[r->unused[--r->n_unused]];
    c->record = out->n - 1;
    c->line_bytes = 0;
    c->whole = false;
    c->used = true;
    fl_err err = fl_http_call_open(r->o->server, "/v1/chat/completions", body, strlen(body), &c->call);
    free(body);
    record->sent_s = since_start_s(r);
    if (err == FL_ERR_OK) return c->call.reused ? step_client(r, c) : watch(r, c);
    note_error(out, fl_err_detail(), strlen(fl_err_detail()));
    end_client(c, FL_LOAD_FAILED);
    return FL_ERR_OK;
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

/* Sends what is due; returns when to look again. */
static fl_err send_due(run *r, double now_s, double *wake_s) {
    const fl_load_options *o = r->o;
    *wake_s = now_s + 0.1;
    if (now_s >= o->duration_s) return FL_ERR_OK;
    if (o->rate <= 0) {
        while (r->n_unused > 0) FL_TRY(send_request(r, since_start_s(r)));
        return FL_ERR_OK;
    }
    while (r->next_s <= now_s && r->next_s < o->duration_s) {
        FL_TRY(send_request(r, r->next_s));
        r->next_s -= log1p(-fl_eval_random_unit(&r->random)) / o->rate;
    }
    if (r->next_s < *wake_s) *wake_s = r->next_s;
    return FL_ERR_OK;
}

static fl_err loop(run *r) {
    const fl_load_options *o = r->o;
    struct epoll_event events[EVENTS_MAX];
    for (;;) {
        double now_s = since_start_s(r), wake_s;
        FL_TRY(send_due(r, now_s, &wake_s));
        bool idle = r->n_unused == o->clients;
        if ((idle && now_s >= o->duration_s) || now_s >= o->duration_s + o->wait_s || (o->stop && *o->stop))
            break;
        int wait_ms = (int)ceil(fmax(wake_s - since_start_s(r), 0) * 1e3);
        int n = epoll_wait(r->epoll, events, EVENTS_MAX, wait_ms);
        if (n < 0 && errno != EINTR) return FL_FAIL(FL_ERR_IO, "epoll: %s", strerror(errno));
        for (int i = 0; i < n; i++) FL_TRY(step_client(r, events[i].data.ptr));
        if (o->on_progress)
            o->on_progress(o->context, fmin(now_s / o->duration_s, 1), o->clients - r->n_unused, r->ended);
    }
    r->out->duration_s = fmin(since_start_s(r), o->duration_s);
    for (int32_t i = 0; i < o->clients; i++)
        if (r->clients[i].used) end_client(&r->clients[i], FL_LOAD_LATE);
    return FL_ERR_OK;
}

static double cpu_s(void) {
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void open_files_at_most(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static void close_clients(run *r) {
    for (int32_t i = 0; r->clients && i < r->o->clients; i++) {
        if (r->clients[i].used) end_client(&r->clients[i], FL_LOAD_LATE);
        fl_http_call_close(&r->clients[i].call);
        free(r->clients[i].line);
    }
    free(r->clients);
}

fl_err fl_load_run(const fl_load_options *o, fl_load_result *out) {
    run r = {.o = o, .out = out, .epoll = -1};
    fl_err err = FL_ERR_OK;
    *out = (fl_load_result){0};
    open_files_at_most();
    fl_eval_random_init(&r.random, o->seed);
    r.clients = calloc((size_t)o->clients, sizeof *r.clients);
    r.unused = calloc((size_t)o->clients, sizeof *r.unused);
    r.deck_cards = count_cards(o);
    r.deck = calloc((size_t)r.deck_cards, sizeof *r.deck);
    r.epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int32_t i = 0; r.clients && i < o->clients; i++) {
        client *c = &r.clients[i];
        c->run = &r;
        c->call.fd = -1;
        c->call.on_body = take_body;
        c->call.context = c;
    }
    if (!r.clients || !r.unused || !r.deck) err = FL_FAIL(FL_ERR_NOMEM, "%d clients", o->clients);
    else if (r.epoll < 0) err = FL_FAIL(FL_ERR_IO, "epoll: %s", strerror(errno));
    else {
        for (int32_t i = o->clients; i-- > 0;) r.unused[r.n_unused++] = i;
        r.start_s = fl_now_s();
        double before_s = cpu_s();
        err = loop(&r);
        out->cpu_s = cpu_s() - before_s;
    }
    if (r.epoll >= 0) close(r.epoll);
    close_clients(&r);
    free(r.unused);
    free(r.deck);
    return err;
}

void fl_load_result_close(fl_load_result *result) {
    free(result->records);
    free(result->tokens_at);
    for (int32_t i = 0; i < FL_LOAD_CLASSES_MAX; i++) free(result->gaps[i].gaps);
    *result = (fl_load_result){0};
}
