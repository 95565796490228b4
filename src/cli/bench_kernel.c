#include "cli/bench_kernel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/half.h"
#include "cli/bench.h"

enum {
    PATTERN = (4 << 20) - 3, /* elements; odd, so that repeats never line up with rows */
    RUNS = 5,
    LAUNCHES_MAX = 1 << 14
};

/* One timed run: launches back to back, at least so long together. */
static const double device_run_s = 0.02, host_run_s = 0.001;

/* ---- memory ---- */

static void give_back(fl_kernel_bench *b) {
    while (b->n_blocks > 0) {
        fl_kernel_block *block = &b->blocks[--b->n_blocks];
        b->be->free(b->be, block->memory, block->bytes);
    }
}

fl_err fl_kernel_bench_open(const char *backend, int32_t n_threads, uint64_t seed, fl_kernel_bench *out) {
    *out = (fl_kernel_bench){.random = seed};
    FL_TRY(fl_backend_open(backend, n_threads, &out->be));
    if (!out->be->pool)
        return FL_FAIL(FL_ERR_INVALID, "backend %s computes nothing, so there is nothing to time", backend);
    FL_TRY(fl_backend_alloc_host(out->be, PATTERN * (int64_t)sizeof(float), (void **)&out->pattern));
    return fl_roof_measure(out->be, &out->roof);
}

void fl_kernel_bench_close(fl_kernel_bench *b) {
    if (!b->be) return;
    give_back(b);
    if (b->pattern) fl_backend_free_host(b->be, b->pattern, PATTERN * (int64_t)sizeof(float));
    fl_backend_close(b->be);
}

bool fl_kernel_begin(fl_kernel_bench *b, const char *name) {
    give_back(b);
    if (!b->only) return true;
    for (const char *part = b->only; *part;) {
        size_t n = strcspn(part, ",");
        if (n > 0 && memmem(name, strlen(name), part, n)) return true;
        part += n + (part[n] == ',');
    }
    return false;
}

fl_err fl_kernel_take(fl_kernel_bench *b, int64_t bytes, void **out) {
    if (b->n_blocks == FL_KERNEL_BLOCKS_MAX)
        return FL_FAIL(FL_ERR_INTERNAL, "a case takes more than %d blocks of memory", FL_KERNEL_BLOCKS_MAX);
    bytes = fl_align_up(bytes > 0 ? bytes : 1, 64);
    FL_TRY(b->be->alloc(b->be, bytes, out));
    b->blocks[b->n_blocks++] = (fl_kernel_block){*out, bytes};
    return FL_ERR_OK;
}

static fl_err copy_in(fl_kernel_bench *b, void *to, const void *from, int64_t bytes) {
    if (!b->be->device) memcpy(to, from, (size_t)bytes);
    else FL_TRY(b->be->upload(b->be, to, from, bytes));
    return FL_ERR_OK;
}

/* Copies of pinned memory may be made later than asked: nothing of it changes before this returns. */
static fl_err finish(fl_backend *be) {
    return be->wait ? be->wait(be) : FL_ERR_OK;
}

fl_err fl_kernel_take_copy(fl_kernel_bench *b, const void *from, int64_t bytes, void **out) {
    FL_TRY(fl_kernel_take(b, bytes, out));
    FL_TRY(copy_in(b, *out, from, bytes));
    return finish(b->be);
}

/* ---- random numbers ---- */

