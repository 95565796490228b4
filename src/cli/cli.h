/* What the verbs share. Each verb is one file cmd_VERB.c with one function; its options are parsed already. */
#ifndef FL_CLI_CLI_H
#define FL_CLI_CLI_H

#include "cli/options.h"

#include <jansson.h>
#include <stdio.h>

enum { FL_EXIT_FAILED = 1, FL_EXIT_USAGE = 2, FL_EXIT_CONFIG = 78, FL_EXIT_INTERRUPTED = 130 };

int fl_cmd_run(const fl_options *options);
int fl_cmd_chat(const fl_options *options);
int fl_cmd_serve(const fl_options *options);
int fl_cmd_inspect(const fl_options *options);
int fl_cmd_verify(const fl_options *options);
int fl_cmd_tokenize(const fl_options *options);
int fl_cmd_opcheck(const fl_options *options);
int fl_cmd_bench_prefill(const fl_options *options);
int fl_cmd_bench_decode(const fl_options *options);
int fl_cmd_bench_graph(const fl_options *options);
int fl_cmd_bench_ladder(const fl_options *options);
int fl_cmd_bench_frontier(const fl_options *options);
int fl_cmd_bench_kernels(const fl_options *options);
int fl_cmd_bench_serve(const fl_options *options);
int fl_cmd_eval(const fl_options *options);
int fl_cmd_calibrate(const fl_options *options);
int fl_cmd_plan(const fl_options *options);
int fl_cmd_version(const fl_options *options);
int fl_cmd_help(const fl_options *options);

/* What `eval --json` would print, for a verb that evaluates; the caller has the reference. */
fl_err fl_eval_to_json(const fl_options *options, json_t **out);

/* Says on standard error what failed and what to do next, from fl_err_detail(); returns the exit code. `verb` may be
 * NULL. */
int fl_cli_fail(const char *verb, fl_err err);

/* One JSON object and a newline on standard output; takes the reference. */
fl_err fl_cli_print_json(json_t *object);

/* What was written to standard output has arrived. */
fl_err fl_cli_flush(void);

/* FL_ERR_IO: a file that the verb would write at its end cannot be written, known before hours of work. */
fl_err fl_cli_check_outputs(const fl_options *options);

/* Help texts, on `file`. */
void fl_help_overview(FILE *file);
void fl_help_verb(FILE *file, const fl_verb *verb);
/* All verbs of a first word, as of "bench"; false: it is none's. */
bool fl_help_group(FILE *file, const char *first);
void fl_help_man(FILE *file);
void fl_help_completion(FILE *file, const char *shell);

/* "--max-tokens N", "-f, --file PATH": how an option is written. */
void fl_help_spelling(const fl_option *option, char *text, size_t n_bytes);

#endif
