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

/* A pair at the even place `in_head` of a head as bf16. nope_dim is even, the table 8-byte aligned; `table` is the
 * row's. */
FL_DEVICE uint32_t fl_rope_pair(const fl_matmul_rope *rope, const float *table, int32_t in_head, float even,
                                float odd) {
    int32_t turned = in_head - rope->nope_dim;
    float first = even, second = odd;
    if (turned >= 0) {
        float2 r = __ldg((const float2 *)(table + turned));
        first = fl_rope_even(even, odd, r.x, r.y);
        second = fl_rope_odd(even, odd, r.x, r.y);
    }
    return fl_pack_bf16(__fmul_rn(first, rope->scale), __fmul_rn(second, rope->scale));
}

/* What fl_rope_pair wants. */
static inline bool fl_rope_pairs(const fl_matmul_rope *rope) {
    return rope->nope_dim % 2 == 0 && (uintptr_t)rope->table % sizeof(float2) == 0;
}

/* Pairs 8 features apart, from an even feature on, of one row: where the next one lies in its head. */
typedef struct fl_rope_walk {
    const float *table;
    int32_t in_head;
} fl_rope_walk;

FL_DEVICE fl_rope_walk fl_rope_walk_from(const fl_matmul_rope *rope, int64_t row, int32_t feature) {
    return fl_rope_walk{rope->table + row * rope->rope_dim, feature % (rope->nope_dim + rope->rope_dim)};
}

FL_DEVICE uint32_t fl_rope_next(const fl_matmul_rope *rope, fl_rope_walk *walk, float even, float odd) {
    uint32_t word = fl_rope_pair(rope, walk->table, walk->in_head, even, odd);
    walk->in_head += 8;
    while (walk->in_head >= rope->nope_dim + rope->rope_dim) walk->in_head -= rope->nope_dim + rope->rope_dim;
    return word;
}

#endif
