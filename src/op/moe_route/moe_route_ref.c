#include "op/moe_route/moe_route.h"

#include <math.h>

#include "op/ref.h"

static void score_experts(const fl_moe_route_args *a, const float *x, double *s) {
    double maximum = -INFINITY, sum = 0;
    for (int32_t e = 0; e < a->n_experts; e++) {
        s[e] = fl_ref_dot(x, a->w + (int64_t)e * a->dim, a->dim);
        maximum = fmax(maximum, s[e]);
    }
    for (int32_t e = 0; e < a->n_experts; e++) {
        s[e] = a->score == FL_MOE_SIGMOID ? 1 / (1 + exp(-s[e])) : exp(s[e] - maximum);
        sum += s[e];
    }
    for (int32_t e = 0; e < a->n_experts && a->score == FL_MOE_SOFTMAX; e++) s[e] /= sum;
}

/* The largest of c[0..n-1] (the first of equals), set to -inf so that the next call finds the next. */
static int32_t take_largest(double *c, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (c[i] > c[best]) best = i;
    c[best] = -INFINITY;
    return best;
}

/* Sets c of every expert outside the top_groups best groups to -inf. */
static void drop_groups(const fl_moe_route_args *a, double *c) {
    double group_score[FL_MOE_EXPERTS_MAX], copy[FL_MOE_EXPERTS_MAX];
    bool kept[FL_MOE_EXPERTS_MAX] = {false};
    int32_t per_group = a->n_experts / a->n_groups;
    for (int32_t g = 0; g < a->n_groups; g++) {
        for (int32_t i = 0; i < per_group; i++) copy[i] = c[g * per_group + i];
        group_score[g] = c[g * per_group + take_largest(copy, per_group)];
        if (a->select == FL_MOE_GROUP_TOP2)
            group_score[g] += c[g * per_group + take_largest(copy, per_group)];
    }
    for (int32_t i = 0; i < a->top_groups; i++) kept[take_largest(group_score, a->n_groups)] = true;
    for (int32_t e = 0; e < a->n_experts; e++)
        if (!kept[e / per_group]) c[e] = -INFINITY;
}

static void route_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const fl_moe_route_args *a = context;
    double s[FL_MOE_EXPERTS_MAX], c[FL_MOE_EXPERTS_MAX], sum = 0;
    int32_t *ids = a->ids + (int64_t)r * a->top_k;
    float *weights = a->weights + (int64_t)r * a->top_k;
    score_experts(a, (const float *)a->x + r * a->x_stride, s);
    for (int32_t e = 0; e < a->n_experts; e++) c[e] = s[e] + (a->bias ? (double)a->bias[e] : 0);
    if (a->select != FL_MOE_GREEDY) drop_groups(a, c);
    for (int32_t i = 0; i < a->top_k; i++) {
        ids[i] = take_largest(c, a->n_experts);
        sum += s[ids[i]];
    }
    for (int32_t i = 0; i < a->top_k; i++)
        weights[i] = (float)(s[ids[i]] / (a->normalize ? sum + 1e-20 : 1) * (double)a->factor);
}

fl_err fl_moe_route_ref(fl_backend *be, const fl_moe_route_args *a) {
    FL_TRY(fl_moe_route_validate(a));
    fl_moe_route_args args = *a;
    fl_pool_run(be->pool, a->rows, route_row, &args);
    return FL_ERR_OK;
}
