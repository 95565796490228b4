/* Conversions against the formats' definitions, computed in double, over every code. */
#include "base/dtype.h"
#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

/* (-1)^sign 2^(exponent - bias) 1.mantissa, or 0.mantissa at the lowest exponent. */
static double value_of(unsigned code, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(code & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    double magnitude = exponent ? ldexp(1 + mantissa, exponent - bias) : ldexp(mantissa, 1 - bias);
    return code >> (exponent_bits + mantissa_bits) ? -magnitude : magnitude;
}

static void assert_same(float found, double expected, unsigned code) {
    if ((double)found < expected || (double)found > expected || !signbit(found) != !signbit(expected))
        fail_msg("code %#x: expected %.17g, found %.17g", code, expected, (double)found);
}

static void test_e4m3(void **state) {
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        float found = fl_f32_of_e4m3((uint8_t)code);
        if ((code & 0x7f) == 0x7f) assert_true(isnan(found));
        else assert_same(found, value_of(code, 4, 3), code);
    }
    assert_same(fl_f32_of_e4m3(0x7e), 448, 0x7e);
}

static void test_f16(void **state) {
    (void)state;
    for (unsigned code = 0; code < 65536; code++) {
        float found = fl_f32_of_f16((uint16_t)code);
        if ((code & 0x7c00) != 0x7c00) assert_same(found, value_of(code, 5, 10), code);
        else if (code & 0x3ff) assert_true(isnan(found));
        else assert_same(found, code & 0x8000 ? -INFINITY : INFINITY, code);
    }
}

static void test_bf16(void **state) {
    (void)state;
    for (unsigned code = 0; code < 65536; code++) {
        float found = fl_f32_of_bf16((uint16_t)code);
        bool is_nan = (code & 0x7f80) == 0x7f80 && (code & 0x7f);
        if (is_nan) assert_true(isnan(found));
        else if ((code & 0x7f80) != 0x7f80) assert_same(found, value_of(code, 8, 7), code);
        if (!is_nan) assert_int_equal(fl_bf16_of_f32(found), code);
    }
}

/* Between two neighbours: the nearer one, and at the midpoint the even one. */
static void test_bf16_rounding(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x7f80; code++) {
        uint32_t below = code << 16;
        assert_int_equal(fl_bf16_of_f32(fl_f32_of_bits(below + 0x7fff)), code);
        assert_int_equal(fl_bf16_of_f32(fl_f32_of_bits(below + 0x8001)), code + 1);
        assert_int_equal(fl_bf16_of_f32(fl_f32_of_bits(below + 0x8000)), code + (code & 1));
        assert_int_equal(fl_bf16_of_f32(fl_f32_of_bits(below + 0x80008001)), 0x8000 + code + 1);
    }
    assert_true(isnan(fl_f32_of_bf16(fl_bf16_of_f32(fl_f32_of_bits(0x7f800001)))));
    assert_true(isnan(fl_f32_of_bf16(fl_bf16_of_f32(fl_f32_of_bits(0xffffffff)))));
}

static void test_dtypes(void **state) {
    (void)state;
    assert_string_equal(fl_dtype_name(FL_DTYPE_F8_E4M3), "F8_E4M3");
    assert_int_equal(fl_dtype_bytes(FL_DTYPE_F8_E4M3), 1);
    assert_int_equal(fl_dtype_bytes(FL_DTYPE_BF16), 2);
    assert_int_equal(fl_dtype_bytes(FL_DTYPE_F16), 2);
    assert_int_equal(fl_dtype_bytes(FL_DTYPE_F32), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3),          cmocka_unit_test(test_f16),    cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_bf16_rounding), cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
