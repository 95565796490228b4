/* Requests of engine tests: one prompt asked, its answer kept with every log-prob. All functions fail the running
 * cmocka test when something goes wrong. */
#ifndef TEST_ASKING_H
#define TEST_ASKING_H

#include <firstlight/firstlight.h>

enum { ANSWER = 24 }; /* tokens of every answer */

typedef struct answer {
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
    int32_t n;
    char text[4096];
    fl_finish finish;
    fl_err err;
    int64_t cached;
    double ttft_s;
    int64_t most_rows; /* of the prompt in one step */
    char detail[256];  /* of err */
} answer;

/* A greedy answer of ANSWER tokens; `document` as fl_request_params.document_tokens. */
fl_request *submit(fl_session *s, const int32_t *ids, int64_t n, int64_t document);

/* Polls to the end and closes the request. */
answer finish(fl_request *r);

/* Both, in a session of its own. */
answer ask(fl_engine *e, const int32_t *ids, int64_t n, int64_t document);

/* The same tokens, text and bits of log-probs. */
void assert_same(const answer *a, const answer *b);

#endif
