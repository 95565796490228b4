/* What `bench kernels` is made of: memory with random contents where ops find it, timing, rows of the table. A case
 * takes memory, makes the args of its ops and calls fl_kernel_time; all memory is given back when the next begins. */
#ifndef FL_CLI_BENCH_KERNEL_H
#define FL_CLI_BENCH_KERNEL_H

#include "backend/roof.h"

enum { FL_KERNEL_ROWS_MAX = 128, FL_KERNEL_BLOCKS_MAX = 32 };

/* One case's result. */
typedef struct fl_kernel_row {
    const char *name, *op; /* static: which case, the ops it ran; NULL = it did not run */
    char shape[112];
    double time_s, least_s,
        most_s;          /* of all its ops once: median, least and most of the runs; 0 = it did not run */
    double flops, bytes; /* useful ones: of what a row sees, every operand once */
    double roof_flops_per_s, floor_s; /* floor: the longer of `flops` and `bytes` at the roofs */
    char refusal[160];                /* why it did not run */
} fl_kernel_row;

typedef struct fl_kernel_block {
    void *memory;
    int64_t bytes;
} fl_kernel_block;

typedef struct fl_kernel_bench {
    fl_backend *be;
    fl_roof roof;
    const char *only; /* cases whose name contains one of these texts, separated by commas; NULL = all */
    uint64_t random;
    uint8_t *pattern; /* what fills memory, piece by piece; the host's, pinned on a device */
    fl_kernel_block blocks[FL_KERNEL_BLOCKS_MAX]; /* of the current case */
    int32_t n_blocks;
    fl_kernel_row rows[FL_KERNEL_ROWS_MAX];
    int32_t n_rows;
} fl_kernel_bench;

/* Half-built on failure; the caller closes it in any case. */
fl_err fl_kernel_bench_open(const char *backend, int32_t n_threads, uint64_t seed, fl_kernel_bench *out);
void fl_kernel_bench_close(fl_kernel_bench *b);

/* Whether a case is wanted; gives the memory of the one before back. */
bool fl_kernel_begin(fl_kernel_bench *b, const char *name);

/* Zeroed memory of the backend until the next case; `random` ones hold roughly normal numbers with this deviation, `n`
 * elements of f32, bf16 or e4m3. They repeat after some million elements, a number that divides no row. */
fl_err fl_kernel_take(fl_kernel_bench *b, int64_t bytes, void **out);
fl_err fl_kernel_take_random(fl_kernel_bench *b, int64_t n, fl_dtype dtype, double deviation, void **out);
fl_err fl_kernel_take_copy(fl_kernel_bench *b, const void *from, int64_t bytes, void **out);

/* [n] a random order of 0 .. n - 1. */
fl_err fl_kernel_take_pages(fl_kernel_bench *b, int32_t n, const int32_t **out);

/* Uniform in [0, 1). */
double fl_kernel_uniform(fl_kernel_bench *b);

/* Issues a case's ops once. */
typedef fl_err fl_kernel_fn(fl_backend *be, const void *args);

typedef struct fl_kernel_case {
    const char *name, *op;
    fl_kernel_fn *run;
    const void *args;
    fl_cost useful;
    bool fp8; /* products of e4m3: their roof is twice that of bf16, as the hardware's peaks are */
} fl_kernel_case;

/* Times the case and adds its row, whose shape is the text. */
fl_err fl_kernel_time(fl_kernel_bench *b, const fl_kernel_case *c, const char *shape, ...) FL_PRINTF(3, 4);

/* After a case: `err` itself, but what the backend refuses by name or has no room for becomes a row that says so. */
fl_err fl_kernel_end(fl_kernel_bench *b, const char *name, fl_err err);

/* The cases: bench_kernel_attend.c, bench_kernel_cases.c. Sizes of models on a device, small ones elsewhere. */
fl_err fl_kernel_attend_cases(fl_kernel_bench *b);
fl_err fl_kernel_product_cases(fl_kernel_bench *b);
fl_err fl_kernel_row_cases(fl_kernel_bench *b);

#endif
