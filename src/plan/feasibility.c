#include "plan/feasibility.h"

#include <stdio.h>
#include <string.h>

#include "plan/memory_plan.h"

const char *fl_stage_name(fl_stage stage) {
    static const char *const names[FL_N_STAGES] = {"linear layers", "attention",      "choosing blocks",
                                                   "KV pages",      "norms, routing", "communication"};
    return names[stage];
}

const char *fl_bound_name(fl_bound bound) {
    static const char *const names[] = {"compute", "memory", "communication"};
    return names[bound];
}

/* Which stage an op belongs to. */
#define STAGE_weight_pack   FL_STAGE_OTHER
#define STAGE_embed         FL_STAGE_OTHER
#define STAGE_rmsnorm       FL_STAGE_OTHER
#define STAGE_matmul        FL_STAGE_LINEAR
#define STAGE_matmul_head   FL_STAGE_LINEAR
#define STAGE_rope          FL_STAGE_OTHER
#define STAGE_kv_write      FL_STAGE_KV
#define STAGE_kv_read       FL_STAGE_KV
#define STAGE_block_mean    FL_STAGE_CHOOSING
#define STAGE_block_score   FL_STAGE_CHOOSING
#define STAGE_block_select  FL_STAGE_CHOOSING
#define STAGE_attn_prefill  FL_STAGE_ATTENTION
#define STAGE_attn_absorbed FL_STAGE_ATTENTION
#define STAGE_attn_merge    FL_STAGE_ATTENTION
#define STAGE_moe_route     FL_STAGE_LINEAR
#define STAGE_moe_permute   FL_STAGE_OTHER
#define STAGE_moe_combine   FL_STAGE_OTHER
#define STAGE_sample        FL_STAGE_OTHER

double fl_count_linear_flops(const fl_count *c) {
    return c->matmul.flops + c->matmul_head.flops + c->moe_route.flops;
}

double fl_count_attention_flops(const fl_count *c) {
    return c->attn_prefill.flops + c->attn_absorbed.flops + c->attn_merge.flops;
}

void fl_box_set_rates(fl_box *box) {
    const fl_hardware *gpu = box->gpu;
    const fl_roofs roofs = {.flops_per_s = gpu->bf16_flops_per_s * box->efficiency,
                            .fp8_flops_per_s = gpu->fp8_flops_per_s * box->efficiency,
                            .bytes_per_s = gpu->memory_bytes_per_s * box->efficiency,
                            .source = gpu->source};
    fl_rates_of_roofs(&roofs, &box->rates);
    if (!box->fp8_attention) return;
    fl_rate *prefill = &box->rates.of[FL_RATE_attn_prefill],
            *absorbed = &box->rates.of[FL_RATE_attn_absorbed];
    prefill->flop_s = prefill->fp8_flop_s;
    absorbed->flop_s = absorbed->fp8_flop_s;
}

double fl_box_op_time(const fl_box *box, fl_rate_kind op, const fl_cost *cost, fl_bound *bound) {
    const fl_rate *rate = &box->rates.of[op];
    double compute_s = (cost->flops - cost->fp8_flops) * rate->flop_s + cost->fp8_flops * rate->fp8_flop_s;
    *bound = compute_s >= cost->bytes * rate->byte_s ? FL_BOUND_COMPUTE : FL_BOUND_MEMORY;
    return fl_rates_time(&box->rates, op, cost);
}

double fl_box_linear_peak(const fl_box *box, const fl_config *config) {
    bool fp8 = config->quantisation.type == FL_QUANTISATION_FP8 && box->gpu->fp8_flops_per_s > 0;
    return box->n_gpus * (fp8 ? box->gpu->fp8_flops_per_s : box->gpu->bf16_flops_per_s);
}

/* An outcome's stages while they are added up. */
typedef struct adding {
    const fl_box *box;
    fl_outcome *out;
    double time_s[FL_N_STAGES][2]; /* by what bounds it */
} adding;

static void add_op(adding *a, fl_rate_kind op, fl_stage stage, const fl_cost *cost) {
    fl_bound bound;
    double time_s = fl_box_op_time(a->box, op, cost, &bound);
    fl_cost_add(&a->out->stages[stage].cost, *cost);
    a->out->stages[stage].time_s += time_s;
    a->time_s[stage][bound] += time_s;
}

