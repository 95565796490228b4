/* What this machine does at most, measured now: the figures that benchmarks stand beside. */
#ifndef FL_BACKEND_ROOF_H
#define FL_BACKEND_ROOF_H

#include "backend/backend.h"

typedef struct fl_roof {
    double flops_per_s; /* multiply-adds as two, all threads together, operands in registers */
    double bytes_per_s; /* reading memory far larger than the caches */
    const char *format; /* of the multiply-adds: "bf16" on a GPU and with AVX-512 BF16, else "f32"; static */
} fl_roof;

/* Takes about a second: the best of several short bursts on all threads of the pool, on which nothing else may
 * run, by the threads' own processor time, so that other programs on a shared machine do not lower the roof. On a
 * GPU: cuBLASLt's product of 8,192 x 8,192 random bf16 matrices, and a copy, bytes read and written.
 * FL_ERR_DEVICE: this CPU has neither AVX-512 with BF16 nor AVX2 with FMA. */
fl_err fl_roof_measure(fl_backend *be, fl_roof *out);

/* Independent multiply-adds for `rounds` rounds; returns a value that depends on all of them. *flops is their number.
 * In roof_avx512.c and roof_avx2.c. */
float fl_roof_burn_avx512(int64_t rounds, double *flops);
float fl_roof_burn_avx2(int64_t rounds, double *flops);

#endif
