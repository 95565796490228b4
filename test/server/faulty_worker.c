/* The real worker process with an engine whose ops are made to fail for prompts with certain tokens: the row of
 * FAULT_NAN becomes not-a-number; a step with a row of FAULT_LOST loses its device, on a GPU by an access to memory
 * that is not there, on a CPU in name. */
#include "server/faulty_worker.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/engine.h"
#include "server/worker_child.h"
#include "server/worker_main.h"

/* The linker puts __wrap_ in front of the worker's calls (CMakeLists.txt). */
fl_err __real_fl_engine_open(const fl_settings *settings, fl_engine **out);
fl_err __wrap_fl_engine_open(const fl_settings *settings, fl_engine **out);

enum { ROWS_MAX = 4096 };

static const fl_op_table *real;
static fl_op_table table;
static atomic_bool lost;

static fl_err read_ids(fl_backend *be, const fl_embed_args *a, int32_t *ids) {
    int64_t bytes = a->rows * (int64_t)sizeof *ids;
    if (a->rows > ROWS_MAX) return FL_FAIL(FL_ERR_INTERNAL, "%d rows in a step of the test", a->rows);
    if (be->device) return be->download(be, ids, a->ids, bytes);
    memcpy(ids, a->ids, (size_t)bytes);
    return FL_ERR_OK;
}

static fl_err spoil(fl_backend *be, float *x) {
    const float bad = NAN;
    if (be->device) return be->upload(be, x, &bad, sizeof bad);
    *x = bad;
    return FL_ERR_OK;
}

/* On a device that it has, the kernel itself is sent astray: what it writes to is nobody's. */
static fl_err lose(fl_backend *be, const fl_embed_args *a) {
    fl_embed_args astray = *a;
    astray.x = (float *)(uintptr_t)64; // NOLINT(performance-no-int-to-ptr): meant to be wrong
    if (be->device) return real->embed(be, &astray);
    atomic_store(&lost, true);
    return FL_FAIL(FL_ERR_DEVICE, "an illegal memory access");
}

static fl_err embed(fl_backend *be, const fl_embed_args *a) {
    int32_t ids[ROWS_MAX];
    FL_TRY(real->embed(be, a));
    FL_TRY(read_ids(be, a, ids));
    for (int32_t i = 0; i < a->rows; i++) {
        if (ids[i] == FAULT_NAN) FL_TRY(spoil(be, a->x + (int64_t)i * a->dim));
        if (ids[i] == FAULT_LOST) return lose(be, a);
    }
    return FL_ERR_OK;
}

static fl_err wait(fl_backend *be) {
    (void)be;
    return atomic_load(&lost) ? FL_FAIL(FL_ERR_DEVICE, "an illegal memory access") : FL_ERR_OK;
}

fl_err __wrap_fl_engine_open(const fl_settings *settings, fl_engine **out) {
    fl_settings eager = *settings;
    eager.enforce_eager = true; /* a recording would not come by here again */
    FL_TRY(__real_fl_engine_open(&eager, out));
    fl_backend *be = (*out)->be;
    real = be->op;
    table = *real;
    table.embed = embed;
    be->op = &table;
    if (!be->device) be->wait = wait;
    return FL_ERR_OK;
}

int main(void) {
    return fl_worker_process(FL_WORKER_FD);
}
