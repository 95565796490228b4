/* sample: from a row of logits to the next token, its log-probability and the likeliest tokens.
 *   a     = logits, then of marked tokens a = a > 0 ? a / repetition : a * repetition and, of those in the answer,
 *           a -= presence + frequency * count (Keskar et al. 2019, CTRL; OpenAI's API), then a += bias, then -inf of
 *           banned tokens, of those that are not allowed, and of ids from n_known on. If bans alone leave nothing,
 *           they do not count.
 *   order : larger a first, ties to the smaller id. Greedy (scale 0): the first.
 *   depth = (a - best a) * scale, <= 0; weight = 2^depth in steps of 2^-40 of the best one's (sample_weight.h)
 *   kept  : tokens in order, the first in any case, while there are fewer than top_k, their depth is at least
 *           min_log2, and the weights before them sum to less than top_p of all
 *   token : the first whose weights up to and with it sum to more than `uniform` of those kept
 *   logprob, top: log-softmax of the plain logits over ids below n_known, from the same weights with scale log2(e)
 * Weights are whole numbers: their sums are exact in any order, so that a token never depends on how a row was cut or
 * on the rows beside it, and every backend draws the same. Tolerance: tokens equal; logprobs 1e-6, as the logarithm's
 * last bits are the platform's; a weight is within 3e-6 of 2^depth where that is not below 2^-16, and a sum of all
 * within 1e-6. Limits: n_known <= FL_SAMPLE_VOCAB_MAX. Cost: bytes 4 n_rows n_known. */
#ifndef FL_OP_SAMPLE_H
#define FL_OP_SAMPLE_H

#include "op/op_types.h"

/* What the shared memory of eight multiprocessors holds. */
enum { FL_SAMPLE_VOCAB_MAX = 320 * 1024 };

/* A token of prompt or answer. */
typedef struct fl_sample_mark {
    int32_t token;
    int32_t count; /* of the answer; 0 = in the prompt alone */
} fl_sample_mark;

/* How a row is drawn from. Lists begin so many bytes behind fl_sample_args.lists, each at a multiple of 8; tokens
 * outside 0..n_known-1 are passed over. */
typedef struct fl_sample_row {
    double uniform; /* 0 <= u < 1 */
    float scale;    /* log2(e) / temperature; 0 = greedy */
    float top_p;    /* 1 = all */
    float min_log2; /* log2 of the least share of the best one's probability; -INFINITY = none */
    int32_t top_k;  /* 0 = all */
    float repetition, presence, frequency;
    int32_t n_marks, n_biases, n_banned;
    int64_t marks_at;  /* fl_sample_mark [n_marks], tokens differ */
    int64_t biases_at; /* fl_logit_bias [n_biases], tokens differ */
    int64_t banned_at; /* int32_t [n_banned] */
    int64_t
        allowed_at; /* uint64_t [(n_known + 63) / 64], bit id % 64 of word id / 64; -1 = all are allowed */
    int32_t n_top;  /* 0..FL_TOP_LOGPROBS_MAX */
} fl_sample_row;

typedef struct fl_sample {
    int32_t token; /* -1: none may come, or there is a bad logit */
    int32_t bad;   /* the smallest id whose logit is not a finite number; -1 = none */
    float logprob; /* of the token */
    fl_token_logprob top[FL_TOP_LOGPROBS_MAX]; /* [n_top], the likeliest first; token -1 behind the last id */
} fl_sample;

typedef struct fl_sample_args {
    const float *logits; /* [n_rows], logits_stride apart */
    int64_t logits_stride;
    int32_t n_rows, n_known;
    const fl_sample_row *rows; /* [n_rows] on the host */
    const uint8_t *lists;      /* 8-byte aligned; NULL = no row has any */
    void *scratch;             /* fl_sample_scratch_bytes(n_known); a device needs none: NULL */
    fl_sample *out;            /* [n_rows] memory that both sides touch */
} fl_sample_args;

int64_t fl_sample_scratch_bytes(int32_t n_known);

fl_err fl_sample_validate(const fl_sample_args *a);
fl_cost fl_sample_cost(const fl_sample_args *a);

#endif
