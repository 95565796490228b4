#include "cli/bench_rates.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/bench.h"
#include "cli/format.h"
#include "engine/rates_measure.h"

enum { DEPTH = 8192, DEVICE_DEPTH = 65536, RUNS = 3, REQUESTS = 7, REQUEST_TOKENS = 512 };

/* Between them these make every kind of call. Random weights say nothing of density: theirs is imposed. On a device the
 * rows of a window take a time beside that of its FLOPs, and windows of two widths tell the one from the other. */
static const struct {
    const char *policy, *kv, *density;
    bool device_only;
} engines[] = {{"full", "auto", NULL, false},
               {"window-anchors:window=512,stride=128", "auto", NULL, true},
               {"window-anchors", "int4", NULL, false},
               {"blocks", "fp8", "20%", false}};

/* A prompt's first token less its one step, medians: what it takes around it. */
static fl_err measure_request(fl_bench *b, const int32_t *ids, int32_t n_tokens, fl_rate_samples *samples) {
    double step_s = 0, ttft_s[REQUESTS];
    FL_TRY(fl_rates_measure_prompt(b->engine, ids, n_tokens, &step_s));
    for (int32_t i = 0; i < REQUESTS; i++) FL_TRY(fl_bench_first_token(b, n_tokens, &ttft_s[i]));
    const fl_rate_sample sample = {.kind = FL_RATE_request,
                                   .calls = 1,
                                   .cost.flops = n_tokens,
                                   .time_s = fl_bench_median(ttft_s, REQUESTS) - step_s};
    return fl_rate_samples_add(samples, &sample);
}

/* On a device, of a short prompt and of one of a whole span. */
static fl_err measure_requests(fl_bench *b, const int32_t *ids, int32_t depth, fl_rate_samples *samples) {
    if (!b->engine->be->device) return FL_ERR_OK;
    int32_t most = depth / 2 < b->engine->span_tokens ? depth / 2 : b->engine->span_tokens;
    FL_TRY(measure_request(b, ids, REQUEST_TOKENS, samples));
    return measure_request(b, ids, most - most % fl_tile_rows(b->engine), samples);
}

static fl_err measure_with(const fl_options *options, int32_t depth, fl_rate_samples *samples,
                           fl_rates *out) {
    fl_bench b = {0};
    int32_t *ids = NULL;
    fl_engine_info info;
    fl_err err = fl_bench_open_plain(options, depth + 1, &b);
    if (err == FL_ERR_OK) err = fl_bench_prompt(&b, depth, &ids);
    const fl_rates_measuring m = {.ids = ids, .depth = depth, .runs = RUNS};
    if (err == FL_ERR_OK) err = fl_rates_measure(b.engine, &m, samples);
    if (err == FL_ERR_OK) err = measure_requests(&b, ids, depth, samples);
    if (err == FL_ERR_OK) {
        fl_engine_get_info(b.engine, &info);
        out->recorded = info.graphs;
        snprintf(out->source, sizeof out->source, "%s, %d threads, %.100s", info.backend, info.n_threads,
                 options->synthetic ? options->synthetic : options->operands.items[0]);
    }
    free(ids);
    fl_bench_close(&b);
    return err;
}

fl_err fl_bench_rates_measure(const fl_options *options, fl_rates *out) {
    fl_rate_samples samples = {0};
    fl_rates named = {0};
    fl_err err = FL_ERR_OK;
    bool device = strncmp(options->backend, "cuda", 4) == 0 ||
                  (strcmp(options->backend, "auto") == 0 && fl_backend_available("cuda"));
    for (size_t i = 0; i < sizeof engines / sizeof *engines && err == FL_ERR_OK; i++) {
        fl_options o = *options;
        if (engines[i].device_only && !device) continue;
        o.policy = engines[i].policy;
        o.kv_cache_dtype = engines[i].kv;
        o.density = options->synthetic ? engines[i].density : NULL;
        o.density_from = NULL;
        o.tail = "dense";
        o.ctx = o.span = o.kv_tokens = 0;
        err = measure_with(&o, device ? DEVICE_DEPTH : DEPTH, &samples, &named);
    }
    if (err == FL_ERR_OK) err = fl_rates_fit(&samples, out);
    memcpy(out->source, named.source, sizeof out->source);
    out->recorded = named.recorded;
    fl_rate_samples_close(&samples);
    return err;
}

fl_err fl_bench_rates(const fl_options *options, fl_rates *out) {
    const char *path = options->rates;
    if (path && fl_file_exists(*path == '/' ? "/" : ".", path)) return fl_rates_read(path, out);
    FL_TRY(fl_bench_rates_measure(options, out));
    return path ? fl_rates_write(out, path) : FL_ERR_OK;
}

/* "884 G", or "-" for what costs nothing by the fit. */
static fl_text32 per_second(double unit_s) {
    fl_text32 none = {"-"};
    return unit_s > 0 ? fl_format_si(1 / unit_s) : none;
}

void fl_bench_rates_print(const fl_rates *rates) {
    printf("rates of %s\n  %-16s %9s %12s %10s %8s %8s\n", rates->source, "kind", "a call", "FLOP/s", "B/s",
           "calls", "fit off");
    for (int32_t i = 0; i < FL_N_RATES; i++) {
        const fl_rate *r = &rates->of[i];
        if (r->n_samples == 0) continue;
        printf("  %-16s %9s %12s %10s %8lld %7.1f%%\n", fl_rate_name((fl_rate_kind)i),
               fl_format_seconds(r->call_s).s, per_second(r->flop_s).s, per_second(r->byte_s).s,
               (long long)r->n_samples, 100 * r->error);
    }
}
