/* bench serve: a crowd of clients on a running server. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "load/load_report.h"

static volatile bool stopped;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    stopped = true;
}

/* The first model that the server names. */
static fl_err find_model(const fl_http_server *server, char *name, size_t n_bytes) {
    char *text = NULL, why[256];
    int32_t status;
    fl_err err = fl_http_fetch(server, "/v1/models", NULL, 30, &status, &text);
    if (err != FL_ERR_OK) {
        snprintf(why, sizeof why, "%s", fl_err_detail());
        return FL_FAIL(err, "--url http://%s: %s; `firstlight serve MODEL` starts a server", server->host,
                       why);
    }
    json_t *root = json_loads(text, 0, NULL);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    if (status != 200 || !id)
        err = FL_FAIL(FL_ERR_IO, "/v1/models: expected the server's models, found status %d: %.200s", status,
                      text);
    else snprintf(name, n_bytes, "%s", id);
    json_decref(root);
    free(text);
    return err;
}

/* How many bytes of the text the server's tokenizer puts into a token. */
static fl_err measure_text(const fl_http_server *server, const char *model, const fl_haystack *text,
                           double *out) {
    size_t n = fl_haystack_cut(text, 65536);
    json_t *body = json_pack("{s:s, s:o}", "model", model, "prompt", json_stringn(text->text, n));
    char *request = body ? json_dumps(body, JSON_COMPACT) : NULL, *answer = NULL;
    int32_t status = 0;
    json_decref(body);
    if (!request) return FL_FAIL(FL_ERR_NOMEM, "a request of %zu bytes", n);
    fl_err err = fl_http_fetch(server, "/tokenize", request, 30, &status, &answer);
    free(request);
    FL_TRY(err);
    json_t *root = json_loads(answer, 0, NULL);
    json_int_t count = json_integer_value(json_object_get(root, "count"));
    if (status != 200 || count < 1)
        err = FL_FAIL(FL_ERR_IO, "/tokenize: expected a count, found status %d: %.200s", status, answer);
    else *out = (double)n / (double)count;
    json_decref(root);
    free(answer);
    return err;
}

static void show_progress(void *context, double fraction, int64_t running, int64_t ended) {
    char text[96];
    snprintf(text, sizeof text, "%s running, %s ended", fl_format_count(running).s, fl_format_count(ended).s);
    fl_progress_show(context, fraction, text);
}

static void print_summary(const fl_load_summary *s) {
    printf("%-12s %7s %7s %7s %6s  %9s %9s %9s  %9s %9s  %9s\n", s->name, fl_format_count(s->n).s,
           fl_format_count(s->done).s, fl_format_count(s->refused).s, fl_format_count(s->failed + s->late).s,
           fl_format_seconds(s->ttft_s.p50).s, fl_format_seconds(s->ttft_s.p95).s,
           fl_format_seconds(s->ttft_s.p99).s, fl_format_seconds(s->gap_s.p50).s,
           fl_format_seconds(s->gap_s.p99).s, fl_format_seconds(s->total_s.p95).s);
}

static void print_text(const fl_options *o, const fl_load_report *r, const fl_load_result *result) {
    if (o->rate > 0) printf("%g requests/s for %s", o->rate, fl_format_seconds(r->duration_s).s);
    else printf("%lld clients for %s", (long long)o->concurrency, fl_format_seconds(r->duration_s).s);
    printf(", the last answer after %s\n\n", fl_format_seconds(r->last_end_s).s);
    printf("%-12s %7s %7s %7s %6s  %9s %9s %9s  %9s %9s  %9s\n", "", "sent", "done", "refused", "failed",
           "TTFT p50", "p95", "p99", "gap p50", "p99", "total p95");
    for (int32_t i = 0; i < r->n_classes; i++) print_summary(&r->classes[i]);
    if (r->n_classes > 1) print_summary(&r->all);
    printf("\n%s requests/s, %s within their limit; %s prompt and %s answer tokens/s\n",
           fl_format_rate(r->requests_per_s).s, fl_format_rate(r->good_per_s).s,
           fl_format_rate(r->prompt_tokens_per_s).s, fl_format_rate(r->answer_tokens_per_s).s);
    if (r->n_windows > 0)
        printf(
            "over %d windows of %d s the coefficient of variation is %.2f of answer tokens, %.2f of requests "
            "ended\n",
            r->n_windows, FL_LOAD_WINDOW_S, r->tokens_variation, r->requests_variation);
    if (r->all.refusal_s.n > 0)
        printf("refusals took %s at p50, %s at p99\n", fl_format_seconds(r->all.refusal_s.p50).s,
               fl_format_seconds(r->all.refusal_s.p99).s);
    printf("sent %s after they were due at p99; generating the load took %s of CPU\n",
           fl_format_seconds(r->send_late_s.p99).s, fl_format_seconds(r->cpu_s).s);
    if (result->first_error[0]) printf("the first failure: %s\n", result->first_error);
}

