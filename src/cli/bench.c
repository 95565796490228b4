#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "cli/format.h"
#include "eval/haystack.h"

static fl_err read_text(fl_bench *b) {
    fl_haystack text = {0};
    FL_TRY(fl_haystack_open(NULL, &text));
    fl_err err = fl_tokenize(b->engine, text.text, text.n_bytes, false, &b->text_ids, &b->n_text_ids);
    fl_haystack_close(&text);
    return err;
}

fl_err fl_bench_open_plain(const fl_options *options, int64_t ctx_tokens, fl_bench *out) {
    *out = (fl_bench){
        .options = options, .random = (uint64_t)options->seed, .base_bytes = fl_memory_now().anonymous_bytes};
    fl_progress_init(&out->progress, options);
    FL_TRY(fl_ask_open(options, ctx_tokens, &out->progress, &out->engine));
    out->timed = out->engine->timed;
    return options->synthetic ? FL_ERR_OK : read_text(out);
}

fl_err fl_bench_open(const fl_options *options, int64_t ctx_tokens, fl_bench *out) {
    FL_TRY(fl_bench_open_plain(options, ctx_tokens, out));
    fl_backend_seal(out->engine->be, false); /* the roof brings its own memory */
    FL_TRY(fl_roof_measure(out->engine->be, &out->roof));
    fl_backend_seal(out->engine->be, true);
    fl_timed_watch(out->engine->be, true);
    return FL_ERR_OK;
}

void fl_bench_close(fl_bench *b) {
    fl_progress_clear(&b->progress);
    fl_engine_close(b->engine);
    free(b->text_ids);
}

