/* Times the ops of an engine's own model and policy, through its own forward pass: what rates are fitted to. */
#ifndef FL_ENGINE_RATES_MEASURE_H
#define FL_ENGINE_RATES_MEASURE_H

#include "engine/engine.h"
#include "plan/rates.h"

typedef struct fl_rates_measuring {
    const int32_t *ids; /* [depth] of a text, so that routing and block lists are as texts have them */
    int32_t depth;      /* positions that steps reach, >= 512 and within the engine's context */
    int32_t runs;       /* of every step; the median counts */
} fl_rates_measuring;

/* Steps of many and of few document rows at the start, the middle and the end of `depth` positions, tail rows and
 * decode rows behind them; adds a sample for each step and kind of call. While no request runs and nobody holds a
 * page; the engine is as before afterwards, but that meters and counts of lists begin anew. On a device short
 * steps are timed as recordings too, and what the marks around ops take is taken off. */
fl_err fl_rates_measure(fl_engine *engine, const fl_rates_measuring *m, fl_rate_samples *samples);

/* The step of a prompt of n_tokens document rows, whole tiles, as the engine runs it: the median of a few, seconds. As
 * above, but meters go on. */
fl_err fl_rates_measure_prompt(fl_engine *engine, const int32_t *ids, int32_t n_tokens, double *time_s);

#endif
