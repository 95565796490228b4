/* The picker alone, on made-up prompts: shares, order, nobody starves. Everything is seeded and simulated. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched/sched.h"

static fl_sched open_with(void (*change)(fl_sched_policy *)) {
    fl_sched_policy policy;
    fl_sched sched;
    fl_sched_policy_default(&policy);
    if (change) change(&policy);
    assert_int_equal(fl_sched_open(&policy, &sched), FL_ERR_OK);
    return sched;
}

static fl_sched_item item_of(const fl_sched *s, double arrival_s, double cost_s, int32_t priority) {
    return (fl_sched_item){.priority = priority,
                           .bin = fl_sched_bin(&s->policy, cost_s),
                           .arrival_s = arrival_s,
                           .cost_s = cost_s};
}

static void use_fcfs(fl_sched_policy *p) {
    p->kind = FL_SCHED_FCFS;
}

static void bins_follow_bounds(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    const fl_sched_policy *p = &s.policy;
    assert_int_equal(fl_sched_bin(p, 0), 0);
    for (int32_t b = 0; b < p->n_bins - 1; b++) {
        assert_int_equal(fl_sched_bin(p, nextafter(p->bound_s[b], 0)), b);
        assert_int_equal(fl_sched_bin(p, p->bound_s[b]), b + 1);
    }
    assert_int_equal(fl_sched_bin(p, 1e30), p->n_bins - 1);
}

/* Bins that always have work share the engine by weight: at any time no bin is further from its share than a turn and a
 * step, whatever the steps' sizes. */
static void busy_bins_share_by_weight(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    static const double costs[] = {0.5, 4, 30, 1000}, steps[] = {0.07, 1.3, 0.9, 2.2};
    fl_sched_item items[4];
    const fl_sched_item *all[4];
    double got[4] = {0}, weights = 0;
    for (int32_t i = 0; i < 4; i++) {
        items[i] = item_of(&s, i, costs[i], 0);
        all[i] = &items[i];
        assert_int_equal(items[i].bin, i);
        weights += s.policy.weight[i];
    }
    for (int32_t k = 0; k < 20000; k++) {
        int32_t i = fl_sched_pick(&s, all, 4, k);
        fl_sched_charge(&s, items[i].bin, steps[i]);
        got[i] += steps[i];
        for (int32_t a = 0; a < 4; a++)
            for (int32_t b = 0; b < 4; b++) {
                double turn_a = s.policy.quantum_s + steps[a] / s.policy.weight[a];
                double turn_b = s.policy.quantum_s + steps[b] / s.policy.weight[b];
                double apart = got[a] / s.policy.weight[a] - got[b] / s.policy.weight[b];
                assert_true(apart <= turn_a + turn_b);
            }
    }
    for (int32_t i = 0; i < 4; i++) {
        double share = got[i] / (got[0] + got[1] + got[2] + got[3]);
        assert_true(fabs(share - s.policy.weight[i] / weights) < 0.002);
    }
}

static void a_short_prompt_passes_a_long_one_at_the_next_step(void **state) {
    (void)state;
    fl_sched s = open_with(NULL), fcfs = open_with(use_fcfs);
    fl_sched_item book = item_of(&s, 0, 500, 0), question = item_of(&s, 10, 0.1, 0);
    const fl_sched_item *items[] = {&book, &question};
    for (int32_t k = 0; k < 10; k++) {
        assert_int_equal(fl_sched_pick(&s, items, 1, k), 0);
        fl_sched_charge(&s, book.bin, 1);
    }
    book.started = true;
    assert_int_equal(fl_sched_pick(&s, items, 2, 10), 1);
    assert_int_equal(fl_sched_pick(&fcfs, items, 2, 10), 0);
    assert_int_equal(fl_sched_pick(&s, items, 0, 10), -1);
}

/* A bin that wakes up again and again breaks into others' turns; the round goes round all the same. */
static void waking_bins_starve_nobody(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    fl_sched_item question = item_of(&s, 0, 0.1, 0), file = item_of(&s, 0, 4, 0),
                  book = item_of(&s, 0, 40, 0);
    const fl_sched_item *busy[] = {&file, &book}, *all[] = {&file, &book, &question};
    double got[3] = {0};
    for (int32_t k = 0; k < 3000; k++) {
        bool asked = k % 2 == 1;
        int32_t i = fl_sched_pick(&s, asked ? all : busy, asked ? 3 : 2, k);
        double step_s = i == 2 ? 0.1 : 1;
        fl_sched_charge(&s, i == 2 ? question.bin : i == 1 ? book.bin : file.bin, step_s);
        got[i] += step_s;
        if (asked) assert_int_equal(i, 2);
    }
    assert_true(fabs(got[0] / got[1] - s.policy.weight[1] / s.policy.weight[2]) < 0.05);
}

