/* Orders for qsort. */
#ifndef FL_BASE_ORDER_H
#define FL_BASE_ORDER_H

/* Of doubles that are numbers, the smallest first. */
static inline int fl_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
