/* A plan as JSON. */
#include "cli/plan_report.h"

static json_t *memory_json(const fl_share_memory *m) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "weights_bytes", (json_int_t)m->weights,
                     "kv_bytes", (json_int_t)m->kv, "activations_bytes", (json_int_t)m->activations,
                     "lists_bytes", (json_int_t)m->lists, "scratch_bytes", (json_int_t)m->scratch,
                     "logits_bytes", (json_int_t)m->logits, "recordings_bytes", (json_int_t)m->recordings,
                     "exchange_bytes", (json_int_t)m->exchange, "peak_bytes", (json_int_t)m->total);
}

static json_t *stages_json(const fl_outcome *o) {
    json_t *stages = json_array();
    for (int32_t i = 0; i < FL_N_STAGES; i++) {
        const fl_stage_cost *s = &o->stages[i];
        json_array_append_new(stages, json_pack("{s:s, s:f, s:s, s:f, s:f, s:f, s:f}", "stage",
                                                fl_stage_name((fl_stage)i), "time_s", s->time_s, "bound",
                                                fl_bound_name(s->bound), "flops", s->cost.flops, "fp8_flops",
                                                s->cost.fp8_flops, "bytes", s->cost.bytes, "comm_bytes",
                                                s->comm_bytes));
    }
    return stages;
}

static json_t *outcome_json(const fl_outcome *o) {
    const fl_share *s = &o->share;
    if (!o->possible) return json_pack("{s:b, s:s}", "possible", 0, "why", o->why);
    return json_pack("{s:b, s:s, s:i, s:i, s:i, s:b, s:o, s:f, s:f, s:f, s:f, s:f, s:o}", "possible", 1,
                     "layout", fl_layout_name(s->layout, s->n_gpus), "gpus", (int)s->n_gpus, "span_tokens",
                     (int)s->span_tokens, "steps", (int)s->n_steps, "fits", (int)o->fits, "memory",
                     memory_json(&s->memory), "comm_bytes", fl_share_comm_bytes(s), "gather_bytes",
                     s->gather_bytes, "expert_bytes", s->expert_bytes, "reduce_bytes", s->reduce_bytes,
                     "ttft_s", o->ttft_s, "stages", stages_json(o));
}

static json_t *advice_json(const fl_plan_report *r, const fl_advice *a) {
    static const char *const kinds[] = {"cached", "keep", "setting", "gpus"};
    char line[FL_PLAN_LINE_BYTES];
    fl_plan_advice_line(r, a, line);
    json_t *out = json_pack("{s:s, s:s, s:s, s:b, s:b, s:f}", "change", kinds[a->change], "text", line,
                            "caution", fl_plan_advice_caution(a), "enough", (int)a->enough, "fits",
                            (int)a->fits, "ttft_s", a->ttft_s);
    if (a->tokens > 0) json_object_set_new(out, "tokens", json_integer(a->tokens));
    if (a->tokens > 0) json_object_set_new(out, "share", json_real(a->share));
    if (a->n_gpus > 0) json_object_set_new(out, "gpus", json_integer(a->n_gpus));
    return out;
}

static json_t *pd_json(const fl_plan_report *r) {
    const fl_pd *pd = &r->pd;
    char line[FL_PLAN_LINE_BYTES];
    fl_plan_pd_verdict(r, line);
    return json_pack("{s:i, s:i, s:b, s:s, s:o, s:o, s:f, s:f, s:f, s:b, s:f}", "prefill_gpus",
                     (int)pd->prefill_gpus, "decode_gpus", (int)pd->decode_gpus, "two_copies_fit",
                     (int)pd->two_copies_fit, "verdict", line, "prefill", outcome_json(&pd->prefill),
                     "decode_memory", memory_json(&pd->decode.share.memory), "transfer_bytes",
                     pd->transfer_bytes, "transfer_s", pd->transfer_s, "two_copies_ttft_s",
                     pd->two_copies_ttft_s, "one_copy_fits", (int)pd->one_copy_fits, "one_copy_ttft_s",
                     pd->one_copy_ttft_s);
}

