/* Tasks are claimed from one atomic counter. A run is announced by raising `epoch`; workers spin on it for a
 * while, since the engine issues the next op within microseconds, and sleep on a futex-backed condition when
 * it pauses. A run ends when its tasks are done: a worker that wakes up later, which may take a millisecond, finds
 * that the counter belongs to no run or another one. */
#include "base/pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/trace.h"

/* Of waiting: before a thread sleeps or yields; before a trace is told of it, a microsecond or two. */
enum { THREADS_MAX = 1024, SPINS_MAX = 20000, SPINS_TOLD = 64 };

typedef struct worker {
    fl_pool *pool;
    pthread_t thread;
    int32_t index;
    int32_t cpu; /* -1 = not pinned */
} worker;

struct fl_pool {
    int32_t n_threads;
    int32_t n_started;
    worker *workers;
    fl_pool_fn *fn; /* of the current run; published by `left`, alike: */
    void *context;
    int32_t n_tasks;
    const char *name;                   /* of what runs, in the trace */
    fl_trace *trace;                    /* NULL = none */
    _Alignas(64) _Atomic uint64_t left; /* the run's epoch << 32 | its tasks that nobody has claimed */
    _Alignas(64) atomic_int n_done;     /* tasks of the run */
    _Alignas(64) atomic_uint epoch;
    atomic_bool closing;
    atomic_int n_asleep;
    pthread_mutex_t lock; /* guards sleeping only */
    pthread_cond_t wake;
};

/* A task of the run `epoch`; -1: there is none left. What describes a run may be looked at once a task of it is
 * claimed: until that is done it stays. */
static int32_t claim(fl_pool *pool, uint32_t epoch) {
    uint64_t left = atomic_load_explicit(&pool->left, memory_order_acquire);
    while ((uint32_t)(left >> 32) == epoch && (uint32_t)left > 0)
        if (atomic_compare_exchange_weak_explicit(&pool->left, &left, left - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return pool->n_tasks - (int32_t)(uint32_t)left;
    return -1;
}

static void run_tasks(fl_pool *pool, int32_t index, uint32_t epoch) {
    int32_t n = 0;
    double begin_s = 0;
    const char *name = NULL;
    for (int32_t task; (task = claim(pool, epoch)) >= 0; n++) {
        if (n == 0 && index > 0) { /* member 0 is inside of the op's own span */
            begin_s = fl_trace_now(pool->trace);
            name = pool->name;
        }
        pool->fn(pool->context, task, index);
        atomic_fetch_add_explicit(&pool->n_done, 1, memory_order_release);
    }
    if (name) fl_trace_span(pool->trace, FL_TRACE_POOL, name, begin_s, n);
}

/* The epoch that is not `seen` any more. */
static uint32_t wait_for_epoch(fl_pool *pool, uint32_t seen) {
    uint32_t epoch;
    for (int32_t i = 0; i < SPINS_MAX; i++) {
        if ((epoch = atomic_load_explicit(&pool->epoch, memory_order_acquire)) != seen) return epoch;
        _mm_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_asleep, 1);
    while ((epoch = atomic_load(&pool->epoch)) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->n_asleep, 1);
    pthread_mutex_unlock(&pool->lock);
    return epoch;
}

static void announce(fl_pool *pool) {
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_asleep) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument) {
    worker *w = argument;
    fl_pool *pool = w->pool;
    fl_trace_set_lane(w->index);
    if (w->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)w->cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set,
                               &set); /* a hint: running unpinned is only slower */
    }
    for (uint32_t epoch = 0;;) {
        epoch = wait_for_epoch(pool, epoch);
        if (atomic_load(&pool->closing)) return NULL;
        run_tasks(pool, w->index, epoch);
    }
}

void fl_pool_run(fl_pool *pool, int32_t n_tasks, fl_pool_fn *fn, void *context) {
    if (n_tasks <= 1 || pool->n_threads == 1) {
        for (int32_t i = 0; i < n_tasks; i++) fn(context, i, 0);
        return;
    }
    pool->fn = fn;
    pool->context = context;
    pool->n_tasks = n_tasks;
    uint32_t epoch = atomic_load(&pool->epoch) + 1;
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->left, (uint64_t)epoch << 32 | (uint32_t)n_tasks, memory_order_release);
    announce(pool);
    run_tasks(pool, 0, epoch);
    double begin_s = 0;
    for (int32_t spins = 0; atomic_load_explicit(&pool->n_done, memory_order_acquire) != n_tasks; spins++) {
        if (spins == SPINS_TOLD) begin_s = fl_trace_now(pool->trace);
        if (spins < SPINS_MAX) _mm_pause();
        else sched_yield(); /* a worker lost its CPU to another process: let it have ours */
    }
    fl_trace_span(pool->trace, FL_TRACE_POOL, "wait for the pool", begin_s, 0);
}

void fl_pool_set_trace(fl_pool *pool, fl_trace *trace) {
    pool->trace = trace;
}

void fl_pool_set_name(fl_pool *pool, const char *name) {
    pool->name = name;
}

int32_t fl_pool_threads(const fl_pool *pool) {
    return pool->n_threads;
}

static fl_err start_workers(fl_pool *pool, const cpu_set_t *allowed) {
    bool pin = CPU_COUNT(allowed) >= pool->n_threads;
    int32_t cpu = -1;
    for (int32_t i = 0; i < pool->n_threads; i++) {
        do cpu++;
        while (pin && !CPU_ISSET((size_t)cpu, allowed));
        worker *w = &pool->workers[i];
        *w = (worker){.pool = pool, .index = i, .cpu = pin ? cpu : -1};
        if (i == 0) continue; /* the caller: its affinity is its own business */
        int code = pthread_create(&w->thread, NULL, worker_main, w);
        if (code != 0)
            return FL_FAIL(FL_ERR_NOMEM, "cannot start thread %d of %d: %s", i, pool->n_threads,
                           strerror(code));
        pool->n_started = i;
    }
    return FL_ERR_OK;
}

fl_err fl_pool_open(int32_t n_threads, fl_pool **out) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
    if (n_threads == 0) n_threads = CPU_COUNT(&allowed) > 0 ? CPU_COUNT(&allowed) : 1;
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "threads: %d is not in 1..%d", n_threads, THREADS_MAX);
    fl_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool) return FL_FAIL(FL_ERR_NOMEM, "thread pool");
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->n_threads = n_threads;
    pool->name = "pool";
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    fl_err err = pool->workers ? start_workers(pool, &allowed) : FL_FAIL(FL_ERR_NOMEM, "thread pool");
    if (err != FL_ERR_OK) {
        fl_pool_close(pool);
        return err;
    }
    *out = pool;
    return FL_ERR_OK;
}

void fl_pool_close(fl_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->closing, true);
    announce(pool);
    for (int32_t i = 1; i <= pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}
