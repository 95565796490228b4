/* What would make an impossible plan possible: the smallest change of each kind, found by planning again. Ranked:
 * what reaches the goal before what does not; among those what changes no answer (a prefix that is there already),
 * then what `firstlight eval` must judge (kept tokens, sparser policies, smaller formats), then more GPUs. */
#ifndef FL_PLAN_ADVICE_H
#define FL_PLAN_ADVICE_H

#include "plan/feasibility.h"

typedef enum fl_change {
    FL_CHANGE_CACHED, /* so many tokens of the prompt are in the prefix cache */
    FL_CHANGE_KEEP, /* a scorer keeps so many tokens, which attend one another alone; its own time is not in it */
    FL_CHANGE_SETTING, /* of the caller's list */
    FL_CHANGE_GPUS,
} fl_change;

/* Another setting to try: policy, KV format, weights. Pointers are borrowed. */
typedef struct fl_variant {
    const char *text;    /* "--policy blocks at a density of 2%" */
    const char *caution; /* what it costs beside time: "eval must say what it loses"; "" = nothing */
    const fl_plan_task *task;
    bool fp8_attention;
} fl_variant;

typedef struct fl_advice {
    fl_change change;
    const fl_variant *setting; /* of FL_CHANGE_SETTING, and what another change is made beside; NULL = none */
    int64_t tokens;            /* cached or kept */
    double share;              /* of the prompt */
    int32_t n_gpus;
    bool fits, enough;
    double ttft_s;
} fl_advice;

enum { FL_ADVICE_MAX = 24, FL_VARIANTS_MAX = 8 };

typedef struct fl_advice_list {
    fl_advice of[FL_ADVICE_MAX]; /* [n], ranked */
    int32_t n;
} fl_advice_list;

typedef struct fl_goal {
    const fl_plan_task *task;
    const fl_box *box;
    double ttft_s;              /* 0 = it has to fit, no more */
    const fl_variant *variants; /* [n_variants] */
    int32_t n_variants;
} fl_goal;

fl_err fl_advice_find(const fl_goal *goal, fl_advice_list *out);

/* What could be computed in the time if nothing but products of layers and attention took any, all GPUs at their
 * peaks: no layout, kernel or engine does more. Whole tiles; 0 = not one. */
typedef struct fl_ceiling {
    double linear_share;     /* of the prompt's tokens, if the linear layers were all; may be above 1 */
    int64_t computed_tokens; /* at the prompt's end, if all before them is cached */
    int64_t kept_tokens;     /* if they attend one another alone */
} fl_ceiling;

fl_err fl_ceiling_of(const fl_plan_task *task, const fl_box *box, double ttft_s, fl_ceiling *out);

#endif
