#include "load/load_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"

static double at_rank(const double *sorted, int64_t n, double share) {
    int64_t rank = (int64_t)ceil(share * (double)n);
    return sorted[rank < 1 ? 0 : rank - 1];
}

fl_load_spread fl_load_spread_of(double *values, int64_t n) {
    if (n == 0) return (fl_load_spread){0};
    qsort(values, (size_t)n, sizeof *values, fl_compare_doubles);
    return (fl_load_spread){.n = n,
                            .p50 = at_rank(values, n, 0.5),
                            .p90 = at_rank(values, n, 0.9),
                            .p95 = at_rank(values, n, 0.95),
                            .p99 = at_rank(values, n, 0.99),
                            .max = values[n - 1]};
}

static double ttft_of(const fl_load_record *r) {
    return r->first_s - r->due_s;
}

static double total_of(const fl_load_record *r) {
    return r->end_s - r->due_s;
}

/* Of the records of a class (-1: all) with an outcome that have a first token where one is asked for. */
static fl_load_spread spread(const fl_load_result *result, int32_t class_index, fl_load_outcome outcome,
                             double (*value)(const fl_load_record *), double *room) {
    int64_t n = 0;
    for (int64_t i = 0; i < result->n; i++) {
        const fl_load_record *r = &result->records[i];
        if (r->outcome != outcome || (class_index >= 0 && r->class_index != class_index)) continue;
        if (value == ttft_of && r->first_s == 0) continue;
        room[n++] = value(r);
    }
    return fl_load_spread_of(room, n);
}

static void count(const fl_load_mix *mix, const fl_load_record *r, fl_load_summary *s) {
    double limit_s = mix->classes[r->class_index].ttft_limit_s;
    s->n++;
    s->done += r->outcome == FL_LOAD_DONE;
    s->refused += r->outcome == FL_LOAD_REFUSED;
    s->failed += r->outcome == FL_LOAD_FAILED;
    s->late += r->outcome == FL_LOAD_LATE;
    if (r->outcome != FL_LOAD_DONE) return;
    s->good += limit_s == 0 || (r->first_s > 0 && ttft_of(r) <= limit_s);
    s->prompt_tokens += r->prompt_tokens;
    s->cached_tokens += r->cached_tokens;
    s->answer_tokens += r->answer_tokens;
}

static void summarise(const fl_load_mix *mix, const fl_load_result *result, int32_t class_index, double *room,
                      fl_load_summary *out) {
    int64_t n = 0;
    *out = (fl_load_summary){.name = class_index < 0 ? "all" : mix->classes[class_index].name};
    for (int64_t i = 0; i < result->n; i++)
        if (class_index < 0 || result->records[i].class_index == class_index)
            count(mix, &result->records[i], out);
    out->ttft_s = spread(result, class_index, FL_LOAD_DONE, ttft_of, room);
    out->total_s = spread(result, class_index, FL_LOAD_DONE, total_of, room);
    out->refusal_s = spread(result, class_index, FL_LOAD_REFUSED, total_of, room);
    for (int32_t k = 0; k < mix->n; k++)
        for (int64_t i = 0; (class_index < 0 || k == class_index) && i < result->gaps[k].n; i++)
            room[n++] = (double)result->gaps[k].gaps[i];
    out->gap_s = fl_load_spread_of(room, n);
}

/* Standard deviation over mean of windows 1 .. n - 1. */
static double variation(const double *windows, int32_t n) {
    double sum = 0, squares = 0, count = n - 1;
    for (int32_t i = 1; i < n; i++) sum += windows[i];
    double mean = sum / count;
    for (int32_t i = 1; i < n; i++) squares += (windows[i] - mean) * (windows[i] - mean);
    return mean > 0 ? sqrt(squares / count) / mean : 0;
}

static void add_to_window(double *windows, int32_t n, double at_s) {
    int32_t i = (int32_t)(at_s / FL_LOAD_WINDOW_S);
    if (at_s >= 0 && i < n) windows[i]++;
}

static fl_err find_variation(const fl_load_result *result, fl_load_report *out) {
    int32_t n = (int32_t)(result->duration_s / FL_LOAD_WINDOW_S);
    if (n < 3) return FL_ERR_OK;
    double *windows = calloc((size_t)n * 2, sizeof *windows);
    if (!windows) return FL_FAIL(FL_ERR_NOMEM, "%d windows", n);
    for (int64_t i = 0; i < result->n_tokens; i++) add_to_window(windows, n, result->tokens_at[i]);
    for (int64_t i = 0; i < result->n; i++)
        if (result->records[i].outcome == FL_LOAD_DONE)
            add_to_window(windows + n, n, result->records[i].end_s);
    out->n_windows = n - 1;
    out->tokens_variation = variation(windows, n);
    out->requests_variation = variation(windows + n, n);
    free(windows);
    return FL_ERR_OK;
}

fl_err fl_load_report_make(const fl_load_mix *mix, const fl_load_result *result, fl_load_report *out) {
    int64_t most = result->n;
    *out = (fl_load_report){.n_classes = mix->n, .duration_s = result->duration_s};
    for (int32_t k = 0; k < mix->n; k++) most += result->gaps[k].n;
    double *room = malloc((size_t)(most + 1) * sizeof *room);
    if (!room) return FL_FAIL(FL_ERR_NOMEM, "report of %lld values", (long long)most);
    for (int32_t k = 0; k < mix->n; k++) summarise(mix, result, k, room, &out->classes[k]);
    summarise(mix, result, -1, room, &out->all);
    for (int64_t i = 0; i < result->n; i++) room[i] = result->records[i].sent_s - result->records[i].due_s;
    out->send_late_s = fl_load_spread_of(room, result->n);
    out->cpu_s = result->cpu_s;
    free(room);
    for (int64_t i = 0; i < result->n; i++)
        if (result->records[i].outcome == FL_LOAD_DONE)
            out->last_end_s = fmax(out->last_end_s, result->records[i].end_s);
    double all_s = fmax(out->last_end_s, result->duration_s);
    if (all_s > 0) {
        out->requests_per_s = (double)out->all.done / all_s;
        out->good_per_s = (double)out->all.good / all_s;
        out->prompt_tokens_per_s = (double)out->all.prompt_tokens / all_s;
        out->answer_tokens_per_s = (double)out->all.answer_tokens / all_s;
    }
    return find_variation(result, out);
}
