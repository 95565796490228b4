/* The life of a call: made with its head, submitted on a request thread, answered from the link's. */
#include "server/call.h"

#include "base/clock.h"
#include "base/sha256.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS_BYTES_MAX = FL_API_ANSWER_BYTES_MAX };

static const double begin_late_s = 0.25; /* a stream begins so late at most, whatever the worker says */
static const double progress_s = 1;      /* between two progress comments of a worker that makes progress */

/* On the event thread. Many at a time: a draw asks the kernel who is asking. */
static bool draw_random(fl_front *front, unsigned char out[16]) {
    if (front->n_random < 16) {
        if (RAND_bytes(front->random, sizeof front->random) != 1) return false;
        front->n_random = sizeof front->random;
    }
    front->n_random -= 16;
    memcpy(out, front->random + front->n_random, 16);
    return true;
}

fl_call *fl_call_new(fl_front *front, fl_http_exchange *exchange, const fl_route *route) {
    fl_call *call = calloc(1, sizeof *call);
    if (!call || !draw_random(front, call->random)) {
        free(call);
        return NULL;
    }
    call->front = front;
    call->exchange = exchange;
    call->route = route;
    memcpy(call->id, "req-", 4);
    fl_hex_text(call->random, sizeof call->random, call->id + 4);
    pthread_mutex_init(&call->lock, NULL);
    fl_buffer_init(&call->out, CHUNKS_BYTES_MAX);
    fl_http_set_user(exchange, call);
    return call;
}

void fl_call_leave(fl_call *call) {
    if (call->admitted) fl_admission_leave(call->front, &call->ticket);
    call->admitted = false;
}

