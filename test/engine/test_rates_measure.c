/* Rates of a device that is made of a CPU backend (engine/fake_device.h): which steps are taken as recordings, and that
 * every call has a time. What they come to is measured, and so not looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/fake_device.h"
#include "engine/rates_measure.h"

enum { DEPTH = 1024 };

static double calls_of(const fl_rate_samples *samples, fl_rate_kind kind) {
    double calls = 0;
    for (int64_t i = 0; i < samples->n; i++)
        calls += samples->items[i].kind == kind ? samples->items[i].calls : 0;
    return calls;
}

static void measure(fl_engine *e, fl_rate_samples *samples) {
    static int32_t ids[DEPTH];
    const fl_rates_measuring m = {.ids = ids, .depth = DEPTH, .runs = 1};
    fl_rates rates;
    for (int32_t i = 0; i < DEPTH; i++) ids[i] = 5 + i * 7919 % 8000;
    assert_int_equal(fl_rates_measure(e, &m, samples), FL_ERR_OK);
    assert_int_equal(fl_rates_fit(samples, &rates), FL_ERR_OK);
    assert_true(rates.of[FL_RATE_matmul].n_samples > 0 && rates.of[FL_RATE_attn_absorbed].n_samples > 0);
}

/* On a host each step has time between its ops; of a device's recordings the ops have all of it. */
static void recordings_have_no_time_between_their_ops(void **state) {
    (void)state;
    fl_rate_samples host = {0}, device = {0};
    fl_engine *e = open_fake();
    measure(e, &host);
    become_device(e);
    measure(e, &device);
    assert_true(fake.n_replays > 0);
    assert_true(calls_of(&host, FL_RATE_step) > 0 && calls_of(&host, FL_RATE_issue) == 0);
    assert_true(calls_of(&device, FL_RATE_step) == 0);
    assert_true(calls_of(&device, FL_RATE_attn_prefill) >
                calls_of(&host, FL_RATE_attn_prefill)); /* short steps */
    fl_rate_samples_close(&host);
    fl_rate_samples_close(&device);
    fl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recordings_have_no_time_between_their_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
