#include "op/matmul/matmul.h"

#include <math.h>

#include "op/ref.h"

static void matmul_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const fl_matmul_args *a = context;
    int32_t group = 0, n = a->w[0].n, k = a->w[0].k;
    while (a->group_rows && r >= a->group_rows[group + 1]) group++;
    const float *w = a->w[group].data, *x = (const float *)a->x + r * a->x_stride;
    float *y = (float *)a->y + r * a->y_stride;
    if (a->out != FL_MATMUL_SWIGLU) {
        for (int32_t i = 0; i < n; i++) y[i] = (float)fl_ref_dot(x, w + (int64_t)i * k, k);
        return;
    }
    for (int32_t i = 0; i < n / 2; i++) {
        double gate = fl_ref_dot(x, w + (int64_t)i * k, k);
        double up = fl_ref_dot(x, w + (int64_t)(n / 2 + i) * k, k);
        y[i] = (float)(gate / (1 + exp(-gate)) * up);
    }
}

fl_err fl_matmul_ref(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    FL_TRY(fl_matmul_validate_groups(a));
    fl_matmul_args args = *a;
    fl_pool_run(be->pool, a->rows, matmul_row, &args);
    return FL_ERR_OK;
}
