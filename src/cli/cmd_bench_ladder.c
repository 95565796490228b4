/* bench ladder: every stage in an engine of its own, idle and beside decode streams, with what was predicted and what
 * answers lose. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench_rates.h"
#include "cli/format.h"
#include "cli/ladder.h"
#include "model/shapes.h"

/* Tokens of the context that are no prompt: room for the answer, and whole tiles of every policy. */
enum { ROOM = FL_ATTN_LIST_ROWS, QUESTION_TOKENS = 64, RUNS_MAX = 1000 };

typedef struct climbing {
    fl_ladder ladder;
    fl_rates rates;
    const char *rated_backend, *rated_synthetic; /* whose they are */
    bool rated;
} climbing;

/* The options of one stage. */
static fl_options options_of(const climbing *c, const fl_ladder_stage *s) {
    fl_options o = *c->ladder.options;
    o.policy = s->policy;
    o.kv_cache_dtype = s->kv;
    o.rope = s->rope;
    o.rope_factor = s->rope_factor;
    o.backend = s->backend;
    o.synthetic = s->synthetic;
    o.enforce_eager = s->eager;
    o.decode_stall_max = s->decode_stall_s;
    o.ctx = c->ladder.ctx_tokens;
    o.kv_tokens = fl_streams_kv_tokens(&c->ladder.streams, c->ladder.ctx_tokens);
    return o;
}

/* Rates belong to a backend and weights; --rates is of the first. */
static fl_err rate(climbing *c, const fl_options *o) {
    if (c->rated && o->backend == c->rated_backend && o->synthetic == c->rated_synthetic) return FL_ERR_OK;
    FL_TRY(c->rated ? fl_bench_rates_measure(o, &c->rates) : fl_bench_rates(o, &c->rates));
    snprintf(c->ladder.rates, sizeof c->ladder.rates, "%s", c->rates.source);
    c->rated = true;
    c->rated_backend = o->backend;
    c->rated_synthetic = o->synthetic;
    return FL_ERR_OK;
}

static fl_err measure_idle(climbing *c, fl_bench *b, fl_ladder_row *r) {
    double times_s[RUNS_MAX], all_s = 0;
    int32_t runs = (int32_t)b->options->runs;
    int64_t n = c->ladder.prompt_tokens, warm = n < 4096 ? n : 4096;
    fl_prediction prediction;
    FL_TRY(fl_bench_first_token(b, warm, &times_s[0]));
    FL_TRY(fl_attend_config_reset_counts(&b->engine->attending));
    fl_timed_reset(b->engine->timed);
    for (int32_t i = 0; i < runs; i++) {
        FL_TRY(fl_bench_first_token(b, n, &times_s[i]));
        all_s += times_s[i];
    }
    r->density = fl_attend_config_density(&b->engine->attending);
    b->engine->attending.attend.planned_density = r->density;
    r->ttft_s = fl_bench_median(times_s, runs);
    const fl_dry_prompt prompt = fl_bench_dry_prompt(b, n);
    FL_TRY(fl_predict_prompt(b->engine->dry, &c->rates, &prompt, NULL, &prediction));
    r->predicted_s = prediction.time_s;
    if (c->ladder.n_measured > 0) return FL_ERR_OK;
    fl_bench_op ops[FL_BENCH_OPS_MAX];
    int32_t n_ops = fl_bench_ops(b, &prediction.ops, all_s / r->ttft_s, ops);
    return fl_ladder_correct(&c->ladder, ops, n_ops);
}

/* The document with one question, then with another: its pages are there. */
static fl_err measure_reuse(climbing *c, fl_bench *b, fl_ladder_row *r) {
    int32_t *document = NULL;
    int64_t n = c->ladder.prompt_tokens, end = n - QUESTION_TOKENS;
    fl_bench_answer answer;
    fl_prediction prediction;
    FL_TRY(fl_bench_prompt(b, n, &document));
    fl_err err = FL_ERR_OK;
    for (int32_t i = 0; i < 2 && err == FL_ERR_OK; i++) {
        const fl_bench_question question = {.tokens = document, .n_tokens = n, .document_tokens = end};
        if (i == 1) memmove(document + end, document, QUESTION_TOKENS * sizeof *document);
        err = fl_bench_ask(b, &question, &answer);
    }
    free(document);
    if (err != FL_ERR_OK) return err;
    r->ttft_s = answer.ttft_s;
    r->cached_tokens = answer.cached_tokens;
    r->density = 1;
    fl_dry_prompt prompt = fl_bench_dry_prompt(b, n);
    prompt.document_end = (int32_t)(end - end % fl_tile_rows(b->engine));
    prompt.pos = (int32_t)r->cached_tokens;
    FL_TRY(fl_predict_prompt(b->engine->dry, &c->rates, &prompt, NULL, &prediction));
    r->predicted_s = prediction.time_s;
    return FL_ERR_OK;
}

