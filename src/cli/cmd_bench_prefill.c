/* bench prefill: the first token of prompts of running text, cold each time; one policy, or several in one run, and
 * with --predict what the cost model expects of each. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/bench_rates.h"
#include "cli/format.h"
#include "cli/meters_report.h"

enum { RUNS_MAX = 1000, WARM_TOKENS_MAX = 32768 };

/* What one prompt length gave. */
typedef struct row {
    int64_t tokens;
    double ttft_s; /* median */
    double flops, bytes;
    double achieved_fraction;
    int64_t peak_bytes;
    fl_bench_op ops[FL_BENCH_OPS_MAX];
    int32_t n_ops;
    char policy[256];
    double density;                   /* of block lists */
    fl_density_range listed, imposed; /* of layers and heads; most 0 = no lists, nothing imposed */
    fl_density_table by_head;         /* listed; share owned, NULL = no lists */
    double skew;                      /* hottest expert's rows over the mean, as routed; 0 = no experts */
    fl_meters meters;
    double traced_s;    /* median of the runs with a trace; 0 = no --trace */
    double trace_cost;  /* median over pairs of runs, with a trace over without, less 1 */
    double predicted_s; /* with --predict */
    double predicted_kind_s[FL_N_RATES];
    fl_bench_memory memory;
    int64_t graph_steps; /* of prompts, that were CUDA graphs */
} row;

typedef struct run_times {
    double ttft_s[RUNS_MAX], traced_s[RUNS_MAX]; /* [runs] without and with a trace */
    double timed_s;                              /* all the time in which ops were timed */
} run_times;

/* What the trace of the last of them holds is written in the end. */
static fl_err run_traced(fl_bench *b, int64_t n_tokens, double *ttft_s) {
    FL_TRY(fl_engine_trace_start(b->engine, 0));
    fl_err err = fl_bench_first_token(b, n_tokens, ttft_s);
    fl_engine_trace_stop(b->engine);
    return err;
}

/* A run, and with --trace one more beside it, which comes first every other time: what drifts falls on both alike. */
static fl_err run_pair(fl_bench *b, int64_t n_tokens, int32_t i, run_times *t) {
    bool traced = b->options->trace != NULL;
    t->traced_s[i] = 0;
    if (traced && i % 2 == 1) FL_TRY(run_traced(b, n_tokens, &t->traced_s[i]));
    FL_TRY(fl_bench_first_token(b, n_tokens, &t->ttft_s[i]));
    if (traced && i % 2 == 0) FL_TRY(run_traced(b, n_tokens, &t->traced_s[i]));
    t->timed_s += t->ttft_s[i] + t->traced_s[i];
    return FL_ERR_OK;
}

static double trace_cost(const run_times *t, int32_t runs) {
    double ratios[RUNS_MAX];
    for (int32_t i = 0; i < runs; i++) ratios[i] = t->traced_s[i] / t->ttft_s[i];
    return fl_bench_median(ratios, runs) - 1;
}

/* `runs` first tokens, in pairs with --trace. On a device routing is read in one more run, whose ops count, since it
 * waits for it; a single run does both: of a long prompt the waiting is nothing. */
static fl_err run_timed(fl_bench *b, int64_t n_tokens, run_times *t) {
    int32_t runs = (int32_t)b->options->runs;
    fl_backend *be = b->engine->be;
    bool apart = be->device && runs > 1;
    fl_err err = FL_ERR_OK;
    t->timed_s = 0;
    if (apart) fl_timed_watch(be, false);
    fl_engine_trace_stop(b->engine);
    for (int32_t i = 0; i < runs && err == FL_ERR_OK; i++) err = run_pair(b, n_tokens, i, t);
    fl_engine_get_meters(b->engine, &b->meters);
    fl_engine_get_info(b->engine, &b->info);
    if (!apart) return err;
    fl_timed_reset(b->timed);
    fl_timed_watch(be, true);
    return err == FL_ERR_OK ? fl_bench_first_token(b, n_tokens, &t->timed_s) : err;
}

