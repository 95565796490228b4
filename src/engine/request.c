/* Requests as callers see them: submit, poll, cancel, close; and what the worker reports into them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "engine/schedule.h"

void fl_request_params_default(fl_request_params *p) {
    *p = (fl_request_params){
        .document_tokens = -1, .max_tokens = 256, .sampling = {.top_p = 1, .repetition_penalty = 1}};
}

static fl_err validate(const fl_engine *e, const fl_request_params *p) {
    if (!p->tokens || p->n_tokens < 1)
        return FL_FAIL(FL_ERR_INVALID, "n_tokens: expected at least one token");
    if (p->n_tokens > e->ctx_tokens - 1)
        return FL_FAIL(FL_ERR_LIMIT,
                       "the prompt has %lld tokens; the context holds %d, one of them for the answer",
                       (long long)p->n_tokens, e->ctx_tokens);
    for (int64_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= e->config->vocab_size)
            return FL_FAIL(FL_ERR_INVALID, "tokens[%lld]: expected 0..%d, found %d", (long long)i,
                           e->config->vocab_size - 1, p->tokens[i]);
    if (p->document_tokens < -1 || p->document_tokens > p->n_tokens)
        return FL_FAIL(FL_ERR_INVALID, "document_tokens: expected -1..%lld, found %lld",
                       (long long)p->n_tokens, (long long)p->document_tokens);
    if (p->score_tokens < 0 || p->score_tokens >= p->n_tokens)
        return FL_FAIL(FL_ERR_INVALID, "score_tokens: expected 0..%lld, found %lld",
                       (long long)p->n_tokens - 1, (long long)p->score_tokens);
    if (p->score_tokens > 0 && !p->on_logits)
        return FL_FAIL(FL_ERR_INVALID, "score_tokens: expected on_logits, found NULL");
    if (p->max_tokens < 1)
        return FL_FAIL(FL_ERR_INVALID, "max_tokens: expected at least 1, found %lld",
                       (long long)p->max_tokens);
    if (p->top_logprobs < 0 || p->top_logprobs > FL_TOP_LOGPROBS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "top_logprobs: expected 0..%d, found %d", FL_TOP_LOGPROBS_MAX,
                       p->top_logprobs);
    FL_TRY(fl_sampling_validate(&p->sampling));
    FL_TRY(fl_sampling_validate_tokens(p, e->config->vocab_size));
    if (!(p->deadline_s >= 0)) /* not a number either */
        return FL_FAIL(FL_ERR_INVALID, "deadline_s: expected 0 or more, found %g", p->deadline_s);
    int64_t room = e->ctx_tokens - p->n_tokens;
    int32_t pages = fl_pages_of(p->n_tokens + (p->max_tokens < room ? p->max_tokens : room));
    if (pages > e->kv_pages)
        return FL_FAIL(
            FL_ERR_LIMIT,
            "prompt and answer need %d KV pages of %d tokens (%lld bytes), the pool has %d (%lld bytes): "
            "raise kv_tokens",
            pages, FL_KV_PAGE_TOKENS, (long long)(pages * fl_kv_page_bytes(&e->kv_shape)), e->kv_pages,
            (long long)e->kv_bytes);
    return FL_ERR_OK;
}

void fl_request_free(fl_request *r) {
    fl_stop_free(&r->stop);
    fl_request_free_schema(r);
    free(r->prompt);
    free(r->used);
    free(r->used_at);
    free(r->biases);
    free(r->records);
    free(r->tops);
    free(r->text);
    free(r->poll_text);
    pthread_cond_destroy(&r->changed);
    free(r);
}

/* Copies the biases, of those for one token the last. */
static fl_err copy_biases(fl_request *r, const fl_request_params *p) {
    if (p->n_logit_biases == 0) return FL_ERR_OK;
    r->biases = malloc((size_t)p->n_logit_biases * sizeof *r->biases);
    if (!r->biases) return FL_FAIL(FL_ERR_NOMEM, "%d logit biases", p->n_logit_biases);
    for (int32_t i = 0; i < p->n_logit_biases; i++) {
        int32_t at = 0;
        while (at < r->n_biases && r->biases[at].token != p->logit_biases[i].token) at++;
        r->biases[at] = p->logit_biases[i];
        if (at == r->n_biases) r->n_biases++;
    }
    return FL_ERR_OK;
}

