/* Overflow-safe arithmetic for every number that came from outside (files, requests). Each returns false on
 * overflow and then leaves *out unspecified. */
#ifndef FL_BASE_CHECKED_H
#define FL_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool fl_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

static inline bool fl_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool fl_add_i64(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

static inline bool fl_mul_i64(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

#endif