static int64_t peak_bytes(const fl_bench *b) {
    const fl_engine_info *info = &b->info;
    return b->engine->be->device ? info->weights_bytes + info->kv_bytes + info->scratch_bytes
                                 : fl_memory_now().peak_bytes;
}

static fl_err take_density(const fl_bench *b, row *out) {
    const fl_attend_config *a = &b->engine->attending;
    size_t n = (size_t)a->n_layers * (size_t)a->n_heads;
    out->density = fl_attend_config_density(a);
    if (!a->attend.blocks) return FL_ERR_OK;
    out->by_head = (fl_density_table){a->n_layers, a->n_heads, malloc(n * sizeof(float))};
    if (!out->by_head.share) return FL_FAIL(FL_ERR_NOMEM, "densities of %zu heads", n);
    fl_attend_config_density_by_head(a, out->by_head.share);
    out->listed = fl_density_range_of(&out->by_head);
    if (a->imposed.share) out->imposed = fl_density_range_of(&a->imposed);
    return FL_ERR_OK;
}

/* A recording is made when its shape comes for the second time while nobody watches ops. */
static fl_err warm_graph(fl_bench *b, int64_t n_tokens) {
    double warm_s;
    if (!b->engine->graphs || n_tokens > FL_GRAPH_DOCUMENT_ROWS_MAX + FL_GRAPH_TAIL_ROWS_MAX)
        return FL_ERR_OK;
    fl_timed_watch(b->engine->be, false);
    for (int32_t i = 0; i < 2; i++) FL_TRY(fl_bench_first_token(b, n_tokens, &warm_s));
    fl_timed_watch(b->engine->be, true);
    return FL_ERR_OK;
}

static fl_err measure(fl_bench *b, int64_t n_tokens, row *out) {
    double warm_s;
    run_times times;
    int32_t runs = (int32_t)b->options->runs;
    fl_count count;
    *out = (row){.tokens = n_tokens};
    int64_t warm_tokens = n_tokens < b->engine->span_tokens ? n_tokens : b->engine->span_tokens;
    if (warm_tokens > WARM_TOKENS_MAX) warm_tokens = WARM_TOKENS_MAX;
    FL_TRY(fl_bench_first_token(b, warm_tokens,
                                &warm_s)); /* one step wakes what there is to wake, at any length */
    FL_TRY(warm_graph(b, n_tokens));
    fl_engine_get_info(b->engine, &b->info);
    int64_t graphs_before = b->info.graph_prompt_steps;
    FL_TRY(fl_attend_config_reset_counts(&b->engine->attending));
    fl_timed_reset(b->timed);
    FL_TRY(run_timed(b, n_tokens, &times));
    /* Lists are as long as the text makes them: counted with the density that was found. */
    b->engine->attending.attend.planned_density = fl_attend_config_density(&b->engine->attending);
    const fl_dry_prompt prompt = fl_bench_dry_prompt(b, n_tokens);
    FL_TRY(fl_dry_run_prompt(b->engine->dry, &prompt, &count));
    fl_prediction prediction = {0};
    if (b->rates) FL_TRY(fl_predict_prompt(b->engine->dry, b->rates, &prompt, NULL, &prediction));
    out->predicted_s = prediction.time_s;
    memcpy(out->predicted_kind_s, prediction.rate_s, sizeof out->predicted_kind_s);
    out->memory = fl_bench_memory_now(b);
    out->graph_steps = b->info.graph_prompt_steps - graphs_before;
    if (b->options->trace) out->trace_cost = trace_cost(&times, runs); /* before they are sorted */
    out->ttft_s = fl_bench_median(times.ttft_s, runs);
    out->traced_s = fl_bench_median(times.traced_s, runs);
    out->meters = b->meters;
    out->flops = count.total.flops;
    out->bytes = count.total.bytes;
    out->achieved_fraction = out->flops / out->ttft_s / b->roof.flops_per_s;
    out->peak_bytes = peak_bytes(b);
    out->n_ops = fl_bench_ops(b, &count, b->engine->be->device ? 1 : times.timed_s / out->ttft_s, out->ops);
    out->skew = fl_timed_skew(b->timed);
    snprintf(out->policy, sizeof out->policy, "%s", b->info.policy);
    return take_density(b, out);
}

