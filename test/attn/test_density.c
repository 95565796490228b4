/* Densities by layer and head: mapping onto other sizes, scaling to a mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/density.h"

enum { LAYERS_MAX = 40, HEADS_MAX = 40, CASES = 500 };

static uint64_t seed = 20261130;

static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* Shares of which some are tiny, some 1, some equal. */
static fl_density_table random_table(float *share) {
    fl_density_table t = {1 + (int32_t)draw(LAYERS_MAX), 1 + (int32_t)draw(HEADS_MAX), share};
    for (int32_t i = 0; i < t.layers * t.heads; i++) {
        uint32_t kind = draw(10);
        share[i] = kind == 0 ? 1 : kind == 1 ? 1e-6f : kind == 2 ? 0.25f : (float)(1 + draw(1000)) / 1000;
    }
    return t;
}

static void equal_sizes_are_equal_tables(void **state) {
    static float a[LAYERS_MAX * HEADS_MAX], b[LAYERS_MAX * HEADS_MAX];
    (void)state;
    for (int32_t k = 0; k < CASES; k++) {
        const fl_density_table from = random_table(a), to = {from.layers, from.heads, b};
        assert_int_equal(fl_density_map(&from, &to), FL_ERR_OK);
        for (int32_t i = 0; i < from.layers * from.heads; i++)
            if (!(a[i] >= b[i] * 0.999999f && a[i] <= b[i] * 1.000001f))
                fail_msg("case %d of %d x %d, entry %d: %g to %g", k, from.layers, from.heads, i,
                         (double)a[i], (double)b[i]);
    }
}

/* Two layers of three heads onto four of six: a place has two heads, in each the lower quantile first. */
static void by_hand(void **state) {
    float three[] = {0.3f, 0.1f, 0.5f, 0.6f, 0.6f, 0.6f}, six[24];
    const fl_density_table from = {2, 3, three}, to = {4, 6, six};
    (void)state;
    assert_int_equal(fl_density_map(&from, &to), FL_ERR_OK);
    const float first[] = {0.25f, 0.35f, 0.1f, 0.15f, 0.45f, 0.5f};
    for (int32_t i = 0; i < 6; i++) {
        assert_float_equal(six[i], first[i], 1e-6);
        assert_float_equal(six[6 + i], first[i], 1e-6);
        assert_float_equal(six[12 + i], 0.6f, 1e-6);
        assert_float_equal(six[18 + i], 0.6f, 1e-6);
    }
    const fl_density_table one = {1, 1, six};
    assert_int_equal(fl_density_map(&from, &one), FL_ERR_OK);
    assert_float_equal(six[0], 0.6f, 1e-6); /* the layer in the middle is the second of two */
}

/* In each layer the least and most stay in the source layer's range, and a head whose place has less has no more. */
static void a_map_keeps_order_and_range(void **state) {
    static float a[LAYERS_MAX * HEADS_MAX], b[LAYERS_MAX * HEADS_MAX];
    (void)state;
    for (int32_t k = 0; k < CASES; k++) {
        fl_density_table from = random_table(a), to = random_table(b);
        assert_int_equal(fl_density_map(&from, &to), FL_ERR_OK);
        for (int32_t l = 0; l < to.layers; l++) {
            const float *row = a + (2 * l + 1) * from.layers / (2 * to.layers) * from.heads;
            const fl_density_table source = {1, from.heads, (float *)(uintptr_t)row},
                                   made = {1, to.heads, b + l * to.heads};
            const fl_density_range of = fl_density_range_of(&source), is = fl_density_range_of(&made);
            assert_true(is.least >= of.least * 0.999999 && is.most <= of.most * 1.000001);
            for (int32_t h = 1; h < to.heads; h++) {
                float place = row[(2 * h + 1) * from.heads / (2 * to.heads)],
                      before = row[(2 * h - 1) * from.heads / (2 * to.heads)];
                if (place > before) assert_true(made.share[h] >= made.share[h - 1]);
                if (place < before) assert_true(made.share[h] <= made.share[h - 1]);
            }
        }
    }
}

static void scaling_meets_the_mean(void **state) {
    static const double means[] = {1e-4, 0.01, 0.02, 0.08, 0.3, 0.9, 1};
    static float a[LAYERS_MAX * HEADS_MAX], before[LAYERS_MAX * HEADS_MAX];
    (void)state;
    for (int32_t k = 0; k < CASES; k++) {
        const fl_density_table t = random_table(a);
        double mean = means[k % 7];
        memcpy(before, a, sizeof a);
        fl_density_scale(&t, mean);
        const fl_density_range is = fl_density_range_of(&t);
        if (!(is.mean > 0.99 * mean && is.mean < 1.01 * mean && is.least > 0 && is.most <= 1))
            fail_msg("case %d of %d x %d: %g, %g, %g for %g", k, t.layers, t.heads, is.least, is.mean,
                     is.most, mean);
        for (int32_t i = 1; i < t.layers * t.heads; i++) {
            if (before[i] > before[i - 1]) assert_true(a[i] >= a[i - 1]);
            if (before[i] < before[i - 1]) assert_true(a[i] <= a[i - 1]);
            if (before[i] == before[i - 1]) assert_true(a[i] == a[i - 1]);
        }
    }
}

static void a_picture_has_a_line_a_layer(void **state) {
    float share[] = {1, 0.5f, 0.49f, 0.001f, 0.004f, 0.25f};
    const fl_density_table t = {2, 3, share};
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    (void)state;
    assert_non_null(f);
    fl_density_print(f, &t);
    assert_int_equal(fclose(f), 0);
    assert_non_null(strstr(text, "\n      0  @@%  49.00% to 100.00%, mean 66.33%\n"));
    assert_non_null(strstr(text, "\n      1  .:%  0.10% to 25.00%, mean 8.50%\n"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_sizes_are_equal_tables), cmocka_unit_test(by_hand),
        cmocka_unit_test(a_map_keeps_order_and_range),  cmocka_unit_test(scaling_meets_the_mean),
        cmocka_unit_test(a_picture_has_a_line_a_layer),
    };
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
