/* What the benchmarks share: an engine whose ops are timed, this CPU's roofs, prompts, tables of ops. */
#ifndef FL_CLI_BENCH_H
#define FL_CLI_BENCH_H

#include "backend/roof.h"
#include "backend/timed.h"
#include "cli/cli.h"
#include "cli/cli_answer.h"
#include "engine/engine.h"
#include "plan/predict.h"

typedef struct fl_bench {
    const fl_options *options;
    fl_progress progress;
    fl_engine *engine;
    fl_engine_info info;
    fl_meters meters; /* of the runs that count */
    fl_timed *timed;  /* the engine's */
    fl_roof roof;
    int32_t *
        text_ids; /* [n_text_ids] the bundled running text, so that routing and blocks are as real text has them */
    int64_t n_text_ids; /* 0: a synthetic model, whose prompts are random ids */
    uint64_t random;
    int64_t base_bytes;    /* anonymous memory of the process before the engine */
    const fl_rates *rates; /* the caller's, for predictions; NULL = none are wanted */
} fl_bench;

/* An engine and its text; nothing is timed. Half-built on failure; the caller closes it in any case. */
fl_err fl_bench_open_plain(const fl_options *options, int64_t ctx_tokens, fl_bench *out);

/* The machine's roofs as well, and ops are timed from here on. Alike. */
fl_err fl_bench_open(const fl_options *options, int64_t ctx_tokens, fl_bench *out);
void fl_bench_close(fl_bench *bench);

/* [n] ids of the text from a drawn place on, or random ones, others at each call; the caller frees *out. */
fl_err fl_bench_prompt(fl_bench *bench, int64_t n, int32_t **out);

/* One request in a session of its own. */
typedef struct fl_bench_question {
    const int32_t *tokens; /* [n_tokens] */
    int64_t n_tokens, document_tokens;
    int64_t answer_tokens; /* 0 counts as 1 */
} fl_bench_question;

typedef struct fl_bench_answer {
    double ttft_s, token_s; /* token_s: of the tokens behind the first; 0 with fewer than two */
    int64_t cached_tokens;
} fl_bench_answer;

/* FL_ERR_CANCELLED: stopped by Ctrl-C. */
fl_err fl_bench_ask(fl_bench *bench, const fl_bench_question *question, fl_bench_answer *out);

/* The time to the first token of a cold prompt of n tokens: a session of its own, tokens nobody has seen. All of it is
 * document but what is left over of the last tile. FL_ERR_CANCELLED: stopped by Ctrl-C. */
fl_err fl_bench_first_token(fl_bench *bench, int64_t n, double *ttft_s);

/* The steps of that prompt, for the dry run. */
fl_dry_prompt fl_bench_dry_prompt(const fl_bench *bench, int64_t n);

/* What the plan says the engine takes, and what it took so far: on a CPU by the growth of the process, on a device by
 * the high-water mark of the step's scratch beside what is fixed. */
typedef struct fl_bench_memory {
    int64_t plan_bytes, used_bytes;
} fl_bench_memory;
fl_bench_memory fl_bench_memory_now(const fl_bench *bench);

/* "2k,8k": the prompt lengths of --tokens. */
enum { FL_BENCH_LENGTHS_MAX = 32 };
typedef struct fl_bench_lengths {
    int64_t tokens[FL_BENCH_LENGTHS_MAX], longest;
    int32_t n;
} fl_bench_lengths;
fl_err fl_bench_lengths_parse(const char *text, fl_bench_lengths *out);

/* MODEL or --synthetic, not both: FL_ERR_INVALID names the verb. --density needs one of the policies to be blocks. */
fl_err fl_bench_check_options(const fl_options *options, const char *verb);

/* Sorts `values` [n]. */
double fl_bench_median(double *values, int32_t n);

/* One op of a benchmark: how long it took and what it had to do. */
typedef struct fl_bench_op {
    const char *name;
    double time_s, flops, bytes;
    const char *arithmetic; /* what its products are made of; static */
} fl_bench_op;

enum { FL_BENCH_OPS_MAX = 32 };

/* Of the layers' matrix products: "w8a8" with weights and activations in e4m3, else the activations' format; static. */
const char *fl_bench_arithmetic(const fl_bench *bench);

/* The ops that did something, longest first; times divided by `runs`. Returns how many. */
int32_t fl_bench_ops(const fl_bench *bench, const fl_count *count, double runs, fl_bench_op *out);
void fl_bench_print_ops(const fl_bench *bench, const fl_bench_op *ops, int32_t n, double all_s);
json_t *fl_bench_ops_json(const fl_bench_op *ops, int32_t n);

#endif
