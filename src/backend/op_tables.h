/* The functions op tables are made of. Declared for every op; each file of src/op defines those it has:
 * x_ref.c fl_x_ref, x_avx512.c fl_x_avx512, x_avx2.c fl_x_avx2, x_cpu.c fl_x_cpu (portable, for either). */
#ifndef FL_BACKEND_OP_TABLES_H
#define FL_BACKEND_OP_TABLES_H

#include "backend/backend.h"

#define X(op)                                                                                                \
    fl_err fl_##op##_ref(fl_backend *be, const fl_##op##_args *a);                                           \
    fl_err fl_##op##_avx512(fl_backend *be, const fl_##op##_args *a);                                        \
    fl_err fl_##op##_avx2(fl_backend *be, const fl_##op##_args *a);                                          \
    fl_err fl_##op##_cpu(fl_backend *be, const fl_##op##_args *a);
#include "op/oplist.inc"
#undef X

#endif
