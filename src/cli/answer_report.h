/* Where the time of an answer went: a table with bars, and JSON. Both from the same marks. */
#ifndef FL_CLI_ANSWER_REPORT_H
#define FL_CLI_ANSWER_REPORT_H

#include "cli/cli.h"
#include "cli/cli_answer.h"

/* What came before submit, seconds since the start of the program. */
typedef struct fl_answer_times {
    double load_begin_s, load_end_s;
    double tokenise_begin_s, tokenise_end_s;
    double submit_s;
} fl_answer_times;

typedef struct fl_answer_report {
    const fl_answer *answer;
    const fl_answer_times *times;
    const fl_documents *documents;
    fl_engine_info info;
    fl_meters meters;
    fl_memory_use memory;
} fl_answer_report;

/* The table, for standard error. */
void fl_answer_print(FILE *file, const fl_answer_report *report);

/* The fields of run --json; `model` is the path as given. NULL: out of memory. */
json_t *fl_answer_json(const fl_answer_report *report, const char *model);

#endif
