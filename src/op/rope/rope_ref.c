#include "op/rope/rope.h"

#include "op/ref.h"

fl_err fl_rope_ref(fl_backend *be, const fl_rope_args *a) {
    (void)be;
    FL_TRY(fl_rope_validate(a));
    const fl_rope_args apart = fl_rope_apart(a, FL_DTYPE_F32);
    double scale = (double)a->scale;
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t head = (int64_t)h * (a->nope_dim + a->rope_dim);
            const float *x = a->x + r * a->x_stride + head;
            const float *rotation = a->table + (int64_t)r * a->rope_dim;
            float *y = (float *)a->y + r * a->y_stride + head;
            float *y_pe = (float *)apart.y_pe + r * apart.y_pe_stride + h * (int64_t)apart.y_pe_head_stride;
            for (int32_t i = 0; i < a->nope_dim; i++) y[i] = (float)(scale * (double)x[i]);
            for (int32_t i = 0; i < a->rope_dim; i += 2) {
                double even = (double)x[a->nope_dim + i], odd = (double)x[a->nope_dim + i + 1];
                double cosine = (double)rotation[i], sine = (double)rotation[i + 1];
                y_pe[i] = (float)(scale * (even * cosine - odd * sine));
                y_pe[i + 1] = (float)(scale * (even * sine + odd * cosine));
            }
        }
    return FL_ERR_OK;
}
