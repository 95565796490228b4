/* Counters and histograms of the server, and their Prometheus text. Names end as vLLM's do, under
 * "firstlight:", so that dashboards made for it need a rename only; http_* have no prefix, as there. Which
 * there are is data (metrics.c). */
#ifndef FL_SERVER_METRICS_H
#define FL_SERVER_METRICS_H

#include "base/buffer.h"

#include <firstlight/firstlight.h>

#include <stdint.h>

typedef struct fl_metrics fl_metrics;

typedef enum fl_histogram {
    FL_HISTOGRAM_TTFT,        /* seconds from arrival to the first token */
    FL_HISTOGRAM_INTER_TOKEN, /* seconds between two tokens of an answer */
    FL_HISTOGRAM_E2E,         /* seconds from arrival to the answer's end */
    FL_HISTOGRAM_QUEUE,       /* seconds from submitting to the first computed row */
    FL_HISTOGRAM_PREFILL,     /* seconds from there to the first token */
    FL_HISTOGRAM_DECODE,      /* seconds from there to the last */
    FL_HISTOGRAM_INFERENCE,   /* prefill and decode */
    FL_HISTOGRAM_TOKENIZE,    /* seconds for reading, rendering and tokenising a request */
    FL_HISTOGRAM_PROMPT_TOKENS,
    FL_HISTOGRAM_ANSWER_TOKENS,
    FL_HISTOGRAM_PARAMS_N,
    FL_HISTOGRAM_PARAMS_MAX_TOKENS,
    FL_HISTOGRAMS
} fl_histogram;

typedef enum fl_counter {
    FL_COUNTER_FINISHED_STOP,
    FL_COUNTER_FINISHED_LENGTH,
    FL_COUNTER_FINISHED_ABORT, /* the client left, or was too slow */
    FL_COUNTER_FINISHED_ERROR,
    FL_COUNTER_REJECTED_LOADING,
    FL_COUNTER_REJECTED_QUEUE,  /* too many requests */
    FL_COUNTER_REJECTED_TOKENS, /* too many tokens */
    FL_COUNTER_REJECTED_WAIT,   /* the predicted wait is too long */
    FL_COUNTER_REJECTED_KEY,    /* no valid API key */
    FL_COUNTER_SLOW_READERS,    /* streams cut off since their reader fell behind */
    FL_COUNTERS
} fl_counter;

enum { FL_METRICS_HANDLERS_MAX = 32 };

/* What is read at the moment of asking. */
typedef struct fl_gauges {
    int64_t n_running, n_waiting; /* requests in the engine */
    double kv_usage;              /* share of the KV pool that is in use, 0..1 */
    int64_t kv_tokens;
    int64_t prompt_tokens, cached_tokens, computed_tokens, answer_tokens;     /* totals */
    int64_t disk_bytes, disk_pages_waiting, disk_pages_lost, disk_pages_read; /* of --kv-disk */
    int64_t n_worker_restarts;
    bool ready;
    double load_fraction;
    int64_t n_connections, n_exchanges, n_body_bytes; /* of HTTP */
    double predicted_wait_s;
    fl_meters meters; /* of the engine */
} fl_gauges;

/* `model_name` and `handlers` [n_handlers] (paths as labels) are borrowed until close. */
fl_err fl_metrics_open(const char *model_name, const char *const *handlers, int n_handlers, fl_metrics **out);
void fl_metrics_close(fl_metrics *metrics);

/* Any thread. */
void fl_metrics_observe(fl_metrics *metrics, fl_histogram which, double value);
void fl_metrics_count(fl_metrics *metrics, fl_counter which);

/* One HTTP request answered. `handler` is an index of `handlers`; anything else counts as "other". */
void fl_metrics_http(fl_metrics *metrics, int handler, const char *method, int status, double seconds);

/* Appends the text, version 0.0.4 of the format. */
void fl_metrics_write(fl_metrics *metrics, const fl_gauges *gauges, fl_buffer *out);

#endif
