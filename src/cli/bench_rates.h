/* This machine's rates for a model, from a file or measured now: `plan --measure`, `bench prefill --predict`, `bench
 * ladder`. */
#ifndef FL_CLI_BENCH_RATES_H
#define FL_CLI_BENCH_RATES_H

#include "cli/cli.h"
#include "plan/rates.h"

/* Measures in engines of their own, one after another, which between them have every kind of call: all policies' and
 * all KV formats'. Takes the model, backend and threads of the options (MODEL or --synthetic). Seconds on a CPU. */
fl_err fl_bench_rates_measure(const fl_options *options, fl_rates *out);

/* --rates FILE if there is such a file, else measured and, with --rates, written there. */
fl_err fl_bench_rates(const fl_options *options, fl_rates *out);

/* A table of what was measured, by kind. */
void fl_bench_rates_print(const fl_rates *rates);

#endif