/* splitmix64: a full-period counter through a bijective mixer. */
static uint64_t next_random(fl_bench *b) {
    uint64_t z = b->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

fl_err fl_bench_prompt(fl_bench *b, int64_t n, int32_t **out) {
    *out = malloc((size_t)n * sizeof **out);
    if (!*out) return FL_FAIL(FL_ERR_NOMEM, "prompt of %lld tokens", (long long)n);
    uint64_t at = next_random(b), n_ids = (uint64_t)b->n_text_ids;
    uint64_t n_vocab = (uint64_t)b->engine->config->vocab_size;
    if (n_ids == 0)
        for (int64_t i = 0; i < n; i++) (*out)[i] = (int32_t)(next_random(b) % n_vocab);
    else
        for (int64_t i = 0; i < n; i++) (*out)[i] = b->text_ids[(at % n_ids + (uint64_t)i) % n_ids];
    return FL_ERR_OK;
}

fl_err fl_bench_lengths_parse(const char *text, fl_bench_lengths *out) {
    *out = (fl_bench_lengths){0};
    while (*text) {
        char item[32];
        size_t n = strcspn(text, ",");
        if (out->n == FL_BENCH_LENGTHS_MAX)
            return FL_FAIL(FL_ERR_INVALID, "--tokens: expected at most %d lengths", FL_BENCH_LENGTHS_MAX);
        snprintf(item, sizeof item, "%.*s", (int)(n < sizeof item ? n : sizeof item - 1), text);
        FL_TRY(fl_size_parse(item, "--tokens", &out->tokens[out->n]));
        if (out->tokens[out->n] < 1 || out->tokens[out->n] > 1 << 24)
            return FL_FAIL(FL_ERR_INVALID, "--tokens: expected 1 to %d, found %s", 1 << 24, item);
        if (out->tokens[out->n] > out->longest) out->longest = out->tokens[out->n];
        out->n++;
        text += n + (text[n] == ',');
    }
    return out->n > 0 ? FL_ERR_OK : FL_FAIL(FL_ERR_INVALID, "--tokens: expected a length such as 8k");
}

fl_err fl_bench_ask(fl_bench *b, const fl_bench_question *q, fl_bench_answer *out) {
    fl_session *session = NULL;
    fl_answer answer;
    fl_err err = FL_ERR_OK;
    *out = (fl_bench_answer){0};
    FL_TRY(fl_session_open(b->engine, &session));
    fl_request_params params;
    fl_request_params_default(&params);
    params.tokens = q->tokens;
    params.n_tokens = q->n_tokens;
    params.document_tokens = q->document_tokens;
    params.max_tokens = q->answer_tokens > 0 ? q->answer_tokens : 1;
    params.ignore_eos = true;
    const fl_ask ask = {.session = session, .params = &params, .progress = &b->progress};
    FL_TRY_GOTO(fl_ask_run(&ask, &answer));
    *out = (fl_bench_answer){.ttft_s = answer.ttft_s, .cached_tokens = answer.cached_tokens};
    if (answer.decode_tokens_per_s > 0) out->token_s = 1 / answer.decode_tokens_per_s;
    if (answer.finish == FL_FINISH_CANCELLED) err = FL_FAIL(FL_ERR_CANCELLED, "stopped by Ctrl-C");
    fl_answer_close(&answer);
fail:
    fl_session_close(session);
    return err;
}

fl_err fl_bench_first_token(fl_bench *b, int64_t n_tokens, double *ttft_s) {
    int32_t *tokens = NULL;
    fl_bench_answer answer;
    FL_TRY(fl_bench_prompt(b, n_tokens, &tokens));
    const fl_bench_question question = {.tokens = tokens, .n_tokens = n_tokens, .document_tokens = n_tokens};
    fl_err err = fl_bench_ask(b, &question, &answer);
    free(tokens);
    *ttft_s = answer.ttft_s;
    if (err == FL_ERR_OK && answer.cached_tokens > 0)
        err = FL_FAIL(FL_ERR_INTERNAL, "the prompt was expected cold, %lld tokens were cached",
                      (long long)answer.cached_tokens);
    return err;
}

fl_dry_prompt fl_bench_dry_prompt(const fl_bench *b, int64_t n) {
    return (fl_dry_prompt){.document_end = (int32_t)(n - n % fl_tile_rows(b->engine)),
                           .n_tokens = (int32_t)n,
                           .span_tokens = b->engine->span_tokens};
}

fl_bench_memory fl_bench_memory_now(const fl_bench *b) {
    const fl_engine *e = b->engine;
    fl_meters meters;
    fl_engine_get_meters(e, &meters);
    return (fl_bench_memory){.plan_bytes = meters.planned_bytes,
                             .used_bytes = e->be->device ? meters.peak_bytes
                                                         : fl_memory_now().anonymous_bytes - b->base_bytes};
}

fl_err fl_bench_check_options(const fl_options *o, const char *verb) {
    bool blocks = strncmp(o->policy, "blocks", 6) == 0;
    for (int32_t i = 0; i < o->also.n; i++) blocks |= strncmp(o->also.items[i], "blocks", 6) == 0;
    if ((o->operands.n > 0) == (o->synthetic != NULL))
        return FL_FAIL(FL_ERR_INVALID, "expected: firstlight %s MODEL, or --synthetic SHAPE", verb);
    if ((o->density || o->density_from) && !blocks)
        return FL_FAIL(FL_ERR_INVALID, "--%s: expected --policy blocks",
                       o->density ? "density" : "density-from");
    return FL_ERR_OK;
}

double fl_bench_median(double *values, int32_t n) {
    qsort(values, (size_t)n, sizeof *values, fl_compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int compare_ops(const void *a, const void *b) {
    return fl_compare_doubles(&((const fl_bench_op *)b)->time_s, &((const fl_bench_op *)a)->time_s);
}

const char *fl_bench_arithmetic(const fl_bench *b) {
    if (b->engine->weights->layers[0].o.scale) return "w8a8";
    return b->engine->be->act_dtype == FL_DTYPE_BF16 ? "bf16" : "f32";
}

/* Of the matrix products kv_b and the head stay in the activations' format. */
static const char *arithmetic_of(const fl_bench *b, const char *op) {
    if (strcmp(op, "matmul") == 0) return fl_bench_arithmetic(b);
    return b->engine->be->act_dtype == FL_DTYPE_BF16 ? "bf16" : "f32";
}

int32_t fl_bench_ops(const fl_bench *b, const fl_count *count, double runs, fl_bench_op *out) {
    int32_t n = 0;
#define X(op)                                                                                                \
    if (b->timed->times_s.op > 0)                                                                            \
        out[n++] = (fl_bench_op){#op, b->timed->times_s.op / runs, count->op.flops, count->op.bytes,         \
                                 arithmetic_of(b, #op)};
#include "op/oplist.inc"
#undef X
    qsort(out, (size_t)n, sizeof *out, compare_ops);
    return n;
}

void fl_bench_print_ops(const fl_bench *b, const fl_bench_op *ops, int32_t n, double all_s) {
    double ops_s = 0;
    for (int32_t i = 0; i < n; i++) {
        const fl_bench_op *op = &ops[i];
        ops_s += op->time_s;
        double flops = op->flops / op->time_s, bytes = op->bytes / op->time_s;
        printf("  %-14s %9s %5.1f%% %s %8sFLOP/s %3.0f%% %8sB/s %3.0f%%  %s\n", op->name,
               fl_format_seconds(op->time_s).s, 100 * op->time_s / all_s,
               fl_format_bar(0, op->time_s / all_s, 20, " ").s, fl_format_si(flops).s,
               100 * flops / b->roof.flops_per_s, fl_format_si(bytes).s, 100 * bytes / b->roof.bytes_per_s,
               op->arithmetic);
    }
    double rest_s = all_s > ops_s ? all_s - ops_s : 0;
    printf("  %-14s %9s %5.1f%% %s\n", "all else", fl_format_seconds(rest_s).s, 100 * rest_s / all_s,
           fl_format_bar(0, rest_s / all_s, 20, " ").s);
}

json_t *fl_bench_ops_json(const fl_bench_op *ops, int32_t n) {
    json_t *out = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(out, json_pack("{s:s, s:f, s:f, s:f, s:s}", "op", ops[i].name, "time_s",
                                             ops[i].time_s, "flops", ops[i].flops, "bytes", ops[i].bytes,
                                             "arithmetic", ops[i].arithmetic));
    return out;
}
