/* The evaluation's random numbers: xoshiro256** seeded by splitmix64. Integers only, so that the same seed gives the
 * same documents on every machine. */
#ifndef FL_EVAL_EVAL_RANDOM_H
#define FL_EVAL_EVAL_RANDOM_H

#include <stdint.h>

typedef struct fl_eval_random {
    uint64_t state[4];
} fl_eval_random;

/* A bijection of 64-bit numbers whose every output bit depends on every input bit (splitmix64's). */
static inline uint64_t fl_eval_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline void fl_eval_random_init(fl_eval_random *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        r->state[i] = fl_eval_mix(seed);
        seed += 0x9e3779b97f4a7c15u;
    }
}

static inline uint64_t fl_eval_random_next(fl_eval_random *r) {
    uint64_t *s = r->state;
    uint64_t product = s[1] * 5;
    uint64_t result = (product << 7 | product >> 57) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

/* 0..n-1, each as likely. n >= 1. */
static inline int64_t fl_eval_random_below(fl_eval_random *r, int64_t n) {
    uint64_t limit = (uint64_t)n, rest = (0 - limit) % limit; /* 2^64 mod n values too many at the bottom */
    uint64_t x;
    do x = fl_eval_random_next(r);
    while (x < rest);
    return (int64_t)(x % limit);
}

/* first..last, both included. */
static inline int64_t fl_eval_random_range(fl_eval_random *r, int64_t first, int64_t last) {
    return first + fl_eval_random_below(r, last - first + 1);
}

/* 0 <= x < 1, a multiple of 2^-53. */
static inline double fl_eval_random_unit(fl_eval_random *r) {
    return (double)(fl_eval_random_next(r) >> 11) * 0x1p-53;
}

/* A random order of 0..n-1. */
static inline void fl_eval_random_order(fl_eval_random *r, int32_t *order, int32_t n) {
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)fl_eval_random_below(r, i + 1), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

/* A step that visits each of 0..n-1 once before it comes round: a random number without a common divisor with n.
 * n >= 1. */
static inline int64_t fl_eval_random_stride(fl_eval_random *r, int64_t n) {
    for (;;) {
        int64_t stride = n > 6 ? fl_eval_random_range(r, n / 3, n - 1) : 1, a = stride, b = n;
        while (b != 0) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return stride;
    }
}

#endif
