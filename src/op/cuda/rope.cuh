/* The rotation of rope on the device, for the op and for matmul's epilogue: the same arithmetic, so the same bits. */
#ifndef FL_OP_CUDA_ROPE_CUH
#define FL_OP_CUDA_ROPE_CUH

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

FL_DEVICE float fl_rope_even(float even, float odd, float cosine, float sine) {
    return __fmaf_rn(even, cosine, -__fmul_rn(odd, sine));
}

FL_DEVICE float fl_rope_odd(float even, float odd, float cosine, float sine) {
    return __fmaf_rn(even, sine, __fmul_rn(odd, cosine));
}

/* Whether pairs may be rotated and the table read pair by pair: nope_dim is even, the table 8-byte aligned. */
static inline bool fl_rope_pairs(const fl_matmul_rope *rope) {
    return rope->nope_dim % 2 == 0 && (uintptr_t)rope->table % sizeof(float2) == 0;
}

enum { FL_ROPE_AT_ONCE = 16 };

/* N pairs of a row, 8 features apart from the even `feature` on, as bf16. Of FL_ROPE_AT_ONCE pairs all rotations are
 * loaded before the first is used: they come from L2, and nothing else of this warp is there to wait for. */
template <int N>
FL_DEVICE void fl_rope_row(const fl_matmul_rope *rope, int64_t row, int32_t feature, const float2 (&pairs)[N],
                           uint32_t (&words)[N]) {
    constexpr int AT_ONCE = N <= FL_ROPE_AT_ONCE ? N : N % FL_ROPE_AT_ONCE == 0 ? FL_ROPE_AT_ONCE : N / 2;
    static_assert(N % AT_ONCE == 0, "whole turns");
    int32_t head = rope->nope_dim + rope->rope_dim, step = 8 % head, at = feature % head - rope->nope_dim;
    const float *table = rope->table + row * rope->rope_dim;
#pragma unroll
    for (int first = 0; first < N; first += AT_ONCE) {
        float2 turn[AT_ONCE];
        uint32_t turned = 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            turn[j] = make_float2(1, 0);
            if (at >= 0) {
                turn[j] = __ldg((const float2 *)(table + at));
                turned |= 1u << j;
            }
            at += step;
            if (at >= rope->rope_dim) at -= head;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float2 v = pairs[first + j];
            if (turned >> j & 1)
                v = make_float2(fl_rope_even(v.x, v.y, turn[j].x, turn[j].y),
                                fl_rope_odd(v.x, v.y, turn[j].x, turn[j].y));
            words[first + j] = fl_pack_bf16(__fmul_rn(v.x, rope->scale), __fmul_rn(v.y, rope->scale));
        }
    }
}

#endif
