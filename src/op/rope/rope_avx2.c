/* rope, AVX2, f32 out: four pairs a vector, rotated by one fused multiply-add-subtract; bound by memory
 * traffic. */
#include "backend/backend.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum { ROWS_PER_TASK = 16 };

static void rotate_head(const fl_rope_args *a, const float *x, const float *table, float *y, float *y_pe) {
    __m256 scale = _mm256_set1_ps(a->scale);
    for (int32_t i = 0; i < a->nope_dim; i += 8)
        fl_store_avx2(y, i, a->nope_dim, _mm256_mul_ps(fl_load_avx2(x, i, a->nope_dim), scale));
    x += a->nope_dim;
    for (int32_t i = 0; i < a->rope_dim; i += 8) {
        __m256 pairs = fl_load_avx2(x, i, a->rope_dim), turn = fl_load_avx2(table, i, a->rope_dim);
        __m256 cosines = _mm256_moveldup_ps(turn), sines = _mm256_movehdup_ps(turn);
        __m256 swapped = _mm256_permute_ps(pairs, 0xb1);
        __m256 value = _mm256_fmaddsub_ps(pairs, cosines, _mm256_mul_ps(swapped, sines));
        fl_store_avx2(y_pe, i, a->rope_dim, _mm256_mul_ps(value, scale));
    }
}

static void rotate_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_rope_args *a = context;
    int64_t head = a->nope_dim + a->rope_dim;
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, a->rows);
    for (int64_t r = rows.first; r < rows.end; r++)
        for (int32_t h = 0; h < a->n_heads; h++)
            rotate_head(a, a->x + r * a->x_stride + h * head, a->table + r * a->rope_dim,
                        (float *)a->y + r * a->y_stride + h * head,
                        (float *)a->y_pe + r * a->y_pe_stride + h * (int64_t)a->y_pe_head_stride);
}

fl_err fl_rope_avx2(fl_backend *be, const fl_rope_args *a) {
    FL_TRY(fl_rope_validate(a));
    fl_rope_args apart = fl_rope_apart(a, be->act_dtype);
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), rotate_rows, &apart);
    return FL_ERR_OK;
}
