#include "server/serve.h"

#include "base/file.h"
#include "base/sha256.h"
#include "server/allowed_host.h"
#include "server/front.h"
#include "server/notify.h"
#include "server/route.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { JOBS_MAX = 4096, CONFIG_BYTES_MAX = 8 << 20 };

struct fl_serve {
    fl_front front;
    char *name; /* made from the path; owned */
    const char *notify_socket;
    pthread_mutex_t state_lock; /* guards what follows */
    bool linked;                /* front.link is there */
    bool ready_told;
    fl_link_state told;                          /* the link's state as last logged */
    bool graph_warning_told, graph_outside_told; /* of this worker */
    const char *handlers[FL_METRICS_HANDLERS_MAX];
};

void fl_serve_options_default(fl_serve_options *o) {
    *o = (fl_serve_options){.body_bytes_max = 64 << 20,
                            .requests_max = 512,
                            .comment_s = 4,
                            .answer_tokens_default = 4096,
                            .n_threads = 2,
                            .log_fd = STDERR_FILENO};
    fl_http_options_default(&o->http);
    fl_link_options_default(&o->link);
}

/* "spark-66m" of "models/spark-66m/". */
static char *name_of(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    return strndup(path + begin, n - begin);
}

static fl_err set_names(fl_serve *s, const fl_serve_options *o) {
    fl_front *f = &s->front;
    if (o->n_names > FL_FRONT_NAMES_MAX)
        return FL_FAIL(FL_ERR_INVALID, "served-model-name: at most %d, found %d", FL_FRONT_NAMES_MAX,
                       o->n_names);
    for (int i = 0; i < o->n_names; i++) f->names[f->n_names++] = o->names[i];
    if (f->n_names > 0) return FL_ERR_OK;
    s->name = name_of(o->link.settings.model_path);
    if (!s->name) return FL_FAIL(FL_ERR_NOMEM, "the model's name");
    f->names[f->n_names++] = s->name;
    return FL_ERR_OK;
}

/* Whether texts get a begin token is the tokenizer's own business in tokenizer_config.json. */
static void read_bos(fl_front *f, const char *model_path) {
    char *bytes = NULL;
    size_t n = 0;
    json_t *root = NULL;
    if (fl_file_read(model_path, "tokenizer_config.json", CONFIG_BYTES_MAX, &bytes, &n) == FL_ERR_OK)
        root = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, NULL);
    free(bytes);
    const json_t *token = json_object_get(root, "bos_token");
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    f->add_bos = json_is_true(json_object_get(root, "add_bos_token")) && text &&
                 fl_tokenizer_find(f->tokenizer, text, &f->bos_token) == FL_ERR_OK;
    json_decref(root);
}

/* Changes with the program, the checkpoint's configuration and what the engine was asked for. */
static void set_fingerprint(fl_front *f, const fl_settings *s) {
    char config[FL_SHA256_HEX_BYTES] = "", all[FL_SHA256_HEX_BYTES] = "", text[1024];
    int64_t n_bytes = 0;
    (void)fl_sha256_file(s->model_path, "config.json", NULL, NULL, config, &n_bytes);
    snprintf(text, sizeof text, "%s|%s|%s|%s|%s|%s|%s|%g|%lld", fl_version(), config, s->backend, s->kv_dtype,
             s->policy, s->tail, s->rope, s->rope_factor, (long long)s->ctx_tokens);
    (void)fl_sha256_of(text, strlen(text), all);
    snprintf(f->fingerprint, sizeof f->fingerprint, "fl_%.12s", all);
}

static fl_err open_text(fl_front *f, const char *model_path) {
    FL_TRY(fl_tokenizer_open(model_path, &f->tokenizer));
    fl_err err = fl_chat_open(model_path, &f->chat);
    if (err == FL_ERR_NOMEM || err == FL_ERR_IO) return err;
    if (err != FL_ERR_OK) snprintf(f->no_chat, sizeof f->no_chat, "%s", fl_err_detail());
    fl_api_template_probe(f->chat, &f->shows);
    read_bos(f, model_path);
    return FL_ERR_OK;
}

