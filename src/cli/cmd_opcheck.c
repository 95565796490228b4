#include "cli/cmd_opcheck.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "opcheck/opcheck.h"

static const char usage[] =
    "usage: firstlight opcheck [--quick] [--bench] [--only OP] [--backend NAME] [--seed N] [--json]\n";

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_DEVICE = 69 };

static bool parse_seed(const char *text, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && *end == 0 && errno == 0;
}

/* 0, or the exit code of a wrong command line. */
static int parse_options(int argc, char **argv, fl_opcheck_options *options, bool *json) {
    enum { QUICK = 1, BENCH, ONLY, BACKEND, SEED, JSON };
    static const struct option longs[] = {{"quick", no_argument, NULL, QUICK},
                                          {"bench", no_argument, NULL, BENCH},
                                          {"only", required_argument, NULL, ONLY},
                                          {"backend", required_argument, NULL, BACKEND},
                                          {"seed", required_argument, NULL, SEED},
                                          {"json", no_argument, NULL, JSON},
                                          {NULL, 0, NULL, 0}};
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (option) {
        case QUICK: options->quick = true; break;
        case BENCH: options->bench = true; break;
        case ONLY: options->only = optarg; break;
        case BACKEND: options->backend = optarg; break;
        case JSON: *json = true; break;
        case SEED:
            if (parse_seed(optarg, &options->seed)) break;
            fprintf(stderr, "firstlight: --seed %s is not a number\n", optarg);
            return EXIT_USAGE;
        default: fputs(usage, stderr); return EXIT_USAGE;
        }
    }
    if (optind == argc) return 0;
    fputs(usage, stderr);
    return EXIT_USAGE;
}

int fl_cmd_opcheck(int argc, char **argv) {
    fl_opcheck_options options = {.log = stderr};
    fl_opcheck_report report;
    bool json = false;
    int usage_error = parse_options(argc, argv, &options, &json);
    if (usage_error) return usage_error;
    fl_err err = fl_opcheck_run(&options, &report);
    if (err == FL_ERR_OK && json) err = fl_opcheck_print_json(&report, options.seed, stdout);
    else if (err == FL_ERR_OK) fl_opcheck_print_text(&report, stdout);
    if (err != FL_ERR_OK) {
        fprintf(stderr, "firstlight: %s\n", fl_err_detail());
        return err == FL_ERR_DEVICE ? EXIT_NO_DEVICE : err == FL_ERR_INVALID ? EXIT_USAGE : EXIT_FAILED;
    }
    return report.passed == report.cases && report.cases > 0 ? 0 : EXIT_FAILED;
}