static void set_ends(fl_request *r, const fl_request_params *p) {
    const fl_config *c = r->engine->config;
    for (int32_t i = 0; i < c->n_eos_ids && !p->ignore_eos; i++) r->ends[r->n_ends++] = c->eos_ids[i];
    for (int32_t i = 0; i < p->n_stop_tokens; i++) r->ends[r->n_ends++] = p->stop_tokens[i];
}

/* A token of the prompt (count 0) or the answer (1). */
static void use_token(fl_request *r, int32_t token, int32_t count) {
    if (!r->used) return;
    if (r->used_at[token] == 0) {
        r->used[r->n_used++] = (fl_sample_mark){.token = token};
        r->used_at[token] = r->n_used;
    }
    r->used[r->used_at[token] - 1].count += count;
}

static fl_err open_penalties(fl_request *r, const fl_request_params *p) {
    const fl_sampling *s = &p->sampling;
    int64_t n_vocab = r->engine->config->vocab_size, most = (int64_t)r->n_prompt + r->max_tokens;
    if (s->repetition_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0) return FL_ERR_OK;
    if (most > n_vocab) most = n_vocab;
    r->used = malloc((size_t)most * sizeof *r->used);
    r->used_at = calloc((size_t)n_vocab, sizeof *r->used_at);
    if (!r->used || !r->used_at) return FL_FAIL(FL_ERR_NOMEM, "penalties of %lld tokens", (long long)n_vocab);
    for (int32_t i = 0; s->repetition_penalty != 1 && i < r->n_prompt; i++) use_token(r, p->tokens[i], 0);
    return FL_ERR_OK;
}

static fl_err allocate(fl_request *r, const fl_request_params *p) {
    r->prompt = malloc((size_t)r->n_prompt * sizeof(int32_t));
    r->records = malloc((size_t)r->max_tokens * sizeof(fl_record));
    if (r->n_top > 0) r->tops = malloc((size_t)r->max_tokens * (size_t)r->n_top * sizeof(fl_token_logprob));
    if (!r->prompt || !r->records || (r->n_top > 0 && !r->tops))
        return FL_FAIL(FL_ERR_NOMEM, "request of %d tokens", r->n_prompt + r->max_tokens);
    memcpy(r->prompt, p->tokens, (size_t)r->n_prompt * sizeof(int32_t));
    FL_TRY(open_penalties(r, p));
    FL_TRY(copy_biases(r, p));
    FL_TRY(fl_request_constrain(r, p));
    return fl_stop_init(&r->stop, p->stops, p->n_stops);
}

static fl_err make_request(fl_session *session, const fl_request_params *p, fl_request **out) {
    fl_engine *e = session->engine;
    fl_request *r = calloc(1, sizeof *r);
    if (!r) return FL_FAIL(FL_ERR_NOMEM, "request");
    fl_cond_init(&r->changed);
    int64_t room = e->ctx_tokens - p->n_tokens;
    r->engine = e;
    r->session = session;
    r->n_prompt = (int32_t)p->n_tokens;
    r->max_tokens = (int32_t)(p->max_tokens < room ? p->max_tokens : room);
    r->n_top = p->top_logprobs;
    r->n_scored = (int32_t)p->score_tokens;
    r->on_logits = p->on_logits;
    r->on_logits_context = p->on_logits_context;
    r->document_end = p->document_tokens >= 0 ? (int32_t)p->document_tokens : fl_request_first_row(r);
    r->document_end -= r->document_end % fl_tile_rows(e); /* what is left over is few rows: tail */
    r->sampling = p->sampling;
    r->min_tokens = (int32_t)(p->min_tokens < r->max_tokens ? p->min_tokens : r->max_tokens);
    set_ends(r, p);
    r->context = p->context;
    r->submit_s = r->phase_start_s = fl_now_s();
    fl_schedule_enter(r, p);
    r->id = atomic_fetch_add(&e->n_requests, 1) + 1;
    pthread_mutex_lock(&r->engine->lock);
    r->root = fl_prefix_root(r->engine->prefix, p->cache_salt ? p->cache_salt : "");
    pthread_mutex_unlock(&r->engine->lock);
    fl_detok_init(&r->detok, false);
    fl_err err = allocate(r, p);
    if (err != FL_ERR_OK) fl_request_free(r);
    else *out = r;
    return err;
}

