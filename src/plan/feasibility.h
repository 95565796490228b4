/* Whether a prompt fits and how soon its first token can come, by the roofs of a data sheet: each op takes as long
 * as its FLOPs or its bytes do, whichever is longer, ops and messages follow one another. So times are floors,
 * projections and no measurements: no kernel reaches a sheet's peak, and `efficiency` is there to say how much of
 * it yours do. */
#ifndef FL_PLAN_FEASIBILITY_H
#define FL_PLAN_FEASIBILITY_H

#include "plan/hardware.h"
#include "plan/layout.h"
#include "plan/rates.h"

typedef enum fl_stage {
    FL_STAGE_LINEAR,    /* matrix products of the layers, head and router */
    FL_STAGE_ATTENTION, /* queries and keys */
    FL_STAGE_CHOOSING,  /* means, scores and lists of blocks */
    FL_STAGE_KV,        /* written to pages, read back */
    FL_STAGE_OTHER,     /* norms, rotations, rows to experts and back on one GPU */
    FL_STAGE_COMM,      /* between GPUs */
    FL_N_STAGES
} fl_stage;

typedef enum fl_bound { FL_BOUND_COMPUTE, FL_BOUND_MEMORY, FL_BOUND_COMM } fl_bound;

const char *fl_stage_name(fl_stage stage);
const char *fl_bound_name(fl_bound bound);

/* Where it runs. */
typedef struct fl_box {
    const fl_hardware *gpu;
    int32_t n_gpus;
    double
        efficiency; /* share of the sheet's FLOP/s and bytes/s that is reached, 0 < e <= 1; 1 = the floor */
    bool
        fp8_attention; /* attention by fp8 units, which firstlight has no kernel for: to ask what it would give */
    int32_t span_tokens; /* 0 = the longest that fits */
    const char *layout;  /* by name, or NULL = the best that fits */
    fl_rates rates;      /* of one GPU: fl_box_set_rates */
} fl_box;

/* Rates by the sheet of box->gpu, as the fields before `rates` say. */
void fl_box_set_rates(fl_box *box);

typedef struct fl_stage_cost {
    fl_cost cost;      /* of the slowest GPU */
    double comm_bytes; /* that a GPU receives */
    double time_s;
    fl_bound bound; /* what most of the time goes to */
} fl_stage_cost;

/* One layout's outcome. */
typedef struct fl_outcome {
    bool possible; /* the model can be cut so; else `why` says what does not divide */
    char why[160];
    fl_share share;
    fl_stage_cost stages[FL_N_STAGES];
    double ttft_s;
    fl_stage largest; /* stage by time */
    bool fits;
} fl_outcome;

/* Seconds of one op on one GPU, and what bounds it. */
double fl_box_op_time(const fl_box *box, fl_rate_kind op, const fl_cost *cost, fl_bound *bound);

/* FLOP/s of all GPUs for linear layers in the weights' own format. */
double fl_box_linear_peak(const fl_box *box, const fl_config *config);

/* FL_ERR_OK also where the layout is not possible. */
fl_err fl_outcome_of_layout(const fl_plan_task *task, const fl_box *box, fl_layout layout, fl_outcome *out);

typedef struct fl_outcomes {
    fl_outcome of[FL_N_LAYOUTS]; /* on one GPU only the first, which is no layout */
    int32_t n;
    int32_t best; /* fits and soonest; if none fits, the one that lacks least */
} fl_outcomes;

/* All layouts, or the box's. FL_ERR_UNSUPPORTED: not one is possible. */
fl_err fl_outcomes_of(const fl_plan_task *task, const fl_box *box, fl_outcomes *out);

static inline const fl_outcome *fl_outcomes_best(const fl_outcomes *o) {
    return &o->of[o->best];
}

/* Products of the layers, of attention. */
double fl_count_linear_flops(const fl_count *count);
double fl_count_attention_flops(const fl_count *count);

/* Prefill and decode on cards of their own. */
typedef struct fl_pd {
    int32_t prefill_gpus, decode_gpus;
    /* Two copies of the weights. */
    fl_outcome prefill, decode; /* decode: memory alone; its span is one page-wide step */
    double transfer_bytes;      /* of the prompt's KV */
    double transfer_s;          /* of all of it; layer by layer only the last layer's is waited for */
    double two_copies_ttft_s;
    bool two_copies_fit;
    /* One copy over all cards, two schedules: prefill has its cards' share of every card's time while decode runs. */
    double one_copy_ttft_s;
    bool one_copy_fits;
} fl_pd;

/* `all`: the outcomes on all of the box's cards, which are prefill_gpus + decode_gpus. */
fl_err fl_pd_of(const fl_plan_task *task, const fl_box *box, const fl_outcomes *all, fl_pd *pd);

#endif
