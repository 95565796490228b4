/* Orders for qsort, and medians. */
#ifndef FL_BASE_ORDER_H
#define FL_BASE_ORDER_H

#include <stdint.h>
#include <stdlib.h>

/* Of doubles that are numbers, the smallest first. */
static inline int fl_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle one of n > 0 numbers, of two the larger: one that was measured. Puts them in order. */
static inline double fl_upper_median(double *values, int32_t n) {
    qsort(values, (size_t)n, sizeof *values, fl_compare_doubles);
    return values[n / 2];
}

#endif
