#include "server/worker_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/link_private.h"

enum { SETTINGS_MAX = 64 << 10 };

void fl_link_options_default(fl_link_options *options) {
    *options = (fl_link_options){.requests_max = 8192,
                                 .queue_bytes_max = 256 << 20,
                                 .load_failures_max = 5,
                                 .backoff_max_s = 30,
                                 .silence_max_s = 30,
                                 .stuck_max_s = 300,
                                 .close_max_s = 40};
    fl_settings_default(&options->settings);
}

/* ---- open and close ---- */

static fl_err validate(const fl_link_options *o) {
    if (o->requests_max < 1 || o->requests_max > FL_WIRE_IDS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "requests_max: expected 1..%d, found %d", FL_WIRE_IDS_MAX,
                       o->requests_max);
    if (o->queue_bytes_max < SETTINGS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "queue_bytes_max: expected %d or more, found %lld", SETTINGS_MAX,
                       (long long)o->queue_bytes_max);
    if (o->load_failures_max < 1)
        return FL_FAIL(FL_ERR_INVALID, "load_failures_max: expected 1 or more, found %d",
                       o->load_failures_max);
    if (!(o->backoff_max_s >= 0) || !(o->silence_max_s > 0) || !(o->stuck_max_s > 0) ||
        !(o->close_max_s >= 0))
        return FL_FAIL(FL_ERR_INVALID,
                       "backoff_max_s, silence_max_s, stuck_max_s, close_max_s: expected seconds");
    return FL_ERR_OK;
}

static fl_err copy_command(fl_worker_link *l, const char *const *command) {
    size_t n = 0;
    while (command && command[n]) n++;
    if (n == 0) return FL_ERR_OK;
    l->command = calloc(n + 1, sizeof *l->command);
    for (size_t i = 0; l->command && i < n; i++)
        if (!(l->command[i] = strdup(command[i]))) return FL_FAIL(FL_ERR_NOMEM, "the worker's command");
    return l->command ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "the worker's command");
}

/* Requests fill queue_bytes_max. No cancel may be lost: each request has one, those that the worker has as well as
 * those in the queue, whose messages are longer than eight of them. */
static size_t queue_bytes(const fl_link_options *o) {
    return (size_t)(o->queue_bytes_max + o->queue_bytes_max / 8) +
           (size_t)o->requests_max * FL_WIRE_HEADER_BYTES;
}

static fl_err take_memory(fl_worker_link *l, const fl_link_options *o) {
    l->o = *o;
    l->o.settings = (fl_settings){0}; /* in `hello` from here on */
    l->o.command = NULL;
    fl_buffer_init(&l->hello, SETTINGS_MAX);
    FL_TRY(fl_wire_put_hello(&l->hello, &o->settings));
    FL_TRY(copy_command(l, o->command));
    l->slots = calloc((size_t)o->requests_max, sizeof *l->slots);
    l->free_slots = calloc((size_t)o->requests_max, sizeof *l->free_slots);
    if (!l->slots || !l->free_slots) return FL_FAIL(FL_ERR_NOMEM, "%d requests", o->requests_max);
    while (l->n_free < o->requests_max) {
        l->free_slots[l->n_free] = o->requests_max - 1 - l->n_free;
        l->n_free++;
    }
    fl_buffer_init(&l->out, queue_bytes(o));
    fl_buffer_init(&l->sending, queue_bytes(o));
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0) return FL_FAIL(FL_ERR_IO, "cannot make an eventfd: %s", strerror(errno));
    int code = pthread_create(&l->thread, NULL, fl_link_thread, l);
    if (code != 0) return FL_FAIL(FL_ERR_NOMEM, "cannot start the link's thread: %s", strerror(code));
    l->started = true;
    return FL_ERR_OK;
}

fl_err fl_worker_link_open(const fl_link_options *options, fl_worker_link **out) {
    FL_TRY(validate(options));
    fl_worker_link *l = calloc(1, sizeof *l);
    if (!l) return FL_FAIL(FL_ERR_NOMEM, "the link to the worker");
    pthread_mutex_init(&l->lock, NULL);
    l->wake = -1;
    l->child.fd = -1;
    fl_err err = take_memory(l, options);
    if (err != FL_ERR_OK) fl_worker_link_close(l);
    else *out = l;
    return err;
}

static void wake(const fl_worker_link *l) {
    const uint64_t one = 1;
    ssize_t n = write(l->wake, &one, sizeof one); /* fails only when it is awake already */
    (void)n;
}

void fl_worker_link_close(fl_worker_link *l) {
    if (!l) return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->closing = true;
        pthread_mutex_unlock(&l->lock);
        wake(l);
        pthread_join(l->thread, NULL);
    }
    if (l->wake >= 0) close(l->wake);
    for (char **word = l->command; word && *word; word++) free(*word);
    free(l->command);
    for (int32_t i = 0; i < l->n_texts; i++) free(l->texts[i]);
    fl_buffer_free(&l->hello);
    fl_buffer_free(&l->out);
    fl_buffer_free(&l->sending);
    free(l->in);
    free(l->slots);
    free(l->free_slots);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- requests ---- */

void fl_link_free_slot(fl_worker_link *l, fl_link_slot *slot) {
    *slot = (fl_link_slot){0};
    l->free_slots[l->n_free++] = (int32_t)(slot - l->slots);
}

