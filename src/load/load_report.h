/* What a load's records say: percentiles by class, goodput, how steady the server was. */
#ifndef FL_LOAD_LOAD_REPORT_H
#define FL_LOAD_LOAD_REPORT_H

#include "load/load_run.h"

/* Of some values: 0 where there are none. Percentiles are values that occurred (nearest rank). */
typedef struct fl_load_spread {
    int64_t n;
    double p50, p90, p95, p99, max;
} fl_load_spread;

typedef struct fl_load_summary {
    const char *name;
    int64_t n, done, refused, failed, late, good; /* good: done, the first token within the class's limit */
    int64_t prompt_tokens, cached_tokens, answer_tokens; /* of those done */
    fl_load_spread ttft_s, gap_s, total_s, refusal_s;
} fl_load_summary;

enum { FL_LOAD_WINDOW_S = 10 };

typedef struct fl_load_report {
    fl_load_summary classes[FL_LOAD_CLASSES_MAX], all;
    int32_t n_classes;
    double duration_s, last_end_s;
    double requests_per_s, good_per_s, prompt_tokens_per_s,
        answer_tokens_per_s; /* until the last answer's end */
    /* Coefficients of variation over windows of FL_LOAD_WINDOW_S seconds within duration_s, the first one aside: of
     * tokens made, and of requests ended. 0 with fewer than two windows. */
    int32_t n_windows;
    double tokens_variation, requests_variation;
    fl_load_spread send_late_s; /* from when a request was due until it was handed to the socket */
    double cpu_s;               /* what generating the load took */
} fl_load_report;

/* FL_ERR_NOMEM. Names are borrowed from the mix. */
fl_err fl_load_report_make(const fl_load_mix *mix, const fl_load_result *result, fl_load_report *out);

/* Sorts values [n]. */
fl_load_spread fl_load_spread_of(double *values, int64_t n);

#endif
