/* Rates: roofs by hand, a fit that must find what made the times, files that must be whole. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "plan/rates.h"

static void near(double found, double expected, double relative) {
    if (!(fabs(found - expected) <= relative * fabs(expected)))
        fail_msg("expected %.9g, found %.9g", expected, found);
}

/* 50 TFLOP/s in bf16, 100 in fp8, 2 TB/s, 3 us a launch.
 *   1 TFLOP of bf16 over 4 GB: 1e12 / 5e13 = 20 ms of compute, 4e9 / 2e12 = 2 ms of memory -> 20.003 ms
 *   1 TFLOP, half of it of codes: 0.5e12 / 5e13 + 0.5e12 / 1e14 = 10 + 5 ms -> 15.003 ms
 *   1 GFLOP over 4 GB: 0.02 ms, 2 ms -> 2.003 ms */
static void roofs_give_the_longer_of_two_terms(void **state) {
    (void)state;
    fl_roofs roofs = {.flops_per_s = 5e13, .fp8_flops_per_s = 1e14, .bytes_per_s = 2e12, .call_s = 3e-6};
    fl_rates r;
    fl_rates_of_roofs(&roofs, &r);
    assert_false(r.measured);
    near(fl_rates_time(&r, FL_RATE_matmul, &(fl_cost){1e12, 4e9, 0}), 20.003e-3, 1e-12);
    near(fl_rates_time(&r, FL_RATE_experts_fp8, &(fl_cost){1e12, 4e9, 5e11}), 15.003e-3, 1e-12);
    near(fl_rates_time(&r, FL_RATE_attn_listed, &(fl_cost){1e9, 4e9, 0}), 2.003e-3, 1e-12);
    assert_true(fl_rates_time(&r, FL_RATE_step, &(fl_cost){4096, 0, 0}) == 0); /* paper knows no host */
    roofs.fp8_flops_per_s = 0;                                                 /* no units for it */
    fl_rates_of_roofs(&roofs, &r);
    near(fl_rates_time(&r, FL_RATE_experts_fp8, &(fl_cost){1e12, 4e9, 1e12}), 20.003e-3, 1e-12);
}

static void add(fl_rate_samples *s, fl_rate_kind kind, double flops, double bytes, double time_s) {
    const fl_rate_sample sample = {kind, 1, {flops, bytes, 0}, time_s};
    assert_int_equal(fl_rate_samples_add(s, &sample), FL_ERR_OK);
}

/* Times made of 20 us a call, 1 TFLOP/s and 40 GB/s: 1e-12 s a FLOP, 2.5e-11 s a byte.
 *   1e9 FLOPs, 1e6 bytes: 20e-6 + 1e-3 + 25e-6 = 1.045e-3 s */
static void a_fit_finds_what_made_the_times(void **state) {
    (void)state;
    static const double costs[][2] = {{1e9, 1e6}, {1e6, 4e6}, {5e10, 2e8}, {1e3, 1e3}, {2e9, 9e7}};
    fl_rate_samples s = {0};
    fl_rates r;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        add(&s, FL_RATE_matmul, costs[i][0], costs[i][1],
            20e-6 + costs[i][0] * 1e-12 + costs[i][1] * 2.5e-11);
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_OK);
    const fl_rate *m = &r.of[FL_RATE_matmul];
    assert_true(r.measured && m->n_samples == 5 && m->error < 1e-9);
    near(m->call_s, 20e-6, 1e-6);
    near(m->flop_s, 1e-12, 1e-6);
    near(m->byte_s, 2.5e-11, 1e-6);
    near(fl_rates_time(&r, FL_RATE_matmul, &(fl_cost){1e9, 1e6, 0}), 1.045e-3, 1e-6);
    /* A kind without samples is like its op. */
    near(fl_rates_time(&r, FL_RATE_matmul_experts, &(fl_cost){1e9, 1e6, 0}), 1.045e-3, 1e-6);
    assert_int_equal(r.of[FL_RATE_matmul_experts].n_samples, 0);
    /* An op that was timed as one kind only is like that; one that was not timed at all has the products' FLOPs. */
    add(&s, FL_RATE_block_mean_fp8, 0, 1e6, 1e-3);
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_OK);
    near(fl_rates_time(&r, FL_RATE_block_mean, &(fl_cost){0, 1e6, 0}), 1e-3, 1e-6);
    near(r.of[FL_RATE_attn_listed].flop_s, 1e-12, 1e-6);
    fl_rate_samples_close(&s);
}

