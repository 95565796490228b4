/* What an evaluation found, a document at a time, and the file that lets a run go on where it stopped: JSON lines, the
 * first with the settings that the results depend on, each other with one document that all sides have answered. Lines
 * are foreign data: every field is checked when read. */
#ifndef FL_EVAL_EVAL_RESULT_H
#define FL_EVAL_EVAL_RESULT_H

#include <stdint.h>

#include "base/err.h"

enum {
    FL_EVAL_SIDES_MAX = 17, /* a baseline and 16 variants */
    FL_EVAL_QUESTIONS_MAX = 4096,
};

/* One question as one side answered it. */
typedef struct fl_eval_outcome {
    double score; /* 0..1 */
    double nll;   /* of the reference, nats a token */
    double kl;  /* mean KL(baseline || side) where the reference's tokens are predicted; 0 for the baseline */
    bool exact; /* the greedy answer is the reference, token by token */
} fl_eval_outcome;

typedef struct fl_eval_row {
    const char *task; /* static: one of fl_eval_task_names() */
    double depth;     /* as in fl_eval_question */
    int32_t segment_distance;
    int32_t n_scored; /* tokens of reference and end */
    fl_eval_outcome sides[FL_EVAL_SIDES_MAX];
} fl_eval_row;

/* What a document cost one side. */
typedef struct fl_eval_cost {
    double prefill_s;        /* of its first question: the whole document */
    int64_t computed_tokens; /* prompt tokens over all its questions */
    int64_t cached_tokens;
    int32_t n_reads; /* questions for which the document was read (again): 1, unless its pages were lost */
} fl_eval_cost;

typedef struct fl_eval_result {
    const char *task; /* static: task or family as asked for */
    int64_t length_tokens;
    int32_t index;
    fl_eval_row *rows; /* [n_rows]; NULL = not asked yet */
    int32_t n_rows;
    fl_eval_cost costs[FL_EVAL_SIDES_MAX];
} fl_eval_result;

/* All documents of a run, by length, then task, then index. */
typedef struct fl_eval_results {
    fl_eval_result *items; /* [n] */
    int32_t n;
    int32_t n_sides;
} fl_eval_results;

/* Allocates empty results for every length x task x index. `tasks` are matched with the program's own names
 * (FL_ERR_INVALID names one that is neither task nor family). On success the caller closes *out. */
typedef struct fl_eval_grid {
    const int64_t *lengths; /* [n_lengths] */
    int32_t n_lengths;
    const char *const *tasks; /* [n_tasks] */
    int32_t n_tasks;
    int32_t n_documents; /* a task and length */
    int32_t n_sides;     /* baseline included */
} fl_eval_grid;
fl_err fl_eval_results_open(const fl_eval_grid *grid, fl_eval_results *out);
void fl_eval_results_close(fl_eval_results *results);

/* The static name equal to `name` among tasks, or tasks and families; NULL if there is none. */
const char *fl_eval_known_task(const char *name, bool families_too);

/* One setting that results depend on. Texts are borrowed. */
typedef struct fl_eval_setting {
    const char *name, *value;
} fl_eval_setting;

/* Fills the results that a file's text holds, as below. *whole_bytes: up to the end of the last whole line. `path` is
 * for errors. */
typedef struct fl_eval_lines {
    const char *path, *text; /* [n_bytes]; need not end in NUL */
    size_t n_bytes;
    const fl_eval_setting *settings; /* [n_settings] */
    int32_t n_settings;
} fl_eval_lines;
fl_err fl_eval_results_read(const fl_eval_lines *lines, fl_eval_results *results, size_t *whole_bytes);

typedef struct fl_eval_resume fl_eval_resume;

/* Opens or creates the file and fills the results it has; documents outside the grid are passed over and stay in the
 * file. A last line without its newline is what a killed run left: it is cut off. FL_ERR_CONFIG: made with other
 * settings (detail names the first that differs). FL_ERR_DATA: not such a file (detail has the line). On success the
 * caller closes *out. */
fl_err fl_eval_resume_open(const char *path, const fl_eval_setting *settings, int32_t n_settings,
                           fl_eval_results *results, fl_eval_resume **out);

/* Adds one document. */
fl_err fl_eval_resume_add(fl_eval_resume *resume, const fl_eval_result *result, int32_t n_sides);
void fl_eval_resume_close(fl_eval_resume *resume);

#endif
