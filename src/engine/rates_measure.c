#include "engine/rates_measure.h"

#include <stdlib.h>

#include "backend/timed.h"
#include "base/order.h"

enum { RUNS_MAX = 99, DEPTH_MIN = 512 };

/* A step that takes so many times as long as its ops is bound by the host that issues them. */
static const double HOST_BOUND = 1.25;

/* What the kinds of calls came to in one run of a step. */
typedef struct run_sums {
    double calls[FL_N_RATES], time_s[FL_N_RATES];
    fl_cost cost[FL_N_RATES];
} run_sums;

typedef struct measuring {
    fl_engine *e;
    const fl_rates_measuring *m;
    fl_rate_samples *samples;
    run_sums runs[RUNS_MAX]; /* of one step */
    run_sums *into;          /* one of them, while it runs */
} measuring;

static void add_call(run_sums *sums, fl_rate_kind kind, fl_cost cost, double time_s) {
    sums->calls[kind] += 1;
    sums->time_s[kind] += time_s;
    fl_cost_add(&sums->cost[kind], cost);
}

static void on_call(void *context, fl_op_id op, const void *args, double time_s) {
    measuring *t = context;
    add_call(t->into, fl_rate_kind_of(op, args), fl_rate_cost(op, args), time_s);
}

/* A step as the engine runs it: on a device a short piece of a prompt is a recording, from the second time on. */
static fl_err run_whole(fl_engine *e, const fl_dry_rows *rows, const int32_t *ids, double *time_s) {
    fl_graph_piece piece;
    fl_dry_cost cost;
    FL_TRY(fl_dry_run_step(e->dry, rows, &cost));
    if (!e->graphs || !fl_dry_run_wants_graph(e->dry, rows, cost.ops.total.flops, &piece))
        return fl_step_try(e, rows, ids, time_s);
    fl_err err = FL_ERR_OK;
    for (int32_t i = 0; i < 3 && err == FL_ERR_OK; i++)
        err = fl_step_try_piece(e, &piece, ids, FL_STEP_RECORDED, time_s);
    return err == FL_ERR_UNSUPPORTED ? fl_step_try(e, rows, ids, time_s) : err;
}

/* One run: its calls, scaled to the time of the same step unwatched where watching costs, and what lay between. */
static fl_err run_once(measuring *t, const fl_dry_rows *rows, const int32_t *ids, run_sums *sums) {
    fl_engine *e = t->e;
    double whole_s = 0, watched_s, ops_s = 0;
    *sums = (run_sums){0};
    t->into = sums;
    if (e->be->device) FL_TRY(run_whole(e, rows, ids, &whole_s));
    fl_timed_watch(e->be, true);
    e->timed->on_call = on_call;
    e->timed->context = t;
    fl_err err = fl_step_try(e, rows, ids, &watched_s);
    e->timed->on_call = NULL;
    fl_timed_watch(e->be, false);
    if (err != FL_ERR_OK) return err;
    if (!e->be->device) whole_s = watched_s;
    for (int32_t i = 0; i < FL_N_RATES; i++) ops_s += sums->time_s[i];
    double n_calls = 0;
    for (int32_t i = 0; i < FL_RATE_step; i++) n_calls += sums->calls[i];
    if (e->be->device && n_calls > 0 && whole_s > HOST_BOUND * ops_s) { /* the device waited for the host */
        add_call(sums, FL_RATE_issue, (fl_cost){.flops = n_calls}, whole_s);
        return FL_ERR_OK;
    }
    double scale = ops_s > whole_s ? whole_s / ops_s : 1;
    for (int32_t i = 0; i < FL_N_RATES; i++) sums->time_s[i] *= scale;
    const fl_cost all_rows = {.flops = rows->document_rows + rows->tail_rows + rows->decode_rows};
    add_call(sums, FL_RATE_step, all_rows, whole_s - scale * ops_s);
    return FL_ERR_OK;
}

/* A sample for each kind, with the median of the runs' times. */
static fl_err keep_medians(measuring *t) {
    double times_s[RUNS_MAX];
    int32_t n = t->m->runs;
    for (int32_t i = 0; i < FL_N_RATES; i++) {
        if (t->runs[0].calls[i] == 0) continue;
        for (int32_t j = 0; j < n; j++) times_s[j] = t->runs[t->runs[j].calls[i] > 0 ? j : 0].time_s[i];
        const fl_rate_sample sample = {(fl_rate_kind)i, t->runs[0].calls[i], t->runs[0].cost[i],
                                       fl_upper_median(times_s, n)};
        FL_TRY(fl_rate_samples_add(t->samples, &sample));
    }
    return FL_ERR_OK;
}

