/* The real worker process with an engine whose ops are made to fail for prompts with certain tokens: the row of
 * FAULT_NAN becomes not-a-number, a step with a row of FAULT_LOST finds its device lost, as after an illegal access. */
#include "server/faulty_worker.h"

#include <math.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "server/worker_child.h"
#include "server/worker_main.h"

/* The linker puts __wrap_ in front of the worker's calls (CMakeLists.txt). */
fl_err __real_fl_engine_open(const fl_settings *settings, fl_engine **out);
fl_err __wrap_fl_engine_open(const fl_settings *settings, fl_engine **out);

static const fl_op_table *real;
static fl_op_table table;
static atomic_bool lost;

static fl_err embed(fl_backend *be, const fl_embed_args *a) {
    FL_TRY(real->embed(be, a));
    for (int32_t i = 0; i < a->rows; i++) {
        if (a->ids[i] == FAULT_NAN) a->x[(int64_t)i * a->dim] = NAN;
        if (a->ids[i] == FAULT_LOST) atomic_store(&lost, true);
    }
    return atomic_load(&lost) ? FL_FAIL(FL_ERR_DEVICE, "an illegal memory access") : FL_ERR_OK;
}

static fl_err wait(fl_backend *be) {
    (void)be;
    return atomic_load(&lost) ? FL_FAIL(FL_ERR_DEVICE, "an illegal memory access") : FL_ERR_OK;
}

fl_err __wrap_fl_engine_open(const fl_settings *settings, fl_engine **out) {
    FL_TRY(__real_fl_engine_open(settings, out));
    fl_backend *be = (*out)->be;
    real = be->op;
    table = *real;
    table.embed = embed;
    be->op = &table;
    be->wait = wait;
    return FL_ERR_OK;
}

int main(void) {
    return fl_worker_process(FL_WORKER_FD);
}
