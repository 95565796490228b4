/* Rotary frequencies against figures worked out from DeepSeek-V3's published parameters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn/positions.h"

static void near(double found, double expected, double relative) {
    if (!(fabs(found - expected) <= relative * fabs(expected)))
        fail_msg("found %.9g, expected %.9g", found, expected);
}

static fl_rope_params v3(double factor) {
    return (fl_rope_params){.dim = 64,
                            .theta = 10000,
                            .factor = factor,
                            .original_positions = 4096,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .mscale = 1,
                            .mscale_all_dim = 1};
}

static void yarn_of_deepseek_v3(void **state) {
    (void)state;
    fl_rope rope;
    fl_rope_params p = v3(40);
    fl_rope_init(&p, &rope);
    near(rope.softmax_factor, 1.8738542, 1e-7);
    near(rope.amplitude, 1, 0);
    near(rope.frequency[0], 1, 0);
    near(rope.frequency[10], pow(10000, -20.0 / 64), 1e-12);      /* low end of the ramp: untouched */
    near(rope.frequency[23], pow(10000, -46.0 / 64) / 40, 1e-12); /* high end: interpolated */
    double share = 6.0 / 13;                                      /* i = 16 of the ramp 10..23 */
    near(rope.frequency[16], pow(10000, -32.0 / 64) * (share / 40 + 1 - share), 1e-12);
    p = v3(128);
    fl_rope_init(&p, &rope);
    near(rope.softmax_factor, 2.2058280, 1e-7);
}

static void yarn_of_deepseek_v2_and_plain_rope(void **state) {
    (void)state;
    fl_rope rope;
    fl_rope_params p = v3(40);
    p.mscale = p.mscale_all_dim = 0.707;
    fl_rope_init(&p, &rope);
    double m = 0.0707 * log(40) + 1;
    near(rope.softmax_factor, m * m, 1e-12);
    near(rope.amplitude, 1, 0);
    p.mscale = 1;
    fl_rope_init(&p, &rope);
    near(rope.amplitude, (0.1 * log(40) + 1) / m, 1e-12);
    p = v3(1);
    fl_rope_init(&p, &rope);
    near(rope.softmax_factor, 1, 0);
    for (int32_t i = 0; i < 32; i++) near(rope.frequency[i], pow(10000, -2.0 * i / 64), 1e-12);
}

static void tables_keep_phase_at_far_positions(void **state) {
    (void)state;
    fl_rope rope;
    fl_rope_params p = v3(1);
    float table[2 * 64];
    fl_rope_init(&p, &rope);
    fl_rope_table(&rope, FL_ROTATION_EXACT, 524287, 2, table);
    assert_true(fabs(table[0] - cos(524287.0)) < 1e-7);
    assert_true(fabs(table[1] - sin(524287.0)) < 1e-7);
    assert_true(fabs(table[64 + 2] - cos(524288.0 * pow(10000, -2.0 / 64))) < 1e-7);
    for (int32_t i = 0; i < 64; i++)
        assert_true(fabs(table[2 * i] * table[2 * i] + table[2 * i + 1] * table[2 * i + 1] - 1) < 1e-6f);
}

/* Two paths: exact up to the edge, then slower, and nowhere a jump. Distances come from the two rotations' angles. */
static void two_paths_meet_at_the_edge(void **state) {
    (void)state;
    fl_rope rope;
    fl_rope_params p = v3(1);
    fl_rope_init(&p, &rope);
    fl_rope_split(&rope, 131072, 4, 16384);
    near(rope.far_divisor, (4 * 131072.0 - 16384) / (131072 - 16384), 1e-12);
    rope.frequency[0] = 1e-5; /* slow enough that no angle wraps */
    static const int32_t distances[] = {0, 1000, 16384, 16385, 100000, 524287};
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
        float q[64], k[64];
        int32_t d = distances[i], query = 524287;
        fl_rope_table(&rope, FL_ROTATION_FAR_QUERY, query, 1, q);
        fl_rope_table(&rope, FL_ROTATION_FAR_KEY, query - d, 1, k);
        double seen = (atan2((double)q[1], (double)q[0]) - atan2((double)k[1], (double)k[0])) / 1e-5;
        double expected = 16384 + (d - 16384) / rope.far_divisor;
        assert_true(fabs(seen - expected) < 1);
        assert_true(d < 16384 || seen < 131072 + 1);
    }
}

static void ntk_stretches_the_slowest_wave(void **state) {
    (void)state;
    double theta = fl_rope_ntk_theta(10000, 64, 4);
    near(pow(theta, -62.0 / 64), pow(10000, -62.0 / 64) / 4, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yarn_of_deepseek_v3),
        cmocka_unit_test(yarn_of_deepseek_v2_and_plain_rope),
        cmocka_unit_test(tables_keep_phase_at_far_positions),
        cmocka_unit_test(two_paths_meet_at_the_edge),
        cmocka_unit_test(ntk_stretches_the_slowest_wave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
