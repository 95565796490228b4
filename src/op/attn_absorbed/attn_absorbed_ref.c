#include "op/attn_absorbed/attn_absorbed.h"

#include <math.h>

#include "op/act.h"
#include "op/kv_format.h"
#include "op/ref.h"

/* Key t of a timeline as stored, widened: [latent | k_pe]. */
static void load_key(const fl_attn_absorbed_args *a, const fl_kv_rows *seq, int32_t t, float *key) {
    const fl_kv_layer *kv = &a->kv;
    const uint8_t *piece = fl_kv_piece(kv, seq->pages[t / FL_KV_PAGE_TOKENS]);
    int32_t slot = t % FL_KV_PAGE_TOKENS;
    fl_kv_latents_read(kv, piece, (fl_kv_slots){slot, 1}, FL_DTYPE_F32, key);
    for (int32_t j = 0; j < kv->rope_dim; j++)
        key[kv->latent_dim + j] = fl_act_load(fl_kv_k_pe(kv, piece, slot), fl_kv_format_dtype(kv->format), j);
}

static bool sees(const fl_attn_absorbed_args *a, int32_t pos, int32_t t) {
    return fl_attn_view_sees(&a->view, pos, t) && (a->key_step <= 1 || t % a->key_step == 0);
}

/* Two passes over the keys: the largest score, then the sums. */
static void attend_head(const fl_attn_absorbed_args *a, const fl_kv_rows *seq, int32_t i, int32_t h) {
    float key[2 * FL_ATTN_HEAD_DIM_MAX];
    double o[FL_ATTN_HEAD_DIM_MAX] = {0}, m = -INFINITY, l = 0;
    int32_t latent_dim = a->kv.latent_dim, key_dim = latent_dim + a->kv.rope_dim, pos = seq->pos + i;
    int64_t index = (int64_t)(seq->row + i) * a->n_heads + h;
    const float *q = (const float *)a->q + index * key_dim;
    for (int32_t t = 0; t <= pos; t++) {
        if (!sees(a, pos, t)) continue;
        load_key(a, seq, t, key);
        m = fmax(m, fl_ref_dot(q, key, key_dim));
    }
    for (int32_t t = 0; t <= pos; t++) {
        if (!sees(a, pos, t)) continue;
        load_key(a, seq, t, key);
        double p = exp2(fl_ref_dot(q, key, key_dim) - m);
        l += p;
        for (int32_t j = 0; j < latent_dim; j++) o[j] += p * (double)key[j];
    }
    bool saw_none = l <= 0; /* not so if a key is not a number: then the row is none either */
    for (int32_t j = 0; j < latent_dim; j++)
        ((float *)a->out)[index * latent_dim + j] = saw_none ? 0 : (float)(o[j] / l);
    if (a->lse) a->lse[index] = saw_none ? -INFINITY : (float)(m + log2(l));
}

static void attend_row_head(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_attn_absorbed_args *a = context;
    int32_t i = task / a->n_heads, s = 0;
    for (; i >= a->seqs[s].n_rows; s++) i -= a->seqs[s].n_rows;
    attend_head(a, &a->seqs[s], i, task % a->n_heads);
}

fl_err fl_attn_absorbed_ref(fl_backend *be, const fl_attn_absorbed_args *a) {
    FL_TRY(fl_attn_absorbed_validate(a));
    fl_attn_absorbed_args args = *a;
    fl_pool_run(be->pool, a->rows * a->n_heads, attend_row_head, &args);
    return FL_ERR_OK;
}
