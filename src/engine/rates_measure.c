#include "engine/rates_measure.h"

#include <stdlib.h>

#include "backend/timed.h"
#include "base/order.h"

enum { RUNS_MAX = 99, DEPTH_MIN = 512, CALLS_MAX = 1 << 16, TRIES = 3, SHORT_MIN = 128, PROMPT_RUNS = 5 };

/* A step that takes so many times as long as its ops is bound by the host that issues them. */
static const double HOST_BOUND = 1.25;

/* A short step's ops are held back until the host has issued them; a longer one keeps its device busy. */
static const double HOLD_S_MAX = 0.02;

/* So long a step is as long when it runs again. */
static const double LONG_S = 0.05;

/* What the kinds of calls came to in one run of a step. */
typedef struct run_sums {
    double calls[FL_N_RATES], time_s[FL_N_RATES];
    fl_cost cost[FL_N_RATES];
} run_sums;

typedef struct measuring {
    fl_engine *e;
    const fl_rates_measuring *m;
    fl_rate_samples *samples;
    run_sums runs[RUNS_MAX];  /* of one step */
    run_sums *into;           /* one of them, while it runs */
    uint8_t kinds[CALLS_MAX]; /* of a device's calls, whose times come when the step is done */
    int32_t n_called, n_timed;
    bool known[FL_N_RATES];          /* kinds that an engine before has timed */
    double mark_s;                   /* what a call's marks take, by the last recording; */
    double marked_s, n_marked_calls; /* and by all of this engine */
} measuring;

static void add_call(run_sums *sums, fl_rate_kind kind, fl_cost cost, double time_s) {
    sums->calls[kind] += 1;
    sums->time_s[kind] += time_s;
    fl_cost_add(&sums->cost[kind], cost);
}

static void on_call(void *context, fl_op_id op, const void *args, double time_s) {
    measuring *t = context;
    fl_rate_kind kind = fl_rate_kind_of(op, args);
    add_call(t->into, kind, fl_rate_cost(op, args), time_s);
    if (t->n_called < CALLS_MAX) t->kinds[t->n_called] = (uint8_t)kind;
    t->n_called++;
}

static void on_time(void *context, double time_s) {
    measuring *t = context;
    if (t->n_timed < CALLS_MAX) t->into->time_s[t->kinds[t->n_timed]] += time_s;
    t->n_timed++;
}

static double sum_of(const double of[FL_N_RATES]) {
    double sum = 0;
    for (int32_t i = 0; i < FL_RATE_step; i++) sum += of[i];
    return sum;
}

/* A step as the engine runs it, and op by op; on a device short steps are recordings, from the second time on. */
typedef struct whole_times {
    double whole_s, plain_s;
    bool recorded;
} whole_times;

static fl_err run_whole(fl_engine *e, const fl_dry_rows *rows, const int32_t *ids, whole_times *out) {
    fl_graph_piece piece;
    fl_dry_cost cost;
    FL_TRY(fl_dry_run_step(e->dry, rows, &cost));
    bool wants = e->graphs && fl_dry_run_wants_graph(e->dry, rows, cost.ops.total.flops, &piece);
    fl_err err = FL_ERR_OK;
    for (int32_t i = 0; i < TRIES && wants && err == FL_ERR_OK; i++)
        err = fl_step_try_piece(e, &piece, ids, FL_STEP_DRAWN, &out->whole_s);
    if (wants && err != FL_ERR_UNSUPPORTED) {
        out->recorded = true;
        if (err == FL_ERR_OK) err = fl_step_try_piece(e, &piece, ids, FL_STEP_AS_IT_IS, &out->plain_s);
        return err;
    }
    out->whole_s = 0;
    for (int32_t i = 0; i < TRIES && out->whole_s < LONG_S; i++)
        FL_TRY(fl_step_try(e, rows, ids, &out->whole_s));
    out->plain_s = out->whole_s;
    out->recorded = e->graphs && rows->document_rows + rows->tail_rows == 0;
    return FL_ERR_OK;
}

static fl_err run_watched(measuring *t, const fl_dry_rows *rows, const int32_t *ids, double hold_s,
                          double *time_s) {
    fl_engine *e = t->e;
    *t->into = (run_sums){0};
    t->n_called = t->n_timed = 0;
    fl_timed_watch(e->be, true);
    e->timed->on_call = on_call;
    e->timed->on_time = on_time;
    e->timed->context = t;
    e->timed->hold_s = hold_s;
    fl_err err = fl_step_try(e, rows, ids, time_s);
    e->timed->hold_s = 0;
    e->timed->on_time = NULL;
    e->timed->on_call = NULL;
    fl_timed_watch(e->be, false);
    if (err != FL_ERR_OK || !e->be->mark) return err;
    if (t->n_timed == t->n_called && t->n_called <= CALLS_MAX) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INTERNAL, "rates: %d calls of a step, %d of them timed, at most %d", t->n_called,
                   t->n_timed, CALLS_MAX);
}

