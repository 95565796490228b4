/* bench frontier: how fast prompts are read and tokens made as the context grows. One engine, sized for the longest. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/format.h"
#include "cli/svg.h"

enum { RUNS_MAX = 1000 };

typedef struct frontier {
    int64_t tokens;
    double ttft_s, token_s; /* medians */
    double density;
    int64_t used_bytes;
} frontier;

typedef struct frontiers {
    fl_bench bench;
    frontier points[FL_BENCH_LENGTHS_MAX];
    int32_t n;
} frontiers;

/* One cold prompt and tokens behind it. */
static fl_err run_once(fl_bench *b, int64_t n, double *ttft_s, double *token_s) {
    fl_bench_answer answer;
    int32_t *tokens = NULL;
    FL_TRY(fl_bench_prompt(b, n, &tokens));
    const fl_bench_question question = {
        .tokens = tokens, .n_tokens = n, .document_tokens = n, .answer_tokens = b->options->frontier_tokens};
    fl_err err = fl_bench_ask(b, &question, &answer);
    free(tokens);
    *ttft_s = answer.ttft_s;
    *token_s = answer.token_s;
    return err;
}

static fl_err measure(fl_bench *b, frontier *p) {
    double ttfts_s[RUNS_MAX], tokens_s[RUNS_MAX];
    int32_t runs = (int32_t)b->options->runs;
    FL_TRY(fl_attend_config_reset_counts(&b->engine->attending));
    for (int32_t i = 0; i < runs; i++) FL_TRY(run_once(b, p->tokens, &ttfts_s[i], &tokens_s[i]));
    p->ttft_s = fl_bench_median(ttfts_s, runs);
    p->token_s = fl_bench_median(tokens_s, runs);
    p->density = fl_attend_config_density(&b->engine->attending);
    p->used_bytes = fl_bench_memory_now(b).used_bytes;
    return FL_ERR_OK;
}

/* ---- the report ---- */

static void print_head(const frontiers *f) {
    const fl_engine_info *info = &f->bench.info;
    if (f->bench.options->json) return;
    printf("%s, %d threads, KV in %s, attention %s; median of %d runs, %lld tokens behind each prompt\n\n",
           info->backend, info->n_threads, info->kv_dtype, info->policy, (int)f->bench.options->runs,
           (long long)f->bench.options->frontier_tokens);
    printf("%10s %12s %12s %12s %12s\n", "context", "first token", "tokens/s", "a token", "tokens/s");
}

static void print_point(const frontiers *f, const frontier *p) {
    if (f->bench.options->json) return;
    printf("%10s %12s %12s %12s %12s", fl_format_count(p->tokens).s, fl_format_seconds(p->ttft_s).s,
           fl_format_rate((double)p->tokens / p->ttft_s).s, fl_format_seconds(p->token_s).s,
           fl_format_rate(1 / p->token_s).s);
    if (p->density < 1) printf("  %.1f%% of blocks", 100 * p->density);
    putchar('\n');
    fflush(stdout);
}

static json_t *to_json(const frontiers *f) {
    const fl_engine_info *info = &f->bench.info;
    json_t *out = json_pack("{s:s, s:i, s:s, s:s, s:i, s:[]}", "backend", info->backend, "threads",
                            (int)info->n_threads, "kv_dtype", info->kv_dtype, "policy", info->policy, "runs",
                            (int)f->bench.options->runs, "rows");
    for (int32_t i = 0; i < f->n; i++) {
        const frontier *p = &f->points[i];
        json_array_append_new(
            json_object_get(out, "rows"),
            json_pack("{s:I, s:f, s:f, s:f, s:f, s:I}", "tokens", (json_int_t)p->tokens, "ttft_s", p->ttft_s,
                      "prefill_tokens_per_s", (double)p->tokens / p->ttft_s, "decode_token_s", p->token_s,
                      "block_density", p->density, "used_bytes", (json_int_t)p->used_bytes));
    }
    return out;
}

