/* Seconds of steps and prompts before they run: the dry run's calls at a machine's rates, one call at a time. */
#ifndef FL_PLAN_PREDICT_H
#define FL_PLAN_PREDICT_H

#include "plan/dry_run.h"
#include "plan/rates.h"

typedef struct fl_prediction {
    double time_s;             /* in all */
    double rate_s[FL_N_RATES]; /* by kind of call */
    double calls[FL_N_RATES];  /* how many */
    int64_t scratch_bytes;     /* of the largest step */
    int32_t steps;
    fl_count ops;
} fl_prediction;

/* One step. */
fl_err fl_predict_step(fl_dry_run *dry, const fl_rates *rates, const fl_dry_rows *rows, fl_prediction *out);

/* A prompt, in the steps that the engine cuts it into, with the logits of its last row. In each step `decode_rows`
 * requests make a token at decode_pos beside it (0 = it runs alone). */
typedef struct fl_predict_load {
    int32_t decode_rows, decode_pos;
} fl_predict_load;

fl_err fl_predict_prompt(fl_dry_run *dry, const fl_rates *rates, const fl_dry_prompt *prompt,
                         const fl_predict_load *load, fl_prediction *out);

#endif
