#include "engine/cost_table.h"

static fl_err step_flops(fl_dry_run *dry, int32_t pos, int32_t rows, double *out) {
    fl_dry_cost cost;
    FL_TRY(fl_dry_run_step(dry, &(fl_dry_rows){.document_pos = pos, .document_rows = rows}, &cost));
    *out = cost.ops.total.flops;
    return FL_ERR_OK;
}

/* Within the first span a prompt is one step. Beyond it, rows cost what they cost in a whole step in their middle. */
static fl_err node_flops(fl_dry_run *dry, int32_t end, int32_t span, const fl_cost_table *t, double *out) {
    int32_t last = t->tokens[t->n - 1], start = (last + end - span) / 2;
    if (end <= span) return step_flops(dry, 0, end, out);
    if (start > end - span) start = end - span;
    FL_TRY(step_flops(dry, start - start % FL_ATTN_LIST_ROWS, span, out));
    *out = t->flops[t->n - 1] + *out * (end - last) / span;
    return FL_ERR_OK;
}

fl_err fl_cost_table_make(fl_dry_run *dry, int32_t ctx_tokens, int32_t span_tokens, fl_cost_table *out) {
    int32_t ctx = (int32_t)fl_align_up(ctx_tokens, FL_ATTN_LIST_ROWS);
    *out = (fl_cost_table){.n = 1};
    for (int64_t octave = 256; out->n < FL_COST_NODES_MAX && out->tokens[out->n - 1] < ctx;) {
        int64_t end = out->n % 2 == 1 ? octave : octave + octave / 2;
        if (out->n % 2 == 0) octave *= 2;
        if (end > ctx) end = ctx;
        FL_TRY(node_flops(dry, (int32_t)end, span_tokens, out, &out->flops[out->n]));
        out->tokens[out->n++] = (int32_t)end;
    }
    return FL_ERR_OK;
}

double fl_cost_table_at(const fl_cost_table *t, int32_t n_tokens) {
    int32_t i = 1;
    if (n_tokens <= 0 || t->n < 2) return 0;
    while (i < t->n - 1 && n_tokens > t->tokens[i]) i++;
    double x = (double)(n_tokens - t->tokens[i - 1]) / (t->tokens[i] - t->tokens[i - 1]);
    return t->flops[i - 1] + (t->flops[i] - t->flops[i - 1]) * x;
}
