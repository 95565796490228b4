/* Checks on a device. Cases lie in pinned memory that both sides touch; every op is waited for, and with --repeat runs
 * again and again from the same memory while other kernels take multiprocessors away at random: a result that depends
 * on who comes first shows as different bits. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_open.h"
#include "backend/memory_map.h"
#include "opcheck/opcheck_private.h"

static const int64_t device_memory_bytes = (int64_t)1 << 30;

/* The memory of the case before and after an op. */
static void keep(oc_run *run, uint8_t **copy) {
    oc_private *p = run->private;
    uint8_t *memory = realloc(*copy, (size_t)p->memory_used + 1);
    if (!memory) {
        oc_fail(run, "no memory to repeat the case with");
        return;
    }
    memcpy(memory, p->memory, (size_t)p->memory_used);
    *copy = memory;
}

static void disturb(oc_run *run, fl_backend *be) {
    uint64_t random = (uint64_t)oc_below(run, 1 << 30);
    if (fl_cuda_disturb(be, random) != FL_ERR_OK) oc_fail(run, "%s", fl_err_detail());
    memcpy(run->private->memory, run->private->before, (size_t)run->private->memory_used);
}

static void compare(oc_run *run, int32_t i) {
    const oc_private *p = run->private;
    if (memcmp(p->memory, p->after, (size_t)p->memory_used) != 0)
        oc_fail(run, "run %d of %d gave other bits than the first", i + 2, p->options->repeat + 1);
}

/* be->op points at oc_waiting.table, the first member. */
#define X(name)                                                                                              \
    static fl_err waiting_##name(fl_backend *be, const fl_##name##_args *a) {                                \
        const oc_waiting *w = (const oc_waiting *)(uintptr_t)be->op;                                         \
        oc_private *p = w->run->private;                                                                     \
        int32_t repeat = p->options->repeat;                                                                 \
        if (repeat > 0) keep(w->run, &p->before);                                                            \
        fl_err err = w->real->name(be, a);                                                                   \
        if (err == FL_ERR_OK) err = be->wait(be);                                                            \
        if (repeat > 0 && err == FL_ERR_OK) keep(w->run, &p->after);                                         \
        for (int32_t i = 0; i < repeat && err == FL_ERR_OK; i++) {                                           \
            disturb(w->run, be);                                                                             \
            err = w->real->name(be, a);                                                                      \
            if (err == FL_ERR_OK) err = be->wait(be);                                                        \
            if (err == FL_ERR_OK) compare(w->run, i);                                                        \
        }                                                                                                    \
        return err;                                                                                          \
    }
#include "op/oplist.inc"
#undef X

static void wait_for_ops(oc_run *run, oc_waiting *w, fl_backend *be) {
    *w = (oc_waiting){.run = run, .real = be->op};
#define X(name) w->table.name = waiting_##name;
#include "op/oplist.inc"
#undef X
    be->op = &w->table;
}

fl_err oc_take_memory(oc_run *run) {
    oc_private *p = run->private;
    p->device = run->be->device;
    p->memory_bytes = p->device ? device_memory_bytes : oc_memory_bytes;
    if (!p->device)
        return fl_memory_map("opcheck", p->memory_bytes, FL_MEMORY_ADDRESSES, (void **)&p->memory);
    FL_TRY(run->be->alloc_host(run->be, p->memory_bytes, (void **)&p->memory));
    wait_for_ops(run, &p->waiting[0], run->be);
    wait_for_ops(run, &p->waiting[1], run->one);
    return FL_ERR_OK;
}

void oc_give_memory(oc_run *run) {
    oc_private *p = run->private;
    if (p->waiting[0].real) run->be->op = p->waiting[0].real;
    if (p->waiting[1].real) run->one->op = p->waiting[1].real;
    if (p->memory && p->device) run->be->free_host(run->be, p->memory, p->memory_bytes);
    else fl_memory_unmap(NULL, p->memory, p->memory_bytes);
    free(p->before);
    free(p->after);
    p->memory = p->before = p->after = NULL;
    memset(p->waiting, 0, sizeof p->waiting);
}
