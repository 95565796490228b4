#include "backend/roof.h"

#include <stdlib.h>
#include <time.h>

#include "backend/cpuid.h"
#include "backend/cuda/cuda_open.h"

enum { BURSTS = 12, READ_PASSES = 3 };
static const double burst_s = 0.03;
static const int64_t read_bytes = (int64_t)384 << 20; /* some caches have a quarter of a GiB */

typedef float burn_fn(int64_t rounds, double *flops);

typedef struct burst {
    burn_fn *burn;
    int64_t rounds;
    double *per_s;        /* [threads] what each task did a second of its own processor time */
    volatile float *sink; /* [threads] what keeps the compiler from leaving the work out */
    const uint64_t *words;
    int64_t words_each;
} burst;

/* Processor time of this thread: what others run meanwhile on a shared machine is not counted. */
static double thread_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void burn_task(void *context, int32_t task, int32_t worker) {
    burst *b = context;
    double flops, start_s = thread_now_s();
    (void)worker;
    b->sink[task] = b->burn(b->rounds, &flops);
    b->per_s[task] = flops / (thread_now_s() - start_s);
}

static void read_task(void *context, int32_t task, int32_t worker) {
    burst *b = context;
    const uint64_t *p = b->words + task * b->words_each;
    uint64_t sum[8] = {0};
    double start_s = thread_now_s();
    (void)worker;
    for (int64_t i = 0; i + 8 <= b->words_each; i += 8)
        for (int j = 0; j < 8; j++) sum[j] += p[i + j];
    b->sink[task] = (float)(sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7]);
    b->per_s[task] = (double)b->words_each * 8 / (thread_now_s() - start_s);
}

/* The best of several bursts, all threads together. */
static double best_of(fl_pool *pool, int bursts, fl_pool_fn *task, burst *b) {
    int32_t n = fl_pool_threads(pool);
    double best = 0;
    for (int i = 0; i < bursts; i++) {
        double sum = 0;
        fl_pool_run(pool, n, task, b);
        for (int32_t j = 0; j < n; j++) sum += b->per_s[j];
        if (sum > best) best = sum;
    }
    return best;
}

/* Rounds that take about burst_s. */
static void choose_rounds(burst *b) {
    double flops, spent_s = 0;
    b->rounds = 1000;
    while (spent_s < burst_s / 4) {
        double start_s = thread_now_s();
        b->rounds *= 2;
        b->sink[0] = b->burn(b->rounds, &flops);
        spent_s = thread_now_s() - start_s;
    }
    b->rounds = (int64_t)((double)b->rounds * burst_s / spent_s);
}

fl_err fl_roof_measure(fl_backend *be, fl_roof *out) {
    fl_pool *pool = be->pool;
    if (be->device) return fl_cuda_roof(be, out);
    bool wide = fl_cpu_has(FL_CPU_AVX512, NULL, 0);
    if (!wide && !fl_cpu_has(FL_CPU_AVX2, NULL, 0))
        return FL_FAIL(FL_ERR_DEVICE,
                       "cannot measure this CPU: it has neither AVX-512 with BF16 nor AVX2 with FMA");
    uint64_t *words = malloc((size_t)read_bytes);
    float *sink = calloc((size_t)fl_pool_threads(pool), sizeof *sink);
    fl_err err = FL_ERR_OK;
    double *per_s = calloc((size_t)fl_pool_threads(pool), sizeof *per_s);
    if (!words || !sink || !per_s) {
        err = FL_FAIL(FL_ERR_NOMEM, "%lld bytes to measure memory with", (long long)read_bytes);
    } else {
        burst b = {.burn = wide ? fl_roof_burn_avx512 : fl_roof_burn_avx2,
                   .per_s = per_s,
                   .sink = sink,
                   .words = words,
                   .words_each = read_bytes / 8 / fl_pool_threads(pool)};
        for (int64_t i = 0; i < read_bytes / 8; i++)
            words[i] = (uint64_t)i; /* untouched pages are all one page */
        out->format = wide ? "bf16" : "f32";
        choose_rounds(&b);
        out->flops_per_s = best_of(pool, BURSTS, burn_task, &b);
        out->bytes_per_s = best_of(pool, READ_PASSES, read_task, &b);
    }
    free(words);
    free(sink);
    free(per_s);
    return err;
}
