#include "backend/cuda/cuda_backend.h"

extern "C" const fl_op_table fl_op_table_cuda = {
#define X(op) .op = fl_##op##_cuda,
#include "op/oplist.inc"
#undef X
};
