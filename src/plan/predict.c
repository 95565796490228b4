#include "plan/predict.h"

typedef struct predicting {
    const fl_rates *rates;
    fl_prediction *out;
    double calls[FL_N_RATES]; /* of ops, in this step */
    fl_cost cost[FL_N_RATES];
} predicting;

static void add_times(predicting *p, fl_rate_kind kind, double calls, const fl_cost *cost) {
    double time_s = fl_rates_times(p->rates, kind, calls, cost);
    p->out->rate_s[kind] += time_s;
    p->out->calls[kind] += calls;
    p->out->time_s += time_s;
}

static void add_time(predicting *p, fl_rate_kind kind, const fl_cost *cost) {
    add_times(p, kind, 1, cost);
}

/* Roofs are of single calls; measured calls of a kind count together, as they were timed. */
static void on_call(void *context, fl_op_id op, const void *args, double time_s) {
    (void)time_s;
    predicting *p = context;
    fl_rate_kind kind = fl_rate_kind_of(op, args);
    const fl_cost cost = p->rates->measured ? fl_rate_cost(op, args) : fl_op_cost(op, args);
    p->calls[kind]++;
    if (p->rates->measured) fl_cost_add(&p->cost[kind], cost);
    else add_time(p, kind, &cost);
}

/* The step's ops, how many. */
static double add_ops(predicting *p) {
    double n = 0;
    for (int32_t i = 0; i < FL_RATE_step; i++) {
        n += p->calls[i];
        if (p->rates->measured && p->calls[i] > 0) add_times(p, (fl_rate_kind)i, p->calls[i], &p->cost[i]);
        p->calls[i] = 0;
        p->cost[i] = (fl_cost){0};
    }
    return n;
}

/* On a device a step of few rows waits for the host, whose time is counted in place of the ops' where it is longer. */
static void add_issue(predicting *p, double step_calls, double step_s) {
    const fl_cost calls = {.flops = step_calls};
    double issue_s = fl_rates_time(p->rates, FL_RATE_issue, &calls);
    if (issue_s <= step_s) return;
    p->out->rate_s[FL_RATE_issue] += issue_s - step_s;
    p->out->calls[FL_RATE_issue] += 1;
    p->out->time_s += issue_s - step_s;
}

/* Whether the step is a recording; then *rows become those that it has. Answers alone always are one. */
static fl_err find_recording(fl_dry_run *dry, const fl_rates *rates, fl_dry_rows *rows, bool *recorded) {
    fl_dry_cost cost;
    fl_graph_piece piece;
    *recorded = false;
    if (!rates->recorded) return FL_ERR_OK;
    FL_TRY(fl_dry_run_step(dry, rows, &cost));
    bool wanted = fl_dry_run_wants_graph(dry, rows, cost.ops.total.flops, &piece);
    if (wanted) *rows = fl_dry_run_bucket(dry, &piece, rows->n_logits);
    *recorded = wanted || rows->document_rows + rows->tail_rows == 0;
    return FL_ERR_OK;
}

static fl_err add_step(fl_dry_run *dry, const fl_dry_rows *asked, predicting *p) {
    fl_dry_cost cost;
    fl_dry_rows rows = *asked;
    bool recorded;
    fl_backend *count = fl_dry_run_backend(dry);
    double before_s = p->out->time_s;
    FL_TRY(find_recording(dry, p->rates, &rows, &recorded));
    const fl_cost all_rows = {.flops = rows.document_rows + rows.tail_rows + rows.decode_rows};
    fl_backend_count_watch(count, on_call, p);
    fl_err err = fl_dry_run_step(dry, &rows, &cost);
    fl_backend_count_watch(count, NULL, NULL);
    if (err != FL_ERR_OK) return err;
    double n_calls = add_ops(p);
    if (!recorded) add_time(p, FL_RATE_step, &all_rows);
    if (!recorded) add_issue(p, n_calls, p->out->time_s - before_s);
    fl_count_add(&p->out->ops, &cost.ops);
    if (cost.scratch_bytes > p->out->scratch_bytes) p->out->scratch_bytes = cost.scratch_bytes;
    p->out->steps++;
    return FL_ERR_OK;
}

fl_err fl_predict_step(fl_dry_run *dry, const fl_rates *rates, const fl_dry_rows *rows, fl_prediction *out) {
    predicting p = {.rates = rates, .out = out};
    *out = (fl_prediction){0};
    return add_step(dry, rows, &p);
}

fl_err fl_predict_prompt(fl_dry_run *dry, const fl_rates *rates, const fl_dry_prompt *prompt,
                         const fl_predict_load *load, fl_prediction *out) {
    predicting p = {.rates = rates, .out = out};
    *out = (fl_prediction){0};
    add_time(&p, FL_RATE_request, &(fl_cost){.flops = prompt->n_tokens - prompt->pos});
    for (int32_t pos = prompt->pos; pos < prompt->n_tokens;) {
        fl_dry_rows rows = fl_dry_prompt_step(prompt, pos, &pos);
        if (load) {
            rows.decode_rows = load->decode_rows;
            rows.decode_pos = load->decode_pos;
            rows.n_logits += load->decode_rows;
        }
        FL_TRY(add_step(dry, &rows, &p));
    }
    return FL_ERR_OK;
}
