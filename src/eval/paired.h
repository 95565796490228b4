/* Asks the sides of an evaluation the same questions about the same documents.
 *
 * A side is an engine. A document is read once by each side and its questions share that prefill (one session). The
 * reference answer is teacher forced: one request whose last prompt tokens are the answer gives the log-probability of
 * every token, where greedy decoding would leave it, and the whole distributions to compare with the baseline's. If
 * greedy decoding never leaves it the answer is the reference (the engine's contract that bits do not depend on how
 * rows are computed makes this exact); only otherwise a second request generates the answer to be scored. */
#ifndef FL_EVAL_PAIRED_H
#define FL_EVAL_PAIRED_H

#include "eval/eval_document.h"
#include "eval/eval_result.h"

/* `fraction` 0..1 of the work of this call; `note` says what is being read. */
typedef void fl_paired_progress_fn(void *context, double fraction, const char *note);

typedef struct fl_paired_plan {
    fl_engine *const *engines; /* [n_sides] of one checkpoint; [0] is the baseline */
    int32_t n_sides;
    int32_t end_token;    /* that ends an answer */
    uint64_t seed;        /* of the documents, with */
    double difficulty;    /* 0..1 and */
    int32_t n_segments;   /* in a document: fl_eval_spec.segment_tokens is length / n_segments */
    const char *haystack; /* [haystack_bytes] */
    size_t haystack_bytes;
    fl_eval_resume *resume;          /* NULL = none */
    fl_paired_progress_fn *progress; /* NULL = silent */
    void *progress_context;
} fl_paired_plan;

/* Makes and asks every document of `results` that has no rows yet. FL_ERR_INVALID: a task cannot be made so short, or
 * the questions do not fit a side's context. On failure the results so far stay. */
fl_err fl_paired_run(const fl_paired_plan *plan, fl_eval_results *results);

/* One document on all sides: fills rows and costs of *out, whose rows the caller then owns. */
fl_err fl_paired_ask(const fl_paired_plan *plan, const fl_eval_document *document, fl_eval_result *out);

#endif
