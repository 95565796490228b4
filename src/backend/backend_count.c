/* The counting backend: an op checks its arguments and adds its cost; no data is read or written, so a whole
 * model can be "run" with address space in place of memory. */
#include "backend/backend_count.h"

#include <stdlib.h>
#include <string.h>

#include "backend/memory_map.h"

typedef struct counting {
    fl_count count; /* first: fl_backend_count */
    fl_op_call_fn *on_call;
    void *context;
} counting;

#define X(op)                                                                                                \
    static fl_err count_##op(fl_backend *be, const fl_##op##_args *a) {                                      \
        counting *c = be->state;                                                                             \
        fl_count *count = &c->count;                                                                         \
        FL_TRY(fl_##op##_validate(a));                                                                       \
        fl_cost cost = fl_##op##_cost(a);                                                                    \
        fl_cost_add(&count->op, cost);                                                                       \
        fl_cost_add(&count->total, cost);                                                                    \
        if (c->on_call) c->on_call(c->context, FL_OP_##op, a, 0);                                            \
        return FL_ERR_OK;                                                                                    \
    }
#include "op/oplist.inc"
#undef X

const fl_op_table fl_op_table_count = {
#define X(op) .op = count_##op,
#include "op/oplist.inc"
#undef X
};

/* Arguments are checked and nothing is added up: costs of attention count keys row by row. */
#define X(op)                                                                                                \
    static fl_err check_##op(fl_backend *be, const fl_##op##_args *a) {                                      \
        (void)be;                                                                                            \
        return fl_##op##_validate(a);                                                                        \
    }
#include "op/oplist.inc"
#undef X

static const fl_op_table check_table = {
#define X(op) .op = check_##op,
#include "op/oplist.inc"
#undef X
};

void fl_backend_count_costs(fl_backend *be, bool wanted) {
    be->op = wanted ? &fl_op_table_count : &check_table;
}

static fl_err count_alloc(fl_backend *be, int64_t bytes, void **out) {
    return fl_memory_map(be->name, bytes, FL_MEMORY_ADDRESSES, out);
}

static void count_close(fl_backend *be) {
    free(be->state);
    free(be);
}

fl_err fl_backend_open_count(const fl_backend *like, fl_backend **out) {
    fl_backend *be = calloc(1, sizeof *be);
    if (!be) return FL_FAIL(FL_ERR_NOMEM, "count backend");
    *be = (fl_backend){.name = "count",
                       .op = &fl_op_table_count,
                       .act_dtype = like->act_dtype,
                       .layout = like->layout,
                       .kv_f32 = like->kv_f32,
                       .split_tokens = like->split_tokens,
                       .recording_op_bytes = like->recording_op_bytes,
                       .deterministic = like->deterministic,
                       .device = like->device,
                       .w8a8 = like->w8a8,
                       .matmul_rope = like->matmul_rope,
                       .state = calloc(1, sizeof(counting)),
                       .alloc = count_alloc,
                       .free = fl_memory_unmap,
                       .close = count_close};
    if (!be->state) {
        count_close(be);
        return FL_FAIL(FL_ERR_NOMEM, "count backend");
    }
    *out = be;
    return FL_ERR_OK;
}

const fl_count *fl_backend_count(const fl_backend *be) {
    const counting *c = be->state;
    return &c->count;
}

void fl_backend_count_reset(fl_backend *be) {
    counting *c = be->state;
    memset(&c->count, 0, sizeof c->count);
}

void fl_backend_count_watch(fl_backend *be, fl_op_call_fn *on_call, void *context) {
    counting *c = be->state;
    c->on_call = on_call;
    c->context = context;
}
