/* A pinned thread pool for data-parallel loops. The calling thread takes part as worker 0; the others spin
 * briefly and then sleep. Only one thread may call fl_pool_run at a time. */
#ifndef FL_BASE_POOL_H
#define FL_BASE_POOL_H

#include "base/err.h"

typedef struct fl_pool fl_pool;
typedef struct fl_trace fl_trace; /* base/trace.h, which C++ does not read */

/* Does task `task` (0..n_tasks-1) on worker `worker` (0..n_threads-1). */
typedef void fl_pool_fn(void *context, int32_t task, int32_t worker);

/* n_threads 0 = one for each CPU this process may use; workers 1.. are pinned when the pool has a CPU for
 * each. */
fl_err fl_pool_open(int32_t n_threads, fl_pool **out);
void fl_pool_close(fl_pool *pool);
int32_t fl_pool_threads(const fl_pool *pool);

/* Where members tell their parts of each run (borrowed until the pool closes; NULL = nowhere), and under which name
 * (static; default "pool"). Both while no run is on. */
void fl_pool_set_trace(fl_pool *pool, fl_trace *trace);
void fl_pool_set_name(fl_pool *pool, const char *name);

/* Runs all tasks and returns when the last has ended. Which worker gets a task is not fixed: a task's result
 * must not depend on it. */
void fl_pool_run(fl_pool *pool, int32_t n_tasks, fl_pool_fn *fn, void *context);

#endif
