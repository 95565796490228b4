/* What the engine is doing and what prompts cost it: enough to say, before a prompt is tokenised, how long it would
 * wait. */
#include "engine/schedule.h"

enum { FIRST_POINT = 1024 };

_Static_assert((int)FL_BINS_MAX >= (int)FL_SCHED_BINS_MAX, "bins of a load");

static void add_request(fl_engine_load *load, const fl_request *r, const fl_step_rate *rate) {
    load->n_waiting += r->phase == FL_PHASE_QUEUED;
    load->n_running += r->phase == FL_PHASE_PREFILL || r->phase == FL_PHASE_DECODE;
    if (r->phase >= FL_PHASE_DECODE) return;
    load->queue_tokens += r->n_prompt - r->done_tokens;
    load->bin_queued_s[r->place.bin] += fl_step_rate_seconds(rate, r->cost_left);
}

static void add_costs(fl_engine_load *load, const fl_engine *e) {
    int64_t tokens = FIRST_POINT;
    for (bool last = false; !last; tokens *= 2) {
        last = tokens >= e->ctx_tokens || load->n_costs == FL_COST_POINTS_MAX - 1;
        int64_t n = last ? e->ctx_tokens : tokens;
        load->cost_tokens[load->n_costs] = n;
        load->cost_s[load->n_costs++] =
            fl_step_rate_seconds(&e->rate, fl_cost_table_at(&e->costs, (int32_t)n));
    }
}

void fl_engine_get_load(fl_engine *e, fl_engine_load *out) {
    const fl_sched_policy *policy = &e->sched.policy;
    pthread_mutex_lock(&e->lock);
    *out = (fl_engine_load){.kv_pages = fl_kv_pool_pages(e->pool),
                            .kv_pages_free = fl_kv_pool_free_pages(e->pool),
                            .kv_pages_cached = fl_prefix_evictable(e->prefix),
                            .n_steps = e->load.n_steps,
                            .n_layers = e->load.n_layers,
                            .prompt_tokens = e->load.prompt_tokens,
                            .cached_tokens = e->load.cached_tokens,
                            .computed_tokens = e->load.computed_tokens,
                            .answer_tokens = e->load.answer_tokens,
                            .queue_tokens_max = e->queue_tokens_max,
                            .fcfs = policy->kind == FL_SCHED_FCFS,
                            .n_bins = policy->n_bins,
                            .lost = e->lost[0] != 0};
    for (int32_t i = 0; i < policy->n_bins; i++) {
        out->bin_end_s[i] = policy->bound_s[i];
        out->bin_weight[i] = policy->weight[i];
    }
    for (const fl_request *r = e->requests; r; r = r->next) add_request(out, r, &e->rate);
    add_costs(out, e);
    fl_disk_tier_get_load(e->tier, e->prefix, out);
    pthread_mutex_unlock(&e->lock);
}

double fl_load_wait_s(const fl_engine_load *load, double cost_s) {
    fl_sched_policy policy = {.kind = load->fcfs ? FL_SCHED_FCFS : FL_SCHED_BINS, .n_bins = load->n_bins};
    double queued_s[FL_SCHED_BINS_MAX] = {0};
    if (load->n_bins < 1 || load->n_bins > FL_SCHED_BINS_MAX) return 0;
    for (int32_t i = 0; i < load->n_bins; i++) {
        policy.bound_s[i] = load->bin_end_s[i];
        policy.weight[i] = load->bin_weight[i];
        queued_s[i] = load->bin_queued_s[i];
    }
    return fl_sched_wait_s(&policy, queued_s, cost_s);
}
