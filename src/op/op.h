/* The op table: what a backend must be able to do, and nothing else. One line in oplist.inc registers an op:
 * its slot here, its cost on the counting backend, its check and benchmark. `ls src/op/x` is all about op x:
 *   x.h         formula, shapes, limits, tolerance with its reason, cost
 *   x.c         validation and cost (shared by all backends)
 *   x_ref.c     the definition, in double precision, obvious and never optimised
 *   x_avx512.c, x_avx2.c   the fast versions; x_cpu.c where one portable version serves both
 *   x_check.c   seeded cases that check and time every backend against x_ref.c
 *
 * Conventions for all args structs: plain data, pointers borrowed for the call, row-major, strides in
 * elements, no aliasing between inputs and outputs unless said. "act" is the backend's activation format
 * (fl_backend.act_dtype): f32 on reference and avx2, bf16 on avx512.
 *
 * fl_x_validate looks at shapes, strides and the host-made descriptors (w, seqs) only, so that it also serves
 * the counting backend, which has no data. Index arrays (ids, group_rows, place) are checked by a second
 * function where an op has them, which the other backends call as well. fl_x_cost holds for valid arguments.
 */
#ifndef FL_OP_OP_H
#define FL_OP_OP_H

#include "op/attn_absorbed/attn_absorbed.h"
#include "op/attn_merge/attn_merge.h"
#include "op/attn_prefill/attn_prefill.h"
#include "op/block_mean/block_mean.h"
#include "op/block_score/block_score.h"
#include "op/block_select/block_select.h"
#include "op/embed/embed.h"
#include "op/kv_read/kv_read.h"
#include "op/kv_write/kv_write.h"
#include "op/matmul/matmul.h"
#include "op/matmul_head/matmul_head.h"
#include "op/moe_combine/moe_combine.h"
#include "op/moe_permute/moe_permute.h"
#include "op/moe_route/moe_route.h"
#include "op/rmsnorm/rmsnorm.h"
#include "op/rope/rope.h"
#include "op/sample/sample.h"
#include "op/weight_pack/weight_pack.h"

/* A number for each op, and one behind the last. */
typedef enum fl_op_id {
#define X(op) FL_OP_##op,
#include "op/oplist.inc"
#undef X
    FL_N_OPS
} fl_op_id;

/* Told of a call of an op: `args` are that op's, valid for the call; time_s is 0 where ops are only counted. */
typedef void fl_op_call_fn(void *context, fl_op_id op, const void *args, double time_s);

typedef struct fl_op_table {
#define X(op) fl_err (*op)(fl_backend *, const fl_##op##_args *);
#include "op/oplist.inc"
#undef X
} fl_op_table;

#endif
