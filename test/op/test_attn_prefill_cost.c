/* attn_prefill's FLOPs are those of the pairs that its definition sees, counted one by one: views, far views,
 * distances, steps of keys, calls before, across and behind the rows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "op/attn_prefill/attn_prefill.h"

static uint32_t random_state = 20260101;

/* In [0, n). */
static int32_t draw(int32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int32_t)((random_state >> 8) % (uint32_t)n);
}

static fl_attn_prefill_args random_call(void) {
    fl_attn_prefill_args a = {.rows = 1 + draw(255),
                              .pos = draw(1000),
                              .n_heads = 2,
                              .nope_dim = 4,
                              .rope_dim = 2,
                              .v_dim = 4,
                              .n_keys = 1 + draw(400)};
    a.key_step = draw(4) == 0 ? 1 + draw(64) : 1;
    a.key_pos = FL_ATTN_TILE_TOKENS * draw(20);
    if (draw(2)) return a; /* everything before the row */
    a.view.window = draw(2) ? 1 + draw(500) : 0;
    a.view.sinks = draw(2) ? draw(100) : 0;
    a.view.segment = draw(3) == 0 ? 64 * (1 + draw(8)) : 0;
    a.view.far = a.view.window > 0 && draw(2);
    a.view.distance_first = draw(3) == 0 ? draw(300) : 0;
    a.view.distance_end = draw(3) == 0 ? a.view.distance_first + 1 + draw(300) : 0;
    return a;
}

static void flops_are_those_of_seen_pairs(void **state) {
    (void)state;
    int64_t in_all = 0;
    for (int i = 0; i < 300; i++) {
        const fl_attn_prefill_args a = random_call();
        int64_t pairs = 0;
        for (int32_t r = 0; r < a.rows; r++)
            for (int32_t k = 0; k < a.n_keys; k++) pairs += fl_attn_prefill_sees(&a, r, 0, k);
        double flops = 2.0 * (double)pairs * 2 * (4 + 2 + 4), found = fl_attn_prefill_cost(&a).flops;
        if (found != flops)
            fail_msg("case %d: rows %d pos %d keys %d of %d from %d, window %d: %.0f, not %.0f", i, a.rows,
                     a.pos, a.n_keys, a.key_step, a.key_pos, a.view.window, found, flops);
        in_all += pairs;
    }
    assert_true(in_all > 1000000);
}

/* Of many rows one stands for some around it: an odd number, so that keys which grow evenly are counted exactly. At a
 * window's edge, at 1,023 of 4,096 rows, the one in the middle of 33 is off by 17 keys for half of them at most. */
static void many_rows_are_close(void **state) {
    (void)state;
    fl_attn_prefill_args a = {
        .rows = 4096, .n_heads = 1, .nope_dim = 1, .rope_dim = 1, .v_dim = 1, .n_keys = 4096};
    a.view.window = 1024;
    double pairs = 1024. * 1025 / 2 + 3072. * 1024, found = fl_attn_prefill_cost(&a).flops / 6;
    if (!(fabs(found - pairs) <= 17. * 17)) fail_msg("%.0f pairs, not %.0f", found, pairs);
    a.view.window = 0;
    a.key_step = 64; /* row r sees r / 64 + 1 of 64 keys */
    a.n_keys = 64;
    pairs = 64 * (64. * 65 / 2);
    found = fl_attn_prefill_cost(&a).flops / 6;
    if (!(fabs(found - pairs) <= 0.005 * pairs)) fail_msg("%.0f pairs, not %.0f", found, pairs);
}

/* 524,288 rows over as many keys: N (N + 1) / 2 pairs to the last one. */
static void long_calls_too(void **state) {
    (void)state;
    const fl_attn_prefill_args a = {
        .rows = 524288, .n_heads = 1, .nope_dim = 1, .rope_dim = 1, .v_dim = 1, .n_keys = 524288};
    assert_true(fl_attn_prefill_cost(&a).flops == 6 * 137439215616.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_are_those_of_seen_pairs),
        cmocka_unit_test(many_rows_are_close),
        cmocka_unit_test(long_calls_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
