/* From requests to the arguments of the op that draws their next tokens (op/sample). */
#ifndef FL_ENGINE_SAMPLER_H
#define FL_ENGINE_SAMPLER_H

#include "backend/backend.h"

/* Arguments of the rows of a step, made before it runs, and where it puts their tokens; one thread at a time. */
typedef struct fl_sampler fl_sampler;

/* Room for `rows` rows at a time, whose lists take list_bytes each at most. The backend must outlive *out. */
typedef struct fl_sampler_sizes {
    int32_t rows, n_vocab;
    int32_t n_known; /* ids at or above have no token and are never chosen; 1..n_vocab */
    int64_t list_bytes;
} fl_sampler_sizes;
fl_err fl_sampler_open(fl_backend *be, const fl_sampler_sizes *sizes, fl_sampler **out);
void fl_sampler_close(fl_sampler *sampler);

/* How a token is to be drawn; everything is copied. */
typedef struct fl_draw {
    const fl_sampling *sampling;
    uint64_t index; /* of the token in its answer: with the seed it fixes the draw, whatever else runs */
    int32_t n_top;  /* alternatives wanted, 0..FL_TOP_LOGPROBS_MAX */
    const fl_sample_mark *marks; /* [n_marks] */
    int32_t n_marks;
    const fl_logit_bias *biases; /* [n_biases] */
    int32_t n_biases;
    const int32_t *banned; /* [n_banned] ids that are not drawn unless nothing else may be: end tokens before
                              min_tokens */
    int32_t n_banned;
    const uint64_t *allowed; /* bit id % 64 of word id / 64: ids that may be chosen; NULL = all known */
} fl_draw;

/* The rows added so far; what is added after it is taken back by a reset to it. A step inside another adds behind the
 * other's. */
typedef struct fl_sampler_mark {
    int32_t rows;
    int64_t used_bytes;
} fl_sampler_mark;
fl_sampler_mark fl_sampler_get_mark(const fl_sampler *sampler);
void fl_sampler_reset(fl_sampler *sampler, fl_sampler_mark mark);

/* One more row. FL_ERR_INTERNAL: there is no room for it. */
fl_err fl_sampler_add(fl_sampler *sampler, const fl_draw *draw);

/* The op's arguments for the rows behind `mark`, but for logits and scratch, with their lists where ops read them.
 * Valid until the reset. */
fl_err fl_sampler_args(fl_sampler *sampler, fl_sampler_mark mark, fl_sample_args *out);

/* What came of row i behind `mark`. FL_ERR_NUMERIC: a logit is not finite. FL_ERR_INTERNAL: no known id is allowed. */
fl_err fl_sampler_token(const fl_sampler *sampler, fl_sampler_mark mark, int32_t i, const fl_sample **out);

/* FL_ERR_INVALID names the field that is out of range. */
fl_err fl_sampling_validate(const fl_sampling *sampling);

/* The same for a request's stop_tokens, logit_biases and min_tokens. */
fl_err fl_sampling_validate_tokens(const fl_request_params *params, int32_t n_vocab);

#endif
