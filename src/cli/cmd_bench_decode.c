/* bench decode: tokens made one by one behind a prompt. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/format.h"
#include "cli/meters_report.h"

enum { RUNS_MAX = 1000 };

typedef struct result {
    double token_s;       /* one token, median over runs */
    double flops, bytes;  /* of one token halfway through */
    double floor_s;       /* the time of that many bytes */
    double timed_token_s; /* one token of the run whose ops were timed */
    fl_bench_op ops[FL_BENCH_OPS_MAX];
    int32_t n_ops;
    int64_t peak_bytes;
} result;

/* The first run reads the prompt, the others find it in the session. */
static fl_err run_once(fl_bench *b, fl_session *session, const int32_t *tokens, double *token_s) {
    fl_answer answer;
    fl_request_params params;
    fl_request_params_default(&params);
    params.tokens = tokens;
    params.n_tokens = b->options->depth;
    params.max_tokens = b->options->new_tokens;
    params.ignore_eos = true;
    const fl_ask ask = {.session = session, .params = &params, .progress = &b->progress};
    FL_TRY(fl_ask_run(&ask, &answer));
    fl_err err = FL_ERR_OK;
    if (answer.finish == FL_FINISH_CANCELLED) err = FL_FAIL(FL_ERR_CANCELLED, "stopped by Ctrl-C");
    else if (answer.answer_tokens < b->options->new_tokens)
        err = FL_FAIL(FL_ERR_INTERNAL, "expected %lld tokens, found %lld", (long long)b->options->new_tokens,
                      (long long)answer.answer_tokens);
    *token_s = answer.decode_tokens_per_s > 0 ? 1 / answer.decode_tokens_per_s : 0;
    fl_answer_close(&answer);
    return err;
}

/* One more run for --trace. */
static fl_err run_traced(fl_bench *b, fl_session *session, const int32_t *tokens, double *token_s) {
    FL_TRY(fl_engine_trace_start(b->engine, 0));
    fl_err err = run_once(b, session, tokens, token_s);
    fl_engine_trace_stop(b->engine);
    return err;
}

/* On a device ops are not timed in the runs that count, since each would get its marks, and none be part of a graph:
 * one more run does it. all_s: of the tokens whose ops were timed. */
static fl_err run_all(fl_bench *b, fl_session *session, const int32_t *tokens, double *times_s,
                      double *all_s) {
    const fl_options *o = b->options;
    fl_backend *be = b->engine->be;
    fl_err err = FL_ERR_OK;
    double token_s = 0;
    *all_s = 0;
    if (be->device) fl_timed_watch(be, false);
    fl_engine_trace_stop(b->engine);
    err = run_once(b, session, tokens, &token_s);
    fl_timed_reset(b->timed);
    for (int32_t i = 0; i < o->runs && err == FL_ERR_OK; i++) {
        err = run_once(b, session, tokens, &times_s[i]);
        *all_s += times_s[i] * (double)o->new_tokens;
    }
    fl_engine_get_info(b->engine, &b->info);
    fl_engine_get_meters(b->engine, &b->meters);
    if (err == FL_ERR_OK && o->trace) {
        err = run_traced(b, session, tokens, &token_s);
        *all_s += token_s * (double)o->new_tokens;
    }
    if (!be->device) return err;
    fl_timed_reset(b->timed);
    fl_timed_watch(be, true);
    if (err == FL_ERR_OK) err = run_once(b, session, tokens, &token_s);
    *all_s = token_s * (double)o->new_tokens;
    return err;
}

static fl_err measure(fl_bench *b, fl_session *session, const int32_t *tokens, result *out) {
    double times_s[RUNS_MAX] = {0}, all_s;
    const fl_options *o = b->options;
    fl_dry_cost cost;
    FL_TRY(run_all(b, session, tokens, times_s, &all_s));
    const fl_dry_rows rows = {
        .tail_rows = 1, .tail_pos = (int32_t)(o->depth + o->new_tokens / 2), .n_logits = 1};
    FL_TRY(fl_dry_run_step(b->engine->dry, &rows, &cost));
    out->token_s = fl_bench_median(times_s, (int32_t)o->runs);
    out->flops = cost.ops.total.flops;
    out->bytes = cost.ops.total.bytes;
    out->floor_s = out->bytes / b->roof.bytes_per_s;
    out->peak_bytes = fl_memory_now().peak_bytes;
    double timed_tokens = b->engine->be->device ? (double)o->new_tokens : all_s / out->token_s;
    out->timed_token_s = all_s / timed_tokens;
    out->n_ops = fl_bench_ops(b, &cost.ops, timed_tokens, out->ops);
    return FL_ERR_OK;
}

