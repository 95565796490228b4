#include "backend/roof.h"

#include <stdlib.h>

#include "backend/cpuid.h"
#include "base/clock.h"

enum { BURSTS = 8, READ_PASSES = 3 };
static const double burst_s = 0.05;
static const int64_t read_bytes = (int64_t)384 << 20; /* some caches have a quarter of a GiB */

typedef float burn_fn(int64_t rounds, double *flops);

typedef struct burst {
    burn_fn *burn;
    int64_t rounds;
    double flops;         /* of one task */
    volatile float *sink; /* [threads] what keeps the compiler from leaving the work out */
    const uint64_t *words;
    int64_t words_each;
} burst;

static void burn_task(void *context, int32_t task, int32_t worker) {
    burst *b = context;
    double flops;
    (void)worker;
    b->sink[task] = b->burn(b->rounds, &flops);
}

/* One burst long enough to time; the rounds are set so that it takes about burst_s. */
static double measure_flops(fl_pool *pool, burst *b) {
    int32_t n = fl_pool_threads(pool);
    double best = 0, spent_s = 0;
    b->rounds = 1000;
    while (spent_s < burst_s / 4) {
        double start_s = fl_now_s();
        b->rounds *= 2;
        b->sink[0] = b->burn(b->rounds, &b->flops);
        spent_s = fl_now_s() - start_s;
    }
    b->rounds = (int64_t)((double)b->rounds * burst_s / spent_s);
    b->sink[0] = b->burn(b->rounds, &b->flops);
    for (int i = 0; i < BURSTS; i++) {
        double start_s = fl_now_s();
        fl_pool_run(pool, n, burn_task, b);
        double per_s = b->flops * n / (fl_now_s() - start_s);
        if (per_s > best) best = per_s;
    }
    return best;
}

static void read_task(void *context, int32_t task, int32_t worker) {
    burst *b = context;
    const uint64_t *p = b->words + task * b->words_each;
    uint64_t sum[8] = {0};
    (void)worker;
    for (int64_t i = 0; i + 8 <= b->words_each; i += 8)
        for (int j = 0; j < 8; j++) sum[j] += p[i + j];
    b->sink[task] = (float)(sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7]);
}

static double measure_bytes(fl_pool *pool, burst *b) {
    int32_t n = fl_pool_threads(pool);
    double best = 0;
    b->words_each = read_bytes / 8 / n;
    for (int i = 0; i < READ_PASSES; i++) {
        double start_s = fl_now_s();
        fl_pool_run(pool, n, read_task, b);
        double per_s = (double)b->words_each * 8 * n / (fl_now_s() - start_s);
        if (per_s > best) best = per_s;
    }
    return best;
}

fl_err fl_roof_measure(fl_pool *pool, fl_roof *out) {
    bool wide = fl_cpu_has(FL_CPU_AVX512, NULL, 0);
    if (!wide && !fl_cpu_has(FL_CPU_AVX2, NULL, 0))
        return FL_FAIL(FL_ERR_DEVICE,
                       "cannot measure this CPU: it has neither AVX-512 with BF16 nor AVX2 with FMA");
    uint64_t *words = malloc((size_t)read_bytes);
    float *sink = calloc((size_t)fl_pool_threads(pool), sizeof *sink);
    fl_err err = FL_ERR_OK;
    if (!words || !sink) {
        err = FL_FAIL(FL_ERR_NOMEM, "%lld bytes to measure memory with", (long long)read_bytes);
    } else {
        burst b = {.burn = wide ? fl_roof_burn_avx512 : fl_roof_burn_avx2, .sink = sink, .words = words};
        for (int64_t i = 0; i < read_bytes / 8; i++)
            words[i] = (uint64_t)i; /* untouched pages are all one page */
        out->format = wide ? "bf16" : "f32";
        out->flops_per_s = measure_flops(pool, &b);
        out->bytes_per_s = measure_bytes(pool, &b);
    }
    free(words);
    free(sink);
    return err;
}
