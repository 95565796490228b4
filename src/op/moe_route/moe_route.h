/* moe_route: router logits, scores, group limit and top-k of each row.
 *   z = x W^T (f32 weights), s = sigmoid(z) or softmax(z), c = s + bias
 *   greedy: all experts compete. group_limited_greedy: group score = max of c; noaux_tc: sum of the two
 * largest c; the topk_group best groups stay, experts outside count as -inf (not 0: c may be negative). ids =
 * the k largest c, largest first, ties to the smaller id; weight = s[id]; normalize: weight /= sum + 1e-20;
 * then weight *= factor (deepseek_v2 without normalisation alike). Tolerance: weights 1e-5 relative; ids
 * equal unless the decisive scores are closer than 1e-5 (checks use separated scores).
 * Limits: n_experts <= FL_MOE_EXPERTS_MAX; top_k <= n_experts, and <= top_groups groups' experts; at least
 * two experts a group for noaux_tc. Cost: flops 2 rows n_experts dim; bytes rows (dim act + 8 top_k) + 4
 * n_experts (dim + 1 with bias). */
#ifndef FL_OP_MOE_ROUTE_H
#define FL_OP_MOE_ROUTE_H

#include "op/op_types.h"

typedef enum fl_moe_score { FL_MOE_SIGMOID, FL_MOE_SOFTMAX } fl_moe_score;
typedef enum fl_moe_select { FL_MOE_GREEDY, FL_MOE_GROUP_MAX, FL_MOE_GROUP_TOP2 } fl_moe_select;

typedef struct fl_moe_route_args {
    const void *x; /* [rows], x_stride apart, act */
    int64_t x_stride;
    const float *w;    /* [n_experts][dim] */
    const float *bias; /* [n_experts] or NULL */
    int32_t rows, dim, n_experts, top_k;
    int32_t n_groups, top_groups; /* used by the group selects; n_experts divisible by n_groups */
    fl_moe_score score;
    fl_moe_select select;
    bool normalize;
    float factor;
    int32_t *ids;   /* [rows][top_k] */
    float *weights; /* [rows][top_k] */
} fl_moe_route_args;

fl_err fl_moe_route_validate(const fl_moe_route_args *a);
fl_cost fl_moe_route_cost(const fl_moe_route_args *a);

#endif
