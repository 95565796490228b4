#include <inttypes.h>

#include "opcheck/opcheck.h"

fl_err fl_opcheck_print_json(const fl_opcheck_report *report, uint64_t seed, FILE *file) {
    fprintf(file, "{\"seed\": %" PRIu64 ", \"cases\": %d, \"passed\": %d, \"ops\": [", seed, report->cases,
            report->passed);
    for (int32_t i = 0; i < report->n_rows; i++) {
        const fl_opcheck_row *row = &report->rows[i];
        fprintf(
            file,
            "%s\n{\"op\": \"%s\", \"backend\": \"%s\", \"cases\": %d, \"passed\": %d, \"max_error\": %.6g, "
            "\"gbytes_per_s\": %.6g, \"flops_per_s\": %.6g}",
            i ? "," : "", row->op, row->backend, row->cases, row->passed, row->max_error, row->gbytes_per_s,
            row->flops_per_s);
    }
    fprintf(file, "]}\n");
    return ferror(file) ? FL_FAIL(FL_ERR_IO, "cannot write the report") : FL_ERR_OK;
}

void fl_opcheck_print_text(const fl_opcheck_report *report, FILE *file) {
    fprintf(file, "%-14s %-10s %12s %10s %9s %10s\n", "op", "backend", "passed", "max error", "GB/s",
            "GFLOP/s");
    for (int32_t i = 0; i < report->n_rows; i++) {
        const fl_opcheck_row *row = &report->rows[i];
        fprintf(file, "%-14s %-10s %5d of %-3d %10.3g", row->op, row->backend, row->passed, row->cases,
                row->max_error);
        if (row->gbytes_per_s > 0) fprintf(file, " %9.2f %10.2f", row->gbytes_per_s, row->flops_per_s * 1e-9);
        fprintf(file, "\n");
    }
    fprintf(file, "%d of %d cases passed; errors are in units of each op's tolerance\n", report->passed,
            report->cases);
}
