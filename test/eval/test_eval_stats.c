/* The evaluation's statistics against figures worked out by hand, its report, and how variants are written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "eval/eval_document.h"
#include "eval/eval_report.h"
#include "eval/eval_variant.h"
#include "eval/heat_map.h"

enum { PAIRS = 400 };

static const fl_eval_chance chance = {.resamples = FL_EVAL_RESAMPLES_MIN, .seed = 7};

static void near(double value, double expected, double slack) {
    if (!(fabs(value - expected) <= slack)) fail_msg("%.9g, expected %.9g within %g", value, expected, slack);
}

static double flip(const double *d, int32_t n) {
    double p = -1;
    assert_int_equal(fl_eval_sign_flip(d, n, 1, &p), FL_ERR_OK);
    return p;
}

static void sign_flips_equal_counted_ones(void **state) {
    (void)state;
    /* 9 questions lost and 1 won: McNemar's test, P(at least 9 heads of 10) = (10 + 1) / 1024. */
    const double mcnemar[] = {1, 1, 1, 1, -1, 1, 1, 1, 1, 1, 0, 0, 0};
    near(flip(mcnemar, 13), 11.0 / 1024, 1e-12);
    /* Sizes 1/4, 1/4, 1/2, all lost: only the observed one of 8 sign patterns sums to 1. */
    const double shares[] = {0.25, 0.25, 0.5};
    near(flip(shares, 3), 1.0 / 8, 1e-12);
    /* Won the half, lost the quarters: sums 1, .5, .5, 0, 0, -.5, -.5, -1 (signs on 1/4, 1/4, 1/2); 5 are >= 0. */
    const double mixed[] = {0.25, 0.25, -0.5};
    near(flip(mixed, 3), 5.0 / 8, 1e-12);
    /* Thirds and a tenth, all lost: 1 of 8. No common fraction, all lost: 1 of 4. */
    const double thirds[] = {1.0 / 3, 2.0 / 3, 0.1}, odd[] = {0.123456, 0.654321};
    near(flip(thirds, 3), 1.0 / 8, 1e-12);
    near(flip(odd, 2), 1.0 / 4, 1e-12);
    const double none[] = {0, 0, 0};
    near(flip(none, 3), 1, 0);
    near(flip(none, 0), 1, 0);
}

static void drawn_flips_come_near_the_exact_ones(void **state) {
    (void)state;
    /* 40 differences of nearly the same size, 26 lost: close to P(Bin(40, 1/2) >= 26) = 0.0403. */
    double d[40];
    for (int i = 0; i < 40; i++) d[i] = (i < 26 ? 1 : -1) * (1 + 1e-5 * sqrt(i + 2));
    near(flip(d, 40), 0.0403, 0.006);
    for (int i = 0; i < 40; i++) d[i] = fabs(d[i]);
    near(flip(d, 40), 1.0 / 50001, 1e-12); /* never drawn: the observed one alone */
}

/* `n` documents of one question; the first `lost` are lost by the variant. */
static void make_pairs(fl_eval_pair *pairs, int32_t n, int32_t lost) {
    for (int32_t i = 0; i < n; i++)
        pairs[i] = (fl_eval_pair){
            .document = i, .score_full = 1, .score = i < lost ? 0 : 1, .nll_full = 0.5, .nll = 0.5};
}

