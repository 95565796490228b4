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
        timed->times_s.name += fl_now_s() - start_s;                                                         \
        return err;                                                                                          \
    }
#include "op/oplist.inc"
#undef X

void fl_timed_begin(fl_timed *timed, fl_backend *be) {
    *timed = (fl_timed){.real = be->op};
#define X(op) timed->table.op = timed_##op;
#include "op/oplist.inc"
#undef X
    be->op = &timed->table;
}

void fl_timed_end(fl_timed *timed, fl_backend *be) {
    be->op = timed->real;
}

void fl_timed_reset(fl_timed *timed) {
    memset(&timed->times_s, 0, sizeof timed->times_s);
}