/* splitmix64: a full-period counter through a bijective mixer. */
static uint64_t next_random(fl_kernel_bench *b) {
    uint64_t z = b->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double fl_kernel_uniform(fl_kernel_bench *b) {
    return (double)(next_random(b) >> 11) * 0x1p-53;
}

/* The sum of four uniform numbers of 16 bits, centred, with deviation 1. */
static float next_normal(fl_kernel_bench *b) {
    static const double deviation = 37837.2272; /* sqrt(4 / 12) 2^16 */
    uint64_t z = next_random(b);
    double sum = (double)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return (float)((sum - 2 * 65535.0) / deviation);
}

static void make_pattern(fl_kernel_bench *b, int64_t n, fl_dtype dtype, float deviation) {
    void *pattern = b->pattern;
    for (int64_t i = 0; i < n; i++) {
        float value = next_normal(b) * deviation;
        if (dtype == FL_DTYPE_F32) ((float *)pattern)[i] = value;
        else if (dtype == FL_DTYPE_BF16) ((uint16_t *)pattern)[i] = fl_bf16_of_f32(value);
        else ((uint8_t *)pattern)[i] = fl_e4m3_of_f32(value);
    }
}

fl_err fl_kernel_take_random(fl_kernel_bench *b, int64_t n, fl_dtype dtype, double deviation, void **out) {
    int64_t element = (int64_t)fl_dtype_bytes(dtype), piece = n < PATTERN ? n : PATTERN;
    FL_TRY(fl_kernel_take(b, n * element, out));
    make_pattern(b, piece, dtype, (float)deviation);
    for (int64_t i = 0; i < n; i += piece) {
        int64_t here = n - i < piece ? n - i : piece;
        FL_TRY(copy_in(b, (uint8_t *)*out + i * element, b->pattern, here * element));
    }
    return finish(b->be);
}

fl_err fl_kernel_take_pages(fl_kernel_bench *b, int32_t n, const int32_t **out) {
    void *pages = NULL;
    int32_t *order = malloc((size_t)n * sizeof *order);
    if (!order) return FL_FAIL(FL_ERR_NOMEM, "%d pages", n);
    for (int32_t i = 0; i < n; i++) {
        int32_t j = (int32_t)(fl_kernel_uniform(b) * (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    fl_err err = fl_kernel_take_copy(b, order, n * (int64_t)sizeof *order, &pages);
    free(order);
    *out = pages;
    return err;
}

/* ---- timing ---- */

static fl_err run_times(const fl_kernel_bench *b, const fl_kernel_case *c, int32_t launches, double *all_s) {
    FL_TRY(finish(b->be));
    double begin_s = fl_now_s();
    for (int32_t i = 0; i < launches; i++) FL_TRY(c->run(b->be, c->args));
    FL_TRY(finish(b->be));
    *all_s = fl_now_s() - begin_s;
    return FL_ERR_OK;
}

/* Launches that take long enough together; finding them warms up. */
static fl_err choose_launches(const fl_kernel_bench *b, const fl_kernel_case *c, int32_t *out) {
    double all_s, wanted_s = b->be->device ? device_run_s : host_run_s;
    int32_t launches = 1;
    FL_TRY(run_times(b, c, 1, &all_s));
    FL_TRY(run_times(b, c, 1, &all_s));
    while (all_s < wanted_s && launches < LAUNCHES_MAX) {
        double factor = 1.2 * wanted_s / all_s;
        launches = (int32_t)((double)launches * (factor > 8 ? 8 : factor)) + 1;
        FL_TRY(run_times(b, c, launches, &all_s));
    }
    *out = launches;
    return FL_ERR_OK;
}

static fl_err time_row(const fl_kernel_bench *b, const fl_kernel_case *c, fl_kernel_row *row) {
    double runs_s[RUNS];
    int32_t launches;
    FL_TRY(choose_launches(b, c, &launches));
    for (int i = 0; i < RUNS; i++) {
        FL_TRY(run_times(b, c, launches, &runs_s[i]));
        runs_s[i] /= launches;
    }
    row->time_s = fl_bench_median(runs_s, RUNS); /* which sorts them */
    row->least_s = runs_s[0];
    row->most_s = runs_s[RUNS - 1];
    return FL_ERR_OK;
}

fl_err fl_kernel_time(fl_kernel_bench *b, const fl_kernel_case *c, const char *shape, ...) {
    if (b->n_rows == FL_KERNEL_ROWS_MAX) return FL_FAIL(FL_ERR_INTERNAL, "too many cases");
    fl_kernel_row *row = &b->rows[b->n_rows];
    *row = (fl_kernel_row){.name = c->name, .op = c->op, .flops = c->useful.flops, .bytes = c->useful.bytes};
    va_list arguments;
    va_start(arguments, shape);
    vsnprintf(row->shape, sizeof row->shape, shape, arguments);
    va_end(arguments);
    row->roof_flops_per_s = b->roof.flops_per_s * (c->fp8 ? 2 : 1);
    double flops_s = row->flops / row->roof_flops_per_s, bytes_s = row->bytes / b->roof.bytes_per_s;
    row->floor_s = flops_s > bytes_s ? flops_s : bytes_s;
    FL_TRY(time_row(b, c, row));
    b->n_rows++;
    return FL_ERR_OK;
}

fl_err fl_kernel_end(fl_kernel_bench *b, const char *name, fl_err err) {
    if ((err != FL_ERR_UNSUPPORTED && err != FL_ERR_NOMEM) || b->n_rows == FL_KERNEL_ROWS_MAX) return err;
    fl_kernel_row *row = &b->rows[b->n_rows++];
    *row = (fl_kernel_row){.name = name};
    snprintf(row->refusal, sizeof row->refusal, "%s", fl_err_detail());
    return FL_ERR_OK;
}
