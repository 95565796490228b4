/* A task of a plan, by names, for tests. */
#ifndef FL_TEST_PLANNED_H
#define FL_TEST_PLANNED_H

#include "attn/policy.h"
#include "plan/feasibility.h"

typedef struct planned {
    fl_config config;
    fl_backend *like;
    fl_policy policy;
    fl_attend attend;
    float *unread; /* [layers][heads]: counting offsets into arrays by head, and reads none */
    fl_plan_task task;
} planned;

typedef struct plan_words {
    const char *shape, *policy, *kv; /* "deepseek-v3", "full", "bf16" */
    bool bf16_weights;
    double density; /* of blocks */
    int64_t tokens;
} plan_words;

/* Fails the test if a word is wrong. The task points into *out. */
void planned_open(const plan_words *words, planned *out);
void planned_close(planned *p);

/* |a - b| <= share * |b|, or the test fails with both. */
void assert_near(double a, double b, double share);

#endif
