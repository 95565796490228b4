/* Policies as texts: numbers from the length bucket, settings, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "attn/policy.h"

static void buckets_are_powers_of_two(void **state) {
    (void)state;
    assert_int_equal(fl_policy_bucket(1), 4096);
    assert_int_equal(fl_policy_bucket(4096), 4096);
    assert_int_equal(fl_policy_bucket(4097), 8192);
    assert_int_equal(fl_policy_bucket(524288), 524288);
}

static void expect(const char *text, int64_t ctx, const char *written) {
    fl_policy p, again;
    char out[FL_POLICY_TEXT_BYTES];
    if (fl_policy_parse(text, ctx, &p) != FL_ERR_OK) fail_msg("%s: %s", text, fl_err_detail());
    fl_policy_write(&p, out);
    assert_string_equal(out, written);
    assert_int_equal(fl_policy_parse(out, ctx, &again), FL_ERR_OK);
    assert_memory_equal(&p, &again, sizeof p);
}

static void numbers_come_from_the_bucket_or_the_text(void **state) {
    (void)state;
    expect(NULL, 4096, "full");
    expect("full", 4096, "full");
    expect("window", 32768, "window:window=1024,sinks=64");
    expect("window-anchors", 131072, "window-anchors:window=4096,stride=1024");
    expect("window-anchors", 131073, "window-anchors:window=8192,stride=2048");
    expect("window-anchors:window=16k,stride=4096", 524288, "window-anchors:window=16384,stride=4096");
    expect("window-anchors:window=1/16", 4096, "window-anchors:window=256,stride=32");
    expect("segments:4", 524288, "segments:4,window=16384,stride=4096,segment=131072");
    expect("segments:3,window=128", 4096, "segments:3,window=128,stride=32,segment=1408");
    expect("blocks", 32768, "blocks:window=512,sinks=64,block=64,capacity=256");
    expect("blocks:alpha=0.125,block=128", 32768,
           "blocks:window=512,sinks=64,block=128,capacity=256,alpha=0.125");
}

static void faults_are_named(void **state) {
    static const char *const cases[][2] = {
        {"dense", "'dense'"},
        {"full:window=1", "no setting 'window'"},
        {"window:stride=3", "no setting 'stride'"},
        {"window:window=0", "window"},
        {"window:window=-5", "window"},
        {"window:window=1/0", "window"},
        {"window:window=2/1", "window"},
        {"window:window=99999999999999999999", "window"},
        {"window-anchors:stride=2147483647", "1..268435456"},
        {"window:window", "'window'"},
        {"segments", "their number"},
        {"segments:0", "segments"},
        {"segments:65", "1..64"},
        {"segments:4,segment=100", "multiple of 64"},
        {"blocks:alpha=0", "alpha"},
        {"blocks:alpha=nan", "alpha"},
        {"blocks:alpha=1.5", "alpha"},
        {"blocks:block=192", "block"},
        {"blocks:capacity=3", "capacity"},
        {"blocks:,", "''"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_policy p;
        if (fl_policy_parse(cases[i][0], 4096, &p) != FL_ERR_INVALID) fail_msg("%s is taken", cases[i][0]);
        if (!strstr(fl_err_detail(), cases[i][1])) fail_msg("%s: %s", cases[i][0], fl_err_detail());
    }
}

static void what_is_attended(void **state) {
    fl_policy p;
    (void)state;
    assert_int_equal(fl_policy_parse("segments:4,window=100,stride=50", 4096, &p), FL_ERR_OK);
    fl_attend a = fl_policy_attend(&p);
    assert_int_equal(a.view.segment, 1024);
    assert_int_equal(a.view.window, 100);
    assert_int_equal(a.anchor_step, 50);
    assert_false(a.blocks);
    assert_int_equal(fl_policy_tile_rows(&p), 64);
    assert_int_equal(fl_policy_parse("blocks", 4096, &p), FL_ERR_OK);
    a = fl_policy_attend(&p);
    assert_true(a.blocks);
    assert_int_equal(a.view.window, 0);
    assert_int_equal(fl_policy_tile_rows(&p), 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_powers_of_two),
        cmocka_unit_test(numbers_come_from_the_bucket_or_the_text),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(what_is_attended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