static void a_loss_and_its_interval(void **state) {
    (void)state;
    static fl_eval_pair pairs[PAIRS];
    fl_eval_summary s;
    make_pairs(pairs, 100, 10);
    assert_int_equal(fl_eval_summarise(pairs, 100, &chance, &s), FL_ERR_OK);
    assert_int_equal(s.n_questions, 100);
    assert_int_equal(s.n_documents, 100);
    assert_int_equal(s.n_lost, 10);
    assert_int_equal(s.n_won, 0);
    near(s.score_full, 100, 1e-9);
    near(s.score, 90, 1e-9);
    near(s.loss.value, 10, 1e-9);
    /* Each resample's loss is Bin(100, 0.1) points: 2.5% and 97.5% quantiles 5 and 16. */
    near(s.loss.low, 5, 1);
    near(s.loss.high, 16, 1);
    near(s.loss.p, 1.0 / 1024, 1e-12);
    near(s.nll_diff.value, 0, 0);
    near(s.nll_diff.p, 1, 0);
    near(s.unseen_points, 3, 1e-12);
    assert_true(s.worse);
    fl_eval_summary again;
    assert_int_equal(fl_eval_summarise(pairs, 100, &chance, &again), FL_ERR_OK);
    assert_memory_equal(&s, &again, sizeof s);
}

static void identical_sides_lose_exactly_nothing(void **state) {
    (void)state;
    static fl_eval_pair pairs[PAIRS];
    fl_eval_summary s;
    for (int32_t i = 0; i < PAIRS; i++)
        pairs[i] = (fl_eval_pair){.document = i / 5,
                                  .cell = i % 5,
                                  .score_full = (i * 7 % 3) / 3.0,
                                  .score = (i * 7 % 3) / 3.0,
                                  .nll_full = sqrt(i),
                                  .nll = sqrt(i)};
    assert_int_equal(fl_eval_summarise(pairs, PAIRS, &chance, &s), FL_ERR_OK);
    assert_true(s.loss.value == 0 && s.loss.low == 0 && s.loss.high == 0 && s.loss.p == 1);
    assert_true(s.nll_diff.value == 0 && s.nll_diff.low == 0 && s.nll_diff.high == 0 && s.nll_diff.p == 1);
    assert_true(s.kl == 0 && !s.worse);
    assert_int_equal(s.n_documents, PAIRS / 5);
}

static void documents_not_questions_are_the_sample(void **state) {
    (void)state;
    static fl_eval_pair pairs[PAIRS];
    fl_eval_summary s;
    make_pairs(pairs, 100, 20);
    /* The same figures, but the 20 lost questions are of 2 documents of 10: only 1 of 4 sign patterns is as bad. */
    for (int32_t i = 0; i < 100; i++) pairs[i].document = i / 10;
    assert_int_equal(fl_eval_summarise(pairs, 100, &chance, &s), FL_ERR_OK);
    near(s.loss.value, 20, 1e-9);
    near(s.loss.p, 0.25, 1e-12);
    assert_false(s.worse);
    /* Bin(10, 0.2) documents of 10 points: quantiles 0 and 50 (P(0) = 0.107, P(X <= 4) = 0.967). */
    near(s.loss.low, 0, 1e-9);
    near(s.loss.high, 50, 1e-9);
}

static void cells_weigh_the_same(void **state) {
    (void)state;
    static fl_eval_pair pairs[PAIRS];
    fl_eval_summary s;
    /* 10 questions all lost beside 90 all right: two tasks, so 50 points, not 10. */
    make_pairs(pairs, 100, 10);
    for (int32_t i = 0; i < 100; i++) pairs[i].cell = pairs[i].stratum = i < 10;
    assert_int_equal(fl_eval_summarise(pairs, 100, &chance, &s), FL_ERR_OK);
    near(s.loss.value, 50, 1e-9);
    near(s.score, 50, 1e-9);
    near(s.score_full, 100, 1e-9);
    /* Drawn within their strata both keep their size, and then nothing varies. */
    near(s.loss.low, 50, 1e-9);
    near(s.loss.high, 50, 1e-9);
    near(s.loss.p, 1.0 / 1024, 1e-12);
}

