/* `plan --measure`: the sums for this machine as it is, from its own rates in place of a data sheet's. */
#ifndef FL_CLI_PLAN_MEASURED_H
#define FL_CLI_PLAN_MEASURED_H

#include "cli/cli.h"

/* Measures, writes --rates FILE if asked to, and shows what the model's first token takes here. goal_s: 0 = none. */
fl_err fl_plan_measured(const fl_options *options, double goal_s);

#endif