static json_t *spread_json(const fl_load_spread *s) {
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "n", (json_int_t)s->n, "p50", s->p50, "p90", s->p90,
                     "p95", s->p95, "p99", s->p99, "max", s->max);
}

static json_t *summary_json(const fl_load_summary *s) {
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "class", s->name,
        "requests", (json_int_t)s->n, "done", (json_int_t)s->done, "refused", (json_int_t)s->refused,
        "failed", (json_int_t)s->failed, "late", (json_int_t)s->late, "good", (json_int_t)s->good,
        "prompt_tokens", (json_int_t)s->prompt_tokens, "cached_tokens", (json_int_t)s->cached_tokens,
        "answer_tokens", (json_int_t)s->answer_tokens, "ttft_s", spread_json(&s->ttft_s), "gap_s",
        spread_json(&s->gap_s), "total_s", spread_json(&s->total_s), "refusal_s", spread_json(&s->refusal_s));
}

static fl_err print_json(const fl_options *o, const fl_load_report *r, const fl_load_result *result) {
    json_t *classes = json_array();
    for (int32_t i = 0; i < r->n_classes; i++) json_array_append_new(classes, summary_json(&r->classes[i]));
    return fl_cli_print_json(json_pack(
        "{s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:f, s:f, s:o, s:f, s:s, s:o, s:o}", "rate",
        o->rate, "clients", (json_int_t)o->concurrency, "duration_s", r->duration_s, "last_end_s",
        r->last_end_s, "requests_per_s", r->requests_per_s, "good_per_s", r->good_per_s,
        "prompt_tokens_per_s", r->prompt_tokens_per_s, "answer_tokens_per_s", r->answer_tokens_per_s,
        "window_s", FL_LOAD_WINDOW_S, "windows", r->n_windows, "tokens_variation", r->tokens_variation,
        "requests_variation", r->requests_variation, "send_late_s", spread_json(&r->send_late_s), "cpu_s",
        r->cpu_s, "first_error", result->first_error, "all", summary_json(&r->all), "classes", classes));
}

static fl_err run(const fl_options *o, const fl_haystack *text, fl_load_result *result) {
    fl_http_server server;
    fl_load_mix mix;
    fl_load_report report;
    fl_progress progress;
    char model[256];
    double bytes_per_token;
    FL_TRY(fl_load_mix_read(o->mix, &mix));
    FL_TRY(fl_http_server_parse(o->url, o->load_key, &server));
    FL_TRY(find_model(&server, model, sizeof model));
    FL_TRY(measure_text(&server, model, text, &bytes_per_token));
    fl_progress_init(&progress, o);
    fl_progress_begin(&progress, "load");
    const fl_load_options options = {.server = &server,
                                     .mix = &mix,
                                     .text = text,
                                     .model = model,
                                     .bytes_per_token = bytes_per_token,
                                     .rate = o->rate,
                                     .clients = (int32_t)o->concurrency,
                                     .duration_s = o->duration,
                                     .wait_s = o->wait,
                                     .seed = (uint64_t)o->seed,
                                     .on_progress = show_progress,
                                     .context = &progress,
                                     .stop = &stopped};
    fl_err err = fl_load_run(&options, result);
    fl_progress_clear(&progress);
    FL_TRY(err);
    FL_TRY(fl_load_report_make(&mix, result, &report));
    if (o->json) return print_json(o, &report, result);
    print_text(o, &report, result);
    return FL_ERR_OK;
}

int fl_cmd_bench_serve(const fl_options *options) {
    fl_haystack text = {0};
    fl_load_result result = {0};
    const struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    fl_err err = fl_haystack_open(NULL, &text);
    if (err == FL_ERR_OK) err = run(options, &text, &result);
    fl_load_result_close(&result);
    fl_haystack_close(&text);
    if (err != FL_ERR_OK) return fl_cli_fail("bench serve", err);
    return stopped ? FL_EXIT_INTERRUPTED : 0;
}
