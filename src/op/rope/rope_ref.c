#include "op/rope/rope.h"

#include "op/ref.h"

fl_err fl_rope_ref(fl_backend *be, const fl_rope_args *a) {
    (void)be;
    FL_TRY(fl_rope_validate(a));
    double scale = (double)a->scale;
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t x_head = (int64_t)h * fl_rope_head_stride(a, a->x_head_stride);
            int64_t y_head = (int64_t)h * fl_rope_head_stride(a, a->y_head_stride);
            const float *x = a->x + r * a->x_stride + x_head;
            const float *rotation = a->table + (int64_t)r * a->rope_dim;
            float *y = (float *)a->y + r * a->y_stride + y_head;
            for (int32_t i = 0; i < a->nope_dim; i++) y[i] = (float)(scale * (double)x[i]);
            for (int32_t i = 0; i < a->rope_dim; i += 2) {
                double even = (double)x[a->nope_dim + i], odd = (double)x[a->nope_dim + i + 1];
                double cosine = (double)rotation[i], sine = (double)rotation[i + 1];
                y[a->nope_dim + i] = (float)(scale * (even * cosine - odd * sine));
                y[a->nope_dim + i + 1] = (float)(scale * (even * sine + odd * cosine));
            }
        }
    return FL_ERR_OK;
}
