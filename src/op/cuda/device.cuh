/* What every CUDA op uses on the device. */
#ifndef FL_OP_CUDA_DEVICE_CUH
#define FL_OP_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#ifndef FL_DEVICE
#define FL_DEVICE static __device__ __forceinline__
#endif

typedef __nv_bfloat16 fl_bf16;

/* Tasks of `step` that cover `total`. */
static __host__ __device__ inline int64_t fl_tasks_of(int64_t total, int64_t step) {
    return (total + step - 1) / step;
}

FL_DEVICE float fl_warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

FL_DEVICE float fl_warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* The same of what is neither negative nor NaN: as integers such numbers are in the same order. */
FL_DEVICE float fl_warp_max_positive(float x) {
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

/* Over the four neighbouring lanes that share a row of a product. */
FL_DEVICE float fl_quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

FL_DEVICE float fl_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Two values as bf16, `low` in the low half. */
FL_DEVICE uint32_t fl_pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

FL_DEVICE float fl_low_of_bf16x2(uint32_t packed) {
    return __uint_as_float(packed << 16);
}

FL_DEVICE float fl_high_of_bf16x2(uint32_t packed) {
    return __uint_as_float(packed & 0xffff0000u);
}

/* x becomes -INFINITY. An addition that a condition around it makes a predicated one: those run at twice the rate of
 * selections. */
FL_DEVICE void fl_fall(float *x) {
    asm volatile("add.f32 %0, %0, 0fFF800000;" : "+f"(*x));
}

/* 2^x; 0 for -INFINITY. */
FL_DEVICE float fl_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
