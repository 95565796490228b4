/* plan: the sums before a model, a machine and a target meet. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cli_answer.h"
#include "cli/format.h"
#include "cli/plan_measured.h"
#include "cli/plan_report.h"
#include "model/shapes.h"

/* "3s", "800ms", "2.6" (seconds), "2m" to seconds. */
static fl_err parse_time(const char *text, double *out) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 0.001}, {"m", 60}, {"min", 60}};
    char *end;
    *out = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        *out *= units[i].seconds;
        if (*out > 0 && *out < 1e9) return FL_ERR_OK;
    }
    return FL_FAIL(FL_ERR_INVALID, "--ttft: expected a time such as 3s, 800ms or 2.6, found '%s'", text);
}

static fl_err read_config(const fl_options *o, fl_config *out) {
    if ((o->operands.n > 0) == (o->plan_shape != NULL))
        return FL_FAIL(FL_ERR_INVALID, "expected: firstlight plan MODEL, or plan --shape NAME");
    return o->plan_shape ? fl_shape_find(o->plan_shape, out) : fl_config_read(o->operands.items[0], out);
}

/* ---- one way to run it ---- */

/* What a variant changes; NULL and 0 = as asked for. */
typedef struct change {
    const char *policy, *kv, *weights;
    double density;
} change;

static fl_err set_weights(const char *weights, const fl_hardware *gpu, fl_config *config) {
    bool fp8 = config->quantisation.type == FL_QUANTISATION_FP8;
    if (strcmp(weights, "auto") == 0) fp8 = fp8 && gpu->fp8_flops_per_s > 0;
    else fp8 = strcmp(weights, "fp8") == 0;
    if (fp8 && gpu->fp8_flops_per_s == 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "--weights fp8: %s has no units for fp8; expected bf16",
                       gpu->name);
    config->quantisation = fp8 ? (fl_quantisation){FL_QUANTISATION_FP8, FL_SCALE_BLOCK, FL_SCALE_BLOCK}
                               : (fl_quantisation){FL_QUANTISATION_NONE, 0, 0};
    return FL_ERR_OK;
}

static fl_err open_like(const fl_hardware *gpu, const fl_config *config, fl_backend **out) {
    const char *name = config->quantisation.type == FL_QUANTISATION_FP8 ? "count:cuda-w8a8" : "count:cuda";
    return fl_backend_open(gpu->cpu ? "count:avx2" : name, 1, out);
}

/* Lists as long as the policy lets them get, unless something better is known. */
static void set_density(const fl_settings *s, fl_plan_side *side) {
    fl_attend *a = &side->attending.attend;
    if (!a->blocks) return;
    side->density_why = s->block_density > 0 ? "imposed" : "calibrated";
    if (s->block_density == 0 && !(side->attending.calibration.density > 0)) {
        double most = (double)a->list_capacity * FL_KV_PAGE_TOKENS / (double)side->task.kv_tokens;
        a->planned_density = most < 1 ? most : 1;
        side->density_why = "as much as lists can hold";
    }
    side->density = a->planned_density;
}

static fl_err set_kv(const char *name, fl_plan_side *side) {
    fl_kv_format format = FL_KV_BF16;
    fl_kv_format_parse(name, &format);
    side->task.kv = fl_kv_shape_of_config(&side->config, format);
    fl_attend_config_shape(&side->attending, &side->task.kv);
    return FL_ERR_OK;
}

static fl_err open_side(const fl_options *o, const fl_box *box, const change *by, fl_plan_side *side) {
    fl_settings settings;
    int64_t n = o->context;
    fl_options changed = *o;
    if (by->policy) changed.policy = by->policy;
    if (by->density > 0) changed.density = NULL;
    FL_TRY(read_config(o, &side->config));
    FL_TRY(set_weights(by->weights ? by->weights : o->weights, box->gpu, &side->config));
    FL_TRY(open_like(box->gpu, &side->config, &side->like));
    FL_TRY(fl_ask_settings(&changed, n, &settings));
    settings.synthetic = o->plan_shape;
    settings.ctx_tokens = n;
    if (by->density > 0) settings.block_density = by->density;
    FL_TRY(fl_attend_config_open(&side->config, &settings, n, &side->attending));
    side->task = (fl_plan_task){.config = &side->config,
                                .like = side->like,
                                .attend = &side->attending.attend,
                                .n_tokens = n,
                                .cached_tokens = o->cached - o->cached % FL_ATTN_LIST_ROWS,
                                .question_tokens = o->question,
                                .kv_tokens = n};
    set_density(&settings, side);
    return set_kv(by->kv ? by->kv : o->plan_kv, side);
}

static void close_side(fl_plan_side *side) {
    fl_attend_config_close(&side->attending);
    fl_backend_close(side->like);
}

/* ---- variants ---- */

