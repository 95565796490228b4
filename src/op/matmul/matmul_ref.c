#include "op/matmul/matmul.h"

#include <math.h>

#include "base/half.h"
#include "op/ref.h"

typedef struct job {
    fl_matmul_args a;
    fl_codes x; /* with block scales */
    bool quantises;
    float e4m3[1 << 8]; /* values of the codes */
} job;

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

/* One SwiGLU feature. */
static float swiglu(const job *j, const fl_weight *w, int32_t r, int32_t i) {
    double gate = product(j, w, r, i), up = product(j, w, r, w->n / 2 + i);
    return (float)(gate / (1 + exp(-gate)) * up);
}

/* A row of SwiGLU as codes, a block of features at a time. */
static void swiglu_codes(const job *j, const fl_weight *w, int32_t r) {
    for (int32_t b = 0; b < w->n / 2 / FL_SCALE_BLOCK; b++) {
        float block[FL_SCALE_BLOCK];
        fl_codes to = j->a.y_codes;
        to.codes += (int64_t)r * (w->n / 2) + b * FL_SCALE_BLOCK;
        to.scale += b * to.scale_stride + r;
        for (int32_t i = 0; i < FL_SCALE_BLOCK; i++) block[i] = swiglu(j, w, r, b * FL_SCALE_BLOCK + i);
        fl_codes_quantise(block, FL_SCALE_BLOCK, &to, 0);
    }
}

/* A row of f32 becomes its rope. */
static void rotate(const fl_matmul_rope *rope, int32_t r, int32_t n, float *y) {
    double scale = (double)rope->scale;
    for (int32_t h = 0; h < n; h += rope->nope_dim + rope->rope_dim) {
        for (int32_t i = 0; i < rope->nope_dim; i++) y[h + i] = (float)(scale * (double)y[h + i]);
        for (int32_t i = 0; i < rope->rope_dim; i += 2) {
            float *pair = y + h + rope->nope_dim + i;
            double even = (double)pair[0], odd = (double)pair[1];
            double cosine = (double)rope->table[(int64_t)r * rope->rope_dim + i];
            double sine = (double)rope->table[(int64_t)r * rope->rope_dim + i + 1];
            pair[0] = (float)(scale * (even * cosine - odd * sine));
            pair[1] = (float)(scale * (even * sine + odd * cosine));
        }
    }
}

static void matmul_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_matmul_args *a = &j->a;
    int32_t group = 0, width = fl_matmul_width(a->out, a->w[0].n);
    while (a->group_rows && r >= a->group_rows[group + 1]) group++;
    const fl_weight *w = &a->w[group];
    if (j->quantises) fl_codes_quantise((const float *)a->x + r * a->x_stride, w->k, &j->x, r);
    if (a->out == FL_MATMUL_SWIGLU_CODES) {
        swiglu_codes(j, w, r);
        return;
    }
    float *y = (float *)a->y + r * a->y_stride;
    for (int32_t i = 0; i < width; i++)
        y[i] = a->out == FL_MATMUL_SWIGLU ? swiglu(j, w, r, i) : (float)product(j, w, r, i);
    if (a->out == FL_MATMUL_ROPE) rotate(&a->rope, r, width, y);
}

fl_err fl_matmul_ref(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    FL_TRY(fl_matmul_validate_groups(a));
    job j = {.a = *a};
    if (a->w[0].scale) j.x = fl_matmul_codes_of(a, &j.quantises);
    for (int32_t code = 0; code < 1 << 8; code++) j.e4m3[code] = fl_f32_of_e4m3((uint8_t)code);
    fl_pool_run(be->pool, a->rows, matmul_row, &j);
    return FL_ERR_OK;
}
