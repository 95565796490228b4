/* The HTTP layer's handlers: from a head to the right route, and what every answer has in common. */
#include "server/front.h"

#include "base/clock.h"
#include "server/allowed_host.h"
#include "server/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    SMALL_BODY_BYTES = 64 << 10, /* of routes that need none, and what a refused client may still send */
    BYTES_A_TOKEN = 4,           /* a guess, until a prompt is tokenised */
};

/* Adds what every answer carries and keeps the status for the log. */
static void send_answer(fl_http_exchange *exchange, fl_http_answer *answer) {
    fl_call *call = fl_http_get_user(exchange);
    int i = 0;
    while (i < FL_HTTP_FIELDS_MAX && answer->extra[i].name) i++;
    if (call && i < FL_HTTP_FIELDS_MAX) {
        answer->extra[i].name = "X-Request-Id";
        snprintf(answer->extra[i].value, sizeof answer->extra[i].value, "%s", call->id);
        call->status = answer->status;
    }
    if (call) fl_call_leave(call);
    fl_http_answer_send(exchange, answer);
}

static void answer_error(fl_http_exchange *exchange, const fl_api_error *error, fl_http_extra extra,
                         int64_t drain_bytes) {
    enum { ERROR_BYTES_MAX = 16 << 10 };
    fl_buffer body;
    fl_buffer_init(&body, ERROR_BYTES_MAX);
    fl_api_error_write(error, &body);
    if (body.failure != FL_ERR_OK) fl_buffer_free(&body);
    fl_http_answer answer = {.status = error->status,
                             .body = body.bytes,
                             .body_bytes = body.n,
                             .extra = {extra},
                             .drain_bytes = drain_bytes};
    send_answer(exchange, &answer);
}

void fl_front_answer_error(fl_http_exchange *exchange, const fl_api_error *error, double retry_after_s,
                           int64_t drain_bytes) {
    fl_http_extra extra = {.name = retry_after_s > 0 ? "Retry-After" : NULL};
    if (extra.name) snprintf(extra.value, sizeof extra.value, "%.0f", retry_after_s);
    answer_error(exchange, error, extra, drain_bytes);
}

void fl_front_answer(fl_http_exchange *exchange, const char *content_type, fl_buffer *body) {
    fl_api_error error;
    if (fl_buffer_check(body) != FL_ERR_OK) {
        fl_buffer_free(body);
        (void)fl_api_error_set(&error, 500, NULL, NULL, "the answer is too large");
        fl_front_answer_error(exchange, &error, 0, 0);
        return;
    }
    fl_http_answer answer = {
        .status = 200, .content_type = content_type, .body = body->bytes, .body_bytes = body->n};
    *body = (fl_buffer){.max = body->max};
    send_answer(exchange, &answer);
}

bool fl_front_knows_model(const fl_front *front, const char *model, fl_api_error *error) {
    if (!model) return true;
    for (int i = 0; i < front->n_names; i++)
        if (strcmp(model, front->names[i]) == 0) return true;
    (void)fl_api_error_set(error, 404, "model", "model_not_found",
                           "model: this server has '%s', not the one asked for", front->names[0]);
    return false;
}

void fl_front_refuse(void *context, fl_http_exchange *exchange, int status, const char *reason) {
    fl_front *front = context;
    fl_api_error error;
    if (!fl_http_get_user(exchange)) (void)fl_call_new(front, exchange, NULL);
    (void)fl_api_error_set(&error, status, NULL, status == 413 ? "body_too_large" : NULL, "%s", reason);
    fl_front_answer_error(exchange, &error, 0, 0);
}

static int64_t refuse_key(fl_front *front, fl_http_exchange *exchange) {
    fl_api_error error;
    fl_metrics_count(front->metrics, FL_COUNTER_REJECTED_KEY);
    (void)fl_api_error_set(&error, 401, NULL, "invalid_api_key",
                           "expected a valid API key, as in: Authorization: Bearer KEY");
    answer_error(exchange, &error, (fl_http_extra){"WWW-Authenticate", "Bearer"}, SMALL_BODY_BYTES);
    return 0;
}

