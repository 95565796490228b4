/* CPU backends as the registry (backend.c) sees them. */
#ifndef FL_BACKEND_BACKEND_CPU_H
#define FL_BACKEND_BACKEND_CPU_H

#include "backend/backend.h"

typedef struct fl_cpu_kind fl_cpu_kind;

/* By name, or for "auto" the fastest that this CPU can run; NULL = none. */
const fl_cpu_kind *fl_cpu_kind_find(const char *name);

/* Whether this CPU can run it. */
bool fl_cpu_kind_runs(const fl_cpu_kind *kind);

/* Sets what plans need of it: formats and limits. */
void fl_cpu_kind_formats(const fl_cpu_kind *kind, fl_backend *be);

/* FL_ERR_DEVICE: this CPU lacks the instructions. */
fl_err fl_cpu_kind_open(const fl_cpu_kind *kind, int32_t n_threads, fl_backend **out);

#endif
