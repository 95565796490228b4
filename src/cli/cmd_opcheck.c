/* opcheck: every op of every backend against its definition. */
#include "cli/cli.h"
#include "opcheck/opcheck.h"

int fl_cmd_opcheck(const fl_options *o) {
    const fl_opcheck_options options = {.only = o->only,
                                        .backend = o->check_backend,
                                        .seed = (uint64_t)o->seed,
                                        .quick = o->quick,
                                        .bench = o->bench,
                                        .repeat = (int32_t)o->repeat,
                                        .log = stderr};
    fl_opcheck_report report;
    fl_err err = fl_opcheck_run(&options, &report);
    if (err == FL_ERR_OK && o->json) err = fl_opcheck_print_json(&report, options.seed, stdout);
    else if (err == FL_ERR_OK) fl_opcheck_print_text(&report, stdout);
    if (err != FL_ERR_OK) return fl_cli_fail("opcheck", err);
    return report.passed == report.cases && report.cases > 0 ? 0 : FL_EXIT_FAILED;
}
