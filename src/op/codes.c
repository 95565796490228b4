#include "op/codes.h"

#include <math.h>

#include "backend/backend.h"
#include "base/half.h"
#include "op/validate.h"

static int64_t scale_stride_of(int32_t rows) {
    return fl_align_up(rows, 4);
}

int64_t fl_codes_bytes(int32_t rows, int32_t k) {
    return fl_align_up((int64_t)rows * k, 64) +
           k / FL_SCALE_BLOCK * scale_stride_of(rows) * (int64_t)sizeof(float);
}

fl_codes fl_codes_at(void *memory, int32_t rows, int32_t k) {
    uint8_t *codes = memory;
    return (fl_codes){.codes = codes,
                      .scale = (float *)(void *)(codes + fl_align_up((int64_t)rows * k, 64)),
                      .scale_stride = scale_stride_of(rows)};
}

fl_codes fl_codes_from(const fl_codes *c, int32_t row, int32_t k) {
    if (!c->codes) return *c;
    return (fl_codes){
        .codes = c->codes + (int64_t)row * k, .scale = c->scale + row, .scale_stride = c->scale_stride};
}

fl_err fl_codes_validate(const char *op, const fl_codes *c, int32_t rows, int32_t k) {
    FL_TRY(fl_need_multiple(op, "inputs of codes", k, FL_SCALE_BLOCK));
    FL_TRY(fl_need_stride(op, "scale_stride of codes", c->scale_stride, rows));
    return fl_need_multiple(op, "scale_stride of codes", c->scale_stride, 4);
}

fl_err fl_codes_refuse(const fl_backend *be, const char *op, const fl_codes *c) {
    if (!c->codes) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "%s: backend %s does not take e4m3 codes", op, be->name);
}

float fl_codes_of_group(const float *x, int32_t n, uint8_t *codes) {
    float largest = 0x1p-100f;
    for (int32_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    float inverse = 448 / largest;
    for (int32_t i = 0; i < n; i++) codes[i] = fl_e4m3_of_f32(x[i] * inverse);
    return largest / 448;
}

void fl_codes_quantise(const float *x, int32_t k, const fl_codes *to, int64_t row) {
    for (int32_t b = 0; b < k / FL_SCALE_BLOCK; b++) {
        int32_t first = b * FL_SCALE_BLOCK;
        to->scale[b * to->scale_stride + row] =
            fl_codes_of_group(x + first, FL_SCALE_BLOCK, to->codes + row * k + first);
    }
}