static void more_nats_alone_are_flagged(void **state) {
    (void)state;
    static fl_eval_pair pairs[PAIRS];
    fl_eval_summary s;
    make_pairs(pairs, 200, 0);
    for (int32_t i = 0; i < 200; i++) {
        pairs[i].nll += 0.02 + 0.05 * sin(i);
        pairs[i].kl = 0.01;
    }
    assert_int_equal(fl_eval_summarise(pairs, 200, &chance, &s), FL_ERR_OK);
    near(s.nll_diff.value, 0.02, 0.002);
    assert_true(s.nll_diff.low > 0.01 && s.nll_diff.low < s.nll_diff.value);
    assert_true(s.nll_diff.high < 0.03 && s.nll_diff.high > s.nll_diff.value);
    assert_true(s.nll_diff.p < 0.001);
    near(s.loss.p, 1, 0);
    near(s.kl, 0.01, 1e-12);
    assert_true(s.worse);
    for (int32_t i = 0; i < 200; i++) pairs[i].nll = 0.5 - 0.02 - 0.05 * sin(i); /* better is not worse */
    assert_int_equal(fl_eval_summarise(pairs, 200, &chance, &s), FL_ERR_OK);
    assert_true(s.nll_diff.p > 0.99 && !s.worse);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    fl_eval_pair pair = {.score_full = 1, .score = 1};
    const fl_eval_chance few = {.resamples = FL_EVAL_RESAMPLES_MIN - 1};
    fl_eval_summary s;
    assert_int_equal(fl_eval_summarise(&pair, 1, &few, &s), FL_ERR_INVALID);
    assert_int_equal(fl_eval_summarise(&pair, 0, &chance, &s), FL_ERR_OK);
    assert_true(s.n_questions == 0 && s.loss.p == 1);
    pair.nll = NAN;
    assert_int_equal(fl_eval_summarise(&pair, 1, &chance, &s), FL_ERR_INVALID);
    pair.nll = 0;
    pair.cell = -1;
    assert_int_equal(fl_eval_summarise(&pair, 1, &chance, &s), FL_ERR_INVALID);
    pair.cell = 1 << 20;
    assert_int_equal(fl_eval_summarise(&pair, 1, &chance, &s), FL_ERR_INVALID);
}

/* ---- the report ------------------------------------------------------------------------------------------------- */

enum { DOCUMENTS = 40 };

/* One document each of 40 at 4096 and at 8192 tokens, with two tasks: the first right everywhere on the baseline, the
 * second in a quarter of the documents only. Variant 1 is the baseline's equal, variant 2 loses every second answer of
 * the first task. */
static void make_results(fl_eval_results *out) {
    static const int64_t lengths[] = {8192, 4096};
    const char *const *names = fl_eval_task_names();
    const fl_eval_grid grid = {.lengths = lengths,
                               .n_lengths = 2,
                               .tasks = names,
                               .n_tasks = 1,
                               .n_documents = DOCUMENTS,
                               .n_sides = 3};
    assert_int_equal(fl_eval_results_open(&grid, out), FL_ERR_OK);
    assert_int_equal(out->n, 2 * DOCUMENTS);
    for (int32_t i = 0; i < out->n; i++) {
        fl_eval_result *r = &out->items[i];
        r->rows = calloc(2, sizeof *r->rows);
        assert_non_null(r->rows);
        r->n_rows = 2;
        for (int32_t row = 0; row < 2; row++) {
            fl_eval_row *of = &r->rows[row];
            *of = (fl_eval_row){
                .task = names[row], .depth = (i % 8 + 0.5) / 8, .segment_distance = i % 3, .n_scored = 5};
            double score = row == 0 || i % 4 == 0;
            for (int32_t s = 0; s < 3; s++) of->sides[s] = (fl_eval_outcome){.score = score, .nll = 0.25};
            if (row == 0 && i % 2) of->sides[2] = (fl_eval_outcome){.score = 0, .nll = 1.25, .kl = 0.5};
        }
        for (int32_t s = 0; s < 3; s++) r->costs[s] = (fl_eval_cost){0.5 + s, 4000, 8000, 1};
    }
}

