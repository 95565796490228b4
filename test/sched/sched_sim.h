/* A machine that is only simulated, under a mixed load: the real picker, the real cuts, costs of steps as measured for
 * spark-66m on 2 cores of a Xeon with AVX512-BF16. For tuning the policy and for keeping what was tuned; what a real
 * machine does is measured by `firstlight bench serve`. */
#ifndef TEST_SCHED_SIM_H
#define TEST_SCHED_SIM_H

#include "sched/step_rate.h"

typedef struct sim_load {
    double seconds;      /* arrivals come so long */
    double utilisation;  /* of the machine, if nothing were repeated */
    double long_share;   /* of the work that long prompts are */
    bool in_tokens;      /* work is prompt tokens; false: seconds of the machine */
    int32_t long_tokens; /* of a long prompt; short ones have 128..512, answers 32 tokens */
    uint64_t seed;
} sim_load;

typedef struct sim_result {
    int32_t n_short, n_long;
    double short_p50_s, short_p95_s, long_p50_s, long_p95_s; /* time to first token */
    double tokens_per_s;                                     /* of answers, until the last one is done */
    double variation;   /* of answer tokens in windows of 10 s: standard deviation over mean */
    double stall_p99_s; /* between an answer's tokens */
} sim_result;

void sim_run(const fl_sched_policy *policy, const sim_load *load, sim_result *out);

/* Of long prompts at time 0, `n` of them, alone: until the last has its first token. */
double sim_makespan(const fl_sched_policy *policy, int32_t tokens, int32_t n);

#endif
