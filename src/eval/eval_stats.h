/* Paired statistics: the same questions answered by a baseline and by a variant.
 *
 * What varies by chance is the document: its questions share one text and often one fate. So intervals come from a
 * bootstrap that draws whole documents (within their stratum, since how many there are of each kind was decided and not
 * drawn), and p-values from flipping the sign of whole documents' differences, which is exact: under "no difference"
 * either side could have been the baseline. With one question a document scored 0 or 1 that is McNemar's exact test.
 *
 * Averages give every cell (a task at a length) the same weight, whatever its number of questions. */
#ifndef FL_EVAL_EVAL_STATS_H
#define FL_EVAL_EVAL_STATS_H

#include <stdint.h>

#include "base/err.h"

/* Below this p a side counts as worse. */
#define FL_EVAL_WORSE_P 0.01

enum { FL_EVAL_RESAMPLES_MIN = 10000 };

/* One question, both answers. */
typedef struct fl_eval_pair {
    int32_t document;         /* which; any number */
    int32_t stratum;          /* of the document; any number */
    int32_t cell;             /* 0.. below 65536, few are best */
    double score_full, score; /* 0..1 */
    double nll_full, nll, kl; /* nats a token */
} fl_eval_pair;

/* A difference, its 95% interval, and how likely one as bad or worse would be if there were none (one-sided). */
typedef struct fl_eval_estimate {
    double value, low, high, p;
} fl_eval_estimate;

typedef struct fl_eval_summary {
    int32_t n_questions, n_documents;
    int32_t n_lost, n_won;     /* questions on which the variant scores lower, higher */
    double score_full, score;  /* points, 0..100 */
    fl_eval_estimate loss;     /* points, score_full - score */
    double nll_full, nll;      /* nats a token */
    fl_eval_estimate nll_diff; /* nll - nll_full */
    double kl;
    double
        unseen_points; /* rule of three: a loss of fewer points than this may hide where no document lost: the
                             bootstrap cannot see what never happened */
    bool worse;        /* p < FL_EVAL_WORSE_P on score or NLL */
} fl_eval_summary;

typedef struct fl_eval_chance {
    int32_t resamples; /* >= FL_EVAL_RESAMPLES_MIN */
    uint64_t seed;     /* the same seed, the same intervals */
} fl_eval_chance;

/* Summary of [n] pairs in any order; n = 0 gives zeros, p = 1. FL_ERR_INVALID: too few resamples, a value that is not
 * finite. */
fl_err fl_eval_summarise(const fl_eval_pair *pairs, int32_t n, const fl_eval_chance *chance,
                         fl_eval_summary *out);

/* P(sum of differences with random signs >= their sum), [n] differences, one a document. Exact by counting when all are
 * multiples of a common fraction (scores are) or when few differ; else from seeded draws. */
fl_err fl_eval_sign_flip(const double *differences, int32_t n, uint64_t seed, double *p);

#endif
