#include "op/moe_route/moe_route_select.h"

#include <math.h>

static void score_in_place(const fl_moe_route_args *a, float *z) {
    if (a->score == FL_MOE_SIGMOID) {
        for (int32_t e = 0; e < a->n_experts; e++) z[e] = 1.0f / (1.0f + expf(-z[e]));
        return;
    }
    float top = z[0];
    double sum = 0;
    for (int32_t e = 1; e < a->n_experts; e++) top = z[e] > top ? z[e] : top;
    for (int32_t e = 0; e < a->n_experts; e++) {
        z[e] = expf(z[e] - top);
        sum += (double)z[e];
    }
    for (int32_t e = 0; e < a->n_experts; e++) z[e] = (float)((double)z[e] / sum);
}

/* Positions of the k largest of n values, largest first, ties to the smaller index. k <= n. */
static void pick_largest(const float *value, int32_t n, int32_t k, int32_t *picked) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (count == k && !(value[i] > value[picked[k - 1]])) continue;
        int32_t at = count < k ? count++ : k - 1;
        for (; at > 0 && value[i] > value[picked[at - 1]]; at--) picked[at] = picked[at - 1];
        picked[at] = i;
    }
}

static float group_score(fl_moe_select select, const float *choice, int32_t n) {
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return select == FL_MOE_GROUP_TOP2 ? first + second : first;
}

/* Puts every expert outside the best groups out of the running. */
static void limit_groups(const fl_moe_route_args *a, float *choice) {
    float score[FL_MOE_EXPERTS_MAX];
    int32_t best[FL_MOE_EXPERTS_MAX], size = a->n_experts / a->n_groups;
    bool kept[FL_MOE_EXPERTS_MAX] = {false};
    for (int32_t g = 0; g < a->n_groups; g++) score[g] = group_score(a->select, choice + g * size, size);
    pick_largest(score, a->n_groups, a->top_groups, best);
    for (int32_t i = 0; i < a->top_groups; i++) kept[best[i]] = true;
    for (int32_t e = 0; e < a->n_experts; e++)
        if (!kept[e / size]) choice[e] = -INFINITY;
}

void fl_moe_route_select(const fl_moe_route_args *a, float *logits, int32_t *ids, float *weights) {
    float choice[FL_MOE_EXPERTS_MAX];
    score_in_place(a, logits);
    for (int32_t e = 0; e < a->n_experts; e++) choice[e] = logits[e] + (a->bias ? a->bias[e] : 0.0f);
    if (a->select != FL_MOE_GREEDY) limit_groups(a, choice);
    pick_largest(choice, a->n_experts, a->top_k, ids);
    float sum = 0;
    for (int32_t s = 0; s < a->top_k; s++) sum += weights[s] = logits[ids[s]];
    float factor = a->normalize ? a->factor / (sum + 1e-20f) : a->factor;
    for (int32_t s = 0; s < a->top_k; s++) weights[s] *= factor;
}
