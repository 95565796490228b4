/* Calibration: measures on documents what the policy "blocks" loses with this checkpoint, and chooses its numbers.
 * In order:
 *
 *   temperature   with extended positions only: the factor of the softmax scale with the likeliest right answers
 *   mass          rows attend everything while lists are made beside them: by alpha, layer and head the share of
 *                 the attention mass that the lists keep, 2^(lse of listed keys - lse of all), their density, and
 *                 the bias of the means
 *   outliers      from the stored latents: dimensions that widen the groups of the int4 KV format
 *   loss          answers with the lists in force, from the sparsest alpha on until the target holds twice in a row; of
 *                 the chosen also what each head's lists held
 *   heads         answers with one head sparse alone: those that lose most attend everything in exchange for a
 *                 sparser alpha, if that saves work
 *
 * A loss is what right answers lose against full attention: points of 100, and nats a token of the reference
 * answers; and, since the question's rows attend everything whatever the document's do, nats a token of
 * the documents' own text. Only tasks count that full attention answers (60% right, as in the evaluation). */
#ifndef FL_CALIBRATE_CALIBRATE_H
#define FL_CALIBRATE_CALIBRATE_H

#include <jansson.h>
#include <stdio.h>

#include "attn/calibration.h"

enum {
    FL_CALIBRATE_ALPHAS = 10, /* 1/2, 1/4, .. 1/1024 */
    FL_CALIBRATE_BLOCKS = 2,  /* of 64 and 128 tokens */
    FL_CALIBRATE_TEXTS = 2,
    FL_CALIBRATE_TEMPERATURES = 5,
    FL_CALIBRATE_ANSWER_TOKENS = 512, /* room behind the documents in the engine's context */
};

/* Tokens of a block of kind `block`, and the alpha-th alpha. */
static inline int32_t fl_calibrate_block_tokens(int32_t block) {
    return 64 << block;
}

static inline double fl_calibrate_alpha(int32_t alpha) {
    return 1.0 / (double)(2 << alpha);
}

/* `fraction` 0..1 of the work as far as it can be told; `note` says what is being measured. */
typedef void fl_calibrate_progress_fn(void *context, double fraction, const char *note);

typedef struct fl_calibrate_text {
    const char *text; /* [n_bytes] running text that facts are hidden in */
    size_t n_bytes;
} fl_calibrate_text;

typedef struct fl_calibrate_plan {
    fl_engine *engine;     /* with the settings of fl_calibrate_settings; nobody else may use it meanwhile */
    int64_t length_tokens; /* of each document with its questions */
    int32_t n_documents;
    uint64_t seed;
    double max_loss_points;
    int32_t heads_max;                           /* measured alone, those with the least mass kept first */
    fl_calibrate_text texts[FL_CALIBRATE_TEXTS]; /* documents take turns */
    int32_t n_texts;
    fl_calibrate_progress_fn *progress; /* NULL = silent */
    void *progress_context;
} fl_calibrate_plan;

typedef struct fl_calibrate_loss {
    bool measured;
    double points, nll; /* lost against full attention; below 0 = better than it */
    double text;        /* nats a token of running text */
    double density;     /* share of visible blocks attended */
} fl_calibrate_loss;

/* By alpha, layer and head: [FL_CALIBRATE_ALPHAS][layers][heads]. */
typedef struct fl_calibrate_mass {
    double *kept; /* mean share of the attention mass in listed keys */
    double *density;
    double *bias; /* log2(true mass of the other keys / mass of their means), mean by weight */
} fl_calibrate_mass;

typedef struct fl_calibrate_result {
    int32_t layers, heads, group; /* group: dimensions of an int4 group */
    fl_calibration chosen;        /* what is written */
    int32_t block, alpha;         /* chosen kinds */
    bool reached;                 /* the target holds for them */
    fl_calibrate_loss loss;       /* of the chosen */
    double nll_max;               /* what --max-loss comes to, nats a token */
    double full_points, full_nll; /* full attention, of what counts */
    double full_text;
    int32_t n_questions, n_counted;
    fl_calibrate_mass mass[FL_CALIBRATE_BLOCKS];
    fl_calibrate_loss losses[FL_CALIBRATE_BLOCKS][FL_CALIBRATE_ALPHAS]; /* no head dense */
    fl_calibrate_loss trial; /* of the sparser alpha with dense heads, if there was one */
    fl_calibrate_loss
        with_bias;     /* the chosen with the means' bias, which is kept if running text loses less */
    double *head_loss; /* [layers][heads] nats a token of a head sparse alone; NAN = not measured */
    int32_t head_alpha, n_heads_measured, n_head_documents;
    int64_t head_length_tokens;
    double
        outlier_gain[FL_KV_OUTLIERS_MAX]; /* share of the groups' mean squared range that each takes away */
    double temperatures[FL_CALIBRATE_TEMPERATURES], temperature_nll[FL_CALIBRATE_TEMPERATURES];
    bool temperature_measured, layers_refined;
    double elapsed_s;
} fl_calibrate_result;

enum { FL_CALIBRATE_POLICY_BYTES = 64 };

/* Settings of the engine for documents of so many tokens, all else as it is in *settings; `policy` is borrowed
 * until the engine is open. */
void fl_calibrate_settings(int64_t length_tokens, char policy[FL_CALIBRATE_POLICY_BYTES],
                           fl_settings *settings);

/* FL_ERR_INVALID: documents cannot be so short. The caller closes *out in any case. */
fl_err fl_calibrate_run(const fl_calibrate_plan *plan, fl_calibrate_result *out);
void fl_calibrate_close(fl_calibrate_result *result);

/* Multiply-adds of attention against full attention's: listed keys, one mean for each other block, one score for
 * each block (d_qk of d_qk + d_v). */
double fl_calibrate_work(double density, int32_t block_tokens, double score_share);

/* Marks the heads that lose most until what is predicted to remain of `total` is within `target`, at most n_max.
 * Predicted: losses add up, in proportion to those measured (NAN = not, never marked). Returns how many are. */
typedef struct fl_calibrate_losers {
    const double *loss; /* [n] */
    int32_t n, n_max;
    double total, target;
} fl_calibrate_losers;
int32_t fl_calibrate_mark(const fl_calibrate_losers *losers, bool *dense);

/* Greedy choice of the dimensions of one layer whose removal from their groups lowers the mean squared range
 * (largest less smallest value of a group) most, in that order. */
typedef struct fl_calibrate_latents {
    const float *values;   /* [n_tokens][dim] */
    int32_t n_tokens, dim; /* dim a multiple of */
    int32_t group;
} fl_calibrate_latents;
typedef struct fl_calibrate_outliers {
    uint16_t dims[FL_KV_OUTLIERS_MAX];
    double range[FL_KV_OUTLIERS_MAX + 1]; /* mean squared range with the first i removed */
} fl_calibrate_outliers;
fl_err fl_calibrate_find_outliers(const fl_calibrate_latents *latents, fl_calibrate_outliers *out);

/* "measured" of the file. NULL: out of memory. */
json_t *fl_calibrate_measured_json(const fl_calibrate_plan *plan, const fl_calibrate_result *result);
/* Tables for people. */
void fl_calibrate_print(FILE *file, const fl_calibrate_plan *plan, const fl_calibrate_result *result);

#endif