static void set_stages(const fl_box *box, fl_outcome *out) {
    adding a = {.box = box, .out = out};
    fl_stage_cost *comm = &out->stages[FL_STAGE_COMM];
#define X(op) add_op(&a, FL_RATE_##op, STAGE_##op, &out->share.work.op);
#include "op/oplist.inc"
#undef X
    comm->comm_bytes = fl_share_comm_bytes(&out->share);
    if (comm->comm_bytes > 0) comm->time_s = comm->comm_bytes / box->gpu->link_bytes_per_s / box->efficiency;
    for (int32_t i = 0; i < FL_N_STAGES; i++) {
        fl_stage_cost *stage = &out->stages[i];
        stage->bound = a.time_s[i][1] > a.time_s[i][0] ? FL_BOUND_MEMORY : FL_BOUND_COMPUTE;
        out->ttft_s += stage->time_s;
        if (stage->time_s > out->stages[out->largest].time_s) out->largest = (fl_stage)i;
    }
    comm->bound = FL_BOUND_COMM;
}

static fl_err fill(fl_layout_run *run, const fl_box *box, fl_outcome *out) {
    int32_t span;
    FL_TRY(fl_layout_span(run, box->gpu->memory_bytes, box->span_tokens, &span));
    if (box->span_tokens > 0) span = box->span_tokens;
    FL_TRY(fl_layout_share(run, span, &out->share));
    out->fits = out->share.memory.total <= box->gpu->memory_bytes;
    set_stages(box, out);
    return FL_ERR_OK;
}

fl_err fl_outcome_of_layout(const fl_plan_task *task, const fl_box *box, fl_layout layout, fl_outcome *out) {
    fl_layout_run *run = NULL;
    *out = (fl_outcome){0};
    fl_err err = fl_layout_open(task, layout, box->n_gpus, &run);
    if (err == FL_ERR_UNSUPPORTED) {
        snprintf(out->why, sizeof out->why, "%s", fl_err_detail());
        return FL_ERR_OK;
    }
    if (err == FL_ERR_OK) err = fill(run, box, out);
    out->possible = err == FL_ERR_OK;
    fl_layout_close(run);
    return err;
}

static bool better(const fl_outcome *a, const fl_outcome *b) {
    if (!a->possible || !b->possible) return a->possible;
    if (a->fits != b->fits) return a->fits;
    return a->fits ? a->ttft_s < b->ttft_s : a->share.memory.total < b->share.memory.total;
}

fl_err fl_outcomes_of(const fl_plan_task *task, const fl_box *box, fl_outcomes *out) {
    fl_layout only;
    out->n = 0;
    out->best = 0;
    if (box->n_gpus > 1 && box->gpu->link_bytes_per_s == 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "plan: %dx%s: no link between several of them is known; plan one",
                       box->n_gpus, box->gpu->name);
    bool one = box->layout != NULL;
    if (one && !fl_layout_parse(box->layout, &only))
        return FL_FAIL(FL_ERR_INVALID, "layout: expected tp, sp, cp or ep, found '%s'", box->layout);
    int32_t n = one || box->n_gpus == 1 ? 1 : FL_N_LAYOUTS;
    for (int32_t i = 0; i < n; i++) {
        FL_TRY(fl_outcome_of_layout(task, box, one ? only : (fl_layout)i, &out->of[out->n++]));
        if (better(&out->of[i], &out->of[out->best])) out->best = i;
    }
    if (fl_outcomes_best(out)->possible) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "plan: no layout cuts this model over %d GPUs: %s", box->n_gpus,
                   fl_outcomes_best(out)->why);
}

static fl_err best_on(const fl_plan_task *task, const fl_box *box, int32_t n_gpus, fl_outcome *out) {
    fl_outcomes all;
    fl_box part = *box;
    part.n_gpus = n_gpus;
    FL_TRY(fl_outcomes_of(task, &part, &all));
    *out = *fl_outcomes_best(&all);
    return FL_ERR_OK;
}

fl_err fl_pd_of(const fl_plan_task *task, const fl_box *box, const fl_outcomes *all, fl_pd *pd) {
    const fl_outcome *one = fl_outcomes_best(all);
    int32_t p = pd->prefill_gpus, d = pd->decode_gpus;
    fl_box small = *box;
    small.span_tokens = FL_ATTN_LIST_ROWS; /* decode steps have few rows */
    FL_TRY(best_on(task, box, p, &pd->prefill));
    FL_TRY(best_on(task, &small, d, &pd->decode));
    int64_t pages = (task->n_tokens + FL_KV_PAGE_TOKENS - 1) / FL_KV_PAGE_TOKENS;
    double links = box->gpu->link_bytes_per_s * box->efficiency * (p < d ? p : d);
    pd->transfer_bytes = (double)(pages * fl_kv_page_bytes(&task->kv));
    pd->transfer_s = pd->transfer_bytes / links;
    pd->two_copies_fit = pd->prefill.fits && pd->decode.fits;
    pd->two_copies_ttft_s = pd->prefill.ttft_s + pd->transfer_s / task->config->layers;
    pd->one_copy_fits = one->fits;
    pd->one_copy_ttft_s = one->ttft_s * (p + d) / p;
    return FL_ERR_OK;
}
