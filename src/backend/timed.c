#include "backend/timed.h"

#include <string.h>

#include "base/clock.h"

/* be->op points at fl_timed.table, the first member. */
#define X(name)                                                                                              \
    static fl_err timed_##name(fl_backend *be, const fl_##name##_args *a) {                                  \
        fl_timed *timed = (fl_timed *)(uintptr_t)be->op;                                                     \
        double start_s = fl_now_s();                                                                         \
        fl_err err = timed->real->name(be, a);                                                               \
        if (err == FL_ERR_OK && be->wait) err = be->wait(be);                                                \
        double time_s = fl_now_s() - start_s;                                                                \
        timed->times_s.name += time_s;                                                                       \
        if (timed->on_call) timed->on_call(timed->context, FL_OP_##name, a, time_s);                         \
        return err;                                                                                          \
    }
#include "op/oplist.inc"
#undef X

static fl_err watched_moe_permute(fl_backend *be, const fl_moe_permute_args *a) {
    fl_timed *timed = (fl_timed *)(uintptr_t)be->op;
    int32_t first[FL_MOE_EXPERTS_MAX + 1], most = 0;
    size_t bytes = (size_t)(a->n_experts + 1) * sizeof *first;
    FL_TRY(timed_moe_permute(be, a));
    if (be->device) FL_TRY(be->download(be, first, a->group_rows, (int64_t)bytes));
    else memcpy(first, a->group_rows, bytes);
    for (int32_t e = 0; e < a->n_experts; e++)
        most = first[e + 1] - first[e] > most ? first[e + 1] - first[e] : most;
    timed->most_rows += most;
    timed->mean_rows += (double)first[a->n_experts] / a->n_experts;
    return FL_ERR_OK;
}

void fl_timed_begin(fl_timed *timed, fl_backend *be) {
    *timed = (fl_timed){.real = be->op};
#define X(op) timed->table.op = timed_##op;
#include "op/oplist.inc"
#undef X
    timed->table.moe_permute = watched_moe_permute;
    be->op = &timed->table;
    be->timed = true;
}

void fl_timed_end(fl_timed *timed, fl_backend *be) {
    be->op = timed->real;
    be->timed = false;
}

void fl_timed_reset(fl_timed *timed) {
    memset(&timed->times_s, 0, sizeof timed->times_s);
    timed->most_rows = timed->mean_rows = 0;
}

double fl_timed_skew(const fl_timed *timed) {
    return timed->mean_rows > 0 ? timed->most_rows / timed->mean_rows : 0;
}