static void set_asked(const fl_plan_report *r, json_t *out) {
    const fl_plan_side *side = &r->sides[0];
    const fl_hardware *gpu = r->box.gpu;
    json_object_set_new(out, "model", json_string(r->model));
    json_object_set_new(out, "gpu", json_string(gpu->name));
    json_object_set_new(out, "gpus", json_integer(r->box.n_gpus));
    json_object_set_new(out, "roofs",
                        json_pack("{s:I, s:f, s:f, s:f, s:f, s:s}", "memory_bytes",
                                  (json_int_t)gpu->memory_bytes, "bytes_per_s", gpu->memory_bytes_per_s,
                                  "bf16_flops_per_s", gpu->bf16_flops_per_s, "fp8_flops_per_s",
                                  gpu->fp8_flops_per_s, "link_bytes_per_s", gpu->link_bytes_per_s, "source",
                                  gpu->source));
    json_object_set_new(out, "efficiency", json_real(r->box.efficiency));
    json_object_set_new(out, "context", json_integer(side->task.n_tokens));
    json_object_set_new(out, "cached_tokens", json_integer(side->task.cached_tokens));
    json_object_set_new(out, "policy", json_string(side->attending.policy_text));
    json_object_set_new(out, "weights", json_string(fl_plan_weights(&side->config)));
    json_object_set_new(out, "kv", json_string(fl_kv_format_name(side->task.kv.format)));
    if (side->density > 0) json_object_set_new(out, "density", json_real(side->density));
    if (side->density > 0) json_object_set_new(out, "density_from", json_string(side->density_why));
    if (r->goal_s > 0) json_object_set_new(out, "goal_s", json_real(r->goal_s));
}

json_t *fl_plan_json(const fl_plan_report *r) {
    const fl_outcome *best = fl_plan_report_best(r);
    char line[FL_PLAN_LINE_BYTES];
    fl_plan_verdict(r, line);
    json_t *layouts = json_array(), *advice = json_array();
    for (int32_t i = 0; i < r->outcomes.n; i++)
        json_array_append_new(layouts, outcome_json(&r->outcomes.of[i]));
    for (int32_t i = 0; i < r->advice.n; i++) json_array_append_new(advice, advice_json(r, &r->advice.of[i]));
    json_t *out =
        json_pack("{s:b, s:s, s:b, s:f, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:o, s:o}",
                  "feasible", (int)r->feasible, "verdict", line, "fits", (int)r->fits, "ttft_s", r->ttft_s,
                  "bound", fl_bound_name(best->stages[best->largest].bound), "largest_stage",
                  fl_stage_name(best->largest), "weights_bytes", (json_int_t)r->weights_bytes, "kv_bytes",
                  (json_int_t)r->kv_bytes, "peak_bytes", (json_int_t)best->share.memory.total, "linear_flops",
                  fl_count_linear_flops(&r->whole), "attention_flops", fl_count_attention_flops(&r->whole),
                  "comm_bytes", fl_share_comm_bytes(&best->share), "linear_floor_s", r->linear_floor_s,
                  "kind", "projection by data sheet, not measured", "layouts", layouts, "advice", advice);
    if (!out) return NULL;
    set_asked(r, out);
    if (fl_plan_note(r, line)) json_object_set_new(out, "note", json_string(line));
    json_object_set_new(out, "best", outcome_json(best));
    if (!r->feasible && r->goal_s > 0)
        json_object_set_new(out, "ceiling",
                            json_pack("{s:f, s:I, s:I}", "linear_share", r->ceiling.linear_share,
                                      "computed_tokens", (json_int_t)r->ceiling.computed_tokens,
                                      "kept_tokens", (json_int_t)r->ceiling.kept_tokens));
    if (r->has_pd) json_object_set_new(out, "pd", pd_json(r));
    return out;
}