static const fl_eval_about about = {
    .model = "a <model>",
    .documents = "a test",
    .difficulty = 0.5,
    .n_segments = 4,
    .sides = {{.spec = "full", .policy = "full", .kv_dtype = "bf16", .backend = "avx2", .block_density = 1},
              {.spec = "same", .policy = "full", .kv_dtype = "bf16", .backend = "avx2", .block_density = 1},
              {.spec = "half & half",
               .policy = "blocks",
               .kv_dtype = "bf16",
               .backend = "avx2",
               .block_density = 0.25}}};

static void a_report_counts_what_the_baseline_can_do(void **state) {
    (void)state;
    fl_eval_results results;
    fl_eval_report r;
    make_results(&results);
    assert_int_equal(fl_eval_report_make(&results, &chance, &r), FL_ERR_OK);
    assert_int_equal(r.n_views, 2);
    assert_int_equal(r.n_tasks, 2);
    assert_int_equal(r.n_lengths, 2);
    assert_true(r.lengths[0] == 4096 && r.lengths[1] == 8192);
    const fl_eval_view *same = &r.views[0], *half = &r.views[1];
    for (int32_t l = 0; l < 2; l++) {
        assert_true(half->cells[l].counts);
        assert_false(half->cells[2 + l].counts); /* 25 points on the baseline */
        near(half->cells[2 + l].sum.score_full, 25, 1e-9);
        near(half->by_length[l].loss.value, 50, 1e-9);
        for (int32_t d = 0; d < FL_EVAL_DEPTHS; d++)
            near(half->by_depth[l * FL_EVAL_DEPTHS + d].loss.value, d % 2 ? 100 : 0, 1e-9);
    }
    assert_int_equal(half->total.n_questions, 2 * DOCUMENTS);
    near(half->total.loss.value, 50, 1e-9);
    near(half->total.nll_diff.value, 0.5, 1e-9);
    near(half->total.kl, 0.25, 1e-9);
    assert_true(half->total.worse);
    assert_true(same->total.loss.value == 0 && same->total.kl == 0 && !same->total.worse);
    near(half->by_task[1].score_full, 25, 1e-9); /* shown although it does not count */
    int32_t n = 0;
    for (int32_t b = 0; b < FL_EVAL_DISTANCES; b++) n += half->by_distance[b].n_questions;
    assert_int_equal(n, DOCUMENTS);
    near(r.costs[2].prefill_s, 2.5 * 2 * DOCUMENTS, 1e-9);
    fl_eval_report_close(&r);
    fl_eval_results_close(&results);
}

static void the_json_has_its_fields(void **state) {
    (void)state;
    static const char *const numbers[] = {"score",     "score_full", "loss_points", "loss_low",
                                          "loss_high", "loss_p",     "nll_diff",    "nll_low",
                                          "nll_high",  "nll_p",      "kl"};
    fl_eval_results results;
    fl_eval_report r;
    make_results(&results);
    assert_int_equal(fl_eval_report_make(&results, &chance, &r), FL_ERR_OK);
    json_t *json = fl_eval_report_json(&r, &about), *variants = json_object_get(json, "variants");
    assert_int_equal(json_array_size(variants), 2);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        assert_true(json_is_number(json_object_get(json, numbers[i])));
        assert_true(json_is_number(json_object_get(json_array_get(variants, 1), numbers[i])));
    }
    json_t *half = json_array_get(variants, 1), *by_length = json_object_get(half, "by_length");
    near(json_number_value(json_object_get(json, "loss_points")), 0, 0); /* the first variant's */
    near(json_number_value(json_object_get(half, "loss_points")), 50, 1e-9);
    assert_true(json_is_true(json_object_get(half, "worse")));
    assert_int_equal(json_object_size(json_object_get(half, "by_task")), 2);
    assert_int_equal(json_object_size(by_length), 2);
    json_t *at = json_object_get(by_length, "8192");
    near(json_number_value(json_object_get(at, "loss_points")), 50, 1e-9);
    assert_int_equal(json_array_size(json_object_get(at, "by_depth")), FL_EVAL_DEPTHS);
    assert_int_equal(json_object_size(json_object_get(at, "by_segment_distance")), 3);
    const char *first = fl_eval_task_names()[0], *second = fl_eval_task_names()[1];
    json_t *tasks = json_object_get(at, "by_task");
    assert_true(json_is_true(json_object_get(json_object_get(tasks, first), "counts")));
    assert_true(json_is_false(json_object_get(json_object_get(tasks, second), "counts")));
    near(json_number_value(json_object_get(half, "block_density")), 0.25, 0);
    json_decref(json);
    fl_eval_report_close(&r);
    fl_eval_results_close(&results);
}

