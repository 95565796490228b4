/* Names of the CPU implementations, for the backends' tables: fl_<op>_cpu (one portable version),
 * fl_<op>_avx2, fl_<op>_avx512. An op has those it needs, not all; a table that names a missing one does not
 * link. */
#ifndef FL_OP_KERNELS_H
#define FL_OP_KERNELS_H

#include "op/op.h"

#define X(op)                                                                                                \
    fl_err fl_##op##_cpu(fl_backend *be, const fl_##op##_args *a);                                           \
    fl_err fl_##op##_avx2(fl_backend *be, const fl_##op##_args *a);                                          \
    fl_err fl_##op##_avx512(fl_backend *be, const fl_##op##_args *a);
#include "op/oplist.inc"
#undef X

/* The part [first, end) of 0..total-1 that task `task` owns when every task takes `step`. */
typedef struct fl_span {
    int32_t first, end;
} fl_span;

static inline int32_t fl_span_tasks(int32_t total, int32_t step) {
    return total / step + (total % step != 0);
}

static inline fl_span fl_span_of_task(int32_t task, int32_t step, int32_t total) {
    int32_t first = task * step;
    return (fl_span){first, total - first < step ? total : first + step};
}

#endif
