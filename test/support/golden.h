/* The golden values of spark-66m (test/golden/README.md). */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include <stdint.h>

enum { GOLDEN_VOCAB = 8192, GOLDEN_GREEDY = 32 };

typedef struct golden {
    char name[32];
    int32_t n;            /* prompt tokens */
    int32_t *ids;         /* [n] */
    int32_t *top1_ids;    /* [n] */
    float *top1_logprobs; /* [n] */
    float *next_logprobs; /* [n - 1] */
    float *last_logits;   /* [GOLDEN_VOCAB] */
    int32_t greedy[GOLDEN_GREEDY];
} golden;

/* Fails the running cmocka test if the files are not there. */
void golden_read(const char *name, golden *out);
void golden_free(golden *g);

#endif
