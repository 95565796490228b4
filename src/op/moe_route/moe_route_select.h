/* The scalar half of moe_route, shared by the fast versions: from a row's logits to its experts. */
#ifndef FL_OP_MOE_ROUTE_SELECT_H
#define FL_OP_MOE_ROUTE_SELECT_H

#include "op/moe_route/moe_route.h"

/* Scores, limits and picks for one row. logits [n_experts] is overwritten; ids and weights are [top_k]. Ids
 * are always valid, even for NaN logits. */
void fl_moe_route_select(const fl_moe_route_args *a, float *logits, int32_t *ids, float *weights);

#endif
