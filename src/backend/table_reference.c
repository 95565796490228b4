/* The reference backend: every op is its own definition, in double precision. */
#include "backend/op_tables.h"

const fl_op_table fl_op_table_reference = {
#define X(op) .op = fl_##op##_ref,
#include "op/oplist.inc"
#undef X
};