static int64_t refuse_route(fl_http_exchange *exchange, const char *allowed) {
    fl_api_error error;
    fl_http_extra extra = {.name = *allowed ? "Allow" : NULL};
    snprintf(extra.value, sizeof extra.value, "%s", allowed);
    if (*allowed) (void)fl_api_error_set(&error, 405, NULL, NULL, "this path takes %s", allowed);
    else (void)fl_api_error_set(&error, 404, NULL, NULL, "there is nothing at this path");
    answer_error(exchange, &error, extra, SMALL_BODY_BYTES);
    return 0;
}

/* A page of another site can have a browser send forms and plain text here without asking, but not JSON. */
static bool is_json(const char *content_type) {
    static const char json[] = "application/json";
    size_t n = sizeof json - 1;
    if (!content_type || strncasecmp(content_type, json, n) != 0) return false;
    return content_type[n] == '\0' || content_type[n] == ';' || content_type[n] == ' ';
}

static int64_t admit(fl_front *front, fl_http_exchange *exchange, fl_call *call) {
    const fl_http_head *head = fl_http_get_head(exchange);
    fl_api_error error;
    double retry_after_s = 0;
    int64_t n_bytes = head->content_length > 0 ? head->content_length : 0;
    if (fl_http_draining(front->http)) {
        (void)fl_api_error_set(&error, 503, NULL, NULL, "the server is being stopped");
        fl_front_answer_error(exchange, &error, 1, front->limits.body_bytes_max);
        return 0;
    }
    call->admitted =
        fl_admission_enter(front, n_bytes / BYTES_A_TOKEN + 1, &call->ticket, &error, &retry_after_s);
    if (call->admitted) return front->limits.body_bytes_max;
    fl_front_answer_error(exchange, &error, retry_after_s, front->limits.body_bytes_max);
    return 0;
}

static int64_t refuse_host(fl_http_exchange *exchange) {
    fl_api_error error;
    (void)fl_api_error_set(
        &error, 403, NULL, NULL,
        "Host: without API keys this server answers to addresses and localhost only; --allowed-host "
        "adds a name");
    fl_front_answer_error(exchange, &error, 0, SMALL_BODY_BYTES);
    return 0;
}

int64_t fl_front_head(void *context, fl_http_exchange *exchange) {
    fl_front *front = context;
    const fl_http_head *head = fl_http_get_head(exchange);
    const char *allowed = "";
    fl_api_error error;
    const fl_route *route = fl_route_find(head->method, head->path, &allowed);
    fl_call *call = fl_call_new(front, exchange, route);
    bool open = route && (route->flags & FL_ROUTE_OPEN);
    if (!call) {
        (void)fl_api_error_set(&error, 503, NULL, NULL, "no memory for this request");
        fl_front_answer_error(exchange, &error, 1, 0);
        return 0;
    }
    if (front->check_host && !fl_host_is_allowed(head->host, front->hosts, front->n_hosts))
        return refuse_host(exchange);
    if (!open && !fl_auth_check(front->auth, head->authorization)) return refuse_key(front, exchange);
    if (!route) return refuse_route(exchange, allowed);
    if (strcmp(route->method, "POST") != 0) return SMALL_BODY_BYTES;
    if (!is_json(head->content_type)) {
        (void)fl_api_error_set(&error, 415, NULL, NULL, "Content-Type: expected application/json");
        fl_front_answer_error(exchange, &error, 0, SMALL_BODY_BYTES);
        return 0;
    }
    return route->flags & FL_ROUTE_ANSWER ? admit(front, exchange, call) : front->limits.body_bytes_max;
}

static void run_job(void *context) {
    fl_http_exchange *exchange = context;
    fl_call *call = fl_http_get_user(exchange);
    if (!fl_call_is_gone(call)) call->route->handle(call->front, exchange);
    fl_http_release(exchange);
}