static fl_err add_variant(const fl_options *o, const change *by, const char *caution, fl_plan_report *r) {
    fl_plan_side *side = &r->sides[r->n_sides++];
    FL_TRY(open_side(o, &r->box, by, side));
    r->variants[r->n_variants++] = (fl_variant){.text = side->text, .caution = caution, .task = &side->task};
    return FL_ERR_OK;
}

static fl_err add_policies(const fl_options *o, fl_plan_report *r) {
    static const char lost[] = "changes answers: eval says by how much";
    static const double densities[] = {0.08, 0.04, 0.02};
    fl_policy_kind kind = r->sides[0].attending.policy.kind;
    if (kind == FL_POLICY_FULL) {
        fl_plan_side *side = &r->sides[r->n_sides];
        FL_TRY(add_variant(o, &(change){.policy = "window-anchors"},
                           "for models trained with it; else it finds nothing", r));
        char policy[FL_POLICY_TEXT_BYTES];
        fl_policy_write(&side->attending.policy, policy);
        snprintf(side->text, sizeof side->text, "--policy %s", policy);
    }
    for (size_t i = 0; i < sizeof densities / sizeof *densities; i++) {
        fl_plan_side *side = &r->sides[r->n_sides];
        if (r->sides[0].density > 0 && r->sides[0].density <= densities[i]) continue;
        if (kind != FL_POLICY_FULL && kind != FL_POLICY_BLOCKS) continue;
        FL_TRY(add_variant(o, &(change){.policy = "blocks", .density = densities[i]}, lost, r));
        snprintf(side->text, sizeof side->text, "--policy blocks --density %g%%", 100 * densities[i]);
    }
    return FL_ERR_OK;
}

static fl_err add_formats(const fl_options *o, fl_plan_report *r) {
    const fl_plan_side *asked = &r->sides[0];
    if (asked->config.quantisation.type != FL_QUANTISATION_FP8 && r->box.gpu->fp8_flops_per_s > 0) {
        fl_plan_side *side = &r->sides[r->n_sides];
        snprintf(side->text, sizeof side->text, "--weights fp8");
        FL_TRY(add_variant(o, &(change){.weights = "fp8"}, "needs a checkpoint in fp8", r));
    }
    if (!r->fits && asked->task.kv.format != FL_KV_INT4) {
        fl_plan_side *side = &r->sides[r->n_sides];
        snprintf(side->text, sizeof side->text, "--kv int4");
        FL_TRY(add_variant(o, &(change){.kv = "int4"}, "changes answers a little: docs/QUALITY.md", r));
    }
    if (r->box.gpu->fp8_flops_per_s > 0 && !r->box.fp8_attention)
        r->variants[r->n_variants++] = (fl_variant){.text = "--attention fp8",
                                                    .caution = "firstlight has no kernel for it",
                                                    .task = &asked->task,
                                                    .fp8_attention = true};
    return FL_ERR_OK;
}

/* ---- the plan ---- */

static fl_err read_box(const fl_options *o, fl_plan_report *r) {
    fl_machine machine;
    if (!o->gpus) return FL_FAIL(FL_ERR_INVALID, "--gpus: expected what it runs on, such as 8xH20 or H200");
    FL_TRY(fl_machine_parse(o->gpus, &machine));
    r->box = (fl_box){.gpu = machine.kind,
                      .n_gpus = machine.n,
                      .efficiency = o->efficiency,
                      .fp8_attention = strcmp(o->attention, "fp8") == 0,
                      .span_tokens = (int32_t)fl_align_up(o->span, FL_ATTN_LIST_ROWS),
                      .layout = o->layout};
    if (r->box.fp8_attention && machine.kind->fp8_flops_per_s == 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "--attention fp8: %s has no units for fp8", machine.kind->name);
    fl_box_set_rates(&r->box);
    return o->ttft ? parse_time(o->ttft, &r->goal_s) : FL_ERR_OK;
}

static fl_err read_pd(const fl_options *o, fl_plan_report *r) {
    r->pd = (fl_pd){.prefill_gpus = (int32_t)o->prefill_gpus, .decode_gpus = (int32_t)o->decode_gpus};
    r->has_pd = o->prefill_gpus + o->decode_gpus > 0;
    if (!r->has_pd) return FL_ERR_OK;
    if (o->prefill_gpus < 1 || o->decode_gpus < 1 || o->prefill_gpus + o->decode_gpus != r->box.n_gpus)
        return FL_FAIL(
            FL_ERR_INVALID,
            "--prefill-gpus, --decode-gpus: expected two numbers from 1 that add up to the %d of --gpus, "
            "found %lld and %lld",
            r->box.n_gpus, (long long)o->prefill_gpus, (long long)o->decode_gpus);
    return FL_ERR_OK;
}

