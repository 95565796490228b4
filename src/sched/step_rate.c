#include "sched/step_rate.h"

#include <math.h>

static const double newest = 0.2; /* weight of the newest step in the average */

static int32_t class_of(double flops) {
    int32_t c = flops >= 1 ? ilogb(flops) : 0;
    return c < FL_STEP_RATE_CLASSES ? c : FL_STEP_RATE_CLASSES - 1;
}

void fl_step_rate_learn(fl_step_rate *rate, double flops, double seconds) {
    if (!(flops > 0) || !(seconds > 0) || !isfinite(flops) || !isfinite(seconds)) return;
    double *known = &rate->s_per_flop[class_of(flops)], seen = seconds / flops;
    *known = *known > 0 ? *known + (seen - *known) * newest : seen;
}

double fl_step_rate_seconds(const fl_step_rate *rate, double flops) {
    if (!(flops > 0)) return 0;
    int32_t c = class_of(flops);
    for (int32_t d = 0; d < FL_STEP_RATE_CLASSES; d++) {
        if (c - d >= 0 && rate->s_per_flop[c - d] > 0) return flops * rate->s_per_flop[c - d];
        if (c + d < FL_STEP_RATE_CLASSES && rate->s_per_flop[c + d] > 0)
            return flops * rate->s_per_flop[c + d];
    }
    return 0;
}

int32_t fl_step_rate_rows(const fl_step_rate *rate, const fl_step_cost *cost, double limit_s,
                          double overhead_max) {
    if (!(limit_s > 0) || !(cost->row_flops > 0)) return cost->rows_max;
    double least = overhead_max > 0 ? cost->fixed_flops * (1 / overhead_max - 1) / cost->row_flops : 0;
    int32_t tile = cost->tile_rows, n_tiles = cost->rows_max / tile + (cost->rows_max % tile > 0);
    int32_t low = least < cost->rows_max ? (int32_t)ceil(least / tile) : n_tiles;
    if (low < 1) low = 1;
    int32_t high = n_tiles + 1; /* too many, or more than there are */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        double flops = cost->fixed_flops + cost->row_flops * middle * tile;
        if (fl_step_rate_seconds(rate, flops) <= limit_s) low = middle;
        else high = middle;
    }
    return low < n_tiles ? low * tile : cost->rows_max;
}
