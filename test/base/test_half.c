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

/* The neighbour of an f16 in the order of values. */
static void test_f16_directed_rounding(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x7bff; code++) {
        float low = fl_f32_of_f16((uint16_t)code), high = fl_f32_of_f16((uint16_t)(code + 1));
        float above = nextafterf(low, high), below = nextafterf(high, low), middle = (low + high) / 2;
        const float between[] = {above, middle, below};
        assert_int_equal(fl_f16_floor_of_f32(low), code);
        assert_int_equal(fl_f16_ceiling_of_f32(high), code + 1);
        assert_int_equal(fl_f16_floor_of_f32(-high), 0x8000 | (code + 1));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(fl_f16_floor_of_f32(between[i]), code);
            assert_int_equal(fl_f16_ceiling_of_f32(between[i]), code + 1);
            assert_int_equal(fl_f16_floor_of_f32(-between[i]), 0x8000 | (code + 1));
            assert_int_equal(fl_f16_ceiling_of_f32(-between[i]), 0x8000 | code);
        }
    }
    assert_int_equal(fl_f16_floor_of_f32(1e30f), 0x7bff);
    assert_int_equal(fl_f16_ceiling_of_f32(1e30f), 0x7c00);
    assert_int_equal(fl_f16_floor_of_f32(-65505), 0xfc00);
    assert_int_equal(fl_f16_floor_of_f32(65535), 0x7bff);
    assert_int_equal(fl_f16_ceiling_of_f32(0x1p-149f), 1);
    assert_int_equal(fl_f16_floor_of_f32(-0x1p-149f), 0x8001);
    assert_int_equal(fl_f16_floor_of_f32(INFINITY), 0x7c00);
    assert_int_equal(fl_f16_floor_of_f32(-INFINITY), 0xfc00);
    assert_true(isnan(fl_f32_of_f16(fl_f16_floor_of_f32(NAN))));
    assert_true(isnan(fl_f32_of_f16(fl_f16_ceiling_of_f32(-NAN))));
}

/* Between two neighbours: the nearer one, and at the midpoint the even one. */
static void test_e4m3_rounding(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x7e; code++) {
        float low = fl_f32_of_e4m3((uint8_t)code), high = fl_f32_of_e4m3((uint8_t)(code + 1));
        float middle = (low + high) / 2;
        assert_int_equal(fl_e4m3_of_f32(low), code);
        assert_int_equal(fl_e4m3_of_f32(-high), 0x80 | (code + 1));
        assert_int_equal(fl_e4m3_of_f32(nextafterf(middle, low)), code);
        assert_int_equal(fl_e4m3_of_f32(nextafterf(middle, high)), code + 1);
        assert_int_equal(fl_e4m3_of_f32(middle), code + (code & 1));
        assert_int_equal(fl_e4m3_of_f32(-middle), 0x80 | (code + (code & 1)));
    }
    assert_int_equal(fl_e4m3_of_f32(464), 0x7e);
    assert_int_equal(fl_e4m3_of_f32(-INFINITY), 0xfe);
    assert_int_equal(fl_e4m3_of_f32(0x1p-149f), 0);
    assert_true(isnan(fl_f32_of_e4m3(fl_e4m3_of_f32(NAN))));
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
        cmocka_unit_test(test_e4m3),          cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),          cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_dtypes),        cmocka_unit_test(test_f16_directed_rounding),
        cmocka_unit_test(test_e4m3_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
