/* The arithmetic of sample, the same bits on host and device: every operation is rounded by itself. */
#ifndef FL_OP_SAMPLE_WEIGHT_H
#define FL_OP_SAMPLE_WEIGHT_H

#include <math.h>
#include <string.h>

#include "op/sample/sample.h"

#ifdef __CUDACC__
#define FL_SAMPLE_FN static __host__ __device__ inline
#else
#define FL_SAMPLE_FN static inline
#endif

#ifdef __CUDA_ARCH__
#define FL_SAMPLE_ADD(a, b) __fadd_rn(a, b)
#define FL_SAMPLE_SUB(a, b) __fsub_rn(a, b)
#define FL_SAMPLE_MUL(a, b) __fmul_rn(a, b)
#define FL_SAMPLE_DIV(a, b) __fdiv_rn(a, b)
#else
#define FL_SAMPLE_ADD(a, b) ((a) + (b))
#define FL_SAMPLE_SUB(a, b) ((a) - (b))
#define FL_SAMPLE_MUL(a, b) ((a) * (b))
#define FL_SAMPLE_DIV(a, b) ((a) / (b))
#endif

#define FL_SAMPLE_LOG2E 1.44269504f

/* Bits of the best one's weight, and the depth from which on weights are 0. */
enum { FL_SAMPLE_WEIGHT_BITS = 40, FL_SAMPLE_DEPTH_MAX = 41 };

/* The logarithm to base 2 of a token's weight. Never rises while the logit falls. */
FL_SAMPLE_FN float fl_sample_depth(float logit, float best, float scale) {
    return FL_SAMPLE_MUL(FL_SAMPLE_SUB(logit, best), scale);
}

/* 2^depth of a depth <= 0, in steps of 2^-40: 2^n for the nearest whole n by its exponent, for the rest f Taylor's
 * series of e^(f ln 2), which ends 5e-9 off. 0 for NaN. */
FL_SAMPLE_FN uint64_t fl_sample_weight(float depth) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: added, it leaves n in the low bits */
    if (!(depth > -FL_SAMPLE_DEPTH_MAX)) return 0;
    float shifted = FL_SAMPLE_ADD(depth, shift), power;
    float f = FL_SAMPLE_SUB(depth, FL_SAMPLE_SUB(shifted, shift));
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127 + FL_SAMPLE_WEIGHT_BITS) << 23; /* 2^(n + 40) */
    memcpy(&power, &bits, sizeof power);
    float p = 1.52527338e-5f;
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 1.54035304e-4f);
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 1.33335581e-3f);
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 9.61812911e-3f);
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 5.55041087e-2f);
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 2.40226507e-1f);
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 6.93147181e-1f);
    p = FL_SAMPLE_ADD(FL_SAMPLE_MUL(p, f), 1.0f);
    return (uint64_t)(int64_t)FL_SAMPLE_MUL(p, power);
}

/* The logit of a marked token. */
FL_SAMPLE_FN float fl_sample_penalised(float logit, const fl_sample_row *r, int32_t count) {
    if (r->repetition != 1)
        logit = logit > 0 ? FL_SAMPLE_DIV(logit, r->repetition) : FL_SAMPLE_MUL(logit, r->repetition);
    if (count > 0)
        logit = FL_SAMPLE_SUB(logit, FL_SAMPLE_ADD(r->presence, FL_SAMPLE_MUL(r->frequency, (float)count)));
    return logit;
}

/* The least sum of weights that is top_p of all, at least 1. */
FL_SAMPLE_FN uint64_t fl_sample_nucleus(uint64_t total, float top_p) {
    double least = ceil((double)top_p * (double)total);
    uint64_t n = least < (double)total ? (uint64_t)least : total;
    return n > 0 ? n : 1;
}

/* The token's sum of weights is the first above this. */
FL_SAMPLE_FN uint64_t fl_sample_aim(uint64_t kept, double uniform) {
    uint64_t aim = (uint64_t)(uniform * (double)kept);
    return aim < kept ? aim : kept - (kept > 0);
}

/* Log of the sum of e^logit from the weights with scale log2(e). */
FL_SAMPLE_FN double fl_sample_normaliser(float best, uint64_t sum) {
    return (double)best + log((double)sum * 0x1p-40);
}

#endif
