#include "backend/timed.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* ---- sums ---- */

/* One thread writes. */
static void add(_Atomic double *sum, double time_s) {
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + time_s,
                          memory_order_relaxed);
}

static void add_comm(fl_timed *t, const char *name, double time_s) {
    for (int32_t i = 0; i < FL_TIMED_COMM_MAX; i++) {
        const char *known = atomic_load(&t->comm[i].name);
        if (known && strcmp(known, name) != 0) continue;
        atomic_store(&t->comm[i].name, name);
        add(&t->comm[i].time_s, time_s);
        return;
    }
}

/* A finished span into sums and trace. Layers and steps hold other spans: they are no part of the meters. */
static void count_span(fl_backend *be, const fl_timed_span *s, double begin_s, double end_s) {
    fl_timed *t = be->timed;
    double time_s = end_s > begin_s ? end_s - begin_s : 0;
    if (s->sum) add(s->sum, time_s);
    if (s->kind < FL_TRACE_N_METERED) add(&t->kind_s[s->kind], time_s);
    if (s->kind == FL_TRACE_COMM) add_comm(t, s->name, time_s);
    if (!fl_trace_on(be->trace)) return;
    const fl_trace_event e = {.name = s->name,
                              .kind = s->kind,
                              .lane = s->mark >= 0 ? FL_LANE_DEVICE : fl_trace_lane(),
                              .begin_s = begin_s,
                              .end_s = end_s,
                              .flops = s->flops,
                              .bytes = s->bytes,
                              .count = s->count};
    fl_trace_add(be->trace, &e);
}

/* ---- marks of a device ---- */

static void read_marks(fl_backend *be) {
    fl_timed *t = be->timed;
    for (int32_t i = 0; i < t->n_pending; i++) {
        const fl_timed_span *s = &t->pending[i];
        double begin_s, end_s;
        if (!be->mark_time(be, s->mark, &begin_s)) continue;
        if (!be->mark_time(be, s->mark + 1, &end_s)) continue;
        if (s->called && t->on_time) t->on_time(t->context, end_s - begin_s);
        count_span(be, s, t->first_mark_s + begin_s, t->first_mark_s + end_s);
    }
    t->n_pending = 0;
}

/* The first pair is the step's and stays; when there are no more the device catches up, and the others are used
 * again. */
static void use_again(fl_backend *be) {
    fl_timed *t = be->timed;
    if (be->wait(be) == FL_ERR_OK) read_marks(be);
    t->n_pending = 0;
    t->n_marks = 2;
    t->round++;
}

/* Marks come in pairs: begin, end. What is being recorded gets none. */
static int32_t set_mark(fl_backend *be) {
    fl_timed *t = be->timed;
    if (!be->mark || be->recording) return -1;
    if (t->n_marks + 2 > be->marks_max || t->n_pending == FL_TIMED_PENDING_MAX) use_again(be);
    if (t->n_marks == 0) t->first_mark_s = fl_now_s();
    if (be->mark(be, t->n_marks) != FL_ERR_OK) return -1;
    t->n_marks += 2;
    return t->n_marks - 2;
}

static bool end_mark(fl_backend *be, const fl_timed_span *s) {
    fl_timed *t = be->timed;
    bool known = s->mark == 0 || (s->mark > 0 && s->round == t->round);
    if (!known || be->recording || t->n_pending == FL_TIMED_PENDING_MAX) return false;
    if (be->mark(be, s->mark + 1) != FL_ERR_OK) return false;
    t->pending[t->n_pending++] = *s;
    return true;
}

void fl_timed_begin(fl_backend *be, fl_timed_span *s) {
    fl_timed *t = be->timed;
    s->mark = -1;
    if (!t) return;
    if (be->range_begin) be->range_begin(be, s->name);
    s->begin_s = fl_now_s();
    if (t->marking) s->mark = set_mark(be);
    s->round = t->round;
}

