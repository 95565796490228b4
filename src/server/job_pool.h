/* A few threads that take jobs from a bounded queue: what is too slow for the event thread (reading JSON, rendering,
 * tokenising) runs here. */
#ifndef FL_SERVER_JOB_POOL_H
#define FL_SERVER_JOB_POOL_H

#include "base/err.h"

#include <stdbool.h>

typedef struct fl_job_pool fl_job_pool;
typedef void fl_job_fn(void *context);

/* On success the caller owns *out. */
fl_err fl_job_pool_open(int n_threads, int queue_max, fl_job_pool **out);

/* false: the queue is full, or the pool is closing; fn will not be called. */
bool fl_job_pool_add(fl_job_pool *pool, fl_job_fn *fn, void *context);

/* Runs what is queued, then joins the threads. Accepts NULL. */
void fl_job_pool_close(fl_job_pool *pool);

#endif