/* Ten calls in one sample, two in the other: 10 a + 1e9 b = 1.2e-3, 2 a + 3e9 b = 3.04e-3 -> a = 20 us, b = 1 ps. */
static void samples_hold_many_calls(void **state) {
    (void)state;
    fl_rate_samples s = {0};
    fl_rates r;
    const fl_rate_sample ten = {FL_RATE_rope, 10, {1e9, 0, 0}, 1.2e-3},
                         two = {FL_RATE_rope, 2, {3e9, 0, 0}, 3.04e-3};
    assert_int_equal(fl_rate_samples_add(&s, &ten), FL_ERR_OK);
    assert_int_equal(fl_rate_samples_add(&s, &two), FL_ERR_OK);
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_OK);
    near(r.of[FL_RATE_rope].call_s, 20e-6, 1e-6);
    near(r.of[FL_RATE_rope].flop_s, 1e-12, 1e-6);
    assert_int_equal(r.of[FL_RATE_rope].n_samples, 12);
    fl_rate_samples_close(&s);
}

/* Times that fall with bytes: left to itself the fit would make a byte cost less than nothing. Of what is allowed
 * the best is one number a call, and with all calls expected alike that is their mean, (3 + 1) / 2. */
static void no_rate_is_negative(void **state) {
    (void)state;
    fl_rate_samples s = {0};
    fl_rates r;
    add(&s, FL_RATE_rope, 0, 1e6, 3);
    add(&s, FL_RATE_rope, 0, 9e6, 1);
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_OK);
    near(r.of[FL_RATE_rope].call_s, 2, 1e-9);
    assert_true(r.of[FL_RATE_rope].flop_s == 0 && r.of[FL_RATE_rope].byte_s == 0);
    near(r.of[FL_RATE_rope].error, (1. + 1.) / 4, 1e-9);
    fl_rate_samples_close(&s);
}

/* A start of 3 us that hides behind the work, 1e-12 s a byte: the longer of the two, which no sum is. 2^0 .. 2^9 MB;
 * what was fitted to a device's calls follows them, and their mean where calls of one kind count together. */
static void a_device_is_filled_by_size(void **state) {
    (void)state;
    fl_rate_samples s = {.device = true}, host = {0};
    fl_rates r, plain;
    for (int i = 0; i < 10; i++) {
        double bytes = 1e6 * (1 << i), time_s = fmax(3e-6, bytes * 1e-12);
        add(&s, FL_RATE_rope, 0, bytes, time_s);
        add(&host, FL_RATE_rope, 0, bytes, time_s);
    }
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_OK);
    assert_int_equal(fl_rates_fit(&host, &plain), FL_ERR_OK);
    assert_true(r.of[FL_RATE_rope].fill_s > 0 && plain.of[FL_RATE_rope].fill_s == 0);
    assert_true(plain.of[FL_RATE_rope].error > 2 * r.of[FL_RATE_rope].error);
    for (int i = 0; i < 10; i++) {
        const fl_cost cost = {0, 1e6 * (1 << i), 0}, three = {0, 3e6 * (1 << i), 0};
        double time_s = fmax(3e-6, cost.bytes * 1e-12);
        near(fl_rates_time(&r, FL_RATE_rope, &cost), time_s, 0.12);
        near(fl_rates_times(&r, FL_RATE_rope, 3, &three), 3 * fl_rates_time(&r, FL_RATE_rope, &cost), 1e-9);
    }
    /* Below and above all that was timed as at the nearest. */
    const fl_cost huge = {0, 1e12, 0};
    near(fl_rates_time(&r, FL_RATE_rope, &huge), 1, 0.05);
    fl_rate_samples_close(&s);
    fl_rate_samples_close(&host);
}

static void nothing_timed_is_refused(void **state) {
    (void)state;
    fl_rate_samples s = {0};
    fl_rates r;
    add(&s, FL_RATE_rope, 0, 1e6, 0);
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_INVALID);
    fl_rate_samples_close(&s);
}

static void calls_are_told_apart_by_their_arguments(void **state) {
    (void)state;
    fl_attn_list list = {0};
    fl_attn_prefill_args a = {0};
    assert_int_equal(fl_rate_kind_of(FL_OP_attn_prefill, &a), FL_RATE_attn_prefill);
    a.view.window = 512;
    assert_int_equal(fl_rate_kind_of(FL_OP_attn_prefill, &a), FL_RATE_attn_window);
    a.key_step = 128;
    assert_int_equal(fl_rate_kind_of(FL_OP_attn_prefill, &a), FL_RATE_attn_anchors);
    a.list = &list;
    assert_int_equal(fl_rate_kind_of(FL_OP_attn_prefill, &a), FL_RATE_attn_listed);
    a.means = true;
    assert_int_equal(fl_rate_kind_of(FL_OP_attn_prefill, &a), FL_RATE_attn_means);
    const float scale = 1;
    fl_weight w8 = {0};
    fl_matmul_args m = {.n_groups = 1, .w = &w8};
    assert_int_equal(fl_rate_kind_of(FL_OP_matmul, &m), FL_RATE_matmul);
    m.n_groups = 8;
    assert_int_equal(fl_rate_kind_of(FL_OP_matmul, &m), FL_RATE_matmul_experts);
    w8.scale = &scale;
    assert_int_equal(fl_rate_kind_of(FL_OP_matmul, &m), FL_RATE_experts_fp8);
    fl_kv_write_args w = {.kv.format = FL_KV_INT4};
    assert_int_equal(fl_rate_kind_of(FL_OP_kv_write, &w), FL_RATE_kv_write_int4);
    fl_attn_absorbed_args b = {.kv.format = FL_KV_FP8};
    assert_int_equal(fl_rate_kind_of(FL_OP_attn_absorbed, &b), FL_RATE_absorbed_fp8);
    assert_string_equal(fl_rate_name(FL_RATE_absorbed_fp8), "absorbed_fp8");
    assert_int_equal(fl_rate_kind_of(FL_OP_rope, NULL), FL_RATE_rope);
}

