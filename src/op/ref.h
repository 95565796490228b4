/* What the reference ops share. They are the definition of the ops: f32 operands, double arithmetic, plain
 * loops, one task a row. */
#ifndef FL_OP_REF_H
#define FL_OP_REF_H

#include "backend/op_tables.h"

/* Eight running sums let the compiler use vectors; a double sum needs no better order. */
static inline double fl_ref_dot(const float *x, const float *y, int64_t n) {
    double sums[8] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t j = 0; j < 8; j++) sums[j] += (double)x[i + j] * (double)y[i + j];
    for (; i < n; i++) total += (double)x[i] * (double)y[i];
    for (int64_t j = 0; j < 8; j++) total += sums[j];
    return total;
}

#endif