void fl_timed_end(fl_backend *be, fl_timed_span *s) {
    fl_timed *t = be->timed;
    if (!t) return;
    if (be->range_end) be->range_end(be);
    if (!be->mark) {
        count_span(be, s, s->begin_s, fl_now_s());
        return;
    }
    if (end_mark(be, s)) t->n_ops += s->kind < FL_TRACE_N_METERED;
    fl_trace_span(be->trace, s->kind, s->name, s->begin_s, s->count); /* what the host does for it */
}

/* ---- ops ---- */

/* What the time of an op counts as. `dear`: its cost is counted row by row, which a trace may not cost. */
typedef struct about {
    fl_trace_kind kind;
    bool dear;
} about;

static const struct {
#define X(op) about op;
#include "op/oplist.inc"
#undef X
} abouts = {
    .matmul = {FL_TRACE_LINEAR, false},
    .matmul_head = {FL_TRACE_LINEAR, false},
    .kv_write = {FL_TRACE_KV, false},
    .kv_read = {FL_TRACE_KV, false},
    .block_mean = {FL_TRACE_ATTENTION, false},
    .block_score = {FL_TRACE_ATTENTION, true},
    .block_select = {FL_TRACE_ATTENTION, true},
    .attn_prefill = {FL_TRACE_ATTENTION, true},
    .attn_absorbed = {FL_TRACE_ATTENTION, true},
    .attn_merge = {FL_TRACE_ATTENTION, false},
    .moe_route = {FL_TRACE_EXPERTS, false},
    .moe_permute = {FL_TRACE_EXPERTS, false},
    .moe_combine = {FL_TRACE_EXPERTS, false},
};

static void begin_op(fl_backend *be, fl_timed_span *s) {
    fl_timed *t = be->timed;
    if (be->pool) fl_pool_set_name(be->pool, s->name);
    if (t->hold_s > 0 && be->hold && !t->held && !be->recording)
        t->held = be->hold(be, t->hold_s) == FL_ERR_OK;
    fl_timed_begin(be, s);
}

static void tell_call(fl_backend *be, fl_timed_span *s, fl_op_id op, const void *args) {
    fl_timed *t = be->timed;
    if (be->recording) return;
    s->called = be->mark != NULL;
    t->on_call(t->context, op, args, s->called ? 0 : fl_now_s() - s->begin_s);
}

#define X(op)                                                                                                \
    static fl_err time_##op(fl_backend *be, const fl_##op##_args *a, about what) {                           \
        fl_timed *t = be->timed;                                                                             \
        fl_timed_span s = {.name = #op, .kind = what.kind, .sum = &t->times_s.op};                           \
        fl_cost cost = {0};                                                                                  \
        begin_op(be, &s);                                                                                    \
        fl_err err = t->real->op(be, a);                                                                     \
        if (err == FL_ERR_OK && t->on_call) tell_call(be, &s, FL_OP_##op, a);                                \
        if (err == FL_ERR_OK && !what.dear && fl_trace_on(be->trace)) cost = fl_##op##_cost(a);              \
        s.flops = (float)cost.flops;                                                                         \
        s.bytes = (float)cost.bytes;                                                                         \
        fl_timed_end(be, &s);                                                                                \
        return err;                                                                                          \
    }                                                                                                        \
    static fl_err timed_##op(fl_backend *be, const fl_##op##_args *a) {                                      \
        return time_##op(be, a, abouts.op);                                                                  \
    }
#include "op/oplist.inc"
#undef X

/* The experts' products are theirs. */
static fl_err grouped_matmul(fl_backend *be, const fl_matmul_args *a) {
    return time_matmul(be, a, a->n_groups > 1 ? (about){FL_TRACE_EXPERTS, false} : abouts.matmul);
}