/* The same length under another policy, in an engine of its own. */
static fl_err measure_also(const fl_bench *first, const char *policy, const row *against, row *out) {
    fl_options options = *first->options;
    options.policy = policy;
    fl_bench b = {0};
    fl_err err = fl_bench_open(&options, against->tokens + 1, &b);
    b.rates = first->rates;
    if (err == FL_ERR_OK) {
        fl_engine_get_info(b.engine, &b.info);
        err = measure(&b, against->tokens, out);
    }
    fl_bench_close(&b);
    return err;
}

/* With a picture where layers and heads differ. */
static void print_density(const row *r) {
    printf("  blocks listed, by layer and head: %.2f%% to %.2f%%, mean %.2f%%", 100 * r->listed.least,
           100 * r->listed.most, 100 * r->listed.mean);
    if (r->imposed.most > 0)
        printf("; asked for beside sinks, window and the tile's own: %.2f%% to %.2f%%, mean %.2f%%",
               100 * r->imposed.least, 100 * r->imposed.most, 100 * r->imposed.mean);
    putchar('\n');
    if (r->listed.most > 1.01 * r->listed.least) fl_density_print(stdout, &r->by_head);
}

static void print_row(const fl_bench *b, const row *r) {
    if (b->options->json) return;
    printf("\nprefill of %s tokens: first token after %s, %s tokens/s\n", fl_format_count(r->tokens).s,
           fl_format_seconds(r->ttft_s).s, fl_format_rate((double)r->tokens / r->ttft_s).s);
    printf("  %sFLOP in it: %sFLOP/s of the %sFLOP/s (%s) this machine does, %.0f%%\n",
           fl_format_si(r->flops).s, fl_format_si(r->flops / r->ttft_s).s,
           fl_format_si(b->roof.flops_per_s).s, b->roof.format, 100 * r->achieved_fraction);
    printf("  memory gives %sB/s; matrix products in %s; peak memory %s\n",
           fl_format_si(b->roof.bytes_per_s).s, fl_bench_arithmetic(b), fl_format_bytes(r->peak_bytes).s);
    if (b->info.graphs)
        printf("  %lld steps of the %d runs as CUDA graphs\n", (long long)r->graph_steps,
               (int)b->options->runs);
    if (r->skew > 0) printf("  the hottest expert of a layer has %.2f times the mean load\n", r->skew);
    if (r->listed.most > 0) print_density(r);
    fl_bench_print_ops(b, r->ops, r->n_ops, r->ttft_s);
    putchar('\n');
    fl_meters_print(stdout, &r->meters);
    if (r->traced_s > 0)
        printf("traced  %s; by pairs of runs a trace costs %+.2f%%\n", fl_format_seconds(r->traced_s).s,
               100 * r->trace_cost);
    fflush(stdout);
}

static void print_comparison(const fl_bench *b, const row *first, const row *r) {
    if (b->options->json) return;
    printf("\n%s", r->policy);
    if (r->density < 1) printf(", %.1f%% of blocks", 100 * r->density);
    print_row(b, r);
    printf("  %.2f times as fast as %s\n", first->ttft_s / r->ttft_s, first->policy);
    fflush(stdout);
}

static void set_prediction(const row *r, json_t *out) {
    json_t *kinds = json_object();
    for (int i = 0; i < FL_N_RATES; i++)
        if (r->predicted_kind_s[i] > 0)
            json_object_set_new(kinds, fl_rate_name((fl_rate_kind)i), json_real(r->predicted_kind_s[i]));
    json_object_set_new(out, "predicted_s", json_real(r->predicted_s));
    json_object_set_new(out, "predicted_by_kind", kinds);
}

static json_t *range_json(const fl_density_range *r) {
    return json_pack("{s:f, s:f, s:f}", "least", r->least, "mean", r->mean, "most", r->most);
}