static fl_err measure(climbing *c, const fl_options *o, fl_ladder_row *r) {
    fl_bench b = {0};
    fl_err err = fl_bench_open_plain(o, o->ctx, &b);
    if (err == FL_ERR_OK) {
        fl_engine_get_info(b.engine, &b.info);
        snprintf(c->ladder.machine, sizeof c->ladder.machine, "%s, %d threads", b.info.backend,
                 b.info.n_threads);
        err = r->stage.reuse ? measure_reuse(c, &b, r) : measure_idle(c, &b, r);
    }
    if (err == FL_ERR_OK && !r->stage.reuse && c->ladder.streams.n > 0)
        err = fl_bench_loaded(&b, &c->ladder.streams, c->ladder.prompt_tokens, &r->loaded);
    if (err == FL_ERR_OK) r->memory = fl_bench_memory_now(&b);
    fl_bench_close(&b);
    return err;
}

static fl_err climb(climbing *c) {
    fl_ladder *l = &c->ladder;
    for (int32_t i = 0; i < l->n_rows; i++) {
        fl_ladder_row *r = &l->rows[i];
        const fl_options o = options_of(c, &r->stage);
        FL_TRY(rate(c, &o));
        if (i == 0) fl_ladder_print_head(l);
        FL_TRY(measure(c, &o, r));
        l->n_measured++;
        if (!l->options->quiet) fprintf(stderr, "%-60s %s\n", r->stage.name, fl_format_seconds(r->ttft_s).s);
    }
    return FL_ERR_OK;
}

/* Policy and KV format as an engine will call them, so that a row's loss can be looked for before minutes of measuring.
 */
static fl_err name_row(const climbing *c, fl_ladder_row *r) {
    const fl_options o = options_of(c, &r->stage);
    fl_config config;
    fl_settings settings;
    fl_attend_config attending = {0};
    FL_TRY(o.synthetic ? fl_shape_find(o.synthetic, &config) : fl_config_read(o.operands.items[0], &config));
    FL_TRY(fl_ask_settings(&o, o.ctx, &settings));
    fl_err err = fl_attend_config_open(&config, &settings, o.ctx, &attending);
    snprintf(r->policy, sizeof r->policy, "%s", attending.policy_text);
    snprintf(r->kv, sizeof r->kv, "%s", r->stage.kv);
    fl_attend_config_close(&attending);
    return err;
}

/* What the model can be trusted with, before any engine: a ladder within it needs no other positions. */
static fl_err look(climbing *c) {
    const fl_options *o = c->ladder.options;
    fl_ladder_about about = {.options = o};
    about.device = strncmp(o->backend, "cuda", 4) == 0 ||
                   (strcmp(o->backend, "auto") == 0 && fl_backend_available("cuda"));
    about.fp8_weights = about.device && o->synthetic && strcmp(o->synthetic, "moonlight-16b-a3b") == 0;
    if (!o->synthetic) {
        fl_config config;
        FL_TRY(fl_config_read(o->operands.items[0], &config));
        about.positions = config.max_position_embeddings;
    }
    fl_ladder_stage stages[FL_LADDER_STAGES_MAX];
    FL_TRY(fl_ladder_stages(&about, stages, &c->ladder.n_rows));
    for (int32_t i = 0; i < c->ladder.n_rows; i++) {
        c->ladder.rows[i].stage = stages[i];
        FL_TRY(name_row(c, &c->ladder.rows[i]));
    }
    return FL_ERR_OK;
}

static fl_err check(const fl_options *o) {
    fl_options pattern = *o;
    pattern.policy = o->ladder_policy;
    FL_TRY(fl_bench_check_options(&pattern, "bench ladder"));
    if (!o->synthetic && !o->loss && o->eval_n == 0)
        return FL_FAIL(
            FL_ERR_INVALID,
            "a ladder of a real model has a loss in every row: --eval-n N evaluates in this run, --loss FILE "
            "takes what `eval --json` found at the same length");
    if (o->ladder_tokens < 1024)
        return FL_FAIL(FL_ERR_INVALID, "--tokens: expected 1024 or more, found %lld",
                       (long long)o->ladder_tokens);
    return FL_ERR_OK;
}

static fl_err bench(const fl_options *o, climbing *c) {
    fl_ladder *l = &c->ladder;
    l->options = o;
    FL_TRY(check(o));
    l->ctx_tokens = o->ladder_tokens;
    l->prompt_tokens = (o->ladder_tokens - ROOM) / ROOM * ROOM;
    l->streams = (fl_streams){.n = (int32_t)o->streams, .tokens = o->stream_tokens};
    FL_TRY(look(c));
    FL_TRY(fl_ladder_find_losses(l));
    FL_TRY(climb(c));
    if (o->svg) FL_TRY(fl_ladder_write_svg(l, o->svg));
    if (o->json) return fl_cli_print_json(fl_ladder_json(l));
    fl_ladder_print(l);
    return fl_cli_flush();
}

int fl_cmd_bench_ladder(const fl_options *options) {
    climbing *c = calloc(1, sizeof *c);
    fl_err err = c ? bench(options, c) : FL_FAIL(FL_ERR_NOMEM, "ladder");
    free(c);
    if (err == FL_ERR_CANCELLED) return FL_EXIT_INTERRUPTED;
    return err == FL_ERR_OK ? 0 : fl_cli_fail("bench ladder", err);
}