static void long_prompts_go_first_among_those_that_come_together(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    fl_sched_item items[] = {item_of(&s, 0, 10, 0), item_of(&s, 0.1, 30, 0), item_of(&s, 0.2, 20, 0),
                             item_of(&s, 0.6, 60, 0)};
    const fl_sched_item *left[] = {&items[0], &items[1], &items[2], &items[3]};
    const fl_sched_item *const order[] = {&items[1], &items[2], &items[0], &items[3]};
    for (int32_t n = 4, k = 0; n > 0; n--, k++) {
        int32_t i = fl_sched_pick(&s, left, n, 1);
        assert_ptr_equal(left[i], order[k]);
        left[i] = left[n - 1];
    }
    items[0].started = true; /* alone until then: goes on */
    left[0] = &items[0], left[1] = &items[1];
    assert_int_equal(fl_sched_pick(&s, left, 2, 1), 0);
}

static void better_priorities_go_first_until_others_have_aged(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    double aging = s.policy.aging_s;
    fl_sched_item low = item_of(&s, 0, 0.5, 1), high = item_of(&s, 1, 0.5, 0),
                  first = item_of(&s, 2, 500, -5);
    const fl_sched_item *items[] = {&low, &high, &first};
    assert_int_equal(fl_sched_pick(&s, items, 2, 3), 1);
    assert_int_equal(fl_sched_pick(&s, items, 3, 3), 2);
    assert_int_equal(fl_sched_pick(&s, items, 2, aging + 0.5), 0); /* as good, and older */
    assert_true(fl_sched_before(&s, &high, &low, 3));
    assert_true(fl_sched_before(&s, &low, &high, aging + 0.5));
    low.priority = INT32_MAX, high.priority = INT32_MIN;
    assert_int_equal(fl_sched_pick(&s, items, 2, 20 * aging), 1);
    assert_int_equal(fl_sched_pick(&s, items, 2, 33 * aging), 0);
    fl_sched fcfs = open_with(use_fcfs);
    assert_int_equal(fl_sched_pick(&fcfs, items, 3, 3), 0);
    assert_false(fl_sched_before(&fcfs, &first, &low, 3));
}

/* ---- 10^5 random arrivals ---- */

enum { ARRIVALS = 100000, LIVE_MAX = 4096 };

typedef struct world {
    uint64_t random;
    fl_sched_item items[LIVE_MAX];
    double left_s[LIVE_MAX];
    const fl_sched_item *order[LIVE_MAX];
    int32_t n;
    double worst_wait_s; /* to the end of a prefill, per second of its cost, beyond 300 s */
} world;

static double draw(world *w) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(w->random >> 11) / 9007199254740992.0;
}

static void arrive(world *w, const fl_sched *s, double now_s) {
    static const double costs[] = {0.05, 2, 20, 100}, shares[] = {0.9, 0.99, 0.999, 1};
    double kind = draw(w), cost_s;
    int32_t k = 0, priority = draw(w) < 0.2 ? (int32_t)(draw(w) * 20) - 10 : 0;
    while (kind > shares[k]) k++;
    cost_s = costs[k] * (0.5 + draw(w));
    assert_true(w->n < LIVE_MAX);
    w->items[w->n] = item_of(s, now_s, cost_s, priority);
    w->left_s[w->n++] = cost_s;
}

static void step(world *w, fl_sched *s, double *now_s) {
    for (int32_t i = 0; i < w->n; i++) w->order[i] = &w->items[i];
    int32_t i = fl_sched_pick(s, w->order, w->n, *now_s);
    double step_s = w->left_s[i] < s->policy.quantum_s ? w->left_s[i] : s->policy.quantum_s;
    fl_sched_charge(s, w->items[i].bin, step_s);
    *now_s += step_s;
    w->items[i].started = true;
    w->left_s[i] -= step_s;
    if (w->left_s[i] > 1e-9) return;
    double waited = *now_s - w->items[i].arrival_s;
    if (waited > w->worst_wait_s) w->worst_wait_s = waited;
    w->items[i] = w->items[w->n - 1];
    w->left_s[i] = w->left_s[--w->n];
}

/* At 85% load every prompt is done, none after more than half an hour of the 16 hours: two books of 150 s, one behind
 * the other at a share of 1/8, would take 40 minutes if their bin never had more than its share. */
