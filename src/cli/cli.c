#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What to do about an error, where its text cannot know it. */
static const char *advice(const char *verb, fl_err err) {
    switch (err) {
    case FL_ERR_NOMEM:
        if (verb && strcmp(verb, "serve") == 0)
            return "a smaller --max-model-len, --kv-tokens or --span needs less memory; `firstlight inspect "
                   "MODEL --memory` shows the sums";
        if (verb && strncmp(verb, "bench ", 6) == 0)
            return "fewer --tokens, a smaller --span, or of a --synthetic shape fewer layers (SHAPE:N) need "
                   "less memory";
        return "a smaller --ctx or --span needs less memory; `firstlight inspect MODEL --memory` shows the "
               "sums";
    case FL_ERR_DATA:
        return "if the file is one of a checkpoint: `firstlight verify MODEL` checks them all; copying or "
               "downloading it again often helps";
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
    const char *next = advice(verb, err);
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

/* Creates nothing: a file that is there must take bytes, else its folder must take a file. */
static fl_err check_output(const char *option, const char *path) {
    struct stat status;
    int code = 0;
    if (stat(path, &status) == 0) {
        code = S_ISDIR(status.st_mode) ? EISDIR : access(path, W_OK) != 0 ? errno : 0;
    } else if (errno != ENOENT) {
        code = errno;
    } else {
        const char *slash = strrchr(path, '/');
        char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
        if (!folder) return FL_FAIL(FL_ERR_NOMEM, "path of --%s", option);
        code = access(folder, W_OK | X_OK) != 0 ? errno : 0;
        free(folder);
    }
    return code == 0 ? FL_ERR_OK
                     : FL_FAIL(FL_ERR_IO, "--%s %s: cannot write: %s", option, path, strerror(code));
}

fl_err fl_cli_check_outputs(const fl_options *o) {
    const char *const written[][2] = {
        {"trace", o->trace}, {"svg", o->svg}, {"csv", o->csv}, {"heat-map", o->heat_map}, {"html", o->html}};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (written[i][1]) FL_TRY(check_output(written[i][0], written[i][1]));
    if (o->rates && access(o->rates, F_OK) != 0) FL_TRY(check_output("rates", o->rates));
    return FL_ERR_OK;
}
