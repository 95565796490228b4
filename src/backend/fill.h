/* Seeded random tensors, for benchmarks of models that were never trained: value i of a tensor is a function of seed
 * and i alone, so it is the same on host and device and in any order. */
#ifndef FL_BACKEND_FILL_H
#define FL_BACKEND_FILL_H

#include <stdint.h>

#include "backend/backend.h"

#ifdef __CUDACC__
#define FL_FILL_FN static __host__ __device__ inline
#else
#define FL_FILL_FN static inline
#endif

/* splitmix64's mixer: every bit of the result depends on every bit of x. */
FL_FILL_FN uint64_t fl_fill_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Nearly normal, mean 0 and standard deviation 1, within 3.5: the sum of four uniform numbers, exact but for the one
 * rounding of the product. */
FL_FILL_FN float fl_fill_normal(uint64_t seed, int64_t i) {
    uint64_t bits = fl_fill_mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) + (int32_t)(bits >> 32 & 0xffff) +
                  (int32_t)(bits >> 48);
    return (float)(2 * sum - 4 * 65535) * 1.32145e-5f; /* sqrt(3) / 131072 */
}

/* fl_backend.fill of host backends, over the pool. */
fl_err fl_fill_host(fl_backend *be, const fl_fill_args *a);

/* Refuses formats that no fill knows. */
fl_err fl_fill_validate(const fl_fill_args *a);

#endif