/* Lists are as long as the text makes them: the calls are counted with the density that this step has. */
static fl_err plan_density(fl_engine *e, const fl_dry_rows *rows, const int32_t *ids) {
    fl_attend_config *a = &e->attending;
    if (rows->document_rows == 0 || !a->attend.blocks) return fl_step_try(e, rows, ids, NULL);
    FL_TRY(fl_attend_config_reset_counts(a));
    FL_TRY(fl_step_try(e, rows, ids, NULL));
    a->attend.planned_density = fl_attend_config_density(a);
    return FL_ERR_OK;
}

static fl_err measure_step(measuring *t, const fl_dry_rows *rows) {
    const int32_t *ids = t->m->ids + (rows->document_rows > 0 ? rows->document_pos : rows->tail_pos);
    if (rows->decode_rows > 0) ids = t->m->ids;
    FL_TRY(plan_density(t->e, rows, ids)); /* warms, too */
    for (int32_t i = 0; i < t->m->runs; i++) FL_TRY(run_once(t, rows, ids, &t->runs[i]));
    return keep_medians(t);
}

static int32_t whole_tiles(const fl_engine *e, int32_t rows) {
    int32_t tile = fl_tile_rows(e);
    return rows < tile ? tile : rows - rows % tile;
}

/* Text up to `depth`, so that later steps find keys as a text leaves them. */
static fl_err fill(measuring *t, int32_t span) {
    for (int32_t pos = 0; pos + span <= t->m->depth; pos += span) {
        const fl_dry_rows rows = {.document_rows = span, .document_pos = pos};
        FL_TRY(fl_step_try(t->e, &rows, t->m->ids + pos, NULL));
    }
    return FL_ERR_OK;
}

static fl_err measure_all(measuring *t) {
    fl_engine *e = t->e;
    int32_t depth = t->m->depth, most = depth / 2 < e->span_tokens ? depth / 2 : e->span_tokens;
    int32_t span = whole_tiles(e, most), few = whole_tiles(e, span / 8), quarter = whole_tiles(e, depth / 4);
    int32_t last = whole_tiles(e, depth - span), last_few = whole_tiles(e, depth - few);
    int32_t tail = depth / 4 < FL_TAIL_ROWS_MAX ? depth / 4 : FL_TAIL_ROWS_MAX;
    const fl_dry_rows steps[] = {
        {.document_rows = span},
        {.document_rows = span, .document_pos = quarter},
        {.document_rows = span, .document_pos = last},
        {.document_rows = few, .document_pos = 0},
        {.document_rows = few, .document_pos = quarter},
        {.document_rows = few, .document_pos = last_few},
        {.tail_rows = tail, .tail_pos = depth - tail, .n_logits = 1},
        {.tail_rows = tail / 8, .tail_pos = depth / 2, .n_logits = 1},
        {.decode_rows = 1, .decode_pos = depth - 1, .n_logits = 1},
        {.decode_rows = 1, .decode_pos = depth / 8, .n_logits = 1},
        {.decode_rows = 8, .decode_pos = depth / 2, .n_logits = 8},
    };
    FL_TRY(fill(t, span));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) FL_TRY(measure_step(t, &steps[i]));
    return FL_ERR_OK;
}

fl_err fl_rates_measure(fl_engine *e, const fl_rates_measuring *m, fl_rate_samples *samples) {
    if (m->runs < 1 || m->runs > RUNS_MAX || m->depth < DEPTH_MIN || m->depth >= e->ctx_tokens)
        return FL_FAIL(FL_ERR_INVALID,
                       "rates: expected 1..%d runs at depth %d to the context's %d, found %d at %d", RUNS_MAX,
                       DEPTH_MIN, e->ctx_tokens - 1, m->runs, m->depth);
    measuring *t = calloc(1, sizeof *t);
    if (!t) return FL_FAIL(FL_ERR_NOMEM, "rates");
    double planned = e->attending.attend.planned_density;
    t->e = e;
    t->m = m;
    t->samples = samples;
    fl_err err = measure_all(t);
    e->attending.attend.planned_density = planned;
    fl_timed_reset(e->timed);
    if (err == FL_ERR_OK) err = fl_attend_config_reset_counts(&e->attending);
    free(t);
    return err;
}