static void serve_asset(const fl_asset *asset, fl_http_exchange *exchange) {
    char *body = malloc(asset->n_bytes + 1);
    fl_http_answer answer = {
        .status = body ? 200 : 503,
        .content_type = asset->content_type,
        .body = body,
        .body_bytes = body ? asset->n_bytes : 0,
        .extra = {{.name = "Content-Security-Policy"}, {"Referrer-Policy", "no-referrer"}}};
    if (body) memcpy(body, asset->bytes, asset->n_bytes);
    snprintf(answer.extra[0].value, sizeof answer.extra[0].value, "%s", asset->content_security_policy);
    send_answer(exchange, &answer);
}

void fl_front_body(void *context, fl_http_exchange *exchange) {
    fl_front *front = context;
    fl_call *call = fl_http_get_user(exchange);
    fl_api_error error;
    if (!call->route->handle) {
        serve_asset(call->route->asset, exchange);
        return;
    }
    if (!(call->route->flags & FL_ROUTE_SLOW)) {
        call->route->handle(front, exchange);
        return;
    }
    fl_http_hold(exchange);
    if (fl_job_pool_add(front->jobs, run_job, exchange)) return;
    fl_http_release(exchange);
    fl_metrics_count(front->metrics, FL_COUNTER_REJECTED_QUEUE);
    (void)fl_api_error_set(&error, 429, NULL, NULL, "too many requests are being read; try again later");
    fl_front_answer_error(exchange, &error, 1, 0);
}

void fl_front_gone(void *context, fl_http_exchange *exchange) {
    fl_call *call = fl_http_get_user(exchange);
    (void)context;
    if (call) fl_call_cancel(call);
}

static void log_call(const fl_front *front, fl_call *call, const fl_http_head *head, bool complete,
                     double seconds) {
    bool answer = call->route && (call->route->flags & FL_ROUTE_ANSWER);
    pthread_mutex_lock(&call->lock); /* the worker may still be at it, for a client that has left */
    const fl_api_usage usage = call->answer ? fl_api_answer_usage(call->answer) : (fl_api_usage){0};
    fl_log_level level = call->status >= 500 ? FL_LOG_WARN : answer ? FL_LOG_INFO : FL_LOG_DEBUG;
    FL_LOG(front->log, level, "request", FL_LOG_TEXT("id", call->id), FL_LOG_TEXT("method", head->method),
           FL_LOG_TEXT("path", head->path), FL_LOG_INT("status", call->status),
           FL_LOG_TEXT("end", complete ? "complete" : "cut_off"), FL_LOG_REAL("seconds", seconds),
           FL_LOG_TEXT("peer", head->peer), FL_LOG_INT("prompt_tokens", call->prompt_tokens),
           FL_LOG_INT("cached_tokens", usage.cached_tokens),
           FL_LOG_INT("answer_tokens", usage.completion_tokens), FL_LOG_TEXT("error", call->error));
    pthread_mutex_unlock(&call->lock);
}

void fl_front_ended(void *context, fl_http_exchange *exchange, bool complete) {
    fl_front *front = context;
    fl_call *call = fl_http_get_user(exchange);
    const fl_http_head *head = fl_http_get_head(exchange);
    double seconds = fl_now_s() - head->arrived_s;
    if (!call) return;
    if (!complete) fl_call_cancel(call);
    fl_metrics_http(front->metrics, call->route ? (int)(call->route - fl_routes) : -1, head->method,
                    call->status, seconds);
    log_call(front, call, head, complete, seconds);
}

void fl_front_free(void *context, fl_http_exchange *exchange) {
    (void)context;
    fl_call_free(fl_http_get_user(exchange));
}

void fl_front_tick(void *context) {
    fl_front *front = context;
    double now_s = fl_now_s();
    pthread_mutex_lock(&front->calls_lock);
    for (fl_call *call = front->calls; call; call = call->next) fl_call_tick(call, now_s);
    pthread_mutex_unlock(&front->calls_lock);
}
