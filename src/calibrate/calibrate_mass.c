/* The probe: full attention, and beside it what lists would keep of it, at every alpha. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "calibrate/calibrate_private.h"
#include "op/kv_format.h"

/* Documents read: shares of mass settle sooner than answers do. Tiles measured: one of each step, so steps are
 * short. */
enum { DOCUMENTS_MAX = 4, SHORT_SPAN = 256, LONG_SPAN = 1024, SHORT_TOKENS = 8192 };

#define BIAS_MAX 8.0 /* octaves; more is a head of which next to nothing was left out */

static void close_probe(fl_attend_probe *p) {
    free(p->kept);
    free(p->bias);
    free(p->weight);
    free(p->listed);
    free(p->visible);
    free(p->rows);
}

static fl_err open_probe(const fl_calibrating *c, const float *log2_alpha, fl_attend_probe *p) {
    size_t n = FL_CALIBRATE_ALPHAS * fl_calibrate_heads(c), layers = (size_t)c->out->layers;
    *p = (fl_attend_probe){.n_alphas = FL_CALIBRATE_ALPHAS,
                           .log2_alpha = log2_alpha,
                           .kept = calloc(n, sizeof(double)),
                           .bias = calloc(n, sizeof(double)),
                           .weight = calloc(n, sizeof(double)),
                           .listed = calloc(n, sizeof(int64_t)),
                           .visible = calloc(FL_CALIBRATE_ALPHAS * layers, sizeof(int64_t)),
                           .rows = calloc(layers, sizeof(int64_t))};
    return p->kept && p->bias && p->weight && p->listed && p->visible && p->rows
               ? FL_ERR_OK
               : FL_FAIL(FL_ERR_NOMEM, "probe of %zu sums", n);
}

static fl_err open_mass(const fl_calibrating *c, fl_calibrate_mass *m) {
    size_t n = FL_CALIBRATE_ALPHAS * fl_calibrate_heads(c);
    m->kept = calloc(n, sizeof(double));
    m->density = calloc(n, sizeof(double));
    m->bias = calloc(n, sizeof(double));
    return m->kept && m->density && m->bias ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "masses of %zu", n);
}

static fl_err take_sums(const fl_calibrating *c, const fl_attend_probe *p, fl_calibrate_mass *m) {
    size_t heads = (size_t)c->out->heads, all = fl_calibrate_heads(c);
    for (size_t i = 0; i < FL_CALIBRATE_ALPHAS * all; i++) {
        size_t layer = i % all / heads, visible = i / heads; /* one of an alpha and layer */
        if (p->rows[layer] == 0)
            return FL_FAIL(FL_ERR_INVALID, "--length: expected documents of at least %d tokens",
                           2 * FL_ATTN_LIST_ROWS);
        double bias = p->weight[i] > 0 ? p->bias[i] / p->weight[i] : 0;
        m->kept[i] = p->kept[i] / (double)p->rows[layer];
        m->density[i] = (double)p->listed[i] / (double)p->visible[visible];
        m->bias[i] = bias > BIAS_MAX ? BIAS_MAX : bias < -BIAS_MAX ? -BIAS_MAX : bias;
    }
    return FL_ERR_OK;
}

/* ---- latents
 * ---------------------------------------------------------------------------------------------------- */

/* One token's latent of one layer, as bf16. */
static void copy_latent(const fl_kv_layer *kv, const fl_session *s, int32_t pos, uint16_t *out) {
    const uint8_t *piece = fl_kv_piece(kv, s->pages[pos / FL_KV_PAGE_TOKENS]);
    size_t slot = (size_t)(pos % FL_KV_PAGE_TOKENS), dim = (size_t)kv->latent_dim;
    if (kv->format != FL_KV_F32) {
        memcpy(out, piece + slot * dim * sizeof(uint16_t), dim * sizeof(uint16_t));
        return;
    }
    for (size_t i = 0; i < dim; i++) {
        float value;
        memcpy(&value, piece + (slot * dim + i) * sizeof value, sizeof value);
        out[i] = fl_bf16_of_f32(value);
    }
}

/* As many tokens of each document, evenly spread. The worker has nothing to do meanwhile. */
static void sample_latents(fl_calibrating *c, const fl_session *s, int32_t n_documents) {
    int32_t most = c->latents_max / n_documents, n = s->n_tokens < most ? s->n_tokens : most;
    size_t dim = (size_t)c->e->kv_shape.latent_dim;
    for (int32_t i = 0; i < n && c->n_latents < c->latents_max; i++, c->n_latents++)
        for (int32_t layer = 0; layer < c->out->layers; layer++) {
            size_t at = (size_t)layer * (size_t)c->latents_max + (size_t)c->n_latents;
            int32_t pos = (int32_t)((int64_t)i * s->n_tokens / n);
            copy_latent(&c->e->kv[layer], s, pos, c->latents + at * dim);
        }
}

/* ---- reading
 * ---------------------------------------------------------------------------------------------------- */

static fl_err read_documents(fl_calibrating *c, bool sample) {
    int32_t n = c->set.n < DOCUMENTS_MAX ? c->set.n : DOCUMENTS_MAX;
    c->phase_weight = 3.0 * (double)c->set.length_tokens; /* the probe costs more than the rows */
    for (int32_t i = 0; i < n; i++) {
        fl_session *session = NULL;
        FL_TRY(fl_calibrate_read(c, &c->set.documents[i], &session));
        if (sample) sample_latents(c, session, n);
        FL_TRY(fl_session_close(session));
        c->done += c->phase_weight;
    }
    return FL_ERR_OK;
}

static fl_err measure_block(fl_calibrating *c, int32_t block) {
    float log2_alpha[FL_CALIBRATE_ALPHAS];
    fl_attend_probe probe;
    fl_err err;
    int32_t span = c->e->span_tokens, most = c->set.length_tokens > SHORT_TOKENS ? LONG_SPAN : SHORT_SPAN;
    for (int32_t i = 0; i < FL_CALIBRATE_ALPHAS; i++) log2_alpha[i] = (float)log2(fl_calibrate_alpha(i));
    FL_TRY_GOTO(open_probe(c, log2_alpha, &probe));
    FL_TRY_GOTO(open_mass(c, &c->out->mass[block]));
    fl_calibrate_heads_use(c, block, -1, c->all_dense);
    c->e->span_tokens = span < most ? span : most;
    c->e->attending.attend.probe = &probe;
    err = read_documents(c, block == 0);
    c->e->attending.attend.probe = NULL;
    c->e->span_tokens = span;
    if (err == FL_ERR_OK) err = take_sums(c, &probe, &c->out->mass[block]);
fail:
    close_probe(&probe);
    return err;
}

fl_err fl_calibrate_measure_mass(fl_calibrating *c) {
    c->phase = "attention mass";
    for (int32_t block = 0; block < FL_CALIBRATE_BLOCKS; block++) FL_TRY(measure_block(c, block));
    return FL_ERR_OK;
}
