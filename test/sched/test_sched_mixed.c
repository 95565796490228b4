/* A mixed load on the simulated machine: what bins do for short prompts, what that costs long ones, and what it cannot
 * change. Deterministic: the figures move only when the policy does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/sched_sim.h"

static void show(const char *name, const sim_result *r) {
    print_message("%s: short p50 %.2f s, p95 %.2f s; long p50 %.1f s, p95 %.1f s; %.1f tokens/s, variation "
                  "%.2f, p99 between "
                  "tokens %.2f s; %d and %d prompts\n",
                  name, r->short_p50_s, r->short_p95_s, r->long_p50_s, r->long_p95_s, r->tokens_per_s,
                  r->variation, r->stall_p99_s, r->n_short, r->n_long);
}

static void run_both(const sim_load *load, sim_result *fcfs, sim_result *bins) {
    fl_sched_policy policy;
    fl_sched_policy_default(&policy);
    sim_run(&policy, load, bins);
    policy.kind = FL_SCHED_FCFS;
    sim_run(&policy, load, fcfs);
    show("fcfs", fcfs);
    show("bins", bins);
}

/* Half of the prompt tokens in prompts of 32K, 70% of the machine used, three hours. */
static void short_prompts_gain_much_and_long_ones_lose_little(void **state) {
    (void)state;
    const sim_load load = {.seconds = 3 * 3600,
                           .utilisation = 0.7,
                           .long_share = 0.5,
                           .in_tokens = true,
                           .long_tokens = 32768,
                           .seed = 1};
    sim_result fcfs, bins;
    print_message("half of the tokens in long prompts\n");
    run_both(&load, &fcfs, &bins);
    assert_true(bins.n_short == fcfs.n_short && bins.n_long == fcfs.n_long && bins.n_long > 200);
    assert_true(bins.short_p95_s * 5 <= fcfs.short_p95_s);
    assert_true(bins.long_p95_s <= 1.25 * fcfs.long_p95_s);
    assert_true(bins.tokens_per_s >= 0.95 * fcfs.tokens_per_s);
    assert_true(bins.variation * 1.4 <= fcfs.variation);
    assert_true(bins.stall_p99_s <= 0.3);
}

/* Half of the time in prompts of 32K: short prompts are 35% of what the machine can do, and whoever serves them at once
 * makes a long one take 1 / (1 - 0.35) = 1.54 times as long as its own work and that before it. No order of service can
 * give that time back; it could only let short ones wait. */
static void long_prompts_pay_for_the_time_of_short_ones(void **state) {
    (void)state;
    const sim_load load = {
        .seconds = 3 * 3600, .utilisation = 0.7, .long_share = 0.5, .long_tokens = 32768, .seed = 1};
    sim_result fcfs, bins;
    print_message("half of the seconds in long prompts\n");
    run_both(&load, &fcfs, &bins);
    assert_true(bins.short_p95_s * 5 <= fcfs.short_p95_s);
    assert_true(bins.long_p95_s <= 1.54 * fcfs.long_p95_s);
    assert_true(bins.tokens_per_s >= 0.95 * fcfs.tokens_per_s);
    assert_true(bins.variation * 1.4 <= fcfs.variation);
}

static void two_long_prompts_take_twice_as_long_as_one(void **state) {
    (void)state;
    fl_sched_policy policy;
    fl_sched_policy_default(&policy);
    double one_s = sim_makespan(&policy, 32768, 1), two_s = sim_makespan(&policy, 32768, 2);
    print_message("one %.2f s, two %.2f s: %.3f times\n", one_s, two_s, two_s / one_s);
    assert_true(two_s <= 2.16 * one_s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prompts_gain_much_and_long_ones_lose_little),
        cmocka_unit_test(long_prompts_pay_for_the_time_of_short_ones),
        cmocka_unit_test(two_long_prompts_take_twice_as_long_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
