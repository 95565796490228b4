/* firstlight VERB ...: finds the verb, reads its options, runs it. */
#include <string.h>

#include "cli/cli.h"
#include "server/worker_child.h"
#include "server/worker_link.h"
#include "server/worker_main.h"

static bool wants_overview(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

/* The exit code when all that is left is that standard output takes it. */
static int written(void) {
    fl_err err = fl_cli_flush();
    return err == FL_ERR_OK ? 0 : fl_cli_fail(NULL, err);
}

int main(int argc, char **argv) {
    static char version[] = "version";
    const fl_verb *verb = NULL;
    int n_words = 0;
    if (argc == 2 && strcmp(argv[1], FL_WORKER_ARGUMENT) == 0) return fl_worker_process(FL_WORKER_FD);
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) argv[1] = version;
    if (argc >= 2 && wants_overview(argv[1])) {
        fl_help_overview(stdout);
        return written();
    }
    if (argc == 3 && wants_overview(argv[2]) && fl_help_group(stdout, argv[1])) return written();
    fl_err err = fl_verb_find(argc, argv, &verb, &n_words);
    if (err != FL_ERR_OK) return fl_cli_fail(NULL, err);
    fl_options options;
    err = fl_options_parse(verb, argc - 1 - n_words, argv + 1 + n_words, &options);
    if (err != FL_ERR_OK) return fl_cli_fail(verb->name, err);
    int code = 0;
    if (options.help) fl_help_verb(stdout, verb);
    else if ((err = fl_cli_check_outputs(&options)) != FL_ERR_OK) code = fl_cli_fail(verb->name, err);
    else code = verb->run(&options);
    fl_options_close(&options);
    if (code == 0 && (err = fl_cli_flush()) != FL_ERR_OK) code = fl_cli_fail(verb->name, err);
    return code;
}
