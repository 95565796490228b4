#include "op/weight_pack/weight_pack_source.h"

#include <string.h>

#include "base/half.h"

fl_pack_source fl_pack_source_of(const fl_weight_pack_args *a) {
    fl_pack_source source = {.a = a};
    for (int32_t code = 0; code < 256; code++) source.of_e4m3[code] = fl_f32_of_e4m3((uint8_t)code);
    return source;
}

static void widen(const fl_pack_source *source, const uint8_t *from, int32_t n, float *to) {
    switch (source->a->src_dtype) {
    case FL_DTYPE_F8_E4M3:
        for (int32_t i = 0; i < n; i++) to[i] = source->of_e4m3[from[i]];
        return;
    case FL_DTYPE_F32: memcpy(to, from, (size_t)n * sizeof *to); return;
    default: break;
    }
    bool is_bf16 = source->a->src_dtype == FL_DTYPE_BF16;
    for (int32_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * (size_t)i, sizeof half); /* the file gives no alignment */
        to[i] = is_bf16 ? fl_f32_of_bf16(half) : fl_f32_of_f16(half);
    }
}

void fl_pack_source_read(const fl_pack_source *source, int32_t row, int32_t first, int32_t n, float *to) {
    const fl_weight_pack_args *a = source->a;
    int64_t element_bytes = (int64_t)fl_dtype_bytes(a->src_dtype);
    widen(source, (const uint8_t *)a->src + ((int64_t)row * a->cols + first) * element_bytes, n, to);
    if (a->scale_inv) {
        const uint8_t *scale_row =
            (const uint8_t *)a->scale_inv +
            (int64_t)((a->row0 + row) / a->block_rows) * a->scale_stride * (int64_t)sizeof(float);
        for (int32_t i = 0; i < n;) {
            int32_t block = (first + i) / a->block_cols;
            int32_t end =
                n - i < (block + 1) * a->block_cols - (first + i) ? n : (block + 1) * a->block_cols - first;
            float scale;
            memcpy(&scale, scale_row + (int64_t)block * (int64_t)sizeof scale, sizeof scale);
            for (; i < end; i++) to[i] *= scale;
        }
    }
    if (a->col_scale)
        for (int32_t i = 0; i < n; i++) to[i] *= a->col_scale[first + i];
}
