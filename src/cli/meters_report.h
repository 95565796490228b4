/* The three meters behind a run: memory, where the time of steps went, communication. */
#ifndef FL_CLI_METERS_REPORT_H
#define FL_CLI_METERS_REPORT_H

#include <firstlight/firstlight.h>

#include "cli/cli.h"

/* Two lines, and a warning if too much of the time is communication. Nothing before the first step. */
void fl_meters_print(FILE *file, const fl_meters *meters);

/* Bytes, seconds in steps, shares of them. NULL: out of memory. */
json_t *fl_meters_json(const fl_meters *meters);

/* Ends the trace of --trace FILE and writes it; nothing without the option. Says on standard error what did not fit. */
fl_err fl_cli_write_trace(const fl_options *options, fl_engine *engine);

#endif
