/* What run, chat and bench share: an engine opened with the options and a progress bar, and a request followed to its
 * end, which Ctrl-C cancels. */
#ifndef FL_CLI_CLI_ANSWER_H
#define FL_CLI_CLI_ANSWER_H

#include "cli/documents.h"
#include "cli/progress.h"

/* What every verb with an engine takes from the command line: model, backend, threads, span; the rest by default. */
void fl_ask_engine(const fl_options *options, fl_settings *out);

/* All settings by the options. FL_ERR_INVALID: the policy is for `eval` only. */
fl_err fl_ask_settings(const fl_options *options, int64_t ctx_tokens, fl_settings *out);

/* Opens the engine for the options. `ctx_tokens` is used where --ctx is 0. */
fl_err fl_ask_open(const fl_options *options, int64_t ctx_tokens, fl_progress *progress, fl_engine **out);

/* A request's parameters by the options, but for its tokens. `stops` are borrowed from the options. */
void fl_ask_params(const fl_options *options, fl_request_params *out);

/* For fl_engine_info.graph_warning. */
#define FL_GRAPH_WARNING "warning: no more CUDA graphs are made, steps are issued op by op: %s\n"

enum { FL_ANSWER_MARKS_MAX = 1024 };

/* What a request gave. */
typedef struct fl_answer {
    char *text; /* [n_bytes], NUL behind; owned */
    size_t n_bytes;
    fl_finish finish;
    int64_t prompt_tokens, cached_tokens, answer_tokens;
    double ttft_s, total_s;             /* since submit */
    double decode_tokens_per_s;         /* of the tokens behind the first; 0 with fewer than two */
    fl_mark marks[FL_ANSWER_MARKS_MAX]; /* [n_marks] */
    int32_t n_marks;
} fl_answer;

typedef struct fl_ask {
    fl_session *session;
    const fl_request_params *params;
    fl_progress *progress;
    bool stream; /* write the text to standard output as it comes */
} fl_ask;

/* Submits and follows the request. On FL_ERR_OK, also when Ctrl-C ended it (finish FL_FINISH_CANCELLED), the caller
 * closes *out. While it runs the first Ctrl-C cancels, a second one kills the process. */
fl_err fl_ask_run(const fl_ask *ask, fl_answer *out);
void fl_answer_close(fl_answer *answer);

/* Memory of this process, from /proc/self/status; 0 where it cannot be read. */
typedef struct fl_memory_use {
    int64_t peak_bytes;      /* highest resident size so far */
    int64_t anonymous_bytes; /* resident now, without mapped files */
} fl_memory_use;
fl_memory_use fl_memory_now(void);

#endif
