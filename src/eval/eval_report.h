/* The report of an evaluation: every variant beside the baseline by task, length, depth and distance, as a table for
 * people, as JSON, and as a heat map (eval/heat_map.h). */
#ifndef FL_EVAL_EVAL_REPORT_H
#define FL_EVAL_EVAL_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "eval/eval_result.h"
#include "eval/eval_stats.h"

/* A task counts at a length where the baseline scores at least this: what full attention cannot do shows nothing about
 * an approximation of it. */
#define FL_EVAL_COUNTS_FROM_POINTS 60.0

enum {
    FL_EVAL_DEPTHS = 8,    /* equal parts of the document */
    FL_EVAL_DISTANCES = 8, /* of segment_distance: 0, 1, 2, 3, 4, 5-8, 9-16, 17 and more */
};

/* One task at one length. */
typedef struct fl_eval_cell {
    bool counts;
    fl_eval_summary sum;
} fl_eval_cell;

/* One variant beside the baseline. Sums over several tasks are over those that count. */
typedef struct fl_eval_view {
    fl_eval_summary total;
    bool worse;                   /* in total, or in the NLL of running text, which has no score to count */
    fl_eval_cell *cells;          /* [n_tasks][n_lengths] */
    fl_eval_summary *by_task;     /* [n_tasks]; over all lengths where the task counts nowhere */
    fl_eval_summary *by_length;   /* [n_lengths] */
    fl_eval_summary *by_depth;    /* [n_lengths][FL_EVAL_DEPTHS] */
    fl_eval_summary *by_distance; /* [n_lengths][FL_EVAL_DISTANCES] */
} fl_eval_view;

typedef struct fl_eval_report {
    const char **tasks; /* [n_tasks] in the order they were met */
    int64_t *lengths;   /* [n_lengths] rising */
    int32_t n_tasks, n_lengths, n_sides, n_views, n_documents;
    fl_eval_view
        views[FL_EVAL_SIDES_MAX - 1]; /* [n_views]: one a variant; the baseline itself where it is alone */
    fl_eval_cost costs[FL_EVAL_SIDES_MAX]; /* [n_sides] sums over all documents */
} fl_eval_report;

/* Sums up the documents that were asked. On success the caller closes *out. */
fl_err fl_eval_report_make(const fl_eval_results *results, const fl_eval_chance *chance, fl_eval_report *out);
void fl_eval_report_close(fl_eval_report *report);

/* The side that a view shows. */
int32_t fl_eval_side_of(const fl_eval_report *report, int32_t view);

int32_t fl_eval_depth_bin(double depth); /* -1 for "everywhere" */
int32_t fl_eval_distance_bin(int32_t segments);
const char *fl_eval_distance_name(int32_t bin); /* "5-8" */

/* What the report is about. Texts are borrowed. */
typedef struct fl_eval_side {
    const char *spec;   /* as asked for */
    const char *policy; /* as the engine resolved it */
    const char *kv_dtype, *backend;
    const char *position_warning; /* NULL = none */
    double block_density;         /* of this run; 1 where there are no blocks */
    int64_t block_overflow;
} fl_eval_side;

typedef struct fl_eval_about {
    const char *model, *documents; /* checkpoint; where the running text is from */
    uint64_t seed;
    double difficulty;
    int32_t n_segments;
    fl_eval_side sides[FL_EVAL_SIDES_MAX]; /* [n_sides], the baseline first */
} fl_eval_about;

/* eval_report_text.c */
void fl_eval_report_print(FILE *file, const fl_eval_report *report, const fl_eval_about *about);

/* eval_report_json.c: the first variant's figures at the top, all in variants[]. NULL when out of memory. */
json_t *fl_eval_report_json(const fl_eval_report *report, const fl_eval_about *about);

#endif
