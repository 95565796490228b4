#include "backend/fill.h"

#include "base/half.h"

enum { TASK_VALUES = 1 << 20 };

fl_err fl_fill_validate(const fl_fill_args *a) {
    if (a->count < 0) return FL_FAIL(FL_ERR_INVALID, "fill: %lld values", (long long)a->count);
    if (a->dtype == FL_DTYPE_F32 || a->dtype == FL_DTYPE_BF16 || a->dtype == FL_DTYPE_F8_E4M3)
        return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "fill: expected F32, BF16 or F8_E4M3, found %s",
                   fl_dtype_name(a->dtype));
}

static void put(const fl_fill_args *a, int64_t i) {
    float value = fl_fill_normal(a->seed, i) * a->deviation;
    if (a->dtype == FL_DTYPE_F32) ((float *)a->to)[i] = value;
    else if (a->dtype == FL_DTYPE_BF16) ((uint16_t *)a->to)[i] = fl_bf16_of_f32(value);
    else ((uint8_t *)a->to)[i] = fl_e4m3_of_f32(value);
}

static void fill_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_fill_args *a = context;
    int64_t first = (int64_t)task * TASK_VALUES, left = a->count - first;
    for (int64_t i = 0; i < TASK_VALUES && i < left; i++) put(a, first + i);
}

fl_err fl_fill_host(fl_backend *be, const fl_fill_args *a) {
    fl_fill_args args = *a;
    FL_TRY(fl_fill_validate(a));
    fl_pool_run(be->pool, (int32_t)((a->count + TASK_VALUES - 1) / TASK_VALUES), fill_task, &args);
    return FL_ERR_OK;
}
