/* Seconds learned from steps, and rows of a step from seconds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/step_rate.h"

static void seconds_come_from_the_nearest_size_of_step(void **state) {
    (void)state;
    fl_step_rate rate = {0};
    assert_true(fl_step_rate_seconds(&rate, 1e9) == 0);
    fl_step_rate_learn(&rate, 1e9, 0.01);
    assert_true(fabs(fl_step_rate_seconds(&rate, 1e9) - 0.01) < 1e-12);
    assert_true(fabs(fl_step_rate_seconds(&rate, 1e12) - 10) < 1e-9);
    fl_step_rate_learn(&rate, 1e12, 2);
    assert_true(fabs(fl_step_rate_seconds(&rate, 2e12) - 4) < 1e-9);
    assert_true(fabs(fl_step_rate_seconds(&rate, 2e9) - 0.02) < 1e-12);
    assert_true(fabs(fl_step_rate_seconds(&rate, 1e6) - 1e-5) < 1e-12);
    for (int32_t i = 0; i < 60; i++) fl_step_rate_learn(&rate, 1e12, 4); /* the machine got slower */
    assert_true(fabs(fl_step_rate_seconds(&rate, 1e12) - 4) < 1e-3);
    fl_step_rate before = rate;
    fl_step_rate_learn(&rate, 0, 1);
    fl_step_rate_learn(&rate, NAN, 1);
    fl_step_rate_learn(&rate, 1e12, INFINITY);
    fl_step_rate_learn(&rate, 1e12, -1);
    assert_memory_equal(&before, &rate, sizeof rate);
}

/* 1 TFLOP/s; rows of 1 GFLOP = 1 ms each; 100 ms are fixed. */
static void rows_stay_within_the_limit_but_not_below_what_pays(void **state) {
    (void)state;
    fl_step_rate rate = {0};
    fl_step_rate_learn(&rate, 1e11, 0.1);
    fl_step_cost cost = {.fixed_flops = 1e11, .row_flops = 1e9, .tile_rows = 64, .rows_max = 4096};
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0, 0.05), 4096);
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 1, 0.25), 896); /* 996 ms; 960 rows would be 1,060 */
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 100, 0.25), 4096);
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.25, 1), 128);    /* 228 ms */
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.05, 1), 64);     /* never none */
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.25, 0.25), 320); /* 300 rows make 100 ms a quarter */
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.25, 0.05), 1920);
    cost.rows_max = 200;
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.25, 0.25), 200);
    cost.rows_max = 40;
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.01, 1), 40);
    cost.row_flops = 0;
    assert_int_equal(fl_step_rate_rows(&rate, &cost, 0.01, 1), 40);
    const fl_step_rate unknown = {0}; /* nothing is cut before something is known */
    cost = (fl_step_cost){.fixed_flops = 1e11, .row_flops = 1e9, .tile_rows = 64, .rows_max = 4096};
    assert_int_equal(fl_step_rate_rows(&unknown, &cost, 0.01, 0.05), 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seconds_come_from_the_nearest_size_of_step),
        cmocka_unit_test(rows_stay_within_the_limit_but_not_below_what_pays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
