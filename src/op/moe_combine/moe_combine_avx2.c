/* moe_combine, AVX2: one pass over a row's columns, all slots in registers; bound by memory traffic. */
#include "backend/backend.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum { ROWS_PER_TASK = 16 };

static void combine_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_moe_combine_args *a = context;
    const float *y = a->y, *shared = a->shared;
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, a->rows);
    for (int64_t r = rows.first; r < rows.end; r++) {
        int64_t first = r * a->top_k; /* slot; a dense layer has neither places nor weights */
        float *x = a->x + r * a->dim;
        for (int32_t i = 0; i < a->dim; i += 8) {
            __m256 sum = shared ? fl_load_avx2(shared + r * a->dim, i, a->dim) : _mm256_setzero_ps();
            for (int32_t s = 0; s < a->top_k; s++) {
                __m256 term = fl_load_avx2(y + (int64_t)a->place[first + s] * a->dim, i, a->dim);
                sum = _mm256_fmadd_ps(_mm256_set1_ps(a->weights[first + s]), term, sum);
            }
            fl_store_avx2(x, i, a->dim, _mm256_add_ps(fl_load_avx2(x, i, a->dim), sum));
        }
    }
}

fl_err fl_moe_combine_avx2(fl_backend *be, const fl_moe_combine_args *a) {
    FL_TRY(fl_moe_combine_validate(a));
    FL_TRY(fl_moe_combine_validate_places(a));
    fl_moe_combine_args copy = *a;
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), combine_rows, &copy);
    return FL_ERR_OK;
}
