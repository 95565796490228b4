/* The one clock: seconds since an arbitrary start, never going back. */
#ifndef FL_BASE_CLOCK_H
#define FL_BASE_CLOCK_H

#include <time.h>

static inline double fl_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
