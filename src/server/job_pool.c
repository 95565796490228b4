#include "server/job_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    fl_job_fn *fn;
    void *context;
} job;

struct fl_job_pool {
    pthread_t *threads; /* [n_threads] */
    int n_threads;
    pthread_mutex_t lock; /* guards what follows; never held while a job runs */
    pthread_cond_t more;
    job *queue; /* a ring of queue_max, n jobs from `first` on */
    int queue_max, first, n;
    bool stop;
};

static void *thread_main(void *context) {
    fl_job_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    while (pool->n > 0 || !pool->stop) {
        if (pool->n == 0) {
            pthread_cond_wait(&pool->more, &pool->lock);
            continue;
        }
        job next = pool->queue[pool->first];
        pool->first = (pool->first + 1) % pool->queue_max;
        pool->n--;
        pthread_mutex_unlock(&pool->lock);
        next.fn(next.context);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

fl_err fl_job_pool_open(int n_threads, int queue_max, fl_job_pool **out) {
    fl_job_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return FL_FAIL(FL_ERR_NOMEM, "request threads");
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->more, NULL);
    pool->queue_max = queue_max;
    pool->queue = calloc((size_t)queue_max, sizeof *pool->queue);
    pool->threads = calloc((size_t)n_threads, sizeof *pool->threads);
    if (!pool->queue || !pool->threads) {
        fl_job_pool_close(pool);
        return FL_FAIL(FL_ERR_NOMEM, "%d request threads", n_threads);
    }
    for (int i = 0; i < n_threads; i++) {
        int failed = pthread_create(&pool->threads[i], NULL, thread_main, pool);
        if (failed) {
            fl_job_pool_close(pool);
            return FL_FAIL(FL_ERR_IO, "request thread %d: %s", i, strerror(failed));
        }
        pool->n_threads++;
    }
    *out = pool;
    return FL_ERR_OK;
}

bool fl_job_pool_add(fl_job_pool *pool, fl_job_fn *fn, void *context) {
    pthread_mutex_lock(&pool->lock);
    bool room = pool->n < pool->queue_max && !pool->stop;
    if (room) {
        pool->queue[(pool->first + pool->n++) % pool->queue_max] = (job){fn, context};
        pthread_cond_signal(&pool->more);
    }
    pthread_mutex_unlock(&pool->lock);
    return room;
}

void fl_job_pool_close(fl_job_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool->queue);
    free(pool);
}