static fl_err write_csv(const frontiers *f, const char *path) {
    FILE *file = fopen(path, "we");
    if (!file) return FL_FAIL(FL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    fputs("tokens,ttft_s,prefill_tokens_per_s,decode_ms_per_token,block_density\n", file);
    for (int32_t i = 0; i < f->n; i++) {
        const frontier *p = &f->points[i];
        fprintf(file, "%lld,%.6g,%.6g,%.6g,%.4g\n", (long long)p->tokens, p->ttft_s,
                (double)p->tokens / p->ttft_s, 1e3 * p->token_s, p->density);
    }
    bool failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    return failed ? FL_FAIL(FL_ERR_IO, "cannot write %s", path) : FL_ERR_OK;
}

/* ---- the plot: two curves over a context axis of powers of two, each on its own scale from 0 ---- */

enum { WIDTH = 900, HEIGHT = 460, LEFT = 80, RIGHT = 820, TOP = 90, BOTTOM = 390, GRID = 4 };
static const char prefill_color[] = "#3b6fb6", decode_color[] = "#c8414f", grid_color[] = "#e2e6eb";

static double x_of(const frontiers *f, int64_t tokens) {
    double first = log2((double)f->points[0].tokens), last = log2((double)f->points[f->n - 1].tokens);
    return last > first ? LEFT + (RIGHT - LEFT) * (log2((double)tokens) - first) / (last - first) : LEFT;
}

/* A scale that ends at a round number above `most`. */
static double round_up(double most) {
    double unit = pow(10, floor(log10(most)));
    for (int i = 1; i <= 10; i++)
        if (most <= i * unit) return i * unit;
    return 10 * unit;
}

static void draw_axes(const fl_svg *svg, const frontiers *f, double rate_end, double token_end_s) {
    for (int i = 0; i <= GRID; i++) {
        double y = BOTTOM - (BOTTOM - TOP) * (double)i / GRID;
        fl_svg_put_line(svg, (fl_svg_point){LEFT, y}, (fl_svg_point){RIGHT, y}, grid_color);
        fl_svg_put_text(svg, &(fl_svg_text){LEFT - 8, y + 4, 12, FL_SVG_END, true, false},
                        fl_format_si(rate_end * i / GRID).s);
        fl_svg_put_text(svg, &(fl_svg_text){RIGHT + 8, y + 4, 12, FL_SVG_START, true, false},
                        fl_format_seconds(token_end_s * i / GRID).s);
    }
    for (int32_t i = 0; i < f->n; i++)
        fl_svg_put_text(
            svg, &(fl_svg_text){x_of(f, f->points[i].tokens), BOTTOM + 20, 12, FL_SVG_MIDDLE, true, false},
            fl_format_count(f->points[i].tokens).s);
}

static fl_err write_plot(const frontiers *f, const char *path) {
    fl_svg svg;
    fl_svg_point rates[FL_BENCH_LENGTHS_MAX], times[FL_BENCH_LENGTHS_MAX];
    double rate_most = 0, token_most_s = 0;
    char text[400];
    for (int32_t i = 0; i < f->n; i++) {
        rate_most = fmax(rate_most, (double)f->points[i].tokens / f->points[i].ttft_s);
        token_most_s = fmax(token_most_s, f->points[i].token_s);
    }
    double rate_end = round_up(rate_most), token_end_s = round_up(token_most_s);
    for (int32_t i = 0; i < f->n; i++) {
        const frontier *p = &f->points[i];
        double x = x_of(f, p->tokens), height = BOTTOM - TOP;
        rates[i] = (fl_svg_point){x, BOTTOM - height * ((double)p->tokens / p->ttft_s) / rate_end};
        times[i] = (fl_svg_point){x, BOTTOM - height * p->token_s / token_end_s};
    }
    FL_TRY(fl_svg_open(path, WIDTH, HEIGHT, &svg));
    snprintf(text, sizeof text, "Cost by context, %s, %d threads, attention %.60s", f->bench.info.backend,
             f->bench.info.n_threads, f->bench.info.policy);
    fl_svg_put_text(&svg, &(fl_svg_text){.x = 24, .y = 34, .size = 18, .bold = true}, text);
    fl_svg_put_text(
        &svg, &(fl_svg_text){.x = 24, .y = 58, .size = 13, .grey = true},
        "blue, left: prompt tokens read a second; red, right: time of a token made behind the prompt");
    draw_axes(&svg, f, rate_end, token_end_s);
    fl_svg_put_curve(&svg, rates, f->n, prefill_color);
    fl_svg_put_curve(&svg, times, f->n, decode_color);
    fl_svg_put_text(&svg, &(fl_svg_text){(LEFT + RIGHT) / 2., HEIGHT - 20, 13, FL_SVG_MIDDLE, true, false},
                    "context, tokens");
    return fl_svg_close(&svg);
}

/* ---- the verb ---- */

static int compare_lengths(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static fl_err bench(const fl_options *o, frontiers *f) {
    fl_bench_lengths lengths;
    FL_TRY(fl_bench_check_options(o, "bench frontier"));
    FL_TRY(fl_bench_lengths_parse(o->contexts, &lengths));
    qsort(lengths.tokens, (size_t)lengths.n, sizeof *lengths.tokens, compare_lengths);
    FL_TRY(fl_bench_open_plain(o, lengths.longest + o->frontier_tokens, &f->bench));
    fl_engine_get_info(f->bench.engine, &f->bench.info);
    print_head(f);
    double warm_s[2];
    FL_TRY(run_once(&f->bench, lengths.tokens[0], &warm_s[0], &warm_s[1]));
    for (int32_t i = 0; i < lengths.n; i++) {
        f->points[i].tokens = lengths.tokens[i];
        FL_TRY(measure(&f->bench, &f->points[i]));
        f->n++;
        print_point(f, &f->points[i]);
    }
    if (o->csv) FL_TRY(write_csv(f, o->csv));
    if (o->svg) FL_TRY(write_plot(f, o->svg));
    return o->json ? fl_cli_print_json(to_json(f)) : fl_cli_flush();
}

int fl_cmd_bench_frontier(const fl_options *options) {
    frontiers *f = calloc(1, sizeof *f);
    fl_err err = f ? bench(options, f) : FL_FAIL(FL_ERR_NOMEM, "frontier");
    if (f) fl_bench_close(&f->bench);
    free(f);
    if (err == FL_ERR_CANCELLED) return FL_EXIT_INTERRUPTED;
    return err == FL_ERR_OK ? 0 : fl_cli_fail("bench frontier", err);
}
