#include "cli/plan_measured.h"

#include <stdlib.h>
#include <string.h>

#include "cli/bench_rates.h"
#include "cli/cli_answer.h"
#include "cli/format.h"
#include "engine/attend_config.h"
#include "model/shapes.h"
#include "plan/memory_plan.h"
#include "plan/predict.h"

enum { DEVICE_SPAN = 32768 };

typedef struct measured {
    const fl_options *options; /* as of the engines: backend, model or synthetic */
    fl_rates rates;
    fl_config config;
    fl_backend *like;
    fl_attend_config attending;
    fl_dry_run *dry;
    fl_memory_plan memory;
    fl_prediction prompt, decode;
    double goal_s;
    int64_t n_tokens;
} measured;

static fl_err open_dry_run(measured *m) {
    const fl_options *o = m->options;
    fl_settings settings;
    fl_kv_format format = FL_KV_BF16;
    fl_kv_format_parse(o->plan_kv, &format);
    FL_TRY(o->synthetic ? fl_shape_find(o->synthetic, &m->config)
                        : fl_config_read(o->operands.items[0], &m->config));
    FL_TRY(fl_backend_open("count", 1, &m->like));
    FL_TRY(fl_ask_settings(o, m->n_tokens, &settings));
    FL_TRY(fl_attend_config_open(&m->config, &settings, m->n_tokens, &m->attending));
    fl_kv_shape kv = fl_kv_shape_of_config(&m->config, format);
    fl_attend_config_shape(&m->attending, &kv);
    FL_TRY(fl_dry_run_open(&m->config, m->like, &kv, &m->attending.attend, &m->dry));
    int32_t span = o->span > 0 ? (int32_t)o->span : m->like->device ? DEVICE_SPAN : FL_SPAN_TOKENS_DEFAULT;
    const fl_memory_sizes sizes = {.ctx_tokens = m->n_tokens,
                                   .kv_tokens = m->n_tokens,
                                   .span_tokens = fl_memory_plan_span(m->n_tokens, span),
                                   .kv = kv};
    return fl_memory_plan_make(m->dry, &m->config, &sizes, &m->memory);
}

static fl_err predict(measured *m) {
    const fl_options *o = m->options;
    int32_t n = (int32_t)m->n_tokens, tile = fl_policy_tile_rows(&m->attending.policy);
    int32_t span = o->span > 0 ? (int32_t)o->span : m->like->device ? DEVICE_SPAN : FL_SPAN_TOKENS_DEFAULT;
    const fl_dry_prompt prompt = {.pos = (int32_t)(o->cached - o->cached % FL_ATTN_LIST_ROWS),
                                  .document_end = n - n % tile,
                                  .n_tokens = n,
                                  .span_tokens = fl_memory_plan_span(n, span)};
    const fl_dry_rows one = {.tail_rows = 1, .tail_pos = n - 1, .n_logits = 1};
    FL_TRY(fl_predict_prompt(m->dry, &m->rates, &prompt, NULL, &m->prompt));
    return fl_predict_step(m->dry, &m->rates, &one, &m->decode);
}

static int compare_kinds(const void *a, const void *b, void *times) {
    const double *time_s = times;
    double x = time_s[*(const int *)a], y = time_s[*(const int *)b];
    return (x < y) - (x > y);
}

/* Kinds of calls, those first that take most of the prompt. */
static void order(const measured *m, int kinds[FL_N_RATES]) {
    for (int i = 0; i < FL_N_RATES; i++) kinds[i] = i;
    qsort_r(kinds, FL_N_RATES, sizeof *kinds, compare_kinds, (void *)(uintptr_t)m->prompt.rate_s);
}

static bool feasible(const measured *m) {
    return m->goal_s <= 0 || m->prompt.time_s <= m->goal_s;
}

