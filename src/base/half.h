/* Exact scalar conversions between f32 and the short formats. Vector versions live with the kernels. */
#ifndef FL_BASE_HALF_H
#define FL_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float fl_f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t fl_bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float fl_f32_of_bf16(uint16_t half) {
    return fl_f32_of_bits((uint32_t)half << 16);
}

/* Round to nearest, ties to even; NaN stays NaN (quiet). */
static inline uint16_t fl_bf16_of_f32(float value) {
    uint32_t bits = fl_bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float fl_f32_of_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu,
             mantissa = half & 0x3ffu;
    if (exponent == 0x1f) return fl_f32_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return fl_f32_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f; /* subnormal: exact */
    return sign ? -value : value;
}

/* The largest f16 that is not above `value`: -inf below the range, 65504 above it; NaN stays NaN. */
static inline uint16_t fl_f16_floor_of_f32(float value) {
    uint32_t bits = fl_bits_of_f32(value), sign = bits >> 31, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7e00u;
    if (magnitude >= 0x47800000u) /* 65536 and more */
        return sign ? 0xfc00u : magnitude == 0x7f800000u ? 0x7c00u : 0x7bffu;
    uint32_t shift = 13, whole = magnitude; /* whole >> shift is what f16 holds of it */
    if (magnitude >= 0x38800000u) whole -= 112u << 23;
    else { /* subnormal in f16: units of 2^-24 */ uint32_t exponent = magnitude >> 23;
        shift = exponent > 101 ? 126 - exponent : 25;
        whole = exponent ? (magnitude & 0x7fffffu) | 0x800000u : magnitude;
    }
    uint32_t half = whole >> shift;
    if (sign && half << shift != whole) half++; /* away from zero; may carry into infinity, as it should */
    return (uint16_t)(half | sign << 15);
}

/* The smallest f16 that is not below `value`. */
static inline uint16_t fl_f16_ceiling_of_f32(float value) {
    uint16_t half = fl_f16_floor_of_f32(-value);
    return (half & 0x7fffu) > 0x7c00u ? half : (uint16_t)(half ^ 0x8000u);
}

/* e4m3fn: no infinities, 0x7f and 0xff are NaN. */
static inline float fl_f32_of_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, exponent = (code >> 3) & 0xfu, mantissa = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return fl_f32_of_bits(sign | 0x7fc00000u);
    if (exponent != 0) return fl_f32_of_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
    float value = (float)mantissa * 0x1p-9f;
    return sign ? -value : value;
}

/* Round to nearest, ties to even; magnitudes beyond 448, the largest, become 448. NaN stays NaN. */
static inline uint8_t fl_e4m3_of_f32(float value) {
    uint32_t bits = fl_bits_of_f32(value), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (magnitude > 0x43e00000u) return (uint8_t)(sign | 0x7eu);
    if (magnitude < 0x3c800000u) { /* below 2^-6, in units of 2^-9: adding 2^23 rounds to whole ones */
        uint32_t units = fl_bits_of_f32(fl_f32_of_bits(magnitude) * 0x1p9f + 0x1p23f) & 0xfu;
        return (uint8_t)(sign | units);
    }
    magnitude += 0x7ffffu + ((magnitude >> 20) & 1u);
    return (uint8_t)(sign | ((magnitude >> 20) - (120u << 3)));
}

#endif
