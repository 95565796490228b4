/* opcheck: every op of every backend this CPU can run, checked against the reference definition and timed,
 * from the same seeded cases. A check (src/op/x/x_check.c) is one function fl_x_check; how to write one is in
 * opcheck_case.h. */
#ifndef FL_OPCHECK_OPCHECK_H
#define FL_OPCHECK_OPCHECK_H

#include <stdio.h>

#include "backend/backend.h"

typedef struct fl_opcheck_options {
    const char *only;    /* one op by name; NULL = all */
    const char *backend; /* one backend by name; NULL = all this CPU can run */
    uint64_t seed;       /* of all cases; a case uses seed ^ hash of its name */
    bool quick;          /* leave out the slow cases; all of them together then take seconds */
    bool bench;          /* run and time only the cases marked for it */
    int32_t repeat;      /* on a device: run every op so many times more, disturbed, and compare all bits */
    FILE *log;           /* failures, with bench one line a case; NULL = silent. Borrowed for the call */
} fl_opcheck_options;

/* What one op did on one backend. */
typedef struct fl_opcheck_row {
    const char *op, *backend; /* static */
    int32_t cases, passed;
    double max_error;    /* largest error over the tolerance of its output: passes up to 1 */
    double gbytes_per_s; /* --bench: of all timed cases together, by the op's cost function; else 0 */
    double flops_per_s;
} fl_opcheck_row;

enum { FL_OPCHECK_ROWS_MAX = 128 };

typedef struct fl_opcheck_report {
    int32_t n_rows;
    int32_t cases, passed; /* sums */
    fl_opcheck_row rows[FL_OPCHECK_ROWS_MAX];
} fl_opcheck_report;

/* Runs the checks. FL_ERR_OK although cases failed: compare out->passed with out->cases. FL_ERR_INVALID: unknown op
 * or backend. FL_ERR_DEVICE: this CPU cannot run the backend asked for. */
fl_err fl_opcheck_run(const fl_opcheck_options *options, fl_opcheck_report *out);

/* {"seed", "cases", "passed", "ops": [{op, backend, cases, passed, max_error, gbytes_per_s, flops_per_s}]} */
fl_err fl_opcheck_print_json(const fl_opcheck_report *report, uint64_t seed, FILE *file);
void fl_opcheck_print_text(const fl_opcheck_report *report, FILE *file);

#endif
