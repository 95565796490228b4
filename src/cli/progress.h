/* A progress line on standard error, redrawn in place at most ten times a second. */
#ifndef FL_CLI_PROGRESS_H
#define FL_CLI_PROGRESS_H

#include "cli/options.h"

/* From this fraction on rates and times left are worth showing. */
#define FL_PROGRESS_TELLING 0.05

typedef struct fl_progress {
    bool shown; /* standard error is a terminal or --progress was given, and not --quiet */
    bool drawn; /* there is a line to clear */
    double start_s, last_s;
    const char *label; /* static */
} fl_progress;

void fl_progress_init(fl_progress *progress, const fl_options *options);

/* Starts a phase: its name and its clock. */
void fl_progress_begin(fl_progress *progress, const char *label);

/* Shows the bar at `fraction` (0..1) with `note` behind it and the time left as far as it can be told. */
void fl_progress_show(fl_progress *progress, double fraction, const char *note);

/* Takes the line away. */
void fl_progress_clear(fl_progress *progress);

/* Width of standard error; 100 if it is no terminal. */
int fl_terminal_columns(void);

/* For fl_progress_fn: `context` is the fl_progress. */
void fl_progress_bytes(void *context, int64_t done_bytes, int64_t total_bytes);

#endif
