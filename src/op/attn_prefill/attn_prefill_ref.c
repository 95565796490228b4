#include "op/attn_prefill/attn_prefill.h"

#include <math.h>
#include <string.h>

#include "op/ref.h"

/* The running state of one row and head: m, l, o[v_dim], as f32 between splits. */
static float *state_of(const fl_attn_prefill_args *a, int32_t r, int32_t h) {
    return (float *)a->state + ((int64_t)r * a->n_heads + h) * (a->v_dim + 2);
}

static void start(float *state, int32_t v_dim) {
    state[0] = -INFINITY;
    for (int32_t j = 1; j < v_dim + 2; j++) state[j] = 0;
}

static const float *key_of(const fl_attn_prefill_args *a, int32_t t, int32_t h) {
    return (const float *)a->kv + ((int64_t)t * a->n_heads + h) * (a->nope_dim + a->v_dim);
}

/* Scores of the first `visible` keys, and their maximum. */
static double score_keys(const fl_attn_prefill_args *a, int32_t r, int32_t h, int32_t visible,
                         double *score) {
    const float *q = (const float *)a->q + ((int64_t)r * a->n_heads + h) * (a->nope_dim + a->rope_dim);
    double maximum = -INFINITY;
    for (int32_t t = 0; t < visible; t++) {
        score[t] =
            fl_ref_dot(q, key_of(a, t, h), a->nope_dim) +
            fl_ref_dot(q + a->nope_dim, (const float *)a->k_pe + (int64_t)t * a->rope_dim, a->rope_dim);
        if (score[t] > maximum) maximum = score[t];
    }
    return maximum;
}

static void attend_head(const fl_attn_prefill_args *a, int32_t r, int32_t h, int32_t visible) {
    double score[FL_ATTN_SPLIT_TOKENS], o[FL_ATTN_HEAD_DIM_MAX];
    float *state = state_of(a, r, h);
    if (a->first) start(state, a->v_dim);
    /* m is only a reference point, so its rounding to f32 cancels. */
    float m = fmaxf(state[0], (float)score_keys(a, r, h, visible, score));
    double kept = exp2((double)state[0] - (double)m), l = kept * (double)state[1];
    for (int32_t j = 0; j < a->v_dim; j++) o[j] = kept * (double)state[2 + j];
    for (int32_t t = 0; t < visible; t++) {
        double p = exp2(score[t] - (double)m);
        const float *v = key_of(a, t, h) + a->nope_dim;
        l += p;
        for (int32_t j = 0; j < a->v_dim; j++) o[j] += p * (double)v[j];
    }
    state[0] = m;
    state[1] = (float)l;
    for (int32_t j = 0; j < a->v_dim; j++) state[2 + j] = (float)o[j];
    if (!a->last) return;
    /* From the stored state, so that a later split in which this row sees no key changes no bit. */
    float *out = (float *)a->out + ((int64_t)r * a->n_heads + h) * a->v_dim;
    for (int32_t j = 0; j < a->v_dim; j++) out[j] = (float)((double)state[2 + j] / (double)state[1]);
}

static void attend_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const fl_attn_prefill_args *a = context;
    int32_t visible = a->pos + r - a->key_pos + 1;
    if (visible > a->n_keys) visible = a->n_keys;
    for (int32_t h = 0; h < a->n_heads; h++) attend_head(a, r, h, visible);
}

fl_err fl_attn_prefill_ref(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_attn_prefill_validate(a));
    fl_attn_prefill_args args = *a;
    fl_pool_run(be->pool, a->rows, attend_row, &args);
    return FL_ERR_OK;
}
