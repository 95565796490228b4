/* CPU backends: one table of kinds, fastest first; and the registry of all backends: "auto" is the first that this
 * machine can run. */
#include "backend/backend.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend_count.h"
#include "backend/cpuid.h"
#include "backend/cuda/cuda_open.h"
#include "backend/fill.h"
#include "backend/memory_map.h"
#include "op/matmul/gemm.h"

typedef struct cpu_kind {
    const char *name;
    fl_cpu_set needs;
    const fl_op_table *op;
    fl_dtype act_dtype;
    fl_weight_layout layout;
    bool kv_f32;
    bool w8a8;
    fl_err (*open_state)(fl_backend *be); /* sets be->state; NULL = none */
    void (*close_state)(fl_backend *be);  /* takes a half-built state; NULL = none */
} cpu_kind;

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

/* The one place that names backends: a new one adds a line here or below, and in `names`. */
static const cpu_kind kinds[] = {
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

/* "cuda-deterministic" leaves the library's matrix products out, whose summation order depends on the row count. */
static const struct cuda_kind {
    const char *name;
    bool w8a8, deterministic;
} cuda_kinds[] = {{"cuda", false, false},
                  {"cuda-deterministic", false, true},
                  {"cuda-w8a8", true, false},
                  {"cuda-w8a8-deterministic", true, true}};
static const char *const names[] = {
    "cuda",   "cuda-deterministic", "cuda-w8a8",      "cuda-w8a8-deterministic",
#ifdef FL_AVX512
    "avx512",
#endif
    "avx2",   "reference",          "reference-w8a8", "count",
    NULL};

enum { N_KINDS = sizeof kinds / sizeof *kinds, N_CUDA_KINDS = sizeof cuda_kinds / sizeof *cuda_kinds };
_Static_assert(sizeof names / sizeof *names == N_KINDS + N_CUDA_KINDS + 2,
               "names lists every kind, count and NULL");

typedef struct cpu_backend {
    fl_backend base; /* first: a fl_backend * is cast back in close */
    const cpu_kind *kind;
} cpu_backend;

const char *const *fl_backend_names(void) {
    return names;
}

static const cpu_kind *find_kind(const char *name) {
    for (size_t i = 0; i < N_KINDS; i++) {
        bool wanted = strcmp(name, "auto") == 0 ? fl_cpu_has(kinds[i].needs, NULL, 0)
                                                : strcmp(name, kinds[i].name) == 0;
        if (wanted) return &kinds[i];
    }
    return NULL;
}

/* "cuda:1" is the second device. */
static const struct cuda_kind *find_cuda_kind(const char *name, int32_t *device) {
    size_t length = strcspn(name, ":");
    *device = 0;
    for (size_t i = 0; i < N_CUDA_KINDS; i++) {
        const struct cuda_kind *kind = &cuda_kinds[i];
        if (length != strlen(kind->name) || strncmp(name, kind->name, length) != 0) continue;
        if (name[length] == 0) return kind;
        char *end;
        long number = strtol(name + length + 1, &end, 10);
        bool whole = name[length + 1] >= '0' && name[length + 1] <= '9' && *end == 0 && number < 1024;
        *device = (int32_t)number;
        return whole ? kind : NULL;
    }
    return NULL;
}

bool fl_backend_available(const char *name) {
    int32_t device;
    if (find_cuda_kind(name, &device)) return fl_cuda_available(device);
    const cpu_kind *kind = find_kind(name);
    return kind ? fl_cpu_has(kind->needs, NULL, 0) : strcmp(name, "count") == 0;
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

static fl_err open_kind(const cpu_kind *kind, int32_t n_threads, fl_backend **out) {
    char missing[128];
    if (!fl_cpu_has(kind->needs, missing, sizeof missing))
        return FL_FAIL(FL_ERR_DEVICE, "backend %s: this CPU lacks %s", kind->name, missing);
    FL_TRY(require_all_ops(kind->name, kind->op));
    cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return FL_FAIL(FL_ERR_NOMEM, "backend %s", kind->name);
    cpu->kind = kind;
    cpu->base = (fl_backend){.name = kind->name,
                             .op = kind->op,
                             .act_dtype = kind->act_dtype,
                             .layout = kind->layout,
                             .kv_f32 = kind->kv_f32,
                             .deterministic = true,
                             .split_tokens = FL_ATTN_SPLIT_TOKENS,
                             .w8a8 = kind->w8a8,
                             .alloc = cpu_alloc,
                             .free = fl_memory_unmap,
                             .fill = fl_fill_host,
                             .close = cpu_close};
    fl_err err;
    FL_TRY_GOTO(fl_pool_open(n_threads, &cpu->base.pool));
    if (kind->open_state) FL_TRY_GOTO(kind->open_state(&cpu->base));
    *out = &cpu->base;
    return FL_ERR_OK;
fail:
    cpu_close(&cpu->base);
    return err;
}

static fl_err unknown_name(const char *name) {
    return FL_FAIL(FL_ERR_INVALID,
                   "backend '%s' is unknown; this build has auto, cuda, cuda-w8a8 (each with "
                   "-deterministic), avx512, avx2, reference, reference-w8a8, count",
                   name);
}

/* Counts in the formats of backend `name`, whether or not this machine can run it. */
static fl_err open_count(const char *name, fl_backend **out) {
    int32_t device;
    fl_backend like = {0};
    bool automatic = strcmp(name, "auto") == 0 && fl_cuda_available(0);
    const struct cuda_kind *cuda = automatic ? &cuda_kinds[0] : find_cuda_kind(name, &device);
    if (cuda) {
        fl_cuda_formats(&like);
        like.w8a8 = cuda->w8a8;
        return fl_backend_open_count(&like, out);
    }
    const cpu_kind *kind = find_kind(name);
    if (!kind) return unknown_name(name);
    like = (fl_backend){.act_dtype = kind->act_dtype,
                        .layout = kind->layout,
                        .kv_f32 = kind->kv_f32,
                        .w8a8 = kind->w8a8,
                        .split_tokens = FL_ATTN_SPLIT_TOKENS};
    return fl_backend_open_count(&like, out);
}

fl_err fl_backend_open(const char *name, int32_t n_threads, fl_backend **out) {
    static const char count[] = "count";
    const size_t prefix = sizeof count - 1;
    if (strncmp(name, count, prefix) == 0 && (name[prefix] == ':' || name[prefix] == 0))
        return open_count(name[prefix] == ':' ? name + prefix + 1 : "auto", out);
    fl_cuda_options options = {.n_threads = n_threads};
    bool automatic = strcmp(name, "auto") == 0 && fl_cuda_available(0);
    const struct cuda_kind *cuda = automatic ? &cuda_kinds[0] : find_cuda_kind(name, &options.device);
    if (cuda) {
        options.name = cuda->name;
        options.w8a8 = cuda->w8a8;
        options.deterministic = cuda->deterministic;
        return fl_cuda_open(&options, out);
    }
    const cpu_kind *kind = find_kind(name);
    return kind ? open_kind(kind, n_threads, out) : unknown_name(name);
}

void fl_backend_close(fl_backend *be) {
    if (be) be->close(be);
}

void fl_backend_seal(fl_backend *be, bool sealed) {
    if (sealed && be->seal) be->seal(be);
    be->sealed = sealed;
}

fl_err fl_backend_may_alloc(const fl_backend *be, int64_t bytes) {
    if (!be->sealed) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INTERNAL,
                   "backend %s: %lld bytes are asked for after start, when all memory is taken", be->name,
                   (long long)bytes);
}
