#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "calibrate/calibrate_private.h"
#include "op/kv_format.h"

enum { LATENTS_MAX = 2048, DOCUMENTS_MAX = 65536 };

/* An answer that is lost is about half as likely, token by token: so much of the NLL is a share of the answers. */
#define LOST_NATS 0.69314718055994531

void fl_calibrate_settings(int64_t length_tokens, char policy[FL_CALIBRATE_POLICY_BYTES],
                           fl_settings *settings) {
    int64_t ctx = length_tokens + FL_CALIBRATE_ANSWER_TOKENS;
    /* Room for every block: a list that is cut would hide what an alpha means. */
    snprintf(policy, FL_CALIBRATE_POLICY_BYTES, "blocks:block=64,capacity=%lld",
             (long long)(fl_policy_bucket(ctx) / FL_KV_PAGE_TOKENS));
    settings->policy = policy;
    settings->calibration = "";
    settings->ctx_tokens = ctx;
    settings->kv_tokens = 2 * ctx; /* a document, and the tails of its questions beside it */
}

static fl_err check_plan(const fl_calibrate_plan *p) {
    const fl_engine *e = p->engine;
    if (e->be->device)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "calibration looks into the steps of a CPU backend, not of %s: ask for avx512 or avx2",
                       e->be->name);
    if (!fl_policy_is_blocks(&e->attending.policy) || e->attending.calibrated ||
        !fl_kv_format_is_plain(e->kv_shape.format))
        return FL_FAIL(FL_ERR_INVALID, "calibration needs an engine with its own settings");
    if (p->n_documents < 1 || p->n_documents > DOCUMENTS_MAX || p->n_texts < 1 || !(p->max_loss_points > 0))
        return FL_FAIL(FL_ERR_INVALID, "calibration needs documents, texts and a loss above 0");
    if (p->length_tokens + FL_CALIBRATE_ANSWER_TOKENS > e->ctx_tokens)
        return FL_FAIL(FL_ERR_INVALID, "documents of %lld tokens do not fit a context of %d",
                       (long long)p->length_tokens, e->ctx_tokens);
    if (e->config->n_eos_ids < 1) return FL_FAIL(FL_ERR_UNSUPPORTED, "the checkpoint names no end token");
    return FL_ERR_OK;
}

static fl_err open_all(fl_calibrating *c) {
    const fl_config *k = c->e->config;
    fl_calibrate_result *out = c->out;
    size_t n = (size_t)k->layers * (size_t)k->heads;
    *out = (fl_calibrate_result){.layers = k->layers,
                                 .heads = k->heads,
                                 .group = fl_kv_format_group(FL_KV_INT4, k->kv_lora_rank),
                                 .nll_max = c->plan->max_loss_points / 100 * LOST_NATS};
    out->chosen = (fl_calibration){.layers = k->layers,
                                   .heads = k->heads,
                                   .latent_dim = k->kv_lora_rank,
                                   .length = c->plan->length_tokens};
    out->head_loss = malloc(n * sizeof(double));
    out->chosen.density_by_head = malloc(n * sizeof(float));
    c->attended = malloc(n * sizeof(float));
    c->walked = malloc(FL_CALIBRATE_BLOCKS * FL_CALIBRATE_ALPHAS * n * sizeof(float));
    c->dense = calloc(n, sizeof(bool));
    c->all_dense = calloc(n, sizeof(bool));
    c->latents_max = LATENTS_MAX;
    c->latents = calloc((size_t)k->layers * LATENTS_MAX * (size_t)k->kv_lora_rank, sizeof(uint16_t));
    if (!out->head_loss || !out->chosen.density_by_head || !c->attended || !c->walked || !c->dense ||
        !c->all_dense || !c->latents)
        return FL_FAIL(FL_ERR_NOMEM, "calibration of %zu heads", n);
    for (size_t i = 0; i < n; i++) {
        out->head_loss[i] = NAN;
        c->all_dense[i] = true;
    }
    return fl_calibrate_set_open(c, c->plan->length_tokens, c->plan->n_documents, &c->set);
}

/* Tokens that will be read: certain for all but the walk over alphas, of which a few steps are expected. */
static double expect_total(const fl_calibrating *c) {
    enum { PROBE_DOCUMENTS = 4, PROBE_COST = 3, WALK = 4, HEAD_TOKENS = 4096 };
    double length = (double)c->set.length_tokens, n = c->set.n,
           few = n < PROBE_DOCUMENTS ? n : PROBE_DOCUMENTS;
    double heads = fmin(c->plan->heads_max, (double)fl_calibrate_heads(c)) + 1;
    double sweeps = 1 + FL_CALIBRATE_BLOCKS * WALK;
    if (c->e->attending.extension.method != FL_ROPE_MODEL) sweeps += FL_CALIBRATE_TEMPERATURES;
    return length * (n * sweeps + few * PROBE_COST * FL_CALIBRATE_BLOCKS) +
           heads * fmin(n, 2) * fmin(length, HEAD_TOKENS);
}

static fl_err run(fl_calibrating *c) {
    FL_TRY(open_all(c));
    c->total = expect_total(c);
    FL_TRY(fl_calibrate_measure_temperature(c));
    FL_TRY(fl_calibrate_measure_mass(c));
    FL_TRY(fl_calibrate_choose_outliers(c));
    return fl_calibrate_measure_loss(c);
}

/* The engine's heads must not point here any more. */
static void close_all(fl_calibrating *c) {
    fl_engine_forget(c->e);
    c->e->attending.attend.dense = NULL;
    c->e->attending.attend.temperature = NULL;
    fl_calibrate_set_close(&c->set);
    fl_calibrate_set_close(&c->head_set);
    free(c->attended);
    free(c->walked);
    free(c->dense);
    free(c->all_dense);
    free(c->temperature);
    free(c->latents);
}

fl_err fl_calibrate_run(const fl_calibrate_plan *plan, fl_calibrate_result *out) {
    fl_calibrating c = {.plan = plan, .e = plan->engine, .out = out};
    double start_s = fl_now_s();
    *out = (fl_calibrate_result){0};
    FL_TRY(check_plan(plan));
    fl_err err = run(&c);
    close_all(&c);
    out->elapsed_s = fl_now_s() - start_s;
    return err;
}

void fl_calibrate_close(fl_calibrate_result *r) {
    for (int32_t i = 0; i < FL_CALIBRATE_BLOCKS; i++) {
        free(r->mass[i].kept);
        free(r->mass[i].density);
        free(r->mass[i].bias);
    }
    free(r->head_loss);
    fl_calibration_close(&r->chosen);
    *r = (fl_calibrate_result){0};
}