static void log_state(fl_serve *s, const fl_link_status *status) {
    fl_log *log = s->front.log;
    switch (status->state) {
    case FL_LINK_LOADING:
        FL_LOG(log, FL_LOG_INFO, "model_loading", FL_LOG_INT("worker_pid", status->worker_pid));
        break;
    case FL_LINK_READY:
        FL_LOG(log, FL_LOG_INFO, "model_ready", FL_LOG_TEXT("model", s->front.names[0]),
               FL_LOG_TEXT("backend", status->info.backend), FL_LOG_TEXT("kv_dtype", status->info.kv_dtype),
               FL_LOG_TEXT("policy", status->info.policy), FL_LOG_INT("ctx_tokens", status->info.ctx_tokens),
               FL_LOG_INT("kv_tokens", status->info.kv_tokens), FL_LOG_INT("worker_pid", status->worker_pid));
        break;
    case FL_LINK_RESTARTING:
        FL_LOG(log, FL_LOG_ERROR, "worker_ended", FL_LOG_TEXT("why", status->error),
               FL_LOG_INT("restarts", status->n_restarts));
        break;
    case FL_LINK_FAILED:
        FL_LOG(log, FL_LOG_ERROR, "worker_given_up", FL_LOG_TEXT("why", status->error));
        break;
    }
}

/* Once for each worker. */
static void log_graphs(fl_serve *s, const fl_link_status *status) {
    bool ready = status->state == FL_LINK_READY;
    const char *warning = ready ? status->info.graph_warning : NULL;
    const char *outside = ready ? status->info.graph_outside : NULL;
    if (warning && !s->graph_warning_told)
        FL_LOG(s->front.log, FL_LOG_WARN, "graphs_stopped", FL_LOG_TEXT("why", warning));
    if (outside && !s->graph_outside_told)
        FL_LOG(s->front.log, FL_LOG_INFO, "graphs_outside", FL_LOG_TEXT("what", outside));
    s->graph_warning_told = warning != NULL;
    s->graph_outside_told = outside != NULL;
}

/* Needs the lock. */
static void tell_state(fl_serve *s) {
    fl_link_status status;
    fl_worker_link_status(s->front.link, &status);
    log_graphs(s, &status);
    if (status.state == s->told && status.state != FL_LINK_RESTARTING) return;
    s->told = status.state;
    log_state(s, &status);
    if (status.state == FL_LINK_READY && !s->ready_told) {
        s->ready_told = true;
        (void)fl_notify(s->notify_socket, "READY=1\nSTATUS=serving");
    }
}

/* On the link's thread; the first call may come before open has the link. */
static void on_state(void *context) {
    fl_serve *s = context;
    pthread_mutex_lock(&s->state_lock);
    if (s->linked) tell_state(s);
    pthread_mutex_unlock(&s->state_lock);
}

static fl_err open_link(fl_serve *s, const fl_serve_options *o) {
    fl_link_options link = o->link;
    link.requests_max = o->requests_max;
    if (link.settings.requests_max < o->requests_max) link.settings.requests_max = o->requests_max;
    /* Admission bounds what waits by whole requests, and an empty queue takes any: an engine with the same bound would
     * take the first prompts of one that is larger, and refuse the rest for ever. */
    link.settings.queue_tokens_max = INT64_MAX;
    link.on_state = on_state;
    link.on_state_context = s;
    FL_TRY(fl_worker_link_open(&link, &s->front.link));
    pthread_mutex_lock(&s->state_lock);
    s->linked = true;
    tell_state(s);
    pthread_mutex_unlock(&s->state_lock);
    return FL_ERR_OK;
}

static fl_err open_http(fl_serve *s, const fl_serve_options *o) {
    fl_http_options http = o->http;
    http.handlers = (fl_http_handlers){.context = &s->front,
                                       .head = fl_front_head,
                                       .body = fl_front_body,
                                       .gone = fl_front_gone,
                                       .ended = fl_front_ended,
                                       .free = fl_front_free,
                                       .tick = fl_front_tick,
                                       .refuse = fl_front_refuse};
    return fl_http_open(&http, &s->front.http);
}

static void set_limits(fl_front *f, const fl_serve_options *o) {
    f->limits = (fl_front_limits){.body_bytes_max = o->body_bytes_max,
                                  .requests_max = o->requests_max,
                                  .tokens_max = o->tokens_max,
                                  .wait_max_s = o->wait_max_s,
                                  .comment_s = o->comment_s,
                                  .answer_tokens_default = o->answer_tokens_default};
    fl_api_settings_default(&f->api);
    f->api.body_bytes_max = (size_t)o->body_bytes_max;
    f->created = (int64_t)time(NULL);
}

