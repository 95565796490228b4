/* The registry: every backend by its name. "auto" is the first that this machine can run. */
#include "backend/backend.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend_count.h"
#include "backend/backend_cpu.h"
#include "backend/cuda/cuda_open.h"

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

enum { N_CUDA_KINDS = sizeof cuda_kinds / sizeof *cuda_kinds };

const char *const *fl_backend_names(void) {
    return names;
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
    const fl_cpu_kind *kind = fl_cpu_kind_find(name);
    return kind ? fl_cpu_kind_runs(kind) : strcmp(name, "count") == 0;
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
    const fl_cpu_kind *kind = fl_cpu_kind_find(name);
    if (!kind) return unknown_name(name);
    fl_cpu_kind_formats(kind, &like);
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
    const fl_cpu_kind *kind = fl_cpu_kind_find(name);
    return kind ? fl_cpu_kind_open(kind, n_threads, out) : unknown_name(name);
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