/* What a writer put into a file, NUL behind; the caller frees it. */
static char *text_of(void (*write)(FILE *, const fl_eval_report *), const fl_eval_report *r) {
    char *text = NULL;
    size_t n = 0;
    FILE *file = open_memstream(&text, &n);
    assert_non_null(file);
    write(file, r);
    fclose(file);
    return text;
}

static void write_table(FILE *file, const fl_eval_report *r) {
    fl_eval_report_print(file, r, &about);
}

static void write_map(FILE *file, const fl_eval_report *r) {
    assert_int_equal(fl_heat_map_write(file, r, &about), FL_ERR_OK);
}

static int32_t count(const char *text, const char *what) {
    int32_t n = 0;
    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

static void tables_and_heat_map_say_it(void **state) {
    (void)state;
    fl_eval_results results;
    fl_eval_report r;
    make_results(&results);
    assert_int_equal(fl_eval_report_make(&results, &chance, &r), FL_ERR_OK);
    char *table = text_of(write_table, &r), *map = text_of(write_map, &r);
    assert_int_equal(count(table, "does not count"), 4); /* two lengths, two variants */
    assert_non_null(strstr(table, "50.00 ["));
    assert_non_null(strstr(table, "  WORSE\n"));
    assert_memory_equal(map, "<svg ", 5);
    assert_int_equal(count(map, "<title>"), 3 * 2 * FL_EVAL_DEPTHS);
    assert_int_equal(count(map, ">0.0<"), 2 * FL_EVAL_DEPTHS / 2); /* every second depth of the last panel */
    assert_non_null(strstr(map, "half &amp; half"));
    assert_non_null(strstr(map, "a &lt;model&gt;"));
    assert_null(strstr(map, "<model>"));
    free(table);
    free(map);
    fl_eval_report_close(&r);
    fl_eval_results_close(&results);
}

static void running_text_counts_by_its_nll(void **state) {
    (void)state;
    fl_eval_results results;
    fl_eval_report r;
    make_results(&results);
    for (int32_t i = 0; i < results.n; i++) {
        results.items[i].n_rows = 1;
        results.items[i].rows[0].task = FL_EVAL_TASK_TEXT;
        for (int32_t s = 0; s < 3; s++)
            results.items[i].rows[0].sides[s] =
                (fl_eval_outcome){.nll = 2 + 0.01 * (s == 2), .kl = 0.01 * (s == 2)};
    }
    assert_int_equal(fl_eval_report_make(&results, &chance, &r), FL_ERR_OK);
    assert_int_equal(r.views[1].total.n_questions, 0); /* no points to lose */
    assert_true(r.views[1].worse && !r.views[1].total.worse && !r.views[0].worse);
    near(r.views[1].by_task[0].nll_diff.value, 0.01, 1e-9);
    json_t *json = fl_eval_report_json(&r, &about);
    assert_true(json_is_false(json_object_get(json, "worse")));
    assert_true(json_is_true(json_object_get(json_array_get(json_object_get(json, "variants"), 1), "worse")));
    json_decref(json);
    fl_eval_report_close(&r);
    fl_eval_results_close(&results);
}

static void a_baseline_alone_has_a_report(void **state) {
    (void)state;
    fl_eval_results results;
    fl_eval_report r;
    make_results(&results);
    results.n_sides = 1;
    assert_int_equal(fl_eval_report_make(&results, &chance, &r), FL_ERR_OK);
    assert_int_equal(r.n_views, 1);
    near(r.views[0].total.score, 100, 1e-9);
    near(r.views[0].total.loss.value, 0, 0);
    fl_eval_report_close(&r);
    fl_eval_results_close(&results);
}

static void bins(void **state) {
    (void)state;
    assert_int_equal(fl_eval_depth_bin(-1), -1);
    assert_int_equal(fl_eval_depth_bin(0), 0);
    assert_int_equal(fl_eval_depth_bin(0.124), 0);
    assert_int_equal(fl_eval_depth_bin(0.125), 1);
    assert_int_equal(fl_eval_depth_bin(1), 7);
    assert_int_equal(fl_eval_distance_bin(4), 4);
    assert_int_equal(fl_eval_distance_bin(5), 5);
    assert_int_equal(fl_eval_distance_bin(16), 6);
    assert_int_equal(fl_eval_distance_bin(1000), 7);
    assert_string_equal(fl_eval_distance_name(6), "9-16");
}

/* ---- variants --------------------------------------------------------------------------------------------------- */

static void variants_are_read(void **state) {
    (void)state;
    fl_eval_variant v;
    fl_settings s;
    fl_settings_default(&s);
    assert_int_equal(
        fl_eval_variant_parse("  policy=blocks:alpha=0.1,window=1k kv=int4   tail=sparse rope=two-path "
                              "rope-factor=4 calibration=none force-positions=1 backend=avx2 ",
                              &v),
        FL_ERR_OK);
    fl_eval_variant_apply(&v, &s);
    assert_string_equal(s.policy, "blocks:alpha=0.1,window=1k");
    assert_string_equal(s.kv_dtype, "int4");
    assert_string_equal(s.tail, "sparse");
    assert_string_equal(s.rope, "two-path");
    assert_string_equal(s.calibration, "");
    assert_string_equal(s.backend, "avx2");
    assert_true(s.rope_factor == 4 && s.force_positions);
    assert_string_equal(v.spec,
                        "policy=blocks:alpha=0.1,window=1k kv=int4 tail=sparse rope=two-path rope-factor=4 "
                        "calibration=none force-positions=1 backend=avx2");
    fl_eval_variant_close(&v);
    assert_int_equal(fl_eval_variant_parse("blocks:alpha=0.1 kv=fp8", &v), FL_ERR_OK);
    assert_string_equal(v.policy, "blocks:alpha=0.1");
    assert_string_equal(v.kv_dtype, "fp8");
    assert_null(v.calibration);
    fl_eval_variant_close(&v);
    static const char *const bad[] = {"",
                                      "  ",
                                      "full blocks",
                                      "policy=full policy=full",
                                      "speed=9",
                                      "rope-factor=",
                                      "rope-factor=0.5",
                                      "rope-factor=x",
                                      "rope-factor=nan",
                                      "force-positions=yes",
                                      "kv=a kv=b",
                                      "backend=a backend=b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (fl_eval_variant_parse(bad[i], &v) != FL_ERR_INVALID) fail_msg("'%s' was read", bad[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sign_flips_equal_counted_ones),
        cmocka_unit_test(drawn_flips_come_near_the_exact_ones),
        cmocka_unit_test(a_loss_and_its_interval),
        cmocka_unit_test(identical_sides_lose_exactly_nothing),
        cmocka_unit_test(documents_not_questions_are_the_sample),
        cmocka_unit_test(cells_weigh_the_same),
        cmocka_unit_test(more_nats_alone_are_flagged),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(a_report_counts_what_the_baseline_can_do),
        cmocka_unit_test(the_json_has_its_fields),
        cmocka_unit_test(tables_and_heat_map_say_it),
        cmocka_unit_test(running_text_counts_by_its_nll),
        cmocka_unit_test(a_baseline_alone_has_a_report),
        cmocka_unit_test(bins),
        cmocka_unit_test(variants_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
