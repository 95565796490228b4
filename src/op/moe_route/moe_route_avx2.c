/* moe_route, AVX2: logits in tiles of up to 2 rows x 4 experts (8 accumulators of 8 lanes over k, added up once
 * at the end), then the shared scalar selection. Every (row, expert) sum runs in the same order in every tile
 * shape, so rows beside it change nothing. Bound by FMA. */
#include "backend/backend.h"
#include "op/moe_route/moe_route_select.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum { ROWS = 2, EXPERTS = 4 };

/* Logits of n_rows rows (1..ROWS) and n_experts experts (1..EXPERTS): constants after inlining. */
static inline void tile_logits(const fl_moe_route_args *a, const float *x, const float *w, float *z,
                               int32_t n_rows, int32_t n_experts) {
    __m256 sum[ROWS][EXPERTS];
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t e = 0; e < n_experts; e++) sum[r][e] = _mm256_setzero_ps();
    for (int32_t i = 0; i < a->dim; i += 8) {
        __m256 row[ROWS];
        for (int32_t r = 0; r < n_rows; r++) row[r] = fl_load_avx2(x + r * a->x_stride, i, a->dim);
        for (int32_t e = 0; e < n_experts; e++) {
            __m256 weight = fl_load_avx2(w + (int64_t)e * a->dim, i, a->dim);
            for (int32_t r = 0; r < n_rows; r++) sum[r][e] = _mm256_fmadd_ps(row[r], weight, sum[r][e]);
        }
    }
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t e = 0; e < n_experts; e++) z[r * FL_MOE_EXPERTS_MAX + e] = fl_sum_avx2(sum[r][e]);
}

static void route_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_moe_route_args *a = context;
    float z[ROWS][FL_MOE_EXPERTS_MAX];
    fl_span rows = fl_span_of_task(task, ROWS, a->rows);
    int32_t n_rows = rows.end - rows.first;
    const float *x = (const float *)a->x + rows.first * a->x_stride;
    for (int32_t e = 0; e < a->n_experts; e += EXPERTS) {
        int32_t n_experts = a->n_experts - e < EXPERTS ? a->n_experts - e : EXPERTS;
        const float *w = a->w + (int64_t)e * a->dim;
        if (n_rows == ROWS && n_experts == EXPERTS) {
            tile_logits(a, x, w, &z[0][e], ROWS, EXPERTS);
        } else if (n_experts == EXPERTS) {
            tile_logits(a, x, w, &z[0][e], 1, EXPERTS);
        } else {
            for (int32_t r = 0; r < n_rows; r++)
                for (int32_t i = 0; i < n_experts; i++)
                    tile_logits(a, x + r * a->x_stride, w + (int64_t)i * a->dim, &z[r][e + i], 1, 1);
        }
    }
    for (int32_t r = 0; r < n_rows; r++) {
        int64_t out = (int64_t)(rows.first + r) * a->top_k;
        fl_moe_route_select(a, z[r], a->ids + out, a->weights + out);
    }
}

fl_err fl_moe_route_avx2(fl_backend *be, const fl_moe_route_args *a) {
    FL_TRY(fl_moe_route_validate(a));
    fl_moe_route_args copy = *a;
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS), route_rows, &copy);
    return FL_ERR_OK;
}
