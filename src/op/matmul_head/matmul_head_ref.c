#include "op/matmul_head/matmul_head.h"

#include "op/ref.h"

static void matmul_head_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const fl_matmul_head_args *a = context;
    int32_t n = a->w[0].n, k = a->w[0].k;
    for (int32_t h = 0; h < a->n_heads; h++) {
        const float *w = a->w[h].data, *x = (const float *)a->x + r * a->x_row_stride + h * a->x_head_stride;
        float *y = (float *)a->y + r * a->y_row_stride + h * a->y_head_stride;
        for (int32_t i = 0; i < n; i++) y[i] = (float)fl_ref_dot(x, w + (int64_t)i * k, k);
    }
}

fl_err fl_matmul_head_ref(fl_backend *be, const fl_matmul_head_args *a) {
    FL_TRY(fl_matmul_head_validate(a));
    fl_matmul_head_args args = *a;
    fl_pool_run(be->pool, a->rows, matmul_head_row, &args);
    return FL_ERR_OK;
}
