/* From predicted FLOPs to predicted seconds, learned from the steps that ran; and rows of a step from seconds. */
#ifndef FL_SCHED_STEP_RATE_H
#define FL_SCHED_STEP_RATE_H

#include "sched/sched.h"

enum { FL_STEP_RATE_CLASSES = 64 };

/* Seconds per FLOP by size of the step, a class for each factor of 2: small steps run at a lower rate, since each reads
 * all weights. Exponentially averaged. All zero = nothing learned. */
typedef struct fl_step_rate {
    double s_per_flop
        [FL_STEP_RATE_CLASSES]; /* 0 = no step of the class yet: the nearest class that has one counts */
} fl_step_rate;

void fl_step_rate_learn(fl_step_rate *rate, double flops, double seconds);

/* Of a step, or of many whose sum is larger than any one that was seen. 0 while nothing was learned. */
double fl_step_rate_seconds(const fl_step_rate *rate, double flops);

/* A step's cost as a function of its rows: fixed + rows x each. */
typedef struct fl_step_cost {
    double fixed_flops, row_flops;
    int32_t tile_rows, rows_max; /* whole tiles, rows_max included if it is no multiple */
} fl_step_cost;

/* Most rows that stay within limit_s (0 = no limit), one tile at least, and no fewer than keep the fixed part below
 * overhead_max of the step. */
int32_t fl_step_rate_rows(const fl_step_rate *rate, const fl_step_cost *cost, double limit_s,
                          double overhead_max);

#endif
