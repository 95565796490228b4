#include "op/rmsnorm/rmsnorm.h"

#include <math.h>

#include "op/ref.h"

static float normed(const fl_rmsnorm_args *a, const float *x, double scale, int32_t i) {
    return (float)((double)x[i] * scale * (a->gamma ? (double)a->gamma[i] : 1));
}

/* The codes of row r, a block at a time. */
static void put_codes(const fl_rmsnorm_args *a, const float *x, double scale, int32_t r) {
    for (int32_t b = 0; b < a->dim / FL_SCALE_BLOCK; b++) {
        float block[FL_SCALE_BLOCK];
        fl_codes to = a->y_codes;
        to.codes += (int64_t)r * a->dim + b * FL_SCALE_BLOCK;
        to.scale += b * to.scale_stride + r;
        for (int32_t i = 0; i < FL_SCALE_BLOCK; i++) block[i] = normed(a, x, scale, b * FL_SCALE_BLOCK + i);
        fl_codes_quantise(block, FL_SCALE_BLOCK, &to, 0);
    }
}

fl_err fl_rmsnorm_ref(fl_backend *be, const fl_rmsnorm_args *a) {
    (void)be;
    FL_TRY(fl_rmsnorm_validate(a));
    for (int32_t r = 0; r < a->rows; r++) {
        float *x = a->x + r * a->x_stride, *y = a->y ? (float *)a->y + r * a->y_stride : NULL;
        const float *delta = a->delta ? (const float *)a->delta + (int64_t)r * a->dim : NULL;
        double sum = 0;
        for (int32_t i = 0; delta && i < a->dim; i++) x[i] += delta[i];
        for (int32_t i = 0; i < a->dim; i++) sum += (double)x[i] * (double)x[i];
        double scale = 1 / sqrt(sum / a->dim + (double)a->eps);
        for (int32_t i = 0; y && i < a->dim; i++) y[i] = normed(a, x, scale, i);
        if (a->y_codes.codes) put_codes(a, x, scale, r);
    }
    return FL_ERR_OK;
}
