/* rope, AVX-512, bf16 out: eight pairs a vector, rotated by one fused multiply-add-subtract; bound by memory
 * traffic. */
#include "backend/backend.h"
#include "op/span.h"
#include "op/vec_avx512.h"

enum { ROWS_PER_TASK = 16 };

static void rotate_head(const fl_rope_args *a, const float *x, const float *table, uint16_t *y,
                        uint16_t *y_pe) {
    __m512 scale = _mm512_set1_ps(a->scale);
    for (int32_t i = 0; i < a->nope_dim; i += 16) {
        __mmask16 lanes = fl_lanes_avx512(i, a->nope_dim);
        fl_store_bf16_avx512(y + i, lanes, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), scale));
    }
    x += a->nope_dim;
    for (int32_t i = 0; i < a->rope_dim; i += 16) {
        __mmask16 lanes = fl_lanes_avx512(i, a->rope_dim);
        __m512 pairs = _mm512_maskz_loadu_ps(lanes, x + i), turn = _mm512_maskz_loadu_ps(lanes, table + i);
        __m512 cosines = _mm512_moveldup_ps(turn), sines = _mm512_movehdup_ps(turn);
        __m512 swapped = _mm512_permute_ps(pairs, 0xb1);
        __m512 value = _mm512_fmaddsub_ps(pairs, cosines, _mm512_mul_ps(swapped, sines));
        fl_store_bf16_avx512(y_pe + i, lanes, _mm512_mul_ps(value, scale));
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
                        (uint16_t *)a->y + r * a->y_stride + h * head,
                        (uint16_t *)a->y_pe + r * a->y_pe_stride + h * (int64_t)a->y_pe_head_stride);
}

fl_err fl_rope_avx512(fl_backend *be, const fl_rope_args *a) {
    FL_TRY(fl_rope_validate(a));
    fl_rope_args apart = fl_rope_apart(a, be->act_dtype);
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), rotate_rows, &apart);
    return FL_ERR_OK;
}