static void nobody_starves_in_100000_random_arrivals(void **state) {
    (void)state;
    static world w;
    fl_sched s = open_with(NULL);
    const double mean_cost_s = 0.9 * 0.05 + 0.09 * 2 + 0.009 * 20 + 0.001 * 100, load = 0.85;
    double now_s = 0, next_s = 0;
    w = (world){.random = 20261130};
    for (int32_t k = 0; k < ARRIVALS;) {
        while (k < ARRIVALS && next_s <= now_s) {
            arrive(&w, &s, next_s);
            next_s -= log(1 - draw(&w)) * mean_cost_s / load;
            k++;
        }
        if (w.n > 0) step(&w, &s, &now_s);
        else now_s = next_s;
    }
    while (w.n > 0) step(&w, &s, &now_s);
    print_message("longest wait %.0f s in %.0f s\n", w.worst_wait_s, now_s);
    assert_true(w.worst_wait_s < 1800);
}

/* ---- time ---- */

static void deadlines_are_given_up_when_they_cannot_be_met(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    const fl_sched_policy *p = &s.policy;
    fl_sched_item item = item_of(&s, 100, 10, 0);
    assert_false(fl_sched_too_late(p, &item, 0, 1e9, 1e9)); /* no deadline */
    assert_false(fl_sched_too_late(p, &item, 5, 0, 104.9));
    assert_true(fl_sched_too_late(p, &item, 5, 0, 105.1));
    assert_false(fl_sched_too_late(p, &item, 5, 6, 100)); /* a prediction is not trusted to the last fifth */
    assert_true(fl_sched_too_late(p, &item, 5, 6.5, 100));
    assert_true(fl_sched_too_late(p, &item, 5, 4, 102));
}

static void waits_are_what_is_ahead_and_the_shares_of_others(void **state) {
    (void)state;
    fl_sched s = open_with(NULL), fcfs = open_with(use_fcfs);
    const double queued_s[] = {0.5, 0, 30, 1000};
    /* Weights 4, 2, 1, 1. 0.5 s ahead, own 0.3 s: the third and fourth bin have 0.8 / 4 s each meanwhile. */
    assert_true(fabs(fl_sched_wait_s(&s.policy, queued_s, 0.3) - 0.9) < 1e-12);
    /* Behind 30 s with 20 s: all of the first bin, and 50 s of the fourth. */
    assert_true(fabs(fl_sched_wait_s(&s.policy, queued_s, 20) - 80.5) < 1e-12);
    assert_true(fabs(fl_sched_wait_s(&fcfs.policy, queued_s, 0.3) - 1030.5) < 1e-12);
}

static void steps_are_short_where_someone_waits(void **state) {
    (void)state;
    fl_sched s = open_with(NULL);
    assert_true(fl_sched_step_s(&s.policy, FL_SCHED_ALONE) == 0);
    assert_true(fl_sched_step_s(&s.policy, FL_SCHED_OTHERS) == s.policy.quantum_s);
    assert_true(fl_sched_step_s(&s.policy, FL_SCHED_ANSWERS) == s.policy.stall_s);
    s.policy.stall_s = 2 * s.policy.quantum_s;
    assert_true(fl_sched_step_s(&s.policy, FL_SCHED_ANSWERS) == s.policy.quantum_s);
}

static void bad_policies_are_refused_by_name(void **state) {
    (void)state;
    fl_sched_policy good, p;
    fl_sched s;
    fl_sched_policy_default(&good);
#define REFUSE(field, value)                                                                                 \
    p = good;                                                                                                \
    p.field = value;                                                                                         \
    assert_int_equal(fl_sched_open(&p, &s), FL_ERR_INVALID);                                                 \
    assert_non_null(strstr(fl_err_detail(), #field))
    REFUSE(n_bins, 0);
    REFUSE(n_bins, FL_SCHED_BINS_MAX + 1);
    REFUSE(bound_s[1], good.bound_s[0]);
    REFUSE(weight[2], 0);
    REFUSE(quantum_s, NAN);
    REFUSE(stall_s, 0);
    REFUSE(aging_s, -1);
    fl_sched_kind kind;
    assert_true(fl_sched_kind_parse("fcfs", &kind) && kind == FL_SCHED_FCFS);
    assert_string_equal(fl_sched_kind_name(kind), "fcfs");
    assert_false(fl_sched_kind_parse("lifo", &kind));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bins_follow_bounds),
        cmocka_unit_test(busy_bins_share_by_weight),
        cmocka_unit_test(a_short_prompt_passes_a_long_one_at_the_next_step),
        cmocka_unit_test(waking_bins_starve_nobody),
        cmocka_unit_test(long_prompts_go_first_among_those_that_come_together),
        cmocka_unit_test(better_priorities_go_first_until_others_have_aged),
        cmocka_unit_test(nobody_starves_in_100000_random_arrivals),
        cmocka_unit_test(deadlines_are_given_up_when_they_cannot_be_met),
        cmocka_unit_test(waits_are_what_is_ahead_and_the_shares_of_others),
        cmocka_unit_test(steps_are_short_where_someone_waits),
        cmocka_unit_test(bad_policies_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