void fl_call_free(fl_call *call) {
    if (!call) return;
    fl_call_leave(call);
    fl_api_answer_close(call->answer);
    fl_api_request_free(&call->request);
    for (int32_t i = 0; i < call->n_prompts; i++) free(call->prompts[i].ids);
    free(call->prompts);
    free(call->choices);
    fl_buffer_free(&call->out);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

static void list_add(fl_call *call) {
    fl_front *front = call->front;
    fl_http_hold(call->exchange);
    pthread_mutex_lock(&front->calls_lock);
    call->next = front->calls;
    if (call->next) call->next->previous = call;
    front->calls = call;
    pthread_mutex_unlock(&front->calls_lock);
}

static void list_remove(fl_call *call) {
    fl_front *front = call->front;
    pthread_mutex_lock(&front->calls_lock);
    if (call->next) call->next->previous = call->previous;
    if (call->previous) call->previous->next = call->next;
    else front->calls = call->next;
    pthread_mutex_unlock(&front->calls_lock);
    fl_http_release(call->exchange);
}

/* Needs the lock. */
static void cancel(fl_call *call) {
    call->gone = true;
    for (int32_t i = 0; i < call->n_choices; i++) {
        fl_choice *c = &call->choices[i];
        if (c->submitted && !c->done) fl_worker_link_cancel(call->front->link, c->id);
    }
}

void fl_call_cancel(fl_call *call) {
    pthread_mutex_lock(&call->lock);
    cancel(call);
    pthread_mutex_unlock(&call->lock);
}

bool fl_call_is_gone(fl_call *call) {
    pthread_mutex_lock(&call->lock);
    bool gone = call->gone;
    pthread_mutex_unlock(&call->lock);
    return gone;
}

/* Needs the lock. */
static void begin(fl_call *call) {
    if (call->begun || !call->request.stream) return;
    call->begun = true;
    call->status = 200;
    fl_http_stream_begin(call->exchange, "text/event-stream; charset=utf-8");
}

/* Needs the lock. A reader that is too slow has had its stream cut off by this. */
static void write_out(fl_call *call, const char *bytes, size_t n) {
    if (call->gone || n == 0) return;
    begin(call);
    fl_http_written written = fl_http_stream_write(call->exchange, bytes, n);
    if (written == FL_HTTP_TOO_SLOW) fl_metrics_count(call->front->metrics, FL_COUNTER_SLOW_READERS);
    if (written != FL_HTTP_WRITTEN) cancel(call);
}

/* Needs the lock. A comment of the event stream, which clients skip. */
static void write_progress(fl_call *call) {
    char text[96];
    double fraction = 0;
    int64_t done_tokens = 0;
    for (int32_t i = 0; i < call->n_choices; i++) fraction += call->choices[i].fraction / call->n_choices;
    for (int32_t i = 0; i < call->n_choices; i += (int32_t)call->request.n) /* one choice of each prompt */
        done_tokens += call->choices[i].done_tokens;
    if (fraction >= 1) snprintf(text, sizeof text, ": waiting\n\n");
    else
        snprintf(text, sizeof text, ": prefill %d%% %lld/%lld tokens\n\n", (int)(100 * fraction),
                 (long long)done_tokens, (long long)call->prompt_tokens);
    write_out(call, text, strlen(text));
}

void fl_call_tick(fl_call *call, double now_s) {
    pthread_mutex_lock(&call->lock);
    bool late = !call->begun && now_s - call->submitted_s > begin_late_s;
    bool silent =
        call->begun && now_s - fl_http_stream_written_s(call->exchange) > call->front->limits.comment_s;
    if (call->request.stream && !call->finished && call->submitted_s > 0 && (late || silent))
        write_progress(call);
    pthread_mutex_unlock(&call->lock);
}

/* Needs the lock. For the log: a client's mistake by its field alone, since messages may quote what it sent. */
static void note_error(fl_call *call, const fl_api_error *error) {
    const char *code = error->code ? error->code : "";
    if (error->status >= 500)
        snprintf(call->error, sizeof call->error, "%.*s", (int)sizeof call->error - 1, error->message);
    else
        snprintf(call->error, sizeof call->error, "%s%s%s", error->param, *error->param && *code ? " " : "",
                 code);
}

/* Needs the lock. The answer is complete, or has failed: its last bytes. */
static void finish(fl_call *call) {
    fl_api_error error = {0};
    fl_buffer *out = &call->out;
    call->finished = true;
    fl_buffer_clear(out);
    fl_err err = fl_api_answer_end(call->answer, out, &error);
    if (err != FL_ERR_OK && !error.status)
        (void)fl_api_error_set(&error, 500, NULL, NULL, "the answer is too large");
    note_error(call, &error);
    if (!call->begun && error.status) {
        bool later = error.status == 429 || error.status == 503;
        fl_front_answer_error(call->exchange, &error, later ? 1 : 0, 0);
    } else if (call->request.stream) {
        fl_call_leave(call);
        write_out(call, out->bytes, out->n);
        fl_http_stream_end(call->exchange);
    } else fl_front_answer(call->exchange, NULL, out);
}

static void count_finish(fl_call *call, const fl_choice *c, const fl_event *event, const fl_mark *marks,
                         int32_t n_marks) {
    static const fl_counter by_finish[] = {[FL_FINISH_STOP] = FL_COUNTER_FINISHED_STOP,
                                           [FL_FINISH_LENGTH] = FL_COUNTER_FINISHED_LENGTH,
                                           [FL_FINISH_CANCELLED] = FL_COUNTER_FINISHED_ABORT,
                                           [FL_FINISH_ERROR] = FL_COUNTER_FINISHED_ERROR};
    fl_metrics *m = call->front->metrics;
    double now_s = fl_now_s(), queue_s = 0, arrived_s = fl_http_get_head(call->exchange)->arrived_s;
    fl_metrics_count(m, by_finish[event->finish]);
    for (int32_t i = 0; i < n_marks; i++)
        if (strcmp(marks[i].name, "queue") == 0) queue_s = marks[i].end_s - marks[i].start_s;
    if (c->first_s == 0) return; /* no token: its times mean nothing */
    fl_metrics_observe(m, FL_HISTOGRAM_E2E, now_s - arrived_s);
    fl_metrics_observe(m, FL_HISTOGRAM_QUEUE, queue_s);
    fl_metrics_observe(m, FL_HISTOGRAM_PREFILL, event->ttft_s - queue_s);
    fl_metrics_observe(m, FL_HISTOGRAM_DECODE, c->last_s - c->first_s);
    fl_metrics_observe(m, FL_HISTOGRAM_INFERENCE, event->elapsed_s - queue_s);
    fl_metrics_observe(m, FL_HISTOGRAM_PROMPT_TOKENS, (double)event->prompt_tokens);
    fl_metrics_observe(m, FL_HISTOGRAM_ANSWER_TOKENS, (double)event->answer_tokens);
}

/* Needs the lock. */
static void note_progress(fl_call *call, fl_choice *c, const fl_event *event) {
    double fraction = 0, now_s = fl_now_s();
    if (event->type == FL_EVENT_TOKEN) {
        if (c->first_s == 0)
            fl_metrics_observe(call->front->metrics, FL_HISTOGRAM_TTFT,
                               now_s - fl_http_get_head(call->exchange)->arrived_s);
        else fl_metrics_observe(call->front->metrics, FL_HISTOGRAM_INTER_TOKEN, now_s - c->last_s);
        if (c->first_s == 0) c->first_s = now_s;
        c->last_s = now_s;
    }
    if (c->fraction >= 1) return;
    c->fraction = event->type == FL_EVENT_PROGRESS ? event->done_fraction : 1;
    for (int32_t i = 0; i < call->n_choices; i++) fraction += call->choices[i].fraction / call->n_choices;
    c->done_tokens = event->type == FL_EVENT_PROGRESS ? event->done_tokens : event->prompt_tokens;
    fl_admission_progress(call->front, &call->ticket, fraction > 1 - 1e-9 ? 1 : fraction);
    if (call->begun && fraction < 1 && now_s - fl_http_stream_written_s(call->exchange) > progress_s)
        write_progress(call);
}

/* Needs the lock. */
static void note_event(fl_call *call, int32_t choice, const fl_event *event) {
    fl_api_error error;
    fl_buffer_clear(&call->out);
    fl_err err = fl_api_answer_event(call->answer, choice, event, &call->out);
    if (err != FL_ERR_OK) {
        fl_api_error_from(&error, err, fl_err_detail());
        fl_api_answer_fail(call->answer, &error);
    }
    write_out(call, call->out.bytes, call->out.n);
    if (fl_api_answer_done(call->answer)) finish(call);
}

static void on_event(void *context, const fl_event *event, const fl_mark *marks, int32_t n_marks) {
    fl_choice *c = context;
    fl_call *call = c->call;
    pthread_mutex_lock(&call->lock);
    note_progress(call, c, event);
    if (event->type == FL_EVENT_DONE)
        count_finish(call, c, event, marks, n_marks); /* before its reader can ask */
    if (event->type == FL_EVENT_DONE && call->request.timeline && call->begun && !call->finished) {
        fl_buffer_clear(&call->out);
        fl_timeline_write(call, marks, n_marks, &call->out);
        write_out(call, call->out.bytes, call->out.n);
    }
    if (!call->finished && !call->gone) note_event(call, c->index, event);
    if (event->type == FL_EVENT_DONE) {
        c->done = true;
        call->n_left--;
    }
    bool over = call->n_left == 0;
    if (call->finished && !over && event->type == FL_EVENT_DONE) cancel(call);
    pthread_mutex_unlock(&call->lock); /* without `over` a request thread may end the call from here on */
    if (over) list_remove(call);
}

static void refuse(fl_call *call, const fl_api_error *error, double retry_after_s) {
    pthread_mutex_lock(&call->lock);
    note_error(call, error);
    pthread_mutex_unlock(&call->lock);
    fl_front_answer_error(call->exchange, error, retry_after_s, 0);
}

/* From bytes to a request, or an error. */
static bool read_request(fl_call *call, fl_api_error *error) {
    size_t n = 0;
    const char *body = fl_http_get_body(call->exchange, &n);
    fl_err err = fl_api_request_parse(call->route->kind, body, n, &call->front->api, &call->request, error);
    fl_http_drop_body(call->exchange);
    return err == FL_ERR_OK && fl_front_knows_model(call->front, call->request.model, error) &&
           fl_api_request_check_ids(&call->request, fl_tokenizer_n_vocab(call->front->tokenizer), error) ==
               FL_ERR_OK;
}

static bool check_length(fl_call *call, int64_t n_tokens, int64_t ctx_tokens, fl_api_error *error) {
    if (n_tokens > 0 && n_tokens < ctx_tokens) return true;
    const char *param = call->route->kind == FL_API_CHAT ? "messages" : "prompt";
    if (n_tokens == 0) (void)fl_api_error_set(error, 400, param, NULL, "%s: expected some text", param);
    else
        (void)fl_api_error_set(
            error, 400, param, "context_length_exceeded",
            "%s: this server's context has %lld tokens, of which an answer needs one; found %lld", param,
            (long long)ctx_tokens, (long long)n_tokens);
    return false;
}

static bool tokenize(fl_call *call, int64_t ctx_tokens, fl_api_error *error) {
    int32_t n = call->request.n_prompts > 0 ? call->request.n_prompts : 1;
    call->prompts = calloc((size_t)n, sizeof *call->prompts);
    fl_err err = call->prompts ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "%d prompts", n);
    for (; err == FL_ERR_OK && call->n_prompts < n; call->n_prompts++) {
        fl_prompt_tokens *p = &call->prompts[call->n_prompts];
        err = fl_front_tokenize(call->front, &call->request, call->n_prompts, p);
        if (err != FL_ERR_OK) break;
        if (check_length(call, p->n, ctx_tokens, error)) continue;
        call->n_prompts++; /* owns its ids */
        return false;
    }
    if (err != FL_ERR_OK) fl_api_error_from(error, err, fl_err_detail());
    return err == FL_ERR_OK;
}

