#include "model/synthetic.h"

#include <math.h>

#include "backend/fill.h"
#include "op/moe_route/moe_route_select.h"

enum { HOT_EACH = 8, SIMULATED_ROWS = 1024, BISECTIONS = 16 };

/* How far the simulation may stay from what was asked for. */
static const double skew_tolerance = 0.05;

float fl_synthetic_deviation(int32_t k) {
    return 0.5f / sqrtf((float)k);
}

static bool is_hot(int32_t layer, int32_t expert) {
    return (layer + expert) % HOT_EACH == 0;
}

float fl_synthetic_router_bias(const fl_synthetic *made, int32_t layer, int32_t expert) {
    return is_hot(layer, expert) ? made->hot_bias : 0;
}

/* Load of a hot expert over the mean load, of rows whose logits are as random weights make them. */
static double simulate(const fl_config *c, const fl_synthetic *made) {
    float logits[FL_MOE_EXPERTS_MAX], bias[FL_MOE_EXPERTS_MAX], weights[FL_MOE_EXPERTS_MAX];
    int32_t ids[FL_MOE_EXPERTS_MAX], n = c->n_routed_experts, n_hot = 0;
    int64_t hot = 0;
    const fl_moe_route_args args = {.bias = bias,
                                    .n_experts = n,
                                    .top_k = c->experts_per_token,
                                    .n_groups = c->n_group,
                                    .top_groups = c->topk_group,
                                    .score =
                                        c->scoring == FL_SCORING_SIGMOID ? FL_MOE_SIGMOID : FL_MOE_SOFTMAX,
                                    .select = FL_MOE_GROUP_TOP2};
    for (int32_t e = 0; e < n; e++) {
        bias[e] = fl_synthetic_router_bias(made, 0, e);
        n_hot += is_hot(0, e);
    }
    for (int32_t r = 0; r < SIMULATED_ROWS; r++) {
        for (int32_t e = 0; e < n; e++)
            logits[e] = 0.5f * fl_fill_normal(made->seed, (int64_t)r * n + e); /* of rows of size 1 */
        fl_moe_route_select(&args, logits, ids, weights);
        for (int32_t i = 0; i < c->experts_per_token; i++) hot += is_hot(0, ids[i]);
    }
    return (double)hot / n_hot / ((double)SIMULATED_ROWS * c->experts_per_token / n);
}

fl_err fl_synthetic_make(const fl_config *config, uint64_t seed, double skew, fl_synthetic *out) {
    *out = (fl_synthetic){.seed = seed, .skew = 1};
    if (skew == 1 || config->n_routed_experts == 0) return FL_ERR_OK;
    if (config->topk_method != FL_TOPK_NOAUX_TC)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "router skew %g: this model's router has no bias", skew);
    float low = 0, high = 1; /* scores lie between 0 and 1 */
    for (int32_t i = 0; i < BISECTIONS; i++) {
        out->hot_bias = (low + high) / 2;
        out->skew = simulate(config, out);
        if (out->skew < skew) low = out->hot_bias;
        else high = out->hot_bias;
    }
    if (!(fabs(out->skew - skew) <= skew_tolerance))
        return FL_FAIL(FL_ERR_INVALID, "router skew: expected 1 to %.2f for this model, found %g", out->skew,
                       skew);
    return FL_ERR_OK;
}
