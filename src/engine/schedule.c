#include "engine/schedule.h"

#include <math.h>

#include "base/clock.h"

enum { RUN_MAX = 4096, TAIL_TILE = 16 };

/* ---- opening ---- */

fl_err fl_schedule_open(fl_engine *e, const fl_settings *s) {
    fl_sched_policy policy;
    const char *name = s->scheduling_policy ? s->scheduling_policy : "bins";
    fl_sched_policy_default(&policy);
    if (!fl_sched_kind_parse(name, &policy.kind))
        return FL_FAIL(FL_ERR_INVALID, "scheduling_policy: expected bins or fcfs, found '%s'", name);
    if (s->queue_tokens_max < 0)
        return FL_FAIL(FL_ERR_INVALID, "queue_tokens_max: expected 0 or more, found %lld",
                       (long long)s->queue_tokens_max);
    if (!(s->max_decode_stall_s >= 0 && s->max_step_s >= 0))
        return FL_FAIL(FL_ERR_INVALID, "max_decode_stall_s, max_step_s: expected 0 or more, found %g, %g",
                       s->max_decode_stall_s, s->max_step_s);
    if (s->max_decode_stall_s > 0) policy.stall_s = s->max_decode_stall_s;
    if (s->max_step_s > 0) policy.quantum_s = policy.idle_step_s = s->max_step_s;
    FL_TRY(fl_sched_open(&policy, &e->sched));
    e->queue_tokens_max = s->queue_tokens_max > 0 ? s->queue_tokens_max : (int64_t)16 * e->ctx_tokens;
    return fl_cost_table_make(e->dry, e->ctx_tokens, e->span_tokens, &e->costs);
}

/* ---- costs ---- */

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static double step_flops(fl_engine *e, const fl_dry_rows *rows) {
    fl_dry_cost cost;
    return fl_dry_run_step(e->dry, rows, &cost) == FL_ERR_OK ? cost.ops.total.flops : 0;
}

/* Document rows by the table, tail rows by dry runs, which are quick for them. */
double fl_schedule_left(fl_engine *e, const fl_request *r, int32_t pos) {
    double flops = 0;
    if (pos < r->document_end) {
        flops = fl_cost_table_at(&e->costs, r->document_end) - fl_cost_table_at(&e->costs, pos);
        pos = r->document_end;
    }
    while (pos < r->n_prompt) {
        const fl_dry_rows rows = {.tail_pos = pos, .tail_rows = least(r->n_prompt - pos, FL_TAIL_ROWS_MAX)};
        flops += step_flops(e, &rows);
        pos += rows.tail_rows;
    }
    return flops;
}

/* Under the lock. */
static void place(fl_request *r, double flops) {
    fl_engine *e = r->engine;
    r->cost_left = flops;
    r->place.cost_s = fl_step_rate_seconds(&e->rate, flops);
    r->place.bin = fl_sched_bin(&e->sched.policy, r->place.cost_s);
}

void fl_schedule_enter(fl_request *r, const fl_request_params *params) {
    fl_engine *e = r->engine;
    r->deadline_s = params->deadline_s;
    r->place = (fl_sched_item){.priority = params->priority, .arrival_s = r->submit_s};
    r->n_freed_seen = -1;
    pthread_mutex_lock(&e->lock);
    place(r, fl_cost_table_at(&e->costs, r->n_prompt));
    pthread_mutex_unlock(&e->lock);
}

void fl_schedule_learn(fl_engine *e, fl_request *r, const fl_schedule_ran *ran) {
    pthread_mutex_lock(&e->lock);
    fl_step_rate_learn(&e->rate, ran->flops + ran->flops_beside, ran->seconds);
    fl_sched_charge(&e->sched, r->place.bin, fl_step_rate_seconds(&e->rate, ran->flops));
    r->place.started = true;
    r->cost_left = ran->flops_left;
    pthread_mutex_unlock(&e->lock);
}

