#include "op/rmsnorm/rmsnorm.h"

#include <math.h>

#include "op/ref.h"

fl_err fl_rmsnorm_ref(fl_backend *be, const fl_rmsnorm_args *a) {
    (void)be;
    FL_TRY(fl_rmsnorm_validate(a));
    for (int32_t r = 0; r < a->rows; r++) {
        float *x = a->x + r * a->x_stride, *y = (float *)a->y + r * a->y_stride;
        double sum = 0;
        if (a->delta)
            for (int32_t i = 0; i < a->dim; i++) x[i] += a->delta[(int64_t)r * a->dim + i];
        for (int32_t i = 0; i < a->dim; i++) sum += (double)x[i] * (double)x[i];
        double scale = 1 / sqrt(sum / a->dim + (double)a->eps);
        for (int32_t i = 0; i < a->dim; i++)
            y[i] = (float)((double)x[i] * scale * (a->gamma ? (double)a->gamma[i] : 1));
    }
    return FL_ERR_OK;
}
