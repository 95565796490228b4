/* What `plan` found, and how it is shown: on the terminal, as JSON, as a page with pictures. */
#ifndef FL_CLI_PLAN_REPORT_H
#define FL_CLI_PLAN_REPORT_H

#include <jansson.h>

#include "engine/attend_config.h"
#include "plan/advice.h"

/* One way to run the prompt: the one asked for, or a variant. The task points into it: it stays where it is. */
typedef struct fl_plan_side {
    fl_config config;
    fl_backend *like;
    fl_attend_config attending;
    fl_plan_task task;
    double density;          /* of block lists that costs are counted with; 0 = no lists */
    const char *density_why; /* where it comes from */
    char text[192];          /* of a variant */
} fl_plan_side;

typedef struct fl_plan_report {
    const char *model;
    fl_plan_side sides[1 + FL_VARIANTS_MAX]; /* [0] is what was asked for */
    int32_t n_sides;
    fl_variant variants[FL_VARIANTS_MAX];
    int32_t n_variants;
    fl_box box;
    double goal_s;     /* 0 = none */
    int64_t positions; /* that the checkpoint can be trusted with; 0 = a shape, which says nothing of it */
    fl_count whole;    /* the prompt's own work */
    int64_t weights_bytes; /* of one copy */
    int64_t kv_bytes;      /* of the context */
    double linear_floor_s; /* linear layers at the best peak of all GPUs: no layout and no kernel is below */
    fl_outcomes outcomes;
    bool has_pd;
    fl_pd pd;
    fl_ceiling ceiling; /* where a goal is not reached */
    fl_advice_list advice;
    /* The outcome: with PD that of its cards. */
    double ttft_s;
    bool fits, feasible;
} fl_plan_report;

static inline const fl_outcome *fl_plan_report_best(const fl_plan_report *r) {
    return fl_outcomes_best(&r->outcomes);
}

/* "fp8" or "bf16": how the weights are kept. */
const char *fl_plan_weights(const fl_config *config);

/* One line each, without a full stop. */
enum { FL_PLAN_LINE_BYTES = 400 };
void fl_plan_verdict(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]);
void fl_plan_ceiling(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]);
void fl_plan_pd_verdict(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]);
void fl_plan_advice_line(const fl_plan_report *r, const fl_advice *a, char line[FL_PLAN_LINE_BYTES]);
const char *fl_plan_advice_caution(const fl_advice *a);

/* What stands beside the sums and is none of them; false = nothing. */
bool fl_plan_note(const fl_plan_report *r, char line[FL_PLAN_LINE_BYTES]);

void fl_plan_print(const fl_plan_report *r);
json_t *fl_plan_json(const fl_plan_report *r);

/* FL_ERR_IO: the file could not be written. */
fl_err fl_plan_html(const fl_plan_report *r, const char *path);

#endif