/* Marks around a call take the device a time of their own, the same for each. At most half of a call's: none takes
 * nothing. */
static void take_marks_off(run_sums *sums, double mark_s) {
    for (int32_t i = 0; i < FL_RATE_step; i++) {
        double marks_s = sums->calls[i] * mark_s, most_s = sums->time_s[i] / 2;
        sums->time_s[i] -= marks_s < most_s ? marks_s : most_s;
    }
}

/* A recording takes what its ops do: what they took longer were the marks, of which the same step has none. */
static void take_recording(measuring *t, double whole_s, run_sums *sums) {
    double ops_s = sum_of(sums->time_s), calls = sum_of(sums->calls);
    if (ops_s > whole_s) t->mark_s = (ops_s - whole_s) / calls;
    t->marked_s += ops_s - whole_s;
    t->n_marked_calls += calls;
    take_marks_off(sums, t->mark_s);
    double scale = whole_s / sum_of(sums->time_s);
    for (int32_t i = 0; i < FL_RATE_step; i++) sums->time_s[i] *= scale;
}

/* Of a later engine marks and the kinds that are known take what they took in the first: what is left is of its own
 * kinds. So an op's time does not depend on which engines it was timed in. */
static void take_own_kinds(const measuring *t, double whole_s, run_sums *sums) {
    double own_calls = 0;
    take_marks_off(sums, t->samples->mark_s);
    double rest_s = whole_s - sum_of(sums->time_s);
    for (int32_t i = 0; i < FL_RATE_step; i++) own_calls += t->known[i] ? 0 : sums->calls[i];
    for (int32_t i = 0; i < FL_RATE_step && own_calls > 0; i++) {
        double more_s = t->known[i] ? 0 : rest_s * sums->calls[i] / own_calls;
        sums->time_s[i] += more_s > -sums->time_s[i] / 2 ? more_s : -sums->time_s[i] / 2;
    }
}

/* One run: its calls, and of a step that is issued what lay between them. */
static fl_err run_once(measuring *t, const fl_dry_rows *rows, const int32_t *ids, run_sums *sums) {
    fl_engine *e = t->e;
    whole_times times = {0};
    double watched_s, hold_s = 0;
    t->into = sums;
    if (e->be->device) {
        FL_TRY(run_whole(e, rows, ids, &times));
        hold_s = 3 * times.plain_s < HOLD_S_MAX ? 3 * times.plain_s : 0;
    }
    FL_TRY(run_watched(t, rows, ids, hold_s, &watched_s));
    if (!e->be->device) times.whole_s = watched_s;
    bool later = t->samples->mark_s > 0;
    if (times.recorded && later) take_own_kinds(t, times.whole_s, sums);
    else if (times.recorded) take_recording(t, times.whole_s, sums);
    else take_marks_off(sums, later ? t->samples->mark_s : t->mark_s);
    double ops_s = sum_of(sums->time_s), n_rows = rows->document_rows + rows->tail_rows + rows->decode_rows;
    bool host_bound = times.plain_s > HOST_BOUND * ops_s; /* the device waits for it */
    if (host_bound) {
        const fl_cost n_calls = {.flops = sum_of(sums->calls)};
        add_call(sums, FL_RATE_issue, n_calls, times.plain_s);
    } else if (!times.recorded) {
        add_call(sums, FL_RATE_step, (fl_cost){.flops = n_rows}, times.whole_s - ops_s);
    }
    return FL_ERR_OK;
}

fl_err fl_rates_measure_prompt(fl_engine *e, const int32_t *ids, int32_t n_tokens, double *time_s) {
    const fl_dry_rows rows = {.document_rows = n_tokens, .n_logits = 1};
    double times_s[PROMPT_RUNS];
    for (int32_t i = 0; i < PROMPT_RUNS; i++) {
        whole_times times = {0};
        FL_TRY(run_whole(e, &rows, ids, &times));
        times_s[i] = times.whole_s;
    }
    *time_s = fl_upper_median(times_s, PROMPT_RUNS);
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
    for (int32_t rows = SHORT_MIN; e->be->device && rows <= most; rows *= 2)
        FL_TRY(measure_step(t, &(fl_dry_rows){.document_rows = rows, .n_logits = 1}));
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
    samples->device = e->be->device;
    for (int64_t i = 0; i < samples->n; i++) t->known[samples->items[i].kind] = true;
    fl_err err = measure_all(t);
    if (samples->mark_s == 0 && t->marked_s > 0) samples->mark_s = t->marked_s / t->n_marked_calls;
    e->attending.attend.planned_density = planned;
    fl_timed_reset(e->timed);
    if (err == FL_ERR_OK) err = fl_attend_config_reset_counts(&e->attending);
    free(t);
    return err;
}