static void print_text(const measured *m) {
    int kinds[FL_N_RATES];
    order(m, kinds);
    fl_bench_rates_print(&m->rates);
    printf(
        "\nby these a prompt of %s tokens, attention %s, KV in %s, takes %s to its first token (predicted)",
        fl_format_count(m->n_tokens).s, m->options->policy, m->options->plan_kv,
        fl_format_seconds(m->prompt.time_s).s);
    if (m->attending.attend.blocks)
        printf(", if lists hold %.1f%% of blocks", 100 * m->attending.attend.planned_density);
    putchar('\n');
    for (int i = 0; i < FL_N_RATES && m->prompt.rate_s[kinds[i]] > 0.005 * m->prompt.time_s; i++) {
        double share = m->prompt.rate_s[kinds[i]] / m->prompt.time_s;
        printf("  %-16s %9s %5.1f%% %s\n", fl_rate_name((fl_rate_kind)kinds[i]),
               fl_format_seconds(m->prompt.rate_s[kinds[i]]).s, 100 * share,
               fl_format_bar(0, share, 20, " ").s);
    }
    printf("a token behind it %s (predicted)\n", fl_format_seconds(m->decode.time_s).s);
    printf("memory: weights %s, KV %s, scratch %s, in all %s (planned)\n",
           fl_format_bytes(m->memory.weights_bytes).s, fl_format_bytes(m->memory.kv_bytes).s,
           fl_format_bytes(m->memory.scratch_bytes).s, fl_format_bytes(m->memory.total_bytes).s);
    if (m->goal_s > 0)
        printf("the target of %s is %s\n", fl_format_seconds(m->goal_s).s,
               feasible(m) ? "in reach" : "out of reach");
}

static json_t *rates_json(const measured *m) {
    json_t *out = json_object();
    for (int i = 0; i < FL_N_RATES; i++) {
        const fl_rate *r = &m->rates.of[i];
        json_object_set_new(out, fl_rate_name((fl_rate_kind)i),
                            json_pack("{s:f, s:f, s:f, s:I, s:f, s:f}", "call_s", r->call_s, "flop_s",
                                      r->flop_s, "byte_s", r->byte_s, "samples", (json_int_t)r->n_samples,
                                      "error", r->error, "prompt_s", m->prompt.rate_s[i]));
    }
    return out;
}

static json_t *to_json(const measured *m) {
    int kinds[FL_N_RATES];
    const fl_count *ops = &m->prompt.ops;
    order(m, kinds);
    double attention = ops->attn_prefill.flops + ops->attn_absorbed.flops + ops->block_score.flops;
    return json_pack("{s:b, s:b, s:f, s:s, s:I, s:I, s:I, s:f, s:f, s:i, s:[], s:s, s:I, s:f, s:f, s:o}",
                     "measured", 1, "feasible", (int)feasible(m), "ttft_s", m->prompt.time_s, "bound",
                     fl_rate_name((fl_rate_kind)kinds[0]), "weights_bytes",
                     (json_int_t)m->memory.weights_bytes, "kv_bytes", (json_int_t)m->memory.kv_bytes,
                     "peak_bytes", (json_int_t)m->memory.total_bytes, "linear_flops",
                     ops->matmul.flops + ops->matmul_head.flops, "attention_flops", attention, "comm_bytes",
                     0, "advice", "source", m->rates.source, "tokens", (json_int_t)m->n_tokens, "density",
                     m->attending.attend.blocks ? m->attending.attend.planned_density : 1., "decode_token_s",
                     m->decode.time_s, "rates", rates_json(m));
}

fl_err fl_plan_measured(const fl_options *options, double goal_s) {
    fl_options o = *options;
    o.synthetic = options->plan_shape;
    measured m = {.options = &o, .goal_s = goal_s, .n_tokens = options->context};
    fl_err err;
    if ((o.operands.n > 0) == (o.synthetic != NULL))
        return FL_FAIL(FL_ERR_INVALID,
                       "expected: firstlight plan MODEL --measure, or plan --shape NAME --measure");
    if (o.gpus) return FL_FAIL(FL_ERR_INVALID, "--measure is of this machine: leave --gpus out");
    FL_TRY_GOTO(open_dry_run(&m)); /* what cannot be planned is told before measuring */
    FL_TRY_GOTO(fl_bench_rates_measure(&o, &m.rates));
    if (o.rates) FL_TRY_GOTO(fl_rates_write(&m.rates, o.rates));
    FL_TRY_GOTO(predict(&m));
    if (o.json) err = fl_cli_print_json(to_json(&m));
    else {
        print_text(&m);
        err = fl_cli_flush();
    }
fail:
    fl_dry_run_close(m.dry);
    fl_attend_config_close(&m.attending);
    fl_backend_close(m.like);
    return err;
}