fl_err fl_submit(fl_session *session, const fl_request_params *params, fl_request **out) {
    fl_engine *e = session->engine;
    fl_request *r = NULL;
    FL_TRY(validate(e, params));
    FL_TRY(make_request(session, params, &r));
    fl_err err = fl_guard_admit(e->guard, r->document_end, r->n_prompt + r->max_tokens, r->n_scored > 0);
    if (err != FL_ERR_OK) {
        fl_request_free(r);
        return err;
    }
    pthread_mutex_lock(&e->lock);
    fl_request **end = &e->requests;
    int64_t queued_tokens = 0;
    int32_t n = 0;
    for (; *end; end = &(*end)->next) {
        n += (*end)->phase != FL_PHASE_DONE;
        if ((*end)->phase < FL_PHASE_DECODE) queued_tokens += (*end)->n_prompt - (*end)->done_tokens;
    }
    if (e->lost[0]) err = FL_FAIL(FL_ERR_DEVICE, "%s", e->lost);
    else if (session->current) err = FL_FAIL(FL_ERR_AGAIN, "the session already has a running request");
    else if (n >= e->requests_max) err = FL_FAIL(FL_ERR_AGAIN, "the queue is full: %d requests", n);
    else if (queued_tokens > 0 && queued_tokens + r->n_prompt > e->queue_tokens_max)
        err = FL_FAIL(FL_ERR_AGAIN, "the queue is full: %lld prompt tokens and %d more, of %lld",
                      (long long)queued_tokens, r->n_prompt, (long long)e->queue_tokens_max);
    else {
        *end = session->current = r;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    if (err != FL_ERR_OK) fl_request_free(r);
    else *out = r;
    return err;
}

static bool has_event(const fl_request *r) {
    return r->n_polled < r->n_records || r->phase == FL_PHASE_DONE || r->progressed;
}

static struct timespec time_after(double timeout_s) {
    return fl_timespec_at(fl_now_s() + (timeout_s > 0 && timeout_s < 1e9 ? timeout_s
                                        : timeout_s > 0                  ? 1e9
                                                                         : 0));
}

static void wait_for_event(fl_request *r, double timeout_s) {
    const struct timespec until = time_after(timeout_s);
    while (!has_event(r) && timeout_s > 0)
        if (pthread_cond_timedwait(&r->changed, &r->engine->lock, &until) == ETIMEDOUT) return;
}

/* Copies text up to `end` out of the growing buffer, so that the caller may read it without the lock. */
static void give_text(fl_request *r, int64_t end, fl_event *out) {
    int64_t n = end - r->text_polled;
    free(r->poll_text);
    r->poll_text = malloc((size_t)n + 1);
    if (!r->poll_text) n = 0; /* the text stays for a later poll */
    else {
        if (n > 0) memcpy(r->poll_text, r->text + r->text_polled, (size_t)n);
        r->poll_text[n] = '\0';
    }
    r->text_polled += n;
    out->text = r->poll_text ? r->poll_text : "";
    out->text_bytes = (size_t)n;
}

static void give_token(fl_request *r, fl_event *out) {
    const fl_record *record = &r->records[r->n_polled];
    out->type = FL_EVENT_TOKEN;
    out->token = record->token;
    out->logprob = record->logprob;
    out->n_top = r->n_top;
    for (int32_t i = 0; i < r->n_top; i++) out->top[i] = r->tops[(int64_t)r->n_polled * r->n_top + i];
    give_text(r, record->text_end, out);
    r->n_polled++;
}

static void give_done(fl_request *r, fl_event *out) {
    out->type = FL_EVENT_DONE;
    out->finish = r->finish;
    out->err = r->err;
    out->err_detail = r->err_detail;
    give_text(r, r->text_final, out);
}

fl_err fl_poll(fl_request *r, double timeout_s, fl_event *out) {
    memset(out, 0, sizeof *out);
    out->token = -1;
    pthread_mutex_lock(&r->engine->lock);
    wait_for_event(r, timeout_s);
    if (r->n_polled < r->n_records) give_token(r, out);
    else if (r->phase == FL_PHASE_DONE) give_done(r, out);
    else if (r->progressed) out->type = FL_EVENT_PROGRESS;
    r->progressed = false;
    out->prompt_tokens = r->n_prompt;
    out->cached_tokens = r->cached_tokens;
    out->done_tokens = r->done_tokens;
    out->done_fraction = r->done_fraction;
    out->answer_tokens = r->n_polled;
    out->ttft_s = r->ttft_s;
    out->elapsed_s = fl_now_s() - r->submit_s;
    pthread_mutex_unlock(&r->engine->lock);
    return FL_ERR_OK;
}

void fl_request_tell(fl_request *r) {
    fl_engine *e = r->engine;
    pthread_cond_broadcast(&r->changed);
    if (r->ready || r->closed) return;
    r->ready = true;
    r->ready_before = e->ready_last;
    r->ready_after = NULL;
    if (e->ready_last) e->ready_last->ready_after = r;
    else e->ready_first = r;
    e->ready_last = r;
    pthread_cond_signal(&e->ready);
}

static void leave_ready(fl_request *r) {
    fl_engine *e = r->engine;
    if (!r->ready) return;
    *(r->ready_before ? &r->ready_before->ready_after : &e->ready_first) = r->ready_after;
    *(r->ready_after ? &r->ready_after->ready_before : &e->ready_last) = r->ready_before;
    r->ready = false;
}

int32_t fl_engine_wait(fl_engine *e, double timeout_s, fl_request **requests, int32_t n_max) {
    const struct timespec until = time_after(timeout_s);
    int32_t n = 0;
    pthread_mutex_lock(&e->lock);
    while (!e->ready_first && timeout_s > 0)
        if (pthread_cond_timedwait(&e->ready, &e->lock, &until) == ETIMEDOUT) break;
    while (e->ready_first && n < n_max) {
        requests[n++] = e->ready_first;
        leave_ready(e->ready_first);
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

void *fl_request_context(const fl_request *r) {
    return r->context;
}

void fl_cancel(fl_request *r) {
    atomic_store(&r->cancel, true);
}

int32_t fl_request_timeline(const fl_request *r, fl_mark *out, int32_t n_max) {
    pthread_mutex_lock(&r->engine->lock);
    int32_t n = r->n_marks;
    for (int32_t i = 0; i < n && i < n_max; i++) out[i] = r->marks[i];
    pthread_mutex_unlock(&r->engine->lock);
    return n;
}

void fl_request_close(fl_request *r) {
    if (!r) return;
    fl_engine *e = r->engine;
    fl_cancel(r);
    pthread_mutex_lock(&e->lock);
    while (r->phase != FL_PHASE_DONE) pthread_cond_wait(&r->changed, &e->lock);
    leave_ready(r);
    bool held = r->held;
    r->closed = true;
    fl_request **link = &e->requests;
    while (!held && *link != r) link = &(*link)->next;
    if (!held) *link = r->next;
    pthread_mutex_unlock(&e->lock);
    if (!held) fl_request_free(r);
}

/* The request, or a phase of it, from start_s to now. */
static void trace_request(const fl_request *r, fl_trace_kind kind, const char *name, double start_s,
                          int64_t tokens) {
    const fl_trace_event e = {
        .name = name, .kind = kind, .begin_s = start_s, .end_s = fl_now_s(), .id = r->id, .count = tokens};
    if (fl_trace_on(r->engine->trace)) fl_trace_add(r->engine->trace, &e);
}

/* Merges into the last mark of the same name when the list is full or the phase is one long decode. */
void fl_request_add_mark(fl_request *r, const char *name, double start_s, int64_t tokens) {
    double now_s = fl_now_s() - r->submit_s;
    if (strcmp(name, "decode") != 0)
        trace_request(r, FL_TRACE_PHASE, name, start_s, tokens); /* once, at its end */
    pthread_mutex_lock(&r->engine->lock);
    fl_mark *last = r->n_marks > 0 ? &r->marks[r->n_marks - 1] : NULL;
    bool merge =
        last && strcmp(last->name, name) == 0 && (strcmp(name, "decode") == 0 || r->n_marks == FL_MARKS_MAX);
    if (merge) {
        last->end_s = now_s;
        last->tokens += tokens;
    } else if (r->n_marks < FL_MARKS_MAX) {
        r->marks[r->n_marks++] =
            (fl_mark){.name = name, .start_s = start_s - r->submit_s, .end_s = now_s, .tokens = tokens};
    }
    pthread_mutex_unlock(&r->engine->lock);
}

void fl_request_finish(fl_request *r, fl_finish finish, fl_err err) {
    char text[FL_DETOK_OUT_BYTES];
    size_t n = 0;
    fl_session *s = r->session;
    if (r->ttft_s > 0) trace_request(r, FL_TRACE_PHASE, "decode", r->submit_s + r->ttft_s, r->n_records);
    trace_request(r, FL_TRACE_REQUEST, "request", r->submit_s, r->n_prompt);
    pthread_mutex_lock(&r->engine->lock);
    if (finish == FL_FINISH_LENGTH) { /* what a stop string or half a code point held back is final now */
        fl_detok_finish(&r->detok, text, &n);
        if (r->text_bytes + (int64_t)n <= r->text_capacity) {
            memcpy(r->text + r->text_bytes, text, n);
            r->text_bytes += (int64_t)n;
        }
        r->text_final = r->text_bytes;
    }
    r->finish = finish;
    r->err = err;
    if (err != FL_ERR_OK) {
        snprintf(r->err_detail, sizeof r->err_detail, "%s", fl_err_detail());
        if (err == FL_ERR_NUMERIC)
            fl_session_unshare(s); /* or all who ask about the document end like this */
        fl_session_forget(s);
    } else {
        fl_session_trim(s);
    }
    r->phase = FL_PHASE_DONE;
    s->current = NULL;
    r->engine->n_freed++;
    fl_request_tell(r);
    pthread_mutex_unlock(&r->engine->lock);
}

static bool reserve_text(fl_request *r) {
    int64_t need = r->text_bytes + 2 * FL_DETOK_OUT_BYTES; /* a token now and the end of the text later */
    if (need <= r->text_capacity) return true;
    char *text = realloc(r->text, (size_t)need * 2);
    if (!text) return false;
    r->text = text;
    r->text_capacity = need * 2;
    return true;
}

static bool is_end_token(const fl_request *r, int32_t token) {
    for (int32_t i = 0; i < r->n_ends; i++)
        if (r->ends[i] == token) return true;
    return false;
}

/* Adds the token's text and decides how much of it may be shown. True: a stop string is complete. */
static bool add_text(fl_request *r, int32_t token) {
    size_t n = 0, show = 0;
    if (!r->engine->tokenizer) return false; /* a synthetic model */
    double begin_s = fl_trace_now(r->engine->trace);
    fl_detok_push(r->engine->tokenizer, &r->detok, token, r->text + r->text_bytes, &n);
    fl_trace_span(r->engine->trace, FL_TRACE_TEXT, "detokenise", begin_s, 1);
    r->text_bytes += (int64_t)n;
    if (r->n_records + 1 < r->min_tokens) { /* no stop string counts yet */
        r->held_begin = r->text_final = r->text_bytes;
        return false;
    }
    bool stopped =
        fl_stop_find(&r->stop, r->text + r->held_begin, (size_t)(r->text_bytes - r->held_begin), &show);
    r->held_begin += (int64_t)show;
    r->text_final = r->held_begin;
    return stopped;
}

bool fl_request_take_token(fl_request *r, const fl_sample *sample) {
    fl_engine *e = r->engine;
    bool end = is_end_token(r, sample->token), stopped = false, full = false, memory = true;
    bool whole = !end && fl_request_advance(r, sample->token);
    double now_s = fl_now_s() - r->submit_s;
    pthread_mutex_lock(&e->lock);
    if (r->ttft_s == 0) r->ttft_s = now_s;
    r->phase = FL_PHASE_DECODE;
    r->last_token = sample->token;
    use_token(r, sample->token, 1);
    memory = reserve_text(r);
    if (!end && memory) {
        stopped = add_text(r, sample->token);
        if (whole && !stopped) r->text_final = r->text_bytes;
        for (int32_t i = 0; i < r->n_top; i++) r->tops[(int64_t)r->n_records * r->n_top + i] = sample->top[i];
        r->records[r->n_records++] =
            (fl_record){.token = sample->token, .logprob = sample->logprob, .text_end = r->text_final};
        full = r->n_records == r->max_tokens;
        e->load.answer_tokens++;
    } else if (end) {
        r->text_final = r->text_bytes;
    }
    fl_request_tell(r);
    pthread_mutex_unlock(&e->lock);
    if (!memory)
        fl_request_finish(r, FL_FINISH_ERROR,
                          FL_FAIL(FL_ERR_NOMEM, "answer text of %lld bytes", (long long)r->text_bytes));
    else if (end || stopped || whole) fl_request_finish(r, FL_FINISH_STOP, FL_ERR_OK);
    else if (full) fl_request_finish(r, FL_FINISH_LENGTH, FL_ERR_OK);
    return r->phase == FL_PHASE_DONE;
}