static void set_fields(const fl_bench *b, const row *r, json_t *out) {
    json_object_set_new(out, "tokens", json_integer(r->tokens));
    json_object_set_new(out, "ttft_s", json_real(r->ttft_s));
    json_object_set_new(out, "tokens_per_s", json_real((double)r->tokens / r->ttft_s));
    json_object_set_new(out, "flops", json_real(r->flops));
    json_object_set_new(out, "roof_flops_per_s", json_real(b->roof.flops_per_s));
    json_object_set_new(out, "roof_bytes_per_s", json_real(b->roof.bytes_per_s));
    json_object_set_new(out, "roof_format", json_string(b->roof.format));
    json_object_set_new(out, "arithmetic", json_string(fl_bench_arithmetic(b)));
    json_object_set_new(out, "bytes", json_real(r->bytes));
    json_object_set_new(out, "achieved_fraction", json_real(r->achieved_fraction));
    json_object_set_new(out, "peak_bytes", json_integer(r->peak_bytes));
    json_object_set_new(out, "policy", json_string(r->policy));
    json_object_set_new(out, "graph_steps", json_integer(r->graph_steps));
    json_object_set_new(out, "routed_skew", json_real(r->skew));
    json_object_set_new(out, "block_density", json_real(r->density));
    if (r->listed.most > 0) json_object_set_new(out, "density_listed", range_json(&r->listed));
    if (r->imposed.most > 0) json_object_set_new(out, "density_asked", range_json(&r->imposed));
    const fl_density_table *t = &r->by_head;
    if (t->share)
        json_object_set_new(out, "density_by_head", fl_calibration_table_json(t->share, t->layers, t->heads));
    json_object_set_new(out, "plan_bytes", json_integer(r->memory.plan_bytes));
    json_object_set_new(out, "used_bytes", json_integer(r->memory.used_bytes));
    if (r->predicted_s > 0) set_prediction(r, out);
    json_object_set_new(out, "ops", fl_bench_ops_json(r->ops, r->n_ops));
    json_object_set_new(out, "meters", fl_meters_json(&r->meters));
    if (r->traced_s > 0) json_object_set_new(out, "traced_ttft_s", json_real(r->traced_s));
    if (r->traced_s > 0) json_object_set_new(out, "trace_cost", json_real(r->trace_cost));
}

/* Never a loss: there is none of random weights. */
static const char quality[] = "not measured: random weights; ask spark-66m at the same density";

static void set_synthetic(const fl_bench *b, json_t *out) {
    const fl_options *o = b->options;
    json_object_set_new(out, "layers", json_integer(b->engine->config->layers));
    json_object_set_new(out, "heads", json_integer(b->engine->config->heads));
    if (o->density) json_object_set_new(out, "density_imposed", json_string(o->density));
    if (o->density_from) json_object_set_new(out, "density_from", json_string(o->density_from));
    if (!o->synthetic) return;
    json_object_set_new(out, "synthetic", json_string(o->synthetic));
    json_object_set_new(out, "skew", json_real(o->skew));
    json_object_set_new(out, "skew_simulated", json_real(b->engine->synthetic.skew));
    json_object_set_new(out, "quality", json_string(quality));
}

static void print_synthetic(const fl_bench *b) {
    const fl_options *o = b->options;
    if (!o->synthetic || o->json) return;
    printf("synthetic %s: %d layers of random weights, %s; hot experts are made for %.2f times the "
           "mean load",
           o->synthetic, b->engine->config->layers, fl_format_bytes(b->info.weights_bytes).s,
           b->engine->synthetic.skew);
    if (o->density) printf("; lists hold %s of blocks, imposed", o->density);
    if (o->density_from) printf("; by layer and head as in %s", o->density_from);
    printf("\nquality: %s\n", quality);
}

/* The fields of the last row at the top, all in rows[]. */
static fl_err print_json(const fl_bench *b, const row *rows, int32_t n) {
    json_t *out = json_pack("{s:s, s:i, s:i, s:[]}", "backend", b->info.backend, "threads",
                            (int)b->info.n_threads, "runs", (int)b->options->runs, "rows");
    if (!out) return FL_FAIL(FL_ERR_NOMEM, "the JSON result");
    for (int32_t i = 0; i < n; i++) {
        json_t *item = json_object();
        set_fields(b, &rows[i], item);
        json_array_append_new(json_object_get(out, "rows"), item);
    }
    set_fields(b, &rows[n - 1], out);
    set_synthetic(b, out);
    return fl_cli_print_json(out);
}