static fl_err check_ready(const fl_worker_link *l) {
    switch (l->state) {
    case FL_LINK_READY: break;
    case FL_LINK_LOADING: return FL_FAIL(FL_ERR_AGAIN, "the model is loading");
    case FL_LINK_RESTARTING: return FL_FAIL(FL_ERR_AGAIN, "the worker process is being restarted");
    case FL_LINK_FAILED: return FL_FAIL(l->status.err, "%s", l->status.error);
    }
    if (l->closing) return FL_FAIL(FL_ERR_AGAIN, "the server closes");
    if (l->n_free == 0) return FL_FAIL(FL_ERR_AGAIN, "%d requests are in flight", l->o.requests_max);
    return FL_ERR_OK;
}

/* Ids are never 0 and never come again: a count above the slot's bits. */
static fl_err submit(fl_worker_link *l, const fl_request_params *params, fl_link_event_fn *on_event,
                     void *context, uint64_t *id) {
    FL_TRY(check_ready(l));
    int32_t at = l->free_slots[l->n_free - 1];
    uint64_t name = (l->n_submitted + 1) * FL_WIRE_IDS_MAX + (uint64_t)at;
    size_t before = l->out.n;
    fl_err err = fl_wire_put_submit(&l->out, name, params);
    if (err == FL_ERR_OK && l->out.n > (size_t)l->o.queue_bytes_max) {
        l->out.n = before;
        err = FL_ERR_LIMIT;
    }
    if (err == FL_ERR_LIMIT)
        return FL_FAIL(FL_ERR_AGAIN, "%zu bytes of requests wait for the worker to read them", l->out.n);
    FL_TRY(err);
    l->n_submitted++;
    l->n_free--;
    l->slots[at] = (fl_link_slot){.id = name,
                                  .on_event = on_event,
                                  .context = context,
                                  .last = {.prompt_tokens = params->n_tokens},
                                  .submit_s = fl_now_s()};
    *id = name;
    return FL_ERR_OK;
}

static fl_err validate_params(const fl_request_params *p) {
    if (p->on_logits || p->score_tokens != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "on_logits: logits stay in the worker process");
    if (!p->tokens || p->n_tokens < 1 || p->n_tokens > FL_WIRE_TOKENS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "n_tokens: expected 1..%d, found %lld", FL_WIRE_TOKENS_MAX,
                       (long long)p->n_tokens);
    return FL_ERR_OK;
}

fl_err fl_worker_link_submit(fl_worker_link *l, const fl_request_params *params, fl_link_event_fn *on_event,
                             void *context, uint64_t *id) {
    FL_TRY(validate_params(params));
    pthread_mutex_lock(&l->lock);
    fl_err err = submit(l, params, on_event, context, id);
    pthread_mutex_unlock(&l->lock);
    if (err == FL_ERR_OK) wake(l);
    return err;
}

void fl_worker_link_cancel(fl_worker_link *l, uint64_t id) {
    uint64_t at = id % FL_WIRE_IDS_MAX;
    pthread_mutex_lock(&l->lock);
    bool known = at < (uint64_t)l->o.requests_max && id != 0 && l->slots[at].id == id;
    if (known && l->state == FL_LINK_READY && !l->slots[at].cancelled)
        l->slots[at].cancelled = fl_wire_put_cancel(&l->out, id) == FL_ERR_OK;
    pthread_mutex_unlock(&l->lock);
    if (known) wake(l);
}

/* ---- status ---- */

const char *fl_link_keep_text(fl_worker_link *l, const char *text) {
    if (!text) return NULL;
    for (int32_t i = 0; i < l->n_texts; i++)
        if (strcmp(l->texts[i], text) == 0) return l->texts[i];
    char *copy = l->n_texts < FL_LINK_TEXTS_MAX ? strdup(text) : NULL;
    if (!copy) return "?";
    return l->texts[l->n_texts++] = copy;
}

void fl_worker_link_status(fl_worker_link *l, fl_link_status *out) {
    pthread_mutex_lock(&l->lock);
    *out = l->status;
    out->state = l->state;
    out->n_requests = l->o.requests_max - l->n_free;
    out->load_age_s = l->load_s > 0 ? fl_now_s() - l->load_s : 0;
    out->prompt_tokens = l->before.prompt_tokens + l->status.load.prompt_tokens;
    out->cached_tokens = l->before.cached_tokens + l->status.load.cached_tokens;
    out->computed_tokens = l->before.computed_tokens + l->status.load.computed_tokens;
    out->answer_tokens = l->before.answer_tokens + l->status.load.answer_tokens;
    pthread_mutex_unlock(&l->lock);
}

double fl_link_prefill_s(const fl_engine_load *load, int64_t n_tokens) {
    double tokens = 0, seconds = 0; /* of the point before */
    for (int32_t i = 0; i < load->n_costs; i++) {
        double next = (double)load->cost_tokens[i], next_s = load->cost_s[i];
        bool last = i == load->n_costs - 1;
        if (next > tokens && ((double)n_tokens <= next || last))
            return seconds + (next_s - seconds) * ((double)n_tokens - tokens) / (next - tokens);
        tokens = next;
        seconds = next_s;
    }
    return 0;
}