static fl_err open_parts(fl_serve *s, const fl_serve_options *o) {
    fl_front *f = &s->front;
    for (int i = 0; i < fl_routes_n; i++) s->handlers[i] = fl_routes[i].path;
    FL_TRY(set_names(s, o));
    set_limits(f, o);
    set_fingerprint(f, &o->link.settings);
    FL_TRY(fl_auth_open(o->keys, o->n_keys, o->key_file, &f->auth));
    f->check_host = !fl_auth_needed(f->auth) && fl_host_is_loopback(o->http.host);
    f->hosts = o->hosts;
    f->n_hosts = o->n_hosts;
    FL_TRY(open_text(f, o->link.settings.model_path));
    FL_TRY(fl_metrics_open(f->names[0], s->handlers, fl_routes_n, &f->metrics));
    if (o->log_fd >= 0)
        FL_TRY(fl_log_open(o->log_fd, o->log_json, o->log_debug ? FL_LOG_DEBUG : FL_LOG_INFO, &f->log));
    FL_TRY(fl_job_pool_open(o->n_threads, JOBS_MAX, &f->jobs));
    FL_TRY(open_link(s, o));
    return open_http(s, o);
}

fl_err fl_serve_open(const fl_serve_options *options, fl_serve **out) {
    fl_serve *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(FL_ERR_NOMEM, "the server");
    fl_admission_open(&s->front.admission);
    pthread_mutex_init(&s->front.calls_lock, NULL);
    pthread_mutex_init(&s->state_lock, NULL);
    s->notify_socket = options->notify_socket;
    s->told = FL_LINK_LOADING;
    fl_err err = open_parts(s, options);
    if (err != FL_ERR_OK) {
        fl_serve_close(s);
        return err;
    }
    FL_LOG(s->front.log, FL_LOG_INFO, "listening", FL_LOG_TEXT("host", options->http.host),
           FL_LOG_INT("port", fl_http_port(s->front.http)), FL_LOG_TEXT("model", s->front.names[0]),
           FL_LOG_TEXT("api_keys", fl_auth_needed(s->front.auth) ? "required" : "none"));
    *out = s;
    return FL_ERR_OK;
}

int32_t fl_serve_port(const fl_serve *s) {
    return fl_http_port(s->front.http);
}

fl_err fl_serve_failure(fl_serve *s) {
    fl_link_status status;
    fl_worker_link_status(s->front.link, &status);
    if (status.state != FL_LINK_FAILED) return FL_ERR_OK;
    return FL_FAIL(status.err != FL_ERR_OK ? status.err : FL_ERR_INTERNAL, "%s", status.error);
}

void fl_serve_drain(fl_serve *s) {
    (void)fl_notify(s->notify_socket, "STOPPING=1\nSTATUS=finishing what runs");
    fl_http_drain(s->front.http);
    FL_LOG(s->front.log, FL_LOG_INFO, "draining", FL_LOG_INT("requests", fl_serve_busy(s)));
}

int64_t fl_serve_busy(const fl_serve *s) {
    fl_http_load load;
    fl_http_get_load(s->front.http, &load);
    return load.exchanges;
}

/* The HTTP layer first, so that nothing new comes; then the request threads; then the link, whose last events find
 * exchanges that are over. */
void fl_serve_close(fl_serve *s) {
    if (!s) return;
    fl_front *f = &s->front;
    if (f->http) fl_http_stop(f->http);
    fl_job_pool_close(f->jobs);
    fl_worker_link_close(f->link);
    fl_http_close(f->http);
    fl_log_write(f->log, FL_LOG_INFO, "stopped", NULL, 0);
    fl_log_close(f->log);
    fl_metrics_close(f->metrics);
    fl_auth_close(f->auth);
    fl_chat_close(f->chat);
    fl_tokenizer_close(f->tokenizer);
    fl_admission_close(&f->admission);
    pthread_mutex_destroy(&f->calls_lock);
    pthread_mutex_destroy(&s->state_lock);
    free(s->name);
    free(s);
}
