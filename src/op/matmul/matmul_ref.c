#include "op/matmul/matmul.h"

#include <math.h>

#include "base/half.h"
#include "op/ref.h"

typedef struct job {
    fl_matmul_args a;
    fl_matmul_codes x;  /* with block scales */
    float e4m3[1 << 8]; /* values of the codes */
} job;

/* Quantises row r as the contract says. */
static void quantise(const job *j, int32_t r) {
    int32_t k = j->a.w[0].k;
    const float *x = (const float *)j->a.x + r * j->a.x_stride;
    uint8_t *codes = j->x.codes + (int64_t)r * k;
    for (int32_t b = 0; b < k / FL_SCALE_BLOCK; b++) {
        float largest = 0x1p-100f;
        for (int32_t i = b * FL_SCALE_BLOCK; i < (b + 1) * FL_SCALE_BLOCK; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        float inverse = 448 / largest;
        for (int32_t i = b * FL_SCALE_BLOCK; i < (b + 1) * FL_SCALE_BLOCK; i++)
            codes[i] = fl_e4m3_of_f32(x[i] * inverse);
        j->x.scale[b * j->x.scale_stride + r] = largest / 448;
    }
}

static double scaled_product(const job *j, const fl_weight *w, int32_t r, int32_t i) {
    const uint8_t *x = j->x.codes + (int64_t)r * w->k, *y = (const uint8_t *)w->data + (int64_t)i * w->k;
    const float *scale = w->scale + i / FL_SCALE_BLOCK * fl_scale_stride(w->k);
    double total = 0;
    for (int32_t b = 0; b < w->k / FL_SCALE_BLOCK; b++) {
        double sum = 0; /* exact */
        for (int32_t c = b * FL_SCALE_BLOCK; c < (b + 1) * FL_SCALE_BLOCK; c++)
            sum += (double)j->e4m3[x[c]] * (double)j->e4m3[y[c]];
        total += sum * (double)j->x.scale[b * j->x.scale_stride + r] * (double)scale[b];
    }
    return total;
}

static double product(const job *j, const fl_weight *w, int32_t r, int32_t i) {
    if (w->scale) return scaled_product(j, w, r, i);
    return fl_ref_dot((const float *)j->a.x + r * j->a.x_stride, (const float *)w->data + (int64_t)i * w->k,
                      w->k);
}

static void matmul_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_matmul_args *a = &j->a;
    int32_t group = 0, n = a->w[0].n;
    while (a->group_rows && r >= a->group_rows[group + 1]) group++;
    const fl_weight *w = &a->w[group];
    float *y = (float *)a->y + r * a->y_stride;
    if (w->scale) quantise(j, r);
    if (a->out != FL_MATMUL_SWIGLU) {
        for (int32_t i = 0; i < n; i++) y[i] = (float)product(j, w, r, i);
        return;
    }
    for (int32_t i = 0; i < n / 2; i++) {
        double gate = product(j, w, r, i), up = product(j, w, r, n / 2 + i);
        y[i] = (float)(gate / (1 + exp(-gate)) * up);
    }
}

fl_err fl_matmul_ref(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    FL_TRY(fl_matmul_validate_groups(a));
    job j = {.a = *a};
    if (a->w[0].scale) j.x = fl_matmul_codes_of(a);
    for (int32_t code = 0; code < 1 << 8; code++) j.e4m3[code] = fl_f32_of_e4m3((uint8_t)code);
    fl_pool_run(be->pool, a->rows, matmul_row, &j);
    return FL_ERR_OK;
}