/* A tile of 64 rows at 4,096 with a window of 512: rows 4,096 .. 4,159 see keys 3,585 .. 4,159, which lie in tiles
 * 3,584 .. 4,160: 576 keys for 64 rows each, where 512 are seen. */
static void windows_count_the_tiles_they_visit(void **state) {
    (void)state;
    fl_attn_prefill_args a = {.rows = 64,
                              .pos = 4096,
                              .n_heads = 2,
                              .nope_dim = 64,
                              .rope_dim = 32,
                              .v_dim = 64,
                              .n_keys = 4160,
                              .view = {.window = 512}};
    double a_pair = 2. * 2 * (64 + 32 + 64);
    near(fl_op_cost(FL_OP_attn_prefill, &a).flops, 64 * 512 * a_pair, 1e-12);
    near(fl_rate_cost(FL_OP_attn_prefill, &a).flops, 64 * 576 * a_pair, 1e-12);
    /* A list's blocks are tiles: 10 blocks of 64 in every 65 that the first row sees. */
    fl_attn_list list = {.capacity = 64, .planned_blocks = 10};
    a.list = &list;
    a.view.window = 0;
    near(fl_rate_cost(FL_OP_attn_prefill, &a).flops, fl_op_cost(FL_OP_attn_prefill, &a).flops, 1e-12);
}

static void files_come_back_or_are_refused(void **state) {
    (void)state;
    char path[] = "/tmp/firstlight-rates-XXXXXX";
    static const char *const broken[] = {
        "",
        "[]",
        "{\"format\": 2}",
        "{\"format\": 2, \"source\": \"x\"",
        "{\"format\": 2, \"source\": \"x\", \"measured\": true, \"rates\": {}}",
        "{\"format\": 1, \"source\": \"x\", \"measured\": true, \"rates\": {}}"};
    fl_rate_samples s = {0};
    fl_rates r, back;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    add(&s, FL_RATE_matmul, 1e9, 1e6, 1e-3);
    add(&s, FL_RATE_matmul, 1e9, 9e6, 1e-3);
    s.device = true;
    assert_int_equal(fl_rates_fit(&s, &r), FL_ERR_OK);
    strcpy(r.source, "a test");
    r.recorded = true;
    assert_int_equal(fl_rates_write(&r, path), FL_ERR_OK);
    assert_int_equal(fl_rates_read(path, &back), FL_ERR_OK);
    assert_true(back.recorded);
    assert_string_equal(back.source, "a test");
    for (int i = 0; i < FL_N_RATES; i++) {
        near(back.of[i].flop_s, r.of[i].flop_s, 1e-5);
        near(back.of[i].byte_s, r.of[i].byte_s, 1e-5);
        near(back.of[i].fill_s, r.of[i].fill_s, 1e-5);
        for (int k = 0; k < FL_RATE_FILLS; k++) near(back.of[i].fill[k], r.of[i].fill[k], 1e-5);
    }
    assert_true(back.of[FL_RATE_matmul].fill_s > 0);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        assert_int_equal(fl_file_write("/", path, broken[i], strlen(broken[i])), FL_ERR_OK);
        assert_int_equal(fl_rates_read(path, &back), FL_ERR_DATA);
    }
    /* A rate below 0 */
    r.of[FL_RATE_rope].call_s = -1;
    assert_int_equal(fl_rates_write(&r, path), FL_ERR_OK);
    assert_int_equal(fl_rates_read(path, &back), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "call_s"));
    r.of[FL_RATE_rope].call_s = 0;
    r.of[FL_RATE_matmul].fill[FL_RATE_FILLS - 1] = -1;
    assert_int_equal(fl_rates_write(&r, path), FL_ERR_OK);
    assert_int_equal(fl_rates_read(path, &back), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "fill"));
    unlink(path);
    fl_rate_samples_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roofs_give_the_longer_of_two_terms),
        cmocka_unit_test(a_fit_finds_what_made_the_times),
        cmocka_unit_test(samples_hold_many_calls),
        cmocka_unit_test(no_rate_is_negative),
        cmocka_unit_test(a_device_is_filled_by_size),
        cmocka_unit_test(nothing_timed_is_refused),
        cmocka_unit_test(calls_are_told_apart_by_their_arguments),
        cmocka_unit_test(windows_count_the_tiles_they_visit),
        cmocka_unit_test(files_come_back_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