static fl_err check_prompt(const fl_options *o) {
    if (strncmp(o->policy, "blocks", 6) == 0 && o->context > FL_ATTN_LIST_TOKENS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "--context: lists of --policy blocks reach %d tokens, found %lld",
                       FL_ATTN_LIST_TOKENS_MAX, (long long)o->context);
    if (o->density && strncmp(o->policy, "blocks", 6) != 0)
        return FL_FAIL(FL_ERR_INVALID, "--density: expected --policy blocks, found %s", o->policy);
    if (o->question > o->context)
        return FL_FAIL(FL_ERR_INVALID, "--question: expected at most the %lld of --context, found %lld",
                       (long long)o->context, (long long)o->question);
    if (o->cached >= o->context)
        return FL_FAIL(FL_ERR_INVALID, "--cached: expected fewer than the %lld of --context, found %lld",
                       (long long)o->context, (long long)o->cached);
    return FL_ERR_OK;
}

/* What belongs to the prompt and the model alone. */
static fl_err sum_up(fl_plan_report *r) {
    const fl_plan_task *t = &r->sides[0].task;
    fl_layout_run *one = NULL;
    fl_share_memory memory;
    FL_TRY(fl_layout_open(t, FL_LAYOUT_CP, 1, &one));
    fl_err err = fl_layout_memory(one, FL_ATTN_LIST_ROWS, &memory);
    fl_layout_close(one);
    if (err != FL_ERR_OK) return err;
    r->weights_bytes = memory.weights;
    r->kv_bytes = memory.kv;
    FL_TRY(fl_layout_whole(t, &r->whole));
    r->linear_floor_s = fl_count_linear_flops(&r->whole) / fl_box_linear_peak(&r->box, t->config);
    return FL_ERR_OK;
}

/* With cards of their own for prefill and decode: two copies where they fit, else one. */
static void set_outcome(fl_plan_report *r) {
    const fl_outcome *best = fl_plan_report_best(r);
    r->fits = best->fits;
    r->ttft_s = best->ttft_s;
    if (r->has_pd) {
        r->fits = r->pd.two_copies_fit || r->pd.one_copy_fits;
        r->ttft_s = r->pd.two_copies_fit ? r->pd.two_copies_ttft_s : r->pd.one_copy_ttft_s;
    }
    r->feasible = r->fits && (r->goal_s <= 0 || r->ttft_s <= r->goal_s);
}

static fl_err advise(const fl_options *o, fl_plan_report *r) {
    fl_goal goal = {.task = &r->sides[0].task, .box = &r->box, .ttft_s = r->goal_s, .variants = r->variants};
    if (r->feasible) return FL_ERR_OK;
    FL_TRY(add_policies(o, r));
    FL_TRY(add_formats(o, r));
    goal.n_variants = r->n_variants;
    if (r->goal_s > 0) FL_TRY(fl_ceiling_of(goal.task, &r->box, r->goal_s, &r->ceiling));
    return fl_advice_find(&goal, &r->advice);
}

static fl_err plan(const fl_options *o, fl_plan_report *r) {
    static const change as_asked = {0};
    r->model = o->plan_shape ? o->plan_shape : o->operands.n > 0 ? o->operands.items[0] : "";
    FL_TRY(read_box(o, r));
    FL_TRY(read_pd(o, r));
    FL_TRY(check_prompt(o));
    FL_TRY(open_side(o, &r->box, &as_asked, &r->sides[r->n_sides++]));
    if (!o->plan_shape)
        r->positions = fl_rope_positions(&r->sides[0].config, &r->sides[0].attending.extension);
    FL_TRY(sum_up(r));
    FL_TRY(fl_outcomes_of(&r->sides[0].task, &r->box, &r->outcomes));
    if (r->has_pd) FL_TRY(fl_pd_of(&r->sides[0].task, &r->box, &r->outcomes, &r->pd));
    set_outcome(r);
    return advise(o, r);
}

static fl_err plan_measured(const fl_options *options) {
    double goal_s = 0;
    if (options->ttft) FL_TRY(parse_time(options->ttft, &goal_s));
    return fl_plan_measured(options, goal_s);
}

int fl_cmd_plan(const fl_options *options) {
    if (options->measure) {
        fl_err measured = plan_measured(options);
        return measured == FL_ERR_OK ? 0 : fl_cli_fail("plan", measured);
    }
    fl_plan_report *r = calloc(1, sizeof *r);
    fl_err err = r ? plan(options, r) : FL_FAIL(FL_ERR_NOMEM, "plan");
    if (err == FL_ERR_OK && options->html) err = fl_plan_html(r, options->html);
    if (err == FL_ERR_OK && options->json) err = fl_cli_print_json(fl_plan_json(r));
    else if (err == FL_ERR_OK) fl_plan_print(r);
    int code = err == FL_ERR_OK ? 0 : fl_cli_fail("plan", err);
    for (int32_t i = 0; r && i < r->n_sides; i++) close_side(&r->sides[i]);
    free(r);
    return code;
}
