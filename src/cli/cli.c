#include "cli/cli.h"

#include <errno.h>
#include <string.h>

/* What to do about an error, where its text cannot know it. */
static const char *advice(fl_err err) {
    switch (err) {
    case FL_ERR_NOMEM:
        return "a smaller --ctx or --span needs less memory; `firstlight inspect MODEL --memory` shows the "
               "sums";
    case FL_ERR_DATA:
        return "`firstlight verify MODEL` checks a checkpoint; copying or downloading it again often helps";
    case FL_ERR_CONFIG: return "if the change is wanted, `firstlight verify MODEL --write` writes a new lock";
    case FL_ERR_DEVICE: return "--backend auto takes the fastest that this CPU has";
    case FL_ERR_LIMIT: return "fewer or shorter files, or a larger --ctx up to the model's own, make it fit";
    case FL_ERR_UNSUPPORTED: return "`firstlight version` shows what this build has";
    case FL_ERR_AGAIN: return "try again in a moment";
    case FL_ERR_INTERNAL:
    case FL_ERR_NUMERIC:
        return "this is a fault of firstlight or of the checkpoint: `firstlight opcheck` and `firstlight "
               "verify` "
               "tell them apart; please report it with the command line";
    default: return NULL;
    }
}

int fl_cli_fail(const char *verb, fl_err err) {
    const char *next = advice(err);
    fflush(stdout);
    fprintf(stderr, "firstlight: %s\n", fl_err_detail());
    if (err == FL_ERR_INVALID)
        fprintf(stderr, "`firstlight help%s%s` shows what there is\n", verb ? " " : "", verb ? verb : "");
    else if (next) fprintf(stderr, "%s\n", next);
    return fl_err_exit_code(err);
}

fl_err fl_cli_print_json(json_t *object) {
    if (!object) return FL_FAIL(FL_ERR_NOMEM, "the JSON result");
    int failed = json_dumpf(object, stdout, JSON_REAL_PRECISION(9));
    json_decref(object);
    if (failed || putchar('\n') == EOF)
        return FL_FAIL(FL_ERR_IO, "cannot write the result: %s", strerror(errno));
    return fl_cli_flush();
}

fl_err fl_cli_flush(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_IO, "cannot write to standard output: %s", strerror(errno));
}