static void print_text(const fl_bench *b, const result *r) {
    printf("%s, %d threads, KV in %s; median of %d runs of %lld tokens\n\n", b->info.backend,
           b->info.n_threads, b->info.kv_dtype, (int)b->options->runs, (long long)b->options->new_tokens);
    printf("decode behind %s tokens: %s a token, %s tokens/s\n", fl_format_count(b->options->depth).s,
           fl_format_seconds(r->token_s).s, fl_format_rate(1 / r->token_s).s);
    printf("  %s to read for it: %sB/s; memory gives %sB/s, which would be %s, %.0f%%\n",
           fl_format_bytes((int64_t)r->bytes).s, fl_format_si(r->bytes / r->token_s).s,
           fl_format_si(b->roof.bytes_per_s).s, fl_format_seconds(r->floor_s).s,
           100 * r->floor_s / r->token_s);
    if (b->info.graphs)
        printf("  %lld steps as CUDA graphs, %lld op by op\n", (long long)b->info.graph_steps,
               (long long)b->info.plain_steps);
    if (b->info.graph_warning) fprintf(stderr, FL_GRAPH_WARNING, b->info.graph_warning);
    if (b->engine->be->device)
        printf("\nop by op, each waited for: %s a token\n", fl_format_seconds(r->timed_token_s).s);
    fl_bench_print_ops(b, r->ops, r->n_ops, r->timed_token_s);
    putchar('\n');
    fl_meters_print(stdout, &b->meters);
}

static fl_err print_json(const fl_bench *b, const result *r) {
    return fl_cli_print_json(json_pack(
        "{s:s, s:i, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:o, s:o}", "backend",
        b->info.backend, "threads", (int)b->info.n_threads, "runs", (int)b->options->runs, "depth",
        (json_int_t)b->options->depth, "tokens", (json_int_t)b->options->new_tokens, "token_s", r->token_s,
        "tokens_per_s", 1 / r->token_s, "flops", r->flops, "bytes", r->bytes, "roof_flops_per_s",
        b->roof.flops_per_s, "roof_bytes_per_s", b->roof.bytes_per_s, "achieved_fraction",
        r->floor_s / r->token_s, "peak_bytes", (json_int_t)r->peak_bytes, "graph_steps",
        (json_int_t)b->info.graph_steps, "plain_steps", (json_int_t)b->info.plain_steps, "ops",
        fl_bench_ops_json(r->ops, r->n_ops), "meters", fl_meters_json(&b->meters)));
}

static fl_err bench(const fl_options *o, fl_bench *b) {
    fl_session *session = NULL;
    int32_t *tokens = NULL;
    result r;
    fl_err err;
    FL_TRY(fl_bench_open(o, o->depth + o->new_tokens, b));
    FL_TRY(fl_bench_prompt(b, o->depth, &tokens));
    FL_TRY_GOTO(fl_session_open(b->engine, &session));
    FL_TRY_GOTO(measure(b, session, tokens, &r));
    if (o->json) err = print_json(b, &r);
    else print_text(b, &r);
    if (err == FL_ERR_OK) err = fl_cli_write_trace(o, b->engine);
fail:
    fl_session_close(session);
    free(tokens);
    return err;
}

int fl_cmd_bench_decode(const fl_options *options) {
    fl_bench b = {0};
    fl_err err = bench(options, &b);
    fl_bench_close(&b);
    if (err == FL_ERR_CANCELLED) return FL_EXIT_INTERRUPTED;
    return err == FL_ERR_OK ? 0 : fl_cli_fail("bench decode", err);
}
