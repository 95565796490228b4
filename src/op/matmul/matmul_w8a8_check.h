/* The part of matmul's check that multiplies e4m3 weights with block scales. */
#ifndef FL_OP_MATMUL_W8A8_CHECK_H
#define FL_OP_MATMUL_W8A8_CHECK_H

#include <math.h>

#include "opcheck/opcheck_case.h"

void fl_matmul_w8a8_check(oc_run *run);

/* For both parts: the call that `f32` is with its output rotated, beside the op rope of what it makes. */
void fl_matmul_check_rope(oc_run *run, const fl_matmul_args *f32, int64_t gap);

/* silu(gate) * up, for both parts of the check. *error becomes what the errors of gate (*error before) and up and the
 * epilogue's own make of it. */
static inline double fl_matmul_check_swiglu(double gate, double up, double up_error, double *error) {
    double silu = gate / (1 + exp(-gate));
    /* |silu'| <= 1.1 */
    *error = 1.1 * *error * (fabs(up) + up_error) + fabs(silu) * up_error + 1e-5 * fabs(silu * up);
    return silu * up;
}

#endif
