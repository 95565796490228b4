/* rmsnorm, AVX2, f32 out: two passes over a row that stays in L1, bound by memory traffic. The sum runs in four
 * vectors of 8 lanes added in a fixed tree. */
#include <math.h>

#include "backend/backend.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum { ROWS_PER_TASK = 16 };

static float add_and_square(float *x, const float *delta, int32_t dim) {
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int32_t i = 0, v = 0; i < dim; i += 8, v = (v + 1) & 3) {
        __m256 value = fl_load_avx2(x, i, dim);
        if (delta) {
            value = _mm256_add_ps(value, fl_load_avx2(delta, i, dim));
            fl_store_avx2(x, i, dim, value);
        }
        sum[v] = _mm256_fmadd_ps(value, value, sum[v]);
    }
    return fl_sum_avx2(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

static void norm_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_rmsnorm_args *a = context;
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, a->rows);
    for (int64_t r = rows.first; r < rows.end; r++) {
        float *x = a->x + r * a->x_stride, *y = (float *)a->y + r * a->y_stride;
        const float *delta = a->delta ? (const float *)a->delta + r * a->dim : NULL;
        float square = add_and_square(x, delta, a->dim);
        __m256 factor = _mm256_set1_ps(1.0f / sqrtf(square / (float)a->dim + a->eps));
        for (int32_t i = 0; i < a->dim; i += 8) {
            __m256 value = _mm256_mul_ps(fl_load_avx2(x, i, a->dim), factor);
            if (a->gamma) value = _mm256_mul_ps(value, fl_load_avx2(a->gamma, i, a->dim));
            fl_store_avx2(y, i, a->dim, value);
        }
    }
}

fl_err fl_rmsnorm_avx2(fl_backend *be, const fl_rmsnorm_args *a) {
    FL_TRY(fl_rmsnorm_validate(a));
    FL_TRY(fl_codes_refuse(be, "rmsnorm", &a->y_codes));
    fl_rmsnorm_args copy = *a;
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), norm_rows, &copy);
    return FL_ERR_OK;
}
