/* Rows between f32 and bf16 (round to nearest even), as the portable ops need them. */
#ifndef FL_OP_CONVERT_H
#define FL_OP_CONVERT_H

#include <string.h>

#include "base/dtype.h"
#include "base/half.h"

/* Both formats F32 or BF16; rows aligned to their elements. */
static inline void fl_convert_row(void *to, fl_dtype to_dtype, const void *from, fl_dtype from_dtype,
                                  int32_t n) {
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)n * fl_dtype_bytes(to_dtype));
    } else if (to_dtype == FL_DTYPE_BF16) {
        const float *wide = from;
        uint16_t *half = to;
        for (int32_t i = 0; i < n; i++) half[i] = fl_bf16_of_f32(wide[i]);
    } else {
        const uint16_t *half = from;
        float *wide = to;
        for (int32_t i = 0; i < n; i++) wide[i] = fl_f32_of_bf16(half[i]);
    }
}

/* Element `index` of an array of `dtype`. */
static inline const void *fl_element(const void *base, fl_dtype dtype, int64_t index) {
    return (const uint8_t *)base + index * (int64_t)fl_dtype_bytes(dtype);
}

static inline void *fl_element_mut(void *base, fl_dtype dtype, int64_t index) {
    return (uint8_t *)base + index * (int64_t)fl_dtype_bytes(dtype);
}

#endif
