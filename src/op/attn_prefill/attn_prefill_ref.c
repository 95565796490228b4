#include "op/attn_prefill/attn_prefill.h"

#include <math.h>
#include <string.h>

#include "op/ref.h"

/* The running state of one row and head: m, l, o[v_dim], as f32 between splits. */
static float *state_of(const fl_attn_prefill_args *a, int32_t r, int32_t h) {
    return (float *)a->state + ((int64_t)r * a->n_heads + h) * (a->v_dim + 2);
}

/* Below every score: a row that has seen no key yet has l = 0, and no infinity to subtract. */
static void start(float *state, int32_t v_dim) {
    state[0] = -1e30f;
    for (int32_t j = 1; j < v_dim + 2; j++) state[j] = 0;
}

static const float *key_of(const fl_attn_prefill_args *a, int32_t t, int32_t h) {
    return (const float *)a->kv + ((int64_t)t * a->n_heads + h) * (a->nope_dim + a->v_dim);
}

/* The keys that a row sees, and their scores. */
typedef struct seen {
    int32_t n, key[FL_ATTN_SPLIT_TOKENS];
    double score[FL_ATTN_SPLIT_TOKENS];
} seen;

/* Returns the largest score. */
static double score_keys(const fl_attn_prefill_args *a, int32_t r, int32_t h, seen *s) {
    const float *q = (const float *)a->q + ((int64_t)r * a->n_heads + h) * (a->nope_dim + a->rope_dim);
    double maximum = -INFINITY;
    s->n = 0;
    for (int32_t t = 0; t < a->n_keys; t++) {
        if (!fl_attn_prefill_sees(a, r, h, t)) continue;
        double score =
            fl_ref_dot(q, key_of(a, t, h), a->nope_dim) +
            fl_ref_dot(q + a->nope_dim, (const float *)a->k_pe + (int64_t)t * a->rope_dim, a->rope_dim);
        if (a->key_bias) score += (double)a->key_bias[h];
        s->key[s->n] = t;
        s->score[s->n++] = score;
        if (score > maximum) maximum = score;
    }
    return maximum;
}

static void add_keys(const fl_attn_prefill_args *a, int32_t r, int32_t h) {
    double o[FL_ATTN_HEAD_DIM_MAX];
    float *state = state_of(a, r, h);
    seen s;
    double maximum = score_keys(a, r, h, &s);
    if (s.n == 0) return; /* changes no bit */
    /* m is only a reference point, so its rounding to f32 cancels. */
    float m = fmaxf(state[0], (float)maximum);
    double kept = exp2((double)state[0] - (double)m), l = kept * (double)state[1];
    for (int32_t j = 0; j < a->v_dim; j++) o[j] = kept * (double)state[2 + j];
    for (int32_t i = 0; i < s.n; i++) {
        double p = exp2(s.score[i] - (double)m);
        const float *v = key_of(a, s.key[i], h) + a->nope_dim;
        l += p;
        for (int32_t j = 0; j < a->v_dim; j++) o[j] += p * (double)v[j];
    }
    state[0] = m;
    state[1] = (float)l;
    for (int32_t j = 0; j < a->v_dim; j++) state[2 + j] = (float)o[j];
}

/* Of a head's outputs, one group of the row's. */
static void put_codes(const fl_attn_prefill_args *a, const float *out, int32_t r, int32_t h) {
    const fl_codes *c = &a->out_codes;
    const fl_codes to = {.codes = c->codes + ((int64_t)r * a->n_heads + h) * FL_SCALE_BLOCK,
                         .scale = c->scale + h * c->scale_stride + r};
    fl_codes_quantise(out, FL_SCALE_BLOCK, &to, 0);
}

/* From the stored state, so that a later call in which this row sees no key changes no bit. */
static void write_row(const fl_attn_prefill_args *a, int32_t r, int32_t h) {
    const float *state = state_of(a, r, h);
    int64_t at = (int64_t)r * a->n_heads + h;
    float codes_of[FL_ATTN_HEAD_DIM_MAX],
        *out = a->out_codes.codes ? codes_of : (float *)a->out + at * a->v_dim;
    bool saw_none = state[1] <= 0; /* not so if a key is not a number: then the row is none either */
    for (int32_t j = 0; j < a->v_dim; j++)
        out[j] = saw_none ? 0 : (float)((double)state[2 + j] / (double)state[1]);
    if (a->out_codes.codes) put_codes(a, out, r, h);
    if (a->lse) a->lse[at] = saw_none ? -INFINITY : (float)((double)state[0] + log2((double)state[1]));
}

static void attend_row(void *context, int32_t r, int32_t worker) {
    (void)worker;
    const fl_attn_prefill_args *a = context;
    for (int32_t h = 0; h < a->n_heads; h++) {
        if (a->first) start(state_of(a, r, h), a->v_dim);
        add_keys(a, r, h);
        if (a->last) write_row(a, r, h);
    }
}

fl_err fl_attn_prefill_ref(fl_backend *be, const fl_attn_prefill_args *a) {
    FL_TRY(fl_attn_prefill_validate(a));
    for (const fl_attn_prefill_args *call = a; call; call = call->then) {
        FL_TRY(fl_attn_prefill_need_split(call));
        fl_attn_prefill_args args = *call;
        fl_pool_run(be->pool, call->rows, attend_row, &args);
    }
    return FL_ERR_OK;
}
