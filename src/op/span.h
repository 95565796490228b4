/* How the CPU ops cut a range of rows (or of anything) into tasks for the pool. */
#ifndef FL_OP_SPAN_H
#define FL_OP_SPAN_H

#include <stdint.h>

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
