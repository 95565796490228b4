/* CPU backends: one table of kinds, fastest first. */
#include "backend/backend_cpu.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpuid.h"
#include "backend/fill.h"
#include "backend/memory_map.h"
#include "op/matmul/gemm.h"

struct fl_cpu_kind {
    const char *name;
    fl_cpu_set needs;
    const fl_op_table *op;
    fl_dtype act_dtype;
    fl_weight_layout layout;
    bool kv_f32;
    bool w8a8;
    fl_err (*open_state)(fl_backend *be); /* sets be->state; NULL = none */
    void (*close_state)(fl_backend *be);  /* takes a half-built state; NULL = none */
};

#ifdef FL_AVX512
static fl_err open_gemm(fl_backend *be) {
    fl_gemm *gemm = NULL;
    FL_TRY(fl_gemm_open(fl_pool_threads(be->pool), &gemm));
    be->state = gemm;
    return FL_ERR_OK;
}

static void close_gemm(fl_backend *be) {
    fl_gemm_close(be->state);
}
#endif

/* A new one adds a line here, and its name in backend.c. */
static const fl_cpu_kind kinds[] = {
#ifdef FL_AVX512
    {"avx512",
     FL_CPU_AVX512,
     &fl_op_table_avx512,
     FL_DTYPE_BF16,
     {FL_DTYPE_BF16, 64, 2, 32},
     false,
     false,
     open_gemm,
     close_gemm},
#endif
    {"avx2",
     FL_CPU_AVX2,
     &fl_op_table_avx2,
     FL_DTYPE_F32,
     {FL_DTYPE_BF16, 16, 1, 1},
     false,
     false,
     NULL,
     NULL},
    {"reference",
     FL_CPU_NONE,
     &fl_op_table_reference,
     FL_DTYPE_F32,
     {FL_DTYPE_F32, 1, 1, 1},
     true,
     false,
     NULL,
     NULL},
    {"reference-w8a8",
     FL_CPU_NONE,
     &fl_op_table_reference,
     FL_DTYPE_F32,
     {FL_DTYPE_F32, 1, 1, 1},
     true,
     true,
     NULL,
     NULL},
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

typedef struct cpu_backend {
    fl_backend base; /* first: a fl_backend * is cast back in close */
    const fl_cpu_kind *kind;
} cpu_backend;

const fl_cpu_kind *fl_cpu_kind_find(const char *name) {
    for (size_t i = 0; i < N_KINDS; i++) {
        bool wanted = strcmp(name, "auto") == 0 ? fl_cpu_has(kinds[i].needs, NULL, 0)
                                                : strcmp(name, kinds[i].name) == 0;
        if (wanted) return &kinds[i];
    }
    return NULL;
}

static fl_err cpu_alloc(fl_backend *be, int64_t bytes, void **out) {
    FL_TRY(fl_backend_may_alloc(be, bytes));
    return fl_memory_map(be->name, bytes, FL_MEMORY_RESERVED, out);
}

static void cpu_close(fl_backend *be) {
    cpu_backend *cpu = (cpu_backend *)be;
    if (cpu->kind->close_state) cpu->kind->close_state(be);
    fl_pool_close(be->pool);
    free(cpu);
}

/* A hole in a table is a bug of this build; better found at start than in the middle of a request. */
static fl_err require_all_ops(const char *backend, const fl_op_table *table) {
#define X(op)                                                                                                \
    if (!table->op) return FL_FAIL(FL_ERR_UNSUPPORTED, "backend %s lacks the op " #op, backend);
#include "op/oplist.inc"
#undef X
    return FL_ERR_OK;
}

fl_err fl_cpu_kind_open(const fl_cpu_kind *kind, int32_t n_threads, fl_backend **out) {
    char missing[128];
    if (!fl_cpu_has(kind->needs, missing, sizeof missing))
        return FL_FAIL(FL_ERR_DEVICE, "backend %s: this CPU lacks %s", kind->name, missing);
    FL_TRY(require_all_ops(kind->name, kind->op));
    cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return FL_FAIL(FL_ERR_NOMEM, "backend %s", kind->name);
    cpu->kind = kind;
    fl_backend *be = &cpu->base;
    fl_cpu_kind_formats(kind, be);
    be->name = kind->name;
    be->op = kind->op;
    be->alloc = cpu_alloc;
    be->free = fl_memory_unmap;
    be->fill = fl_fill_host;
    be->close = cpu_close;
    fl_err err;
    FL_TRY_GOTO(fl_pool_open(n_threads, &be->pool));
    if (kind->open_state) FL_TRY_GOTO(kind->open_state(be));
    *out = be;
    return FL_ERR_OK;
fail:
    cpu_close(be);
    return err;
}

bool fl_cpu_kind_runs(const fl_cpu_kind *kind) {
    return fl_cpu_has(kind->needs, NULL, 0);
}

void fl_cpu_kind_formats(const fl_cpu_kind *kind, fl_backend *be) {
    be->act_dtype = kind->act_dtype;
    be->layout = kind->layout;
    be->kv_f32 = kind->kv_f32;
    be->w8a8 = kind->w8a8;
    be->split_tokens = FL_ATTN_SPLIT_TOKENS;
    be->deterministic = true;
}
