/* rmsnorm, AVX-512, bf16 out: two passes over a row that stays in L1, bound by memory traffic. The sum runs
 * in four vectors of 16 lanes added in a fixed tree. */
#include <math.h>

#include "backend/backend.h"
#include "op/span.h"
#include "op/vec_avx512.h"

enum { ROWS_PER_TASK = 16 };

static float add_and_square(float *x, const uint16_t *delta, int32_t dim) {
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int32_t i = 0, v = 0; i < dim; i += 16, v = (v + 1) & 3) {
        __mmask16 lanes = fl_lanes_avx512(i, dim);
        __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
        if (delta) {
            value = _mm512_add_ps(value, fl_load_bf16_avx512(lanes, delta + i));
            _mm512_mask_storeu_ps(x + i, lanes, value);
        }
        sum[v] = _mm512_fmadd_ps(value, value, sum[v]);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

static void norm_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_rmsnorm_args *a = context;
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, a->rows);
    for (int64_t r = rows.first; r < rows.end; r++) {
        float *x = a->x + r * a->x_stride;
        uint16_t *y = (uint16_t *)a->y + r * a->y_stride;
        const uint16_t *delta = a->delta ? (const uint16_t *)a->delta + r * a->dim : NULL;
        float square = add_and_square(x, delta, a->dim);
        __m512 factor = _mm512_set1_ps(1.0f / sqrtf(square / (float)a->dim + a->eps));
        for (int32_t i = 0; i < a->dim; i += 16) {
            __mmask16 lanes = fl_lanes_avx512(i, a->dim);
            __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor);
            if (a->gamma) value = _mm512_mul_ps(value, _mm512_maskz_loadu_ps(lanes, a->gamma + i));
            fl_store_bf16_avx512(y + i, lanes, value);
        }
    }
}

fl_err fl_rmsnorm_avx512(fl_backend *be, const fl_rmsnorm_args *a) {
    FL_TRY(fl_rmsnorm_validate(a));
    FL_TRY(fl_codes_refuse(be, "rmsnorm", &a->y_codes));
    fl_rmsnorm_args copy = *a;
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), norm_rows, &copy);
    return FL_ERR_OK;
}
