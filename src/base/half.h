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

/* e4m3fn: no infinities, 0x7f and 0xff are NaN. */
static inline float fl_f32_of_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, exponent = (code >> 3) & 0xfu, mantissa = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return fl_f32_of_bits(sign | 0x7fc00000u);
    if (exponent != 0) return fl_f32_of_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
    float value = (float)mantissa * 0x1p-9f;
    return sign ? -value : value;
}

#endif
