#include "op/weight_pack/weight_pack.h"

#include <string.h>

#include "op/act.h"
#include "op/ref.h"

/* src may lie anywhere in a mapped file. */
static float load_any(const void *src, fl_dtype dtype, int64_t index) {
    const uint8_t *at = (const uint8_t *)src + index * (int64_t)fl_dtype_bytes(dtype);
    uint32_t bits = 0;
    memcpy(&bits, at, fl_dtype_bytes(dtype));
    switch (dtype) {
    case FL_DTYPE_F32: return fl_f32_of_bits(bits);
    case FL_DTYPE_BF16: return fl_f32_of_bf16((uint16_t)bits);
    case FL_DTYPE_F16: return fl_f32_of_f16((uint16_t)bits);
    default: return fl_f32_of_e4m3((uint8_t)bits);
    }
}

typedef struct pack_job {
    const fl_weight_pack_args *a;
    const fl_weight_layout *layout;
} pack_job;

static void pack_row(void *context, int32_t i, int32_t worker) {
    (void)worker;
    const pack_job *job = context;
    const fl_weight_pack_args *a = job->a;
    for (int32_t j = 0; j < a->cols; j++) {
        float value = load_any(a->src, a->src_dtype, (int64_t)i * a->cols + j);
        if (a->scale_inv) {
            int64_t block = (int64_t)((a->row0 + i) / a->block_rows) * a->scale_stride + j / a->block_cols;
            value *= load_any(a->scale_inv, FL_DTYPE_F32, block);
        }
        if (a->col_scale) value *= a->col_scale[j];
        int32_t n = a->n_offset + (a->transpose ? j : i), k = a->transpose ? i : j;
        fl_act_store(a->w->data, job->layout->dtype, fl_weight_index(job->layout, a->w->k, n, k), value);
    }
}

/* Defined for any layout: what the other backends pack must be these bytes. */
fl_err fl_weight_pack_ref(fl_backend *be, const fl_weight_pack_args *a) {
    FL_TRY(fl_weight_pack_validate(a));
    pack_job job = {a, &be->layout};
    fl_pool_run(be->pool, a->rows, pack_row, &job);
    return FL_ERR_OK;
}