/* ---- admission ---- */

/* Takes pages and the place among prefills, for the first time or again. */
static fl_err take_place(fl_engine *e, fl_request *r) {
    FL_TRY(fl_session_prepare(r->session, r));
    r->cost_total = fl_schedule_left(e, r, r->session->n_tokens);
    pthread_mutex_lock(&e->lock);
    place(r, r->cost_total);
    r->n_shared_seen = e->n_shared;
    pthread_mutex_unlock(&e->lock);
    return FL_ERR_OK;
}

static bool admit(fl_engine *e, fl_request *r) {
    if (!fl_disk_tier_ready(e, r) || !fl_disk_tier_spares(e, r)) return false;
    pthread_mutex_lock(&e->lock);
    bool in_vain = r->n_freed_seen == e->n_freed;
    r->n_freed_seen = e->n_freed;
    pthread_mutex_unlock(&e->lock);
    if (in_vain || take_place(e, r) != FL_ERR_OK) return false;
    fl_request_add_mark(r, "queue", r->submit_s, 0);
    pthread_mutex_lock(&e->lock);
    r->phase = FL_PHASE_PREFILL;
    r->progressed = true;
    fl_request_tell(r);
    pthread_mutex_unlock(&e->lock);
    return true;
}

/* Whether it was cancelled, or its first token cannot come in time: then it ends here. What the cache holds of a queued
 * one is not known yet, so its own cost is not held against it. */
static bool given_up(fl_engine *e, fl_request *r, double now_s) {
    double left_s = 0;
    if (atomic_load(&r->cancel)) {
        fl_request_finish(r, FL_FINISH_CANCELLED, FL_ERR_OK);
        return true;
    }
    if (r->phase == FL_PHASE_DECODE) return false;
    if (r->phase == FL_PHASE_PREFILL) left_s = fl_step_rate_seconds(&e->rate, r->cost_left);
    if (!fl_sched_too_late(&e->sched.policy, &r->place, r->deadline_s, left_s, now_s)) return false;
    fl_request_finish(r, FL_FINISH_ERROR,
                      FL_FAIL(FL_ERR_LIMIT,
                              "deadline_s: no first token within %.3g s: %.3g s have passed, about %.3g s of "
                              "prefill are left",
                              r->deadline_s, now_s - r->submit_s,
                              fl_step_rate_seconds(&e->rate, r->cost_left)));
    return true;
}

/* They come in order of arrival, so that there is little to move. */
static void sort_queued(const fl_engine *e, fl_request **queued, int32_t n, double now_s) {
    for (int32_t i = 1; i < n; i++) {
        fl_request *r = queued[i];
        int32_t k = i;
        for (; k > 0 && fl_sched_before(&e->sched, &r->place, &queued[k - 1]->place, now_s); k--)
            queued[k] = queued[k - 1];
        queued[k] = r;
    }
}

/* Those that have pages have all they need, and what waiting ones keep can be taken from them: so running ones always
 * end, and the first in the queue fits at the latest when none runs. It may be overtaken by smaller ones, for a
 * while. */
int32_t fl_schedule_admit(fl_engine *e, fl_request **run, int32_t n) {
    static _Thread_local fl_request *queued[RUN_MAX];
    double now_s = fl_now_s();
    int32_t n_ready = 0, n_queued = 0;
    bool closed = false;
    for (int32_t i = 0; i < n; i++) {
        if (given_up(e, run[i], now_s)) continue;
        if (run[i]->phase == FL_PHASE_QUEUED) queued[n_queued++] = run[i];
        else run[n_ready++] = run[i];
    }
    sort_queued(e, queued, n_queued, now_s);
    for (int32_t i = 0; i < n_queued && n_ready < e->running_max && !closed; i++) {
        fl_request *r = queued[i];
        if (admit(e, r)) {
            if (!given_up(e, r, now_s)) run[n_ready++] = r;
            continue;
        }
        if (r->blocked_s == 0) r->blocked_s = now_s;
        closed = e->sched.policy.kind == FL_SCHED_FCFS || now_s - r->blocked_s >= e->sched.policy.overtake_s;
    }
    return n_ready;
}

