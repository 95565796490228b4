/* What the files of a calibration share: the documents, their answers, and the engine's heads between requests. */
#ifndef FL_CALIBRATE_CALIBRATE_PRIVATE_H
#define FL_CALIBRATE_CALIBRATE_PRIVATE_H

#include "calibrate/calibrate.h"
#include "engine/engine.h"
#include "eval/eval_document.h"

typedef struct fl_calibrate_answers {
    double nll, score; /* means over what counts; score 0..1 */
    double text_nll;   /* of running text, each document's end read as document rows */
} fl_calibrate_answers;

/* Documents of one length with their questions, and which questions count. */
typedef struct fl_calibrate_set {
    fl_eval_document *documents; /* [n] */
    int32_t n, n_questions, n_counted;
    int64_t length_tokens;
    bool *counts;              /* [n_questions], in the order of the documents */
    fl_calibrate_answers full; /* with full attention */
} fl_calibrate_set;

typedef struct fl_calibrating {
    const fl_calibrate_plan *plan;
    fl_engine *e;
    fl_calibrate_result *out;
    fl_calibrate_set set;      /* of the length asked for */
    fl_calibrate_set head_set; /* for heads alone */
    bool use_bias;             /* of the means, in what is measured */
    bool *dense, *all_dense;   /* [layers][heads] the engine's dense heads point at one of them */
    float *attended;           /* [layers][heads] shares of visible blocks, of what was measured last */
    float *walked;      /* [FL_CALIBRATE_BLOCKS][FL_CALIBRATE_ALPHAS][layers][heads] alike, no head dense */
    float *temperature; /* [layers], NULL without extended positions */
    uint16_t *latents;  /* [layers][latents_max][latent_dim] bf16, a sample of what is stored */
    int32_t latents_max, n_latents;
    double done, total; /* of the progress, in tokens read */
    const char *phase;
    double phase_weight; /* of the document being read */
} fl_calibrating;

static inline size_t fl_calibrate_heads(const fl_calibrating *c) {
    return (size_t)c->out->layers * (size_t)c->out->heads;
}

/* calibrate_ask.c */
fl_err fl_calibrate_set_open(fl_calibrating *c, int64_t length_tokens, int32_t n, fl_calibrate_set *out);
void fl_calibrate_set_close(fl_calibrate_set *set);
/* Answers of all documents as the engine's heads stand now. */
fl_err fl_calibrate_ask(fl_calibrating *c, const fl_calibrate_set *set, fl_calibrate_answers *out);
/* The same with full attention (the heads must all be dense): decides what counts. */
fl_err fl_calibrate_ask_full(fl_calibrating *c, fl_calibrate_set *set);
/* Reads one document in a session of its own; the caller closes the session, which holds the pages. */
fl_err fl_calibrate_read(fl_calibrating *c, const fl_eval_document *document, fl_session **out);
void fl_calibrate_tell(const fl_calibrating *c, double fraction);

/* How heads attend from the next request on; what is cached is forgotten. alpha < 0: no bias, alpha 1/2. Otherwise with
 * the means' bias if c->use_bias. */
void fl_calibrate_heads_use(fl_calibrating *c, int32_t block, int32_t alpha, const bool *dense);

/* calibrate_mass.c: mass, densities, biases and the sample of latents. */
fl_err fl_calibrate_measure_mass(fl_calibrating *c);

/* calibrate_loss.c: chooses alpha, block and dense heads. */
fl_err fl_calibrate_measure_loss(fl_calibrating *c);

/* calibrate_outliers.c: chooses outliers from c->latents. */
fl_err fl_calibrate_choose_outliers(fl_calibrating *c);

/* calibrate_temperature.c */
fl_err fl_calibrate_measure_temperature(fl_calibrating *c);

#endif
