/* Scalar access to activations in either format, for reference ops and portable ones. */
#ifndef FL_OP_ACT_H
#define FL_OP_ACT_H

#include "base/dtype.h"
#include "base/half.h"

static inline float fl_act_load(const void *x, fl_dtype dtype, int64_t index) {
    return dtype == FL_DTYPE_F32 ? ((const float *)x)[index] : fl_f32_of_bf16(((const uint16_t *)x)[index]);
}

static inline void fl_act_store(void *y, fl_dtype dtype, int64_t index, float value) {
    if (dtype == FL_DTYPE_F32) ((float *)y)[index] = value;
    else ((uint16_t *)y)[index] = fl_bf16_of_f32(value);
}

#endif