/* ---- the next step ---- */

static fl_request *pick(fl_engine *e, fl_request **run, int32_t n) {
    static _Thread_local const fl_sched_item *items[RUN_MAX];
    static _Thread_local int32_t at[RUN_MAX];
    int32_t n_items = 0;
    for (int32_t i = 0; i < n; i++) {
        if (run[i]->phase != FL_PHASE_PREFILL) continue;
        at[n_items] = i;
        items[n_items++] = &run[i]->place;
    }
    int32_t picked = fl_sched_pick(&e->sched, items, n_items, fl_now_s());
    return picked < 0 ? NULL : run[at[picked]];
}

/* One that is about to begin looks once more for what others have computed since it was admitted; that may move it to
 * a bin whose turn it is not. */
fl_request *fl_schedule_pick(fl_engine *e, fl_request **run, int32_t n) {
    fl_request *r;
    while ((r = pick(e, run, n)) && !r->place.started) {
        int32_t bin = r->place.bin;
        pthread_mutex_lock(&e->lock);
        bool same = r->n_shared_seen == e->n_shared;
        pthread_mutex_unlock(&e->lock);
        if (same) break;
        fl_err err = take_place(e, r);
        if (err != FL_ERR_OK) fl_request_finish(r, FL_FINISH_ERROR, err);
        else if (r->place.bin == bin) break;
    }
    return r;
}

fl_schedule_piece fl_schedule_cut(fl_engine *e, const fl_request *r, const fl_schedule_beside *with) {
    const fl_sched_policy *policy = &e->sched.policy;
    int32_t pos = r->session->n_tokens, tile = fl_tile_rows(e);
    int32_t document = r->document_end > pos ? r->document_end - pos : 0;
    fl_schedule_piece piece = {.document_rows = least(document, e->span_tokens)};
    bool stalls = with->n_decode > 0 && !with->between, others = with->others || with->n_decode > 0;
    fl_sched_beside beside = stalls ? FL_SCHED_ANSWERS : others ? FL_SCHED_OTHERS : FL_SCHED_ALONE;
    double limit_s = fl_sched_step_s(policy, beside), used = 0;
    double overhead = stalls ? policy->stall_overhead_max : policy->overhead_max;
    if (limit_s > 0 && piece.document_rows > tile) {
        double one = step_flops(e, &(fl_dry_rows){.document_pos = pos, .document_rows = tile});
        double all = step_flops(e, &(fl_dry_rows){.document_pos = pos, .document_rows = piece.document_rows});
        double each = (all - one) / (piece.document_rows - tile);
        const fl_step_cost cost = {.fixed_flops = fmax(one - each * tile, 0),
                                   .row_flops = each,
                                   .tile_rows = tile,
                                   .rows_max = piece.document_rows};
        piece.document_rows = fl_step_rate_rows(&e->rate, &cost, limit_s, overhead);
        used = cost.fixed_flops + each * piece.document_rows;
    }
    if (piece.document_rows < document) return piece;
    pos += document;
    piece.tail_rows = least(r->n_prompt - pos, FL_TAIL_ROWS_MAX - with->n_decode);
    if (limit_s > 0 && piece.tail_rows > TAIL_TILE) {
        double all = step_flops(e, &(fl_dry_rows){.tail_pos = pos, .tail_rows = piece.tail_rows});
        const fl_step_cost cost = {.fixed_flops = used,
                                   .row_flops = all / piece.tail_rows,
                                   .tile_rows = TAIL_TILE,
                                   .rows_max = piece.tail_rows};
        piece.tail_rows = fl_step_rate_rows(&e->rate, &cost, limit_s, 0);
    }
    return piece;
}