static bool open_answer(fl_call *call, fl_api_error *error) {
    fl_api_identity identity = {.created_s = (int64_t)time(NULL),
                                .model = call->request.model ? call->request.model : call->front->names[0],
                                .fingerprint = call->front->fingerprint};
    memcpy(identity.random, call->random, sizeof identity.random);
    int32_t n = fl_api_request_choices(&call->request);
    fl_api_answer *answer = NULL;
    fl_choice *choices = calloc((size_t)n, sizeof *choices);
    fl_err err = choices ? fl_api_answer_open(&call->request, &identity, call->front->tokenizer, &answer)
                         : FL_FAIL(FL_ERR_NOMEM, "%d answers", n);
    if (err != FL_ERR_OK) {
        free(choices);
        fl_api_error_from(error, err, fl_err_detail());
        return false;
    }
    for (int32_t i = 0; i < n; i++) choices[i] = (fl_choice){.call = call, .index = i};
    pthread_mutex_lock(&call->lock);
    call->answer = answer;
    call->choices = choices;
    call->n_choices = call->n_left = n;
    for (int32_t i = 0; i < call->n_prompts; i++) call->prompt_tokens += call->prompts[i].n;
    snprintf(call->id, sizeof call->id, "%s", fl_api_answer_id(answer));
    pthread_mutex_unlock(&call->lock);
    return true;
}

