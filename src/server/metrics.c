#include "server/metrics.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOUNDS_MAX = 24, METHODS = 3, CLASSES = 6 };

/* Bounds end with 0. */
typedef struct histogram_row {
    const char *name, *help;
    double bounds[BOUNDS_MAX];
} histogram_row;

#define SECONDS_LONG                                                                                         \
    { .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, 0 }
#define COUNTS                                                                                               \
    { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 0 }

static const histogram_row histogram_rows[FL_HISTOGRAMS] = {
    [FL_HISTOGRAM_TTFT] = {"time_to_first_token_seconds",
                           "From a request's arrival to its first token.",
                           {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                            2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, 0}},
    [FL_HISTOGRAM_INTER_TOKEN] = {"inter_token_latency_seconds",
                                  "Between two tokens of an answer.",
                                  {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                   .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80, 0}},
    [FL_HISTOGRAM_E2E] = {"e2e_request_latency_seconds", "From arrival to the answer's end.", SECONDS_LONG},
    [FL_HISTOGRAM_QUEUE] = {"request_queue_time_seconds", "From submitting to the first computed row.",
                            SECONDS_LONG},
    [FL_HISTOGRAM_PREFILL] = {"request_prefill_time_seconds",
                              "From the first computed row to the first token.", SECONDS_LONG},
    [FL_HISTOGRAM_DECODE] = {"request_decode_time_seconds", "From the first token to the last.",
                             SECONDS_LONG},
    [FL_HISTOGRAM_INFERENCE] = {"request_inference_time_seconds", "Prefill and decode.", SECONDS_LONG},
    [FL_HISTOGRAM_TOKENIZE] = {"request_tokenize_time_seconds",
                               "Reading, rendering and tokenising a request.",
                               {.0001, .0005, .001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 0}},
    [FL_HISTOGRAM_PROMPT_TOKENS] = {"request_prompt_tokens", "Tokens of a prompt.", COUNTS},
    [FL_HISTOGRAM_ANSWER_TOKENS] = {"request_generation_tokens", "Tokens of an answer.", COUNTS},
    [FL_HISTOGRAM_PARAMS_N] = {"request_params_n", "Answers asked for.", {1, 2, 5, 10, 20, 0}},
    [FL_HISTOGRAM_PARAMS_MAX_TOKENS] = {"request_params_max_tokens", "Most tokens asked for.", COUNTS},
};

/* Rows of one name stand together. */
typedef struct counter_row {
    const char *name, *help, *label, *value;
} counter_row;

#define FINISHED "request_success_total", "Answers that ended, by how.", "finished_reason"
#define REJECTED "admission_rejections_total", "Requests refused before any work, by why.", "reason"

static const counter_row counter_rows[FL_COUNTERS] = {
    [FL_COUNTER_FINISHED_STOP] = {FINISHED, "stop"},
    [FL_COUNTER_FINISHED_LENGTH] = {FINISHED, "length"},
    [FL_COUNTER_FINISHED_ABORT] = {FINISHED, "abort"},
    [FL_COUNTER_FINISHED_ERROR] = {FINISHED, "error"},
    [FL_COUNTER_REJECTED_LOADING] = {REJECTED, "loading"},
    [FL_COUNTER_REJECTED_QUEUE] = {REJECTED, "queue_full"},
    [FL_COUNTER_REJECTED_TOKENS] = {REJECTED, "queue_tokens"},
    [FL_COUNTER_REJECTED_WAIT] = {REJECTED, "predicted_wait"},
    [FL_COUNTER_REJECTED_KEY] = {REJECTED, "api_key"},
    [FL_COUNTER_SLOW_READERS] = {"slow_readers_total", "Streams cut off since their reader fell behind.",
                                 NULL, NULL},
};

static const char *const method_names[METHODS] = {"GET", "POST", "other"};
static const double http_bounds[] = {.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 600, 0};

typedef struct histogram {
    int64_t counts[BOUNDS_MAX]; /* by bucket; the one behind the last bound is +Inf */
    int64_t n;
    double sum;
} histogram;

typedef struct http_counts {
    int64_t by_class[METHODS][CLASSES]; /* "0xx" .. "5xx" */
    histogram seconds;
} http_counts;

struct fl_metrics {
    const char *model_name;
    const char *const *handlers;
    int n_handlers;
    pthread_mutex_t lock; /* guards what follows */
    histogram histograms[FL_HISTOGRAMS];
    int64_t counters[FL_COUNTERS];
    http_counts http[FL_METRICS_HANDLERS_MAX + 1]; /* the last is "other" */
};

