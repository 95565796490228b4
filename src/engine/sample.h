/* From a row of logits to the next token. */
#ifndef FL_ENGINE_SAMPLE_H
#define FL_ENGINE_SAMPLE_H

#include "base/err.h"

typedef struct fl_sampler fl_sampler; /* scratch for one row, reused; one thread at a time */

fl_err fl_sampler_open(int32_t n_vocab, fl_sampler **out);
void fl_sampler_close(fl_sampler *sampler);

typedef struct fl_sample_args {
    const float *logits; /* [n_vocab] */
    int32_t n_known;     /* ids at or above have no token and are never chosen; 1..n_vocab */
    const uint8_t *seen; /* [n_vocab] bytes != 0: ids the repetition penalty applies to; NULL = none */
    const int32_t
        *counts; /* [n_vocab] how often each id is in the answer, for presence and frequency penalty;
                              NULL = none */
    const fl_logit_bias *biases; /* [n_biases] */
    int32_t n_biases;
    const int32_t *banned; /* [n_banned] ids that are not drawn unless nothing else may be: end tokens before
                              min_tokens */
    int32_t n_banned;
    const uint64_t *allowed; /* bit id % 64 of word id / 64: ids that may be chosen; NULL = all known */
    const fl_sampling *sampling;
    uint64_t index; /* of the token in its answer: with the seed it fixes the draw, whatever else runs */
    int32_t n_top;  /* alternatives wanted, 0..FL_TOP_LOGPROBS_MAX */
} fl_sample_args;

typedef struct fl_sample {
    int32_t token;
    float logprob; /* log-softmax of the plain logits over known ids */
    fl_token_logprob top[FL_TOP_LOGPROBS_MAX];
} fl_sample;

/* Penalties, biases and bans, then temperature, then top-k, top-p and min-p on what is left, then one draw.
 * FL_ERR_NUMERIC: a logit is not finite. FL_ERR_INTERNAL: no known id is allowed. */
fl_err fl_sampler_draw(fl_sampler *sampler, const fl_sample_args *args, fl_sample *out);

/* FL_ERR_INVALID names the field that is out of range. */
fl_err fl_sampling_validate(const fl_sampling *sampling);

/* The same for a request's stop_tokens, logit_biases and min_tokens. */
fl_err fl_sampling_validate_tokens(const fl_request_params *params, int32_t n_vocab);

#endif
