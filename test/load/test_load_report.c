/* Mixes from JSON; what a load's records say, against figures worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "load/load_report.h"

static fl_err parse(const char *text, fl_load_mix *out) {
    return fl_load_mix_parse(text, strlen(text), out);
}

static void mixes_are_read(void **state) {
    (void)state;
    fl_load_mix mix;
    assert_int_equal(
        parse("{\"classes\": [{\"name\": \"short\", \"share\": 3, \"prompt_tokens\": [128, 512], "
              "\"answer_tokens\": 32, \"ttft_limit_s\": 2.5}, {\"name\": \"long\", \"share\": 1, "
              "\"prompt_tokens\": 32768, \"answer_tokens\": [1, 9], \"priority\": 1}]}",
              &mix),
        FL_ERR_OK);
    assert_int_equal(mix.n, 2);
    assert_true(mix.classes[0].share == 0.75 && mix.classes[1].share == 0.25);
    assert_true(mix.classes[0].prompt_min == 128 && mix.classes[0].prompt_max == 512);
    assert_true(mix.classes[0].answer_min == 32 && mix.classes[0].answer_max == 32);
    assert_true(mix.classes[1].prompt_min == 32768 && mix.classes[1].prompt_max == 32768);
    assert_true(mix.classes[0].ttft_limit_s == 2.5 && mix.classes[1].priority == 1);
    assert_int_equal(fl_load_mix_read(NULL, &mix), FL_ERR_OK);
    assert_int_equal(mix.n, 1);
}

static void bad_mixes_are_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "line"},
        {"[]", "classes"},
        {"{\"classes\": []}", "1..16"},
        {"{\"classes\": [{\"name\": \"\", \"prompt_tokens\": 1, \"answer_tokens\": 1}]}", "name"},
        {"{\"classes\": [{\"name\": \"a\", \"answer_tokens\": 1}]}", "prompt_tokens"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": [2, 1], \"answer_tokens\": 1}]}", "MIN <= MAX"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": [1, 2, 3], \"answer_tokens\": 1}]}",
         "MIN <= MAX"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": 1.5, \"answer_tokens\": 1}]}", "prompt_tokens"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": 1, \"answer_tokens\": 1e9}]}", "answer_tokens"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": 1, \"answer_tokens\": 1, \"share\": -1}]}",
         "share"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": 1, \"answer_tokens\": 1, \"share\": 0}]}",
         "share"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": 1, \"answer_tokens\": 1, \"weight\": 1}]}",
         "weight"},
        {"{\"classes\": [{\"name\": \"a\", \"prompt_tokens\": 1, \"answer_tokens\": 1}], \"x\": 1}",
         "classes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_load_mix mix;
        assert_int_equal(parse(bad[i][0], &mix), FL_ERR_DATA);
        if (!strstr(fl_err_detail(), bad[i][1])) fail_msg("%s: said '%s'", bad[i][0], fl_err_detail());
    }
}

static void percentiles_are_values_that_occurred(void **state) {
    (void)state;
    double values[100];
    for (int i = 0; i < 100; i++) values[i] = (i * 37) % 100 + 1; /* 1..100 in some order */
    fl_load_spread s = fl_load_spread_of(values, 100);
    assert_true(s.n == 100 && s.p50 == 50 && s.p90 == 90 && s.p95 == 95 && s.p99 == 99 && s.max == 100);
    double one = 7;
    s = fl_load_spread_of(&one, 1);
    assert_true(s.p50 == 7 && s.p99 == 7);
    assert_true(fl_load_spread_of(NULL, 0).n == 0);
}

/* Two classes, 40 s. Class 0 with a limit of 1 s: first tokens after 0.5 s and 2 s (not good), one refused after
 * 5 ms. Class 1, no limit: one done, one failed, one late. */
static void records_are_summed(void **state) {
    (void)state;
    fl_load_mix mix = {.n = 2};
    strcpy(mix.classes[0].name, "short");
    strcpy(mix.classes[1].name, "long");
    mix.classes[0].ttft_limit_s = 1;
    fl_load_record records[] = {
        {.class_index = 0,
         .outcome = FL_LOAD_DONE,
         .due_s = 1,
         .first_s = 1.5,
         .end_s = 2,
         .prompt_tokens = 100},
        {.class_index = 0,
         .outcome = FL_LOAD_DONE,
         .due_s = 2,
         .first_s = 4,
         .end_s = 5,
         .cached_tokens = 64},
        {.class_index = 0, .outcome = FL_LOAD_REFUSED, .due_s = 3, .end_s = 3.005},
        {.class_index = 1,
         .outcome = FL_LOAD_DONE,
         .due_s = 3,
         .first_s = 33,
         .end_s = 50,
         .answer_tokens = 9},
        {.class_index = 1, .outcome = FL_LOAD_FAILED, .due_s = 4, .end_s = 5},
        {.class_index = 1, .outcome = FL_LOAD_LATE, .due_s = 5, .end_s = 60},
    };
    float gaps[] = {0.03f, 0.01f, 0.02f};
    fl_load_result result = {.records = records, .n = 6, .duration_s = 40};
    result.gaps[1] = (fl_load_gaps){.gaps = gaps, .n = 3};
    fl_load_report r;
    assert_int_equal(fl_load_report_make(&mix, &result, &r), FL_ERR_OK);
    assert_true(r.classes[0].n == 3 && r.classes[0].done == 2 && r.classes[0].refused == 1 &&
                r.classes[0].good == 1);
    assert_true(r.classes[0].ttft_s.p50 == 0.5 && r.classes[0].ttft_s.p99 == 2);
    assert_true(r.classes[0].refusal_s.n == 1 && r.classes[0].refusal_s.p99 > 0.0049);
    assert_true(r.classes[1].failed == 1 && r.classes[1].late == 1 && r.classes[1].good == 1);
    assert_true(r.classes[1].gap_s.p50 == (double)0.02f && r.classes[1].gap_s.max == (double)0.03f);
    assert_true(r.all.n == 6 && r.all.done == 3 && r.all.prompt_tokens == 100 && r.all.cached_tokens == 64);
    assert_true(r.last_end_s == 50 && r.requests_per_s == 3.0 / 50 && r.good_per_s == 2.0 / 50);
}

/* Windows of 10 s with 10, 2, 4, 6 tokens: the first is left out; mean 4, deviation sqrt(8 / 3). */
static void steadiness_is_deviation_over_mean(void **state) {
    (void)state;
    static const int counts[] = {10, 2, 4, 6};
    double at[22];
    int64_t n = 0;
    fl_load_mix mix = {.n = 1};
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < counts[w]; i++) at[n++] = w * 10 + 0.1 * i;
    const fl_load_result result = {.tokens_at = at, .n_tokens = n, .duration_s = 40};
    fl_load_report r;
    assert_int_equal(fl_load_report_make(&mix, &result, &r), FL_ERR_OK);
    assert_int_equal(r.n_windows, 3);
    assert_true(r.tokens_variation > 0.40824 && r.tokens_variation < 0.40825);
    assert_true(r.requests_variation == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_are_read),
        cmocka_unit_test(bad_mixes_are_refused),
        cmocka_unit_test(percentiles_are_values_that_occurred),
        cmocka_unit_test(records_are_summed),
        cmocka_unit_test(steadiness_is_deviation_over_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