fl_err fl_metrics_open(const char *model_name, const char *const *handlers, int n_handlers,
                       fl_metrics **out) {
    if (n_handlers > FL_METRICS_HANDLERS_MAX)
        return FL_FAIL(FL_ERR_INTERNAL, "%d handlers, at most %d", n_handlers, FL_METRICS_HANDLERS_MAX);
    fl_metrics *m = calloc(1, sizeof *m);
    if (!m) return FL_FAIL(FL_ERR_NOMEM, "metrics");
    m->model_name = model_name;
    m->handlers = handlers;
    m->n_handlers = n_handlers;
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return FL_ERR_OK;
}

void fl_metrics_close(fl_metrics *m) {
    if (!m) return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static void put(histogram *h, const double *bounds, double value) {
    int i = 0;
    while (bounds[i] != 0 && value > bounds[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum += value;
}

void fl_metrics_observe(fl_metrics *m, fl_histogram which, double value) {
    pthread_mutex_lock(&m->lock);
    put(&m->histograms[which], histogram_rows[which].bounds, value);
    pthread_mutex_unlock(&m->lock);
}

void fl_metrics_count(fl_metrics *m, fl_counter which) {
    pthread_mutex_lock(&m->lock);
    m->counters[which]++;
    pthread_mutex_unlock(&m->lock);
}

void fl_metrics_http(fl_metrics *m, int handler, const char *method, int status, double seconds) {
    int class = status / 100, which = METHODS - 1;
    if (class < 0 || class >= CLASSES) class = 0;
    for (int i = 0; i < METHODS - 1; i++)
        if (strcmp(method, method_names[i]) == 0) which = i;
    if (handler < 0 || handler >= m->n_handlers) handler = FL_METRICS_HANDLERS_MAX;
    pthread_mutex_lock(&m->lock);
    m->http[handler].by_class[which][class]++;
    put(&m->http[handler].seconds, http_bounds, seconds);
    pthread_mutex_unlock(&m->lock);
}

static void add(fl_buffer *out, const char *format, ...) FL_PRINTF(2, 3);
static void add(fl_buffer *out, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n > 0) fl_buffer_add(out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void add_help(fl_buffer *out, const char *name, const char *type, const char *help) {
    add(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* The model's name as a label's value: backslash, quote and newline are escaped, as the format says. */
static void label_of(const char *name, char *out, size_t n_bytes) {
    size_t n = 0;
    for (; *name && n + 3 < n_bytes; name++) {
        if (*name == '"' || *name == '\\') out[n++] = '\\';
        out[n++] = (unsigned char)*name < 0x20 ? ' ' : *name;
    }
    out[n] = '\0';
}

/* `labels` without braces. */
static void add_histogram(fl_buffer *out, const char *name, const char *labels, const double *bounds,
                          const histogram *h) {
    int64_t below = 0;
    for (int i = 0; bounds[i] != 0; i++) {
        below += h->counts[i];
        add(out, "%s_bucket{%s,le=\"%.12g\"} %lld\n", name, labels, bounds[i], (long long)below);
    }
    add(out, "%s_bucket{%s,le=\"+Inf\"} %lld\n", name, labels, (long long)h->n);
    add(out, "%s_sum{%s} %.9g\n%s_count{%s} %lld\n", name, labels, h->sum, name, labels, (long long)h->n);
}

static void write_histograms(const fl_metrics *m, const char *labels, fl_buffer *out) {
    char name[96];
    for (int i = 0; i < FL_HISTOGRAMS; i++) {
        snprintf(name, sizeof name, "firstlight:%s", histogram_rows[i].name);
        add_help(out, name, "histogram", histogram_rows[i].help);
        add_histogram(out, name, labels, histogram_rows[i].bounds, &m->histograms[i]);
    }
}

static void write_counters(const fl_metrics *m, const char *labels, fl_buffer *out) {
    char name[96];
    for (int i = 0; i < FL_COUNTERS; i++) {
        const counter_row *row = &counter_rows[i];
        snprintf(name, sizeof name, "firstlight:%s", row->name);
        if (i == 0 || strcmp(row->name, counter_rows[i - 1].name) != 0)
            add_help(out, name, "counter", row->help);
        if (row->label)
            add(out, "%s{%s,%s=\"%s\"} %lld\n", name, labels, row->label, row->value,
                (long long)m->counters[i]);
        else add(out, "%s{%s} %lld\n", name, labels, (long long)m->counters[i]);
    }
}

static const char *handler_name(const fl_metrics *m, int i) {
    return i < m->n_handlers ? m->handlers[i] : "other";
}

static void write_http(const fl_metrics *m, fl_buffer *out) {
    char labels[160];
    add_help(out, "http_requests_total", "counter",
             "Requests answered, by path, method and class of status.");
    for (int i = 0; i <= FL_METRICS_HANDLERS_MAX; i++)
        for (int k = 0; k < METHODS * CLASSES; k++) {
            int64_t n = m->http[i].by_class[k / CLASSES][k % CLASSES];
            if (n == 0) continue;
            add(out, "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %lld\n",
                handler_name(m, i), method_names[k / CLASSES], k % CLASSES, (long long)n);
        }
    add_help(out, "http_request_duration_seconds", "histogram", "From a request's head to its answer's end.");
    for (int i = 0; i <= FL_METRICS_HANDLERS_MAX; i++) {
        if (m->http[i].seconds.n == 0) continue;
        snprintf(labels, sizeof labels, "handler=\"%s\"", handler_name(m, i));
        add_histogram(out, "http_request_duration_seconds", labels, http_bounds, &m->http[i].seconds);
    }
}

static void write_gauges(const fl_gauges *g, const char *labels, fl_buffer *out) {
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"num_requests_running", "gauge", "Requests the engine works on.", (double)g->n_running},
        {"num_requests_waiting", "gauge", "Requests that wait for the engine.", (double)g->n_waiting},
        {"kv_cache_usage_perc", "gauge", "Share of the KV pool that requests hold, 0 to 1.", g->kv_usage},
        {"kv_cache_tokens", "gauge", "Size of the KV pool.", (double)g->kv_tokens},
        {"prompt_tokens_total", "counter", "Prompt tokens read, cached ones included.",
         (double)g->prompt_tokens},
        {"prompt_tokens_computed_total", "counter", "Prompt tokens computed, counted step by step.",
         (double)g->computed_tokens},
        {"prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
         (double)g->prompt_tokens},
        {"prefix_cache_hits_total", "counter", "Prompt tokens that were found there.",
         (double)g->cached_tokens},
        {"generation_tokens_total", "counter", "Answer tokens made.", (double)g->answer_tokens},
        {"kv_disk_bytes", "gauge", "Bytes of documents kept on disk.", (double)g->disk_bytes},
        {"kv_disk_pages_waiting", "gauge", "Pages in memory that are not on disk yet.",
         (double)g->disk_pages_waiting},
        {"kv_disk_pages_lost_total", "counter", "Pages that left memory before they were on disk.",
         (double)g->disk_pages_lost},
        {"kv_disk_pages_read_total", "counter", "Pages that came back from disk.",
         (double)g->disk_pages_read},
        {"worker_restarts_total", "counter", "Workers started after the first.",
         (double)g->n_worker_restarts},
        {"ready", "gauge", "1 when requests are taken.", g->ready ? 1 : 0},
        {"model_load_fraction", "gauge", "Share of the weights that is loaded.", g->load_fraction},
        {"predicted_wait_seconds", "gauge", "Predicted work ahead of a request that came now.",
         g->predicted_wait_s},
        {"http_connections", "gauge", "Open connections.", (double)g->n_connections},
        {"http_requests_in_flight", "gauge", "Requests that are being answered.", (double)g->n_exchanges},
        {"http_body_bytes", "gauge", "Request bodies in memory.", (double)g->n_body_bytes},
    };
    char name[96];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(name, sizeof name, "firstlight:%s", rows[i].name);
        add_help(out, name, rows[i].type, rows[i].help);
        add(out, "%s{%s} %.15g\n", name, labels, rows[i].value);
    }
}

/* Where the engine's time and memory went. */
static void write_meters(const fl_meters *meters, const char *labels, fl_buffer *out) {
    const struct {
        const char *kind;
        double seconds;
    } kinds[] = {{"attention", meters->attention_s}, {"linear", meters->linear_s},
                 {"experts", meters->experts_s},     {"kv", meters->kv_s},
                 {"recorded", meters->recorded_s},   {"communication", meters->comm_s},
                 {"other", meters->other_s}};
    add_help(out, "firstlight:step_seconds_total", "counter",
             "Time of the engine's steps, by what it went into.");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        add(out, "firstlight:step_seconds_total{%s,kind=\"%s\"} %.9g\n", labels, kinds[i].kind,
            kinds[i].seconds);
    add_help(out, "firstlight:memory_planned_bytes", "gauge", "Memory that the engine reserved.");
    add(out, "firstlight:memory_planned_bytes{%s} %lld\n", labels, (long long)meters->planned_bytes);
    add_help(out, "firstlight:memory_peak_bytes", "gauge", "The most of it that was used.");
    add(out, "firstlight:memory_peak_bytes{%s} %lld\n", labels, (long long)meters->peak_bytes);
}

void fl_metrics_write(fl_metrics *m, const fl_gauges *gauges, fl_buffer *out) {
    char model[160], labels[192];
    label_of(m->model_name, model, sizeof model);
    snprintf(labels, sizeof labels, "model_name=\"%s\"", model);
    write_gauges(gauges, labels, out);
    write_meters(&gauges->meters, labels, out);
    pthread_mutex_lock(&m->lock);
    write_counters(m, labels, out);
    write_histograms(m, labels, out);
    write_http(m, out);
    pthread_mutex_unlock(&m->lock);
}