static fl_err watched_moe_permute(fl_backend *be, const fl_moe_permute_args *a) {
    fl_timed *timed = be->timed;
    int32_t first[FL_MOE_EXPERTS_MAX + 1], most = 0;
    size_t bytes = (size_t)(a->n_experts + 1) * sizeof *first;
    FL_TRY(timed_moe_permute(be, a));
    if (!timed->watching || timed->on_call || be->recording) return FL_ERR_OK;
    if (be->device) FL_TRY(be->download(be, first, a->group_rows, (int64_t)bytes));
    else memcpy(first, a->group_rows, bytes);
    for (int32_t e = 0; e < a->n_experts; e++)
        most = first[e + 1] - first[e] > most ? first[e + 1] - first[e] : most;
    timed->most_rows += most;
    timed->mean_rows += (double)first[a->n_experts] / a->n_experts;
    return FL_ERR_OK;
}

/* ---- steps ---- */

void fl_timed_step_begin(fl_backend *be, int32_t rows, bool many) {
    fl_timed *t = be->timed;
    if (!t || t->depth++ > 0) return;
    t->n_ops = t->n_marks = t->n_pending = 0;
    t->held = false;
    t->marking = be->mark && (many || t->watching || fl_trace_on(be->trace));
    t->step = (fl_timed_span){.name = "step", .kind = FL_TRACE_STEP, .count = rows};
    fl_timed_begin(be, &t->step);
}

/* A step of whose ops none had marks is one span of what was replayed. */
void fl_timed_step_issued(fl_backend *be) {
    fl_timed *t = be->timed;
    if (!t || !t->marking || t->depth > 1) return;
    if (t->n_ops == 0) t->step.kind = FL_TRACE_RECORDED;
    end_mark(be, &t->step);
}

void fl_timed_step_end(fl_backend *be) {
    fl_timed *t = be->timed;
    if (!t || --t->depth > 0) return;
    double step_s = fl_now_s() - t->step.begin_s;
    if (be->range_end) be->range_end(be);
    if (be->mark && !t->marking) add(&t->kind_s[FL_TRACE_RECORDED], step_s);
    read_marks(be);
    t->marking = false;
    add(&t->step_s, step_s);
    atomic_fetch_add(&t->n_steps, 1);
    fl_trace_span(be->trace, FL_TRACE_STEP, t->step.name, t->step.begin_s, t->step.count);
}

/* ---- opening ---- */

fl_err fl_timed_open(fl_backend *be, fl_timed **out) {
    fl_timed *t = calloc(1, sizeof *t);
    if (!t) return FL_FAIL(FL_ERR_NOMEM, "meters");
    t->real = be->op;
    if (be->mark) t->pending = calloc(FL_TIMED_PENDING_MAX, sizeof *t->pending);
    if (be->mark && !t->pending) {
        free(t);
        return FL_FAIL(FL_ERR_NOMEM, "meters");
    }
#define X(op) t->table.op = timed_##op;
#include "op/oplist.inc"
#undef X
    t->table.matmul = grouped_matmul;
    t->table.moe_permute = watched_moe_permute;
    be->op = &t->table;
    be->timed = t;
    *out = t;
    return FL_ERR_OK;
}

void fl_timed_close(fl_timed *t, fl_backend *be) {
    if (!t) return;
    be->op = t->real;
    be->timed = NULL;
    be->watched = false;
    free(t->pending);
    free(t);
}

void fl_timed_reset(fl_timed *t) {
#define X(op) atomic_store(&t->times_s.op, 0);
#include "op/oplist.inc"
#undef X
    for (int32_t i = 0; i < FL_TRACE_N_METERED; i++) atomic_store(&t->kind_s[i], 0);
    for (int32_t i = 0; i < FL_TIMED_COMM_MAX; i++) atomic_store(&t->comm[i].time_s, 0);
    atomic_store(&t->step_s, 0);
    atomic_store(&t->n_steps, 0);
    t->most_rows = t->mean_rows = 0;
}

void fl_timed_watch(fl_backend *be, bool watching) {
    be->timed->watching = be->watched = watching;
}

double fl_timed_skew(const fl_timed *t) {
    return t->mean_rows > 0 ? t->most_rows / t->mean_rows : 0;
}
