/* What the engine is doing and what prompts cost it. FLOPs of a prompt are predicted by the dry run once, for a few
 * sizes; the rate at which they are done is measured on prompts that were read, apart for each power of two of new
 * tokens, since short ones run far below the rate of long ones. */
#include <math.h>

#include "engine/engine.h"

enum { FIRST_POINT = 1024 };
static const double FADING = 0.8; /* of what was measured before, at each new prompt of the class */

static int32_t class_of(int64_t tokens) {
    long c = lround(log2((double)(tokens > 1 ? tokens : 1)));
    return c < FL_COST_CLASSES ? (int32_t)c : FL_COST_CLASSES - 1;
}

fl_err fl_load_open(fl_engine *e) {
    fl_load *load = &e->load;
    int64_t tokens = FIRST_POINT;
    for (bool last = false; !last && load->n_points < FL_COST_POINTS_MAX; tokens *= 2) {
        last = tokens >= e->ctx_tokens || load->n_points == FL_COST_POINTS_MAX - 1;
        int64_t n = last ? e->ctx_tokens : tokens;
        const fl_dry_prompt prompt = {
            .document_end = (int32_t)(n - 1), .n_tokens = (int32_t)n, .span_tokens = e->span_tokens};
        fl_count count;
        FL_TRY(fl_dry_run_prompt(e->dry, &prompt, &count));
        load->point_tokens[load->n_points] = n;
        load->point_flops[load->n_points++] = count.total.flops;
    }
    return FL_ERR_OK;
}

void fl_load_add_prompt(fl_engine *e, const fl_request *r) {
    fl_load *load = &e->load;
    load->prompt_tokens += r->n_prompt;
    load->cached_tokens += r->cached_tokens;
    if (!(r->cost_done > 0) || !(r->prefill_s > 0)) return;
    int32_t c = class_of(r->n_prompt - r->cached_tokens);
    load->flops[c] = FADING * load->flops[c] + r->cost_done;
    load->seconds[c] = FADING * load->seconds[c] + r->prefill_s;
}

/* Of the measured class nearest to `c`, the smaller of two. */
static double rate(const fl_load *load, int32_t c) {
    for (int32_t distance = 0; distance < FL_COST_CLASSES; distance++)
        for (int32_t side = -1; side <= 1; side += 2) {
            int32_t near = c + side * distance;
            if (near >= 0 && near < FL_COST_CLASSES && load->seconds[near] > 0)
                return load->flops[near] / load->seconds[near];
        }
    return load->warm_flops_per_s;
}

void fl_engine_get_load(fl_engine *e, fl_engine_load *out) {
    const fl_load *load = &e->load;
    pthread_mutex_lock(&e->lock);
    *out = (fl_engine_load){.kv_pages = fl_kv_pool_pages(e->pool),
                            .kv_pages_free = fl_kv_pool_free_pages(e->pool),
                            .kv_pages_cached = fl_prefix_evictable(e->prefix),
                            .n_steps = load->n_steps,
                            .n_layers = load->n_layers,
                            .prompt_tokens = load->prompt_tokens,
                            .cached_tokens = load->cached_tokens,
                            .answer_tokens = load->answer_tokens,
                            .n_costs = load->n_points,
                            .lost = e->lost[0] != 0};
    for (const fl_request *r = e->requests; r; r = r->next) {
        out->n_waiting += r->phase == FL_PHASE_QUEUED;
        out->n_running += r->phase == FL_PHASE_PREFILL || r->phase == FL_PHASE_DECODE;
    }
    for (int32_t i = 0; i < load->n_points; i++) {
        double flops_per_s = rate(load, class_of(load->point_tokens[i]));
        out->cost_tokens[i] = load->point_tokens[i];
        out->cost_s[i] = flops_per_s > 0 ? load->point_flops[i] / flops_per_s : 0;
    }
    pthread_mutex_unlock(&e->lock);
}
