/* moe_route, AVX-512: logits in tiles of up to 4 rows x 4 experts (16 accumulators of 16 lanes over k, added
 * up once at the end), then the shared scalar selection. Every (row, expert) sum runs in the same order in
 * every tile shape, so rows beside it change nothing. Bound by FMA. */
#include "backend/backend.h"
#include "op/moe_route/moe_route_select.h"
#include "op/span.h"
#include "op/vec_avx512.h"

enum { TILE = 4 };

/* Logits of n_rows rows and n_experts experts, both 1..TILE; a constant after inlining. */
static inline void tile_logits(const fl_moe_route_args *a, const uint16_t *x, const float *w, float *z,
                               int32_t n_rows, int32_t n_experts) {
    __m512 sum[TILE][TILE];
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t e = 0; e < n_experts; e++) sum[r][e] = _mm512_setzero_ps();
    for (int32_t i = 0; i < a->dim; i += 16) {
        __mmask16 lanes = fl_lanes_avx512(i, a->dim);
        __m512 row[TILE];
        for (int32_t r = 0; r < n_rows; r++) row[r] = fl_load_bf16_avx512(lanes, x + r * a->x_stride + i);
        for (int32_t e = 0; e < n_experts; e++) {
            __m512 weight = _mm512_maskz_loadu_ps(lanes, w + (int64_t)e * a->dim + i);
            for (int32_t r = 0; r < n_rows; r++) sum[r][e] = _mm512_fmadd_ps(row[r], weight, sum[r][e]);
        }
    }
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t e = 0; e < n_experts; e++)
            z[r * FL_MOE_EXPERTS_MAX + e] = _mm512_reduce_add_ps(sum[r][e]);
}

static void route_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_moe_route_args *a = context;
    float z[TILE][FL_MOE_EXPERTS_MAX];
    fl_span rows = fl_span_of_task(task, TILE, a->rows);
    int32_t n_rows = rows.end - rows.first;
    const uint16_t *x = (const uint16_t *)a->x + rows.first * a->x_stride;
    for (int32_t e = 0; e < a->n_experts; e += TILE) {
        int32_t n_experts = a->n_experts - e < TILE ? a->n_experts - e : TILE;
        const float *w = a->w + (int64_t)e * a->dim;
        if (n_rows == TILE && n_experts == TILE) {
            tile_logits(a, x, w, &z[0][e], TILE, TILE);
        } else if (n_experts == TILE) {
            for (int32_t r = 0; r < n_rows; r++) tile_logits(a, x + r * a->x_stride, w, &z[r][e], 1, TILE);
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

fl_err fl_moe_route_avx512(fl_backend *be, const fl_moe_route_args *a) {
    FL_TRY(fl_moe_route_validate(a));
    fl_moe_route_args copy = *a;
    fl_pool_run(be->pool, fl_span_tasks(a->rows, TILE), route_rows, &copy);
    return FL_ERR_OK;
}