/* "blocks" of "blocks:window=512,...". */
static int name_length(const char *policy) {
    return (int)strcspn(policy, ":");
}

static void print_predictions(const fl_bench *b, const row *rows, int32_t n) {
    if (b->options->json) return;
    printf("\npredicted by the rates of %s\n", b->rates->source);
    printf("  %9s  %-15s %8s %11s %11s %8s %12s %12s\n", "tokens", "attention", "blocks", "predicted",
           "measured", "off", "planned", "used");
    for (int32_t i = 0; i < n; i++) {
        const row *r = &rows[i];
        char density[16] = "";
        if (r->density < 1) snprintf(density, sizeof density, "%.1f%%", 100 * r->density);
        printf("  %9s  %-15.*s %8s %11s %11s %+7.1f%% %12s %12s\n", fl_format_count(r->tokens).s,
               name_length(r->policy), r->policy, density, fl_format_seconds(r->predicted_s).s,
               fl_format_seconds(r->ttft_s).s, 100 * (r->predicted_s / r->ttft_s - 1),
               fl_format_bytes(r->memory.plan_bytes).s, fl_format_bytes(r->memory.used_bytes).s);
    }
}

static fl_err bench(const fl_options *options, fl_bench *b) {
    fl_bench_lengths wanted;
    fl_rates rates;
    int32_t n = 0, each = 1 + options->also.n;
    FL_TRY(fl_bench_check_options(options, "bench prefill"));
    FL_TRY(fl_bench_lengths_parse(options->tokens, &wanted));
    bool predicted = options->predict || options->rates;
    if (predicted) FL_TRY(fl_bench_rates(options, &rates));
    FL_TRY(fl_bench_open(options, wanted.longest + 1, b));
    b->rates = predicted ? &rates : NULL;
    fl_engine_get_info(b->engine, &b->info);
    if (!options->json)
        printf("%s, %d threads, KV in %s, steps of %d tokens, attention %s; median of %d runs\n",
               b->info.backend, b->info.n_threads, b->info.kv_dtype, b->engine->span_tokens, b->info.policy,
               (int)options->runs);
    print_synthetic(b);
    row *rows = calloc((size_t)wanted.n * (size_t)each, sizeof *rows);
    fl_err err = rows ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "rows");
    for (int32_t i = 0; i < wanted.n && err == FL_ERR_OK; i++) {
        const row *first = &rows[n];
        err = measure(b, wanted.tokens[i], &rows[n]);
        if (err == FL_ERR_OK) print_row(b, &rows[n++]);
        for (int32_t j = 0; j < options->also.n && err == FL_ERR_OK; j++) {
            err = measure_also(b, options->also.items[j], first, &rows[n]);
            if (err == FL_ERR_OK) print_comparison(b, first, &rows[n++]);
        }
    }
    if (b->info.graph_warning) fprintf(stderr, FL_GRAPH_WARNING, b->info.graph_warning);
    if (b->info.graph_outside) fprintf(stderr, "note: %s\n", b->info.graph_outside);
    if (err == FL_ERR_OK && predicted) print_predictions(b, rows, n);
    if (err == FL_ERR_OK && options->json) err = print_json(b, rows, n);
    if (err == FL_ERR_OK) err = fl_cli_write_trace(options, b->engine);
    for (int32_t i = 0; rows && i < wanted.n * each; i++) free(rows[i].by_head.share);
    free(rows);
    return err;
}

int fl_cmd_bench_prefill(const fl_options *options) {
    fl_bench b = {0};
    fl_err err = bench(options, &b);
    fl_bench_close(&b);
    if (err == FL_ERR_CANCELLED) return FL_EXIT_INTERRUPTED;
    return err == FL_ERR_OK ? 0 : fl_cli_fail("bench prefill", err);
}
