/* What callers see of meters and trace. */
#include <stdio.h>

#include "engine/engine.h"

static double kind_s(const fl_engine *e, fl_trace_kind kind) {
    return atomic_load(&e->timed->kind_s[kind]);
}

static const char *slowest_comm(const fl_timed *t) {
    const char *name = NULL;
    double most_s = 0;
    for (int32_t i = 0; i < FL_TIMED_COMM_MAX; i++) {
        double time_s = atomic_load(&t->comm[i].time_s);
        if (time_s <= most_s) continue;
        most_s = time_s;
        name = atomic_load(&t->comm[i].name);
    }
    return name;
}

void fl_engine_get_meters(const fl_engine *e, fl_meters *out) {
    int64_t fixed_bytes = e->weights->memory_bytes + e->kv_bytes + e->logits_bytes + e->draw_bytes;
    int64_t used_bytes = atomic_load(&e->scratch_peak_bytes) + atomic_load(&e->graph_bytes);
    *out = (fl_meters){.planned_bytes = fixed_bytes + e->scratch_bytes + e->recordings_bytes,
                       .peak_bytes = fixed_bytes + used_bytes,
                       .steps = atomic_load(&e->timed->n_steps),
                       .step_s = atomic_load(&e->timed->step_s),
                       .attention_s = kind_s(e, FL_TRACE_ATTENTION),
                       .linear_s = kind_s(e, FL_TRACE_LINEAR),
                       .experts_s = kind_s(e, FL_TRACE_EXPERTS),
                       .kv_s = kind_s(e, FL_TRACE_KV),
                       .recorded_s = kind_s(e, FL_TRACE_RECORDED),
                       .other_s = kind_s(e, FL_TRACE_OTHER),
                       .comm_s = kind_s(e, FL_TRACE_COMM),
                       .comm_slowest = slowest_comm(e->timed)};
}

static double comm_share(const fl_meters *m) {
    return m->step_s > 0 ? m->comm_s / m->step_s : 0;
}

bool fl_meters_warning(const fl_meters *ranks, int32_t n, char *text, size_t text_bytes) {
    int32_t worst = 0, slowest = 0;
    for (int32_t i = 1; i < n; i++) {
        if (comm_share(&ranks[i]) > comm_share(&ranks[worst])) worst = i;
        if (comm_share(&ranks[i]) < comm_share(&ranks[slowest])) slowest = i;
    }
    if (n < 1 || comm_share(&ranks[worst]) <= FL_METERS_COMM_MAX) return false;
    const char *name = ranks[worst].comm_slowest ? ranks[worst].comm_slowest : "communication";
    int written = snprintf(text, text_bytes, "%.0f%% of rank %d's time is communication, most of it %s",
                           100 * comm_share(&ranks[worst]), worst, name);
    if (n > 1 && written > 0 && (size_t)written < text_bytes)
        snprintf(text + written, text_bytes - (size_t)written,
                 "; the others wait for rank %d, which waits least itself: %.0f%%", slowest,
                 100 * comm_share(&ranks[slowest]));
    return true;
}

fl_err fl_engine_trace_start(fl_engine *e, int64_t events) {
    return fl_trace_start(e->trace, events);
}

void fl_engine_trace_stop(fl_engine *e) {
    fl_trace_stop(e->trace);
}

fl_err fl_engine_trace_write(const fl_engine *e, const char *path, int64_t *n_lost) {
    if (!e->trace->slots) return FL_FAIL(FL_ERR_INVALID, "trace %s: none was started", path);
    if (n_lost) *n_lost = fl_trace_get_counts(e->trace).lost;
    return fl_trace_write(e->trace, path);
}
