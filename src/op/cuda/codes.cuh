/* Quantising to e4m3 codes on the device, as codes.h defines it. */
#ifndef FL_OP_CUDA_CODES_CUH
#define FL_OP_CUDA_CODES_CUH

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

/* The smallest that the largest of a group counts as. */
#define FL_CODES_LEAST 0x1p-100f

/* Two codes, `low` in the low byte: rounded to nearest even, saturating. */
FL_DEVICE uint32_t fl_pack_e4m3(float low, float high) {
    uint16_t packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}

/* Of a group's largest value: its scale, and what its values are multiplied by. */
FL_DEVICE float fl_codes_scale(float largest) {
    return __fdiv_rn(largest, 448.0f);
}

FL_DEVICE float fl_codes_inverse(float largest) {
    return __fdiv_rn(448.0f, largest);
}

/* The codes of four values in two words of bf16, in order. */
FL_DEVICE uint32_t fl_codes_of_bf16x4(uint32_t first, uint32_t second, float inverse) {
    return fl_pack_e4m3(__fmul_rn(fl_low_of_bf16x2(first), inverse),
                        __fmul_rn(fl_high_of_bf16x2(first), inverse)) |
           fl_pack_e4m3(__fmul_rn(fl_low_of_bf16x2(second), inverse),
                        __fmul_rn(fl_high_of_bf16x2(second), inverse))
               << 16;
}

#endif