static fl_err submit(fl_call *call, fl_choice *c, int64_t ctx_tokens) {
    fl_request_params params;
    uint64_t seed = 0, id = 0;
    const fl_prompt_tokens *p = &call->prompts[c->index / call->request.n];
    memcpy(&seed, call->random, sizeof seed);
    fl_api_request_params(&call->request, c->index, seed, &params);
    params.tokens = p->ids;
    params.n_tokens = p->n;
    params.document_tokens = p->document_tokens;
    int64_t room = ctx_tokens - p->n, most = call->front->limits.answer_tokens_default;
    if (call->request.max_tokens == 0) params.max_tokens = most > 0 && most < room ? most : room;
    FL_TRY(fl_worker_link_submit(call->front->link, &params, on_event, c, &id));
    pthread_mutex_lock(&call->lock);
    c->id = id;
    c->submitted = true;
    bool unwanted = call->gone && !c->done;
    pthread_mutex_unlock(&call->lock);
    if (unwanted) fl_worker_link_cancel(call->front->link, id);
    return FL_ERR_OK;
}

/* Submits all choices. What is submitted when one fails is cancelled; the answer is then the error. */
static void submit_all(fl_call *call, int64_t ctx_tokens) {
    fl_api_error error;
    fl_err err = FL_ERR_OK;
    int32_t n = 0;
    call->submitted_s = fl_now_s(); /* before any event of it */
    list_add(call);
    fl_http_hold(call->exchange); /* the last event may come before this function ends */
    while (n < call->n_choices && (err = submit(call, &call->choices[n], ctx_tokens)) == FL_ERR_OK) n++;
    if (err != FL_ERR_OK) fl_api_error_from(&error, err, fl_err_detail());
    for (int32_t i = 0; i < call->n_prompts; i++) { /* the worker has them now */
        free(call->prompts[i].ids);
        call->prompts[i].ids = NULL;
    }
    pthread_mutex_lock(&call->lock);
    call->n_left -= call->n_choices - n;
    bool over = call->n_left == 0 && err != FL_ERR_OK;
    if (err != FL_ERR_OK && !call->finished) {
        fl_api_answer_fail(call->answer, &error);
        finish(call);
    }
    pthread_mutex_unlock(&call->lock);
    if (err != FL_ERR_OK) fl_call_cancel(call);
    if (over) list_remove(call);
    fl_http_release(call->exchange);
}

void fl_handle_answer(fl_front *front, fl_http_exchange *exchange) {
    fl_call *call = fl_http_get_user(exchange);
    fl_link_status status;
    fl_api_error error = {0};
    double retry_after_s = 0;
    call->read_s = fl_now_s();
    fl_worker_link_status(front->link, &status);
    bool ok = read_request(call, &error) && tokenize(call, status.info.ctx_tokens, &error) &&
              open_answer(call, &error) &&
              fl_admission_settle(front, call->n_choices, call->prompt_tokens, &call->ticket, &error,
                                  &retry_after_s);
    if (!ok) {
        refuse(call, &error, retry_after_s);
        return;
    }
    fl_metrics_observe(front->metrics, FL_HISTOGRAM_TOKENIZE, fl_now_s() - call->read_s);
    fl_metrics_observe(front->metrics, FL_HISTOGRAM_PARAMS_N, (double)call->request.n);
    if (call->request.max_tokens > 0)
        fl_metrics_observe(front->metrics, FL_HISTOGRAM_PARAMS_MAX_TOKENS, (double)call->request.max_tokens);
    submit_all(call, status.info.ctx_tokens);
}
