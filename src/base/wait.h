/* Waiting for a time of fl_now_s. */
#ifndef FL_BASE_WAIT_H
#define FL_BASE_WAIT_H

#include <math.h>
#include <pthread.h>
#include <time.h>

/* at_s, 0 or more, of fl_now_s as pthread_cond_timedwait takes it. */
static inline struct timespec fl_timespec_at(double at_s) {
    return (struct timespec){.tv_sec = (time_t)at_s, .tv_nsec = (long)((at_s - floor(at_s)) * 1e9)};
}

/* A condition whose timed waits are on that clock. */
static inline void fl_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

#endif
