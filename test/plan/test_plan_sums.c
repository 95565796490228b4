/* A prompt's own work, counted by the forward pass, against sums done by hand. DeepSeek-V3 whole, 512K = 524,288
 * tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "plan/planned.h"

enum { N = 524288, LAYERS = 61 };

/* Multiply-adds of V3's linear layers for a token:
 *   attention   q_a 7168 x 1536 = 11,010,048; q_b 1536 x 24576 = 37,748,736; kv_a 7168 x 576 = 4,128,768;
 *               kv_b 512 x 32768 = 16,777,216; o 16384 x 7168 = 117,440,512; in all 187,105,280
 *   3 dense     3 x 7168 x 18432 = 396,361,728
 *   58 MoE      9 experts x 3 x 7168 x 2048 = 396,361,728, router 7168 x 256 = 1,835,008
 *   61 x 187,105,280 + 61 x 396,361,728 + 58 x 1,835,008 = 35,697,917,952
 * twice that a token: 71.4 GFLOP; 524,288 tokens: 37.43 PFLOP. */
static const double linear_flops = 2.0 * 35697917952.0 * N;

/* FLOP of a pair of query and key: 128 heads x (192 + 128) x 2 = 81,920. */
static const double pair_flops = 81920.0 * LAYERS;

static fl_count count_of(const char *policy, double density) {
    planned p;
    fl_count count;
    planned_open(&(plan_words){.shape = "deepseek-v3", .policy = policy, .density = density, .tokens = N},
                 &p);
    assert_int_equal(fl_layout_whole(&p.task, &count), FL_ERR_OK);
    planned_close(&p);
    return count;
}

static void linear_layers(void **state) {
    (void)state;
    fl_count full = count_of("full", 0);
    assert_near(fl_count_linear_flops(&full), linear_flops, 1e-6); /* but for the head's one row, 1.9 GFLOP */
    /* All but kv_b, router and head multiply codes: 61 x 187,105,280 - 61 x 16,777,216 + 61 x 396,361,728. */
    assert_near(full.total.fp8_flops, 2.0 * 34568077312.0 * N, 1e-9);
}

/* N (N + 1) / 2 = 137,439,215,616 pairs: 687 PFLOP. */
static void full_attention(void **state) {
    (void)state;
    fl_count c = count_of("full", 0);
    assert_near(fl_count_attention_flops(&c), pair_flops * 137439215616.0, 1e-5);
    assert_near(fl_count_attention_flops(&c), 687e15, 2e-3);
}

/* Window W = 16,384: W (W + 1) / 2 + (N - W) W = 8,455,725,056 pairs; anchors at multiples of 4096 that are W and
 * more away: row W + m sees m / 4096 + 1 of them, m up to 507,903 = 124 x 4096 - 1: 4096 x 124 x 125 / 2 =
 * 31,744,000. */
static void window_and_anchors(void **state) {
    (void)state;
    fl_count c = count_of("window-anchors:window=16k,stride=4k", 0);
    assert_near(fl_count_attention_flops(&c), pair_flops * (8455725056.0 + 31744000.0), 2e-3);
}

/* The same window; 64 sinks: row W - 1 + m sees min(m, 64) of them behind the window, m up to 507,904:
 * 64 x 65 / 2 + (507,904 - 64) x 64 = 32,503,840. */
static void window_and_sinks(void **state) {
    (void)state;
    fl_count c = count_of("window:window=16k,sinks=64", 0);
    assert_near(fl_count_attention_flops(&c), pair_flops * (8455725056.0 + 32503840.0), 2e-3);
}

/* Four segments of S = 131,072 without anything before them (window 1, one anchor a segment's length):
 * 4 x S (S + 1) / 2 = 34,360,000,512 pairs, a quarter of all. Costs look at one row of 1,025 of so long a step,
 * which at a segment's edge says less. */
static void segments(void **state) {
    (void)state;
    fl_count c = count_of("segments:4,window=1,stride=512k", 0);
    assert_near(fl_count_attention_flops(&c), pair_flops * 34360000512.0, 5e-3);
}

/* Lists of a share d of the visible blocks of 64, planned for the middle row and the same number for all: d N / 2
 * keys of a row, or all it sees where that is less (rows before d N / 2 see p + 1 in place of d N / 2: d^2 N^2 / 8
 * fewer). Means of the rest: (visible - listed) / 64.
 *   listed = d N^2 / 2 - d^2 N^2 / 8, d = 0.04: 5,497,558,139 - 54,975,581 = 5,442,582,558
 *   means  = (137,438,953,472 - 5,442,582,558) / 64 = 2,062,443,295 */
static void blocks(void **state) {
    (void)state;
    fl_count c = count_of("blocks", 0.04);
    assert_near(fl_count_attention_flops(&c), pair_flops * (5442582558.0 + 2062443295.0), 1e-2);
}

/* 524,288 x 61 x 576 x 2 = 36.84 GB; fp8 512 + 4 x 4 + 128 = 656 B: 20.98 GB; int4 256 + 8 x 4 + 128 = 416 B:
 * 13.30 GB. */
static void kv_bytes(void **state) {
    (void)state;
    const struct {
        const char *format;
        int64_t bytes;
    } cases[] = {{"bf16", INT64_C(524288) * 61 * 576 * 2},
                 {"fp8", INT64_C(524288) * 61 * 656},
                 {"int4", INT64_C(524288) * 61 * 416}};
    assert_int_equal(cases[0].bytes, INT64_C(36842766336));
    assert_int_equal(cases[2].bytes, INT64_C(13304332288));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        planned p;
        fl_layout_run *run;
        fl_share_memory m;
        planned_open(&(plan_words){.shape = "deepseek-v3", .kv = cases[i].format, .tokens = N}, &p);
        assert_int_equal(fl_layout_open(&p.task, FL_LAYOUT_TP, 1, &run), FL_ERR_OK);
        assert_int_equal(fl_layout_memory(run, 1024, &m), FL_ERR_OK);
        assert_int_equal(m.kv, cases[i].bytes);
        fl_layout_close(run);
        planned_close(&p);
    }
}

/* A prefix that is cached: rows are those behind it, keys all. Rows 393,216 .. 524,287 = 131,072 x (393,216 +
 * 524,287 + 2) / 2 = 60,129,607,680 pairs; linear layers are of a quarter of the tokens, but for kv_b, which makes
 * all keys again. */
static void cached_prefix(void **state) {
    (void)state;
    planned p;
    fl_count c;
    planned_open(&(plan_words){.shape = "deepseek-v3", .policy = "full", .tokens = N}, &p);
    p.task.cached_tokens = 393216;
    assert_int_equal(fl_layout_whole(&p.task, &c), FL_ERR_OK);
    assert_near(fl_count_attention_flops(&c), pair_flops * 60129607680.0, 1e-5);
    assert_near(fl_count_linear_flops(&c), linear_flops / 4 + 2.0 * 61 * 16777216.0 * 393216, 1e-6);
    planned_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers),      cmocka_unit_test(full_attention),
        cmocka_unit_test(window_and_anchors), cmocka_unit_test(window_and_sinks),
        cmocka_unit_test(segments),           cmocka_unit_test(blocks),
        cmocka_unit_test(kv_bytes),           cmocka_unit_test(cached_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
