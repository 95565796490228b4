/* The stage ladder: from full attention with KV in bf16 to everything on, one change at a time, each row measured idle
 * and beside decode streams. `bench ladder` runs it; here is what its files share. */
#ifndef FL_CLI_LADDER_H
#define FL_CLI_LADDER_H

#include "cli/bench_streams.h"

enum { FL_LADDER_STAGES_MAX = 16, FL_LADDER_NAME_BYTES = 192 };

/* How a row is run. Texts are borrowed from the options or static. */
typedef struct fl_ladder_stage {
    char name[FL_LADDER_NAME_BYTES]; /* what changed; of the first what it starts from */
    const char *policy, *kv, *rope;
    double rope_factor;
    const char *backend, *synthetic; /* synthetic: NULL = a checkpoint */
    bool eager;                      /* decode steps issued op by op */
    double decode_stall_s;           /* bound of a step beside decode streams */
    bool reuse; /* the row is a second question about the same document, whose pages are there */
} fl_ladder_stage;

/* What decides which stages there are. */
typedef struct fl_ladder_about {
    const fl_options *options;
    int64_t positions; /* that the model can be trusted with; 0 = any */
    bool device;
    bool fp8_weights; /* the backend's w8a8 form and the shape's fp8 form are there */
} fl_ladder_about;

/* Stages of this machine and model, in order; what it cannot run is absent. Returns how many. FL_ERR_INVALID: a policy
 * of the options. */
fl_err fl_ladder_stages(const fl_ladder_about *about, fl_ladder_stage *out, int32_t *n);

/* Loss of a stage against full attention, points of 100. */
typedef struct fl_ladder_loss {
    bool known;
    double points, low, high; /* low, high: 95% interval */
    int32_t questions;
} fl_ladder_loss;

typedef struct fl_ladder_row {
    fl_ladder_stage stage;
    char policy[256], kv[16];
    double density;     /* of block lists; 1 = none */
    double ttft_s;      /* idle, median */
    double corrected_s; /* with the peer's time for ops in which it is faster; 0 = not corrected */
    double predicted_s; /* idle, by the cost model */
    int64_t cached_tokens;
    fl_loaded loaded;
    fl_ladder_loss loss;
    fl_bench_memory memory;
} fl_ladder_row;

typedef struct fl_ladder {
    const fl_options *options;
    int64_t ctx_tokens, prompt_tokens;
    fl_streams streams;
    char machine[128]; /* backend and threads */
    char peer[160];    /* who row 1 was corrected by; "" = nobody */
    char rates[160];   /* what predictions were made from */
    char loss_source[256];
    fl_ladder_row rows[FL_LADDER_STAGES_MAX];
    int32_t n_rows, n_measured;
} fl_ladder;

/* The time a row counts with in `step` and `total`. */
static inline double fl_ladder_time(const fl_ladder_row *r) {
    return r->corrected_s > 0 ? r->corrected_s : r->ttft_s;
}

/* The last row that is the same work as the first: reuse computes less of the prompt. */
int32_t fl_ladder_last(const fl_ladder *l);

/* ---- loss (ladder_loss.c) ---- */

/* Every row's loss, before any is measured, from --loss FILE or by an evaluation of its own. FL_ERR_DATA: the file
 * has none for a row at this length; detail says with which variant to make it. */
fl_err fl_ladder_find_losses(fl_ladder *ladder);

/* Row 1's time with the peer's kernels, from --peer FILE. */
fl_err fl_ladder_correct(fl_ladder *ladder, const fl_bench_op *ops, int32_t n_ops);

/* ---- the report (ladder_report.c) ---- */

void fl_ladder_print_head(const fl_ladder *ladder);
void fl_ladder_print(const fl_ladder *ladder);
json_t *fl_ladder_json(const fl_ladder *ladder);
fl_err fl_ladder_write_svg(const fl_ladder *ladder, const char *path);

#endif
