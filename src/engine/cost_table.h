/* Predicted FLOPs of prompts by length, from a few dry runs: exact ones of a long prompt would take seconds. */
#ifndef FL_ENGINE_COST_TABLE_H
#define FL_ENGINE_COST_TABLE_H

#include "plan/dry_run.h"

enum { FL_COST_NODES_MAX = 40 };

/* Constant once made. Linear between nodes: at most 4% too much where costs grow with the square. */
typedef struct fl_cost_table {
    int32_t n;
    int32_t tokens[FL_COST_NODES_MAX]; /* 0, 256, 384, 512, 768, ... ctx_tokens */
    double flops[FL_COST_NODES_MAX];   /* of rows [0, tokens) as document rows in steps of span_tokens */
} fl_cost_table;

fl_err fl_cost_table_make(fl_dry_run *dry, int32_t ctx_tokens, int32_t span_tokens, fl_cost_table *out);

/* FLOPs of rows [0, n_tokens). */
double fl_cost_table_at(const fl_cost_table *table, int32_t n_tokens);

#endif
