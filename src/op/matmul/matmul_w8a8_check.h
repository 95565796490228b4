/* The part of matmul's check that multiplies e4m3 weights with block scales. */
#ifndef FL_OP_MATMUL_W8A8_CHECK_H
#define FL_OP_MATMUL_W8A8_CHECK_H

#include "opcheck/opcheck_case.h"

void fl_matmul_w8a8_check(oc_run *run);

#endif
