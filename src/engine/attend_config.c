#include "engine/attend_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Share of visible blocks that lists are planned to hold: what costs are predicted with until steps have told. */
#define PLANNED_DENSITY 0.25

static fl_err read_calibration(const fl_config *model, const fl_settings *s, fl_attend_config *c) {
    const char *path = s->calibration;
    c->calibration =
        (fl_calibration){.layers = model->layers, .heads = model->heads, .latent_dim = model->kv_lora_rank};
    if (path && *path == '\0') return FL_ERR_OK;
    if (!path && s->synthetic) return FL_ERR_OK;
    if (!path && !fl_file_exists(s->model_path, FL_CALIBRATION_NAME)) return FL_ERR_OK;
    c->calibrated = true;
    if (!path) return fl_calibration_read(s->model_path, FL_CALIBRATION_NAME, &c->calibration);
    return fl_calibration_read(*path == '/' ? "/" : ".", path, &c->calibration);
}

/* The policy's own number wins over the calibration's, by head or for all, over the default. */
static float alpha_of(const fl_attend_config *c, size_t head) {
    if (c->policy.alpha > 0) return (float)c->policy.alpha;
    if (c->calibration.alpha_by_head) return c->calibration.alpha_by_head[head];
    return (float)(c->calibration.alpha > 0 ? c->calibration.alpha : FL_POLICY_ALPHA);
}

static fl_err set_blocks(const fl_config *model, fl_attend_config *c) {
    size_t n = (size_t)model->layers * (size_t)model->heads;
    fl_attend *a = &c->attend;
    a->log2_alpha = c->log2_alpha = malloc(n * sizeof(float));
    a->mean_bias = c->mean_bias = malloc(n * sizeof(float));
    c->listed = calloc(n, sizeof(int64_t));
    c->visible = calloc((size_t)model->layers, sizeof(int64_t));
    if (!c->log2_alpha || !c->mean_bias || !c->listed || !c->visible)
        return FL_FAIL(FL_ERR_NOMEM, "policy of %zu heads", n);
    for (size_t i = 0; i < n; i++) {
        c->log2_alpha[i] = log2f(alpha_of(c, i));
        c->mean_bias[i] = log2f((float)a->block_tokens) + (c->calibration.bias ? c->calibration.bias[i] : 0);
    }
    a->dense = c->calibration.dense;
    a->planned_density = c->calibration.density > 0 ? c->calibration.density : PLANNED_DENSITY;
    a->listed = c->listed;
    a->visible = c->visible;
    a->overflow = &c->overflow;
    return FL_ERR_OK;
}

/* Of another model's layers and heads. */
static fl_err map_density(const fl_settings *s, const fl_density_table *out) {
    const char *path = s->block_density_from;
    fl_calibration from = {0};
    fl_err err = fl_calibration_read_density(*path == '/' ? "/" : ".", path, &from);
    const fl_density_table table = {from.layers, from.heads, from.density_by_head};
    if (err == FL_ERR_OK) err = fl_density_map(&table, out);
    if (err == FL_ERR_OK && s->block_density > 0) fl_density_scale(out, s->block_density);
    fl_calibration_close(&from);
    return err;
}

/* Imposed densities, with lists that have room for the most of them at the context's end. */
static fl_err set_density(const fl_settings *s, int64_t ctx_tokens, fl_attend_config *c) {
    fl_attend *a = &c->attend;
    size_t n = (size_t)c->n_layers * (size_t)c->n_heads;
    if (s->block_density == 0 && !s->block_density_from) return FL_ERR_OK;
    if (!a->blocks || !(s->block_density >= 0 && s->block_density <= 1))
        return FL_FAIL(FL_ERR_INVALID,
                       "block_density: expected 0 to 1 with the policy blocks, found %g with %s",
                       s->block_density, c->policy_text);
    c->imposed = (fl_density_table){c->n_layers, c->n_heads, malloc(n * sizeof(float))};
    if (!c->imposed.share) return FL_FAIL(FL_ERR_NOMEM, "densities of %zu heads", n);
    for (size_t i = 0; i < n; i++) c->imposed.share[i] = (float)s->block_density;
    if (s->block_density_from) FL_TRY(map_density(s, &c->imposed));
    const fl_density_range range = fl_density_range_of(&c->imposed);
    int32_t pages = (int32_t)(fl_align_up(ctx_tokens, FL_ATTN_LIST_ROWS) / FL_KV_PAGE_TOKENS);
    int32_t forced = fl_block_select_forced(a->block_tokens, a->sink_tokens, a->window_tokens);
    int32_t needed = (int32_t)(range.most * pages) + forced + 2 * a->block_tokens / FL_KV_PAGE_TOKENS;
    a->density = c->imposed.share;
    a->planned_density = range.mean;
    a->list_capacity = needed < pages ? needed : pages;
    return FL_ERR_OK;
}

static fl_err set_tail(const fl_settings *s, fl_attend_config *c) {
    if (!s->tail || strcmp(s->tail, "dense") == 0) return FL_ERR_OK;
    if (strcmp(s->tail, "sparse") != 0)
        return FL_FAIL(FL_ERR_INVALID, "tail: expected dense or sparse, found '%s'", s->tail);
    if (c->attend.blocks)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "tail sparse: blocks are chosen for document rows only");
    c->attend.tail_sparse = true;
    return FL_ERR_OK;
}

fl_err fl_attend_config_open(const fl_config *model, const fl_settings *settings, int64_t ctx_tokens,
                             fl_attend_config *c) {
    *c = (fl_attend_config){.n_layers = model->layers, .n_heads = model->heads};
    FL_TRY(fl_rope_extension_parse(settings->rope, settings->rope_factor, &c->extension));
    FL_TRY(read_calibration(model, settings, c));
    FL_TRY(fl_policy_parse(settings->policy, ctx_tokens, &c->policy));
    if (fl_policy_is_blocks(&c->policy) && c->calibration.block > 0 && !strstr(settings->policy, "block="))
        c->policy.block = c->calibration.block;
    fl_policy_write(&c->policy, c->policy_text);
    fl_rope_of_config(model, &c->extension, &c->rope);
    c->softmax_scale = fl_softmax_scale_of_config(model, &c->rope);
    c->attend = fl_policy_attend(&c->policy);
    c->attend.near_tokens = c->rope.near_tokens;
    /* Measured for extended positions: without an extension the trained scale is right. */
    if (c->extension.method != FL_ROPE_MODEL) c->attend.temperature = c->calibration.temperature;
    if (c->attend.blocks) FL_TRY(set_blocks(model, c));
    FL_TRY(set_density(settings, ctx_tokens, c));
    return set_tail(settings, c);
}

void fl_attend_config_close(fl_attend_config *c) {
    if (c->device) c->be->free(c->be, c->device, c->device_bytes);
    c->device = NULL;
    free(c->log2_alpha);
    free(c->mean_bias);
    free(c->listed);
    free(c->visible);
    free(c->imposed.share);
    c->log2_alpha = c->mean_bias = c->imposed.share = NULL;
    c->listed = c->visible = NULL;
    fl_calibration_close(&c->calibration);
}

double fl_attend_config_density(const fl_attend_config *c) {
    int64_t listed = 0, visible = 0;
    if (!c->listed) return 1;
    for (int32_t i = 0; i < c->n_layers * c->n_heads; i++) listed += c->listed[i];
    for (int32_t i = 0; i < c->n_layers; i++) visible += c->visible[i] * c->n_heads;
    return visible > 0 ? (double)listed / (double)visible : 1;
}

void fl_attend_config_density_by_head(const fl_attend_config *c, float *out) {
    for (int32_t i = 0; i < c->n_layers * c->n_heads; i++) {
        int64_t visible = c->listed ? c->visible[i / c->n_heads] : 0;
        out[i] = visible > 0 ? (float)((double)c->listed[i] / (double)visible) : 1;
    }
}

static int64_t heads_of(const fl_attend_config *c) {
    return (int64_t)c->n_layers * c->n_heads;
}

/* Counters in the device's block: listed, visible, overflow, one behind the other. */
static int64_t counter_bytes(const fl_attend_config *c) {
    return (heads_of(c) + c->n_layers + 1) * (int64_t)sizeof(int64_t);
}

fl_err fl_attend_config_reset_counts(fl_attend_config *c) {
    if (!c->listed) return FL_ERR_OK;
    memset(c->listed, 0, (size_t)heads_of(c) * sizeof *c->listed);
    memset(c->visible, 0, (size_t)c->n_layers * sizeof *c->visible);
    c->overflow = 0;
    if (!c->device) return FL_ERR_OK;
    FL_TRY(c->be->upload(c->be, c->attend.listed, c->listed, heads_of(c) * (int64_t)sizeof *c->listed));
    FL_TRY(c->be->upload(c->be, c->attend.visible, c->visible, c->n_layers * (int64_t)sizeof *c->visible));
    return c->be->upload(c->be, c->attend.overflow, &c->overflow, sizeof c->overflow);
}

fl_err fl_attend_config_place(fl_attend_config *c, fl_backend *be) {
    int64_t n = heads_of(c), floats = n * (int64_t)sizeof(float);
    if (!be->device || !c->listed) return FL_ERR_OK;
    c->be = be;
    c->device_bytes = counter_bytes(c) + 3 * floats + n;
    FL_TRY(be->alloc(be, c->device_bytes, (void **)&c->device));
    c->attend.listed = (int64_t *)(void *)c->device;
    c->attend.visible = c->attend.listed + n;
    c->attend.overflow = c->attend.visible + c->n_layers;
    float *numbers = (float *)(void *)(c->device + counter_bytes(c));
    FL_TRY(be->upload(be, numbers, c->log2_alpha, floats));
    FL_TRY(be->upload(be, numbers + n, c->mean_bias, floats));
    c->attend.log2_alpha = numbers;
    c->attend.mean_bias = numbers + n;
    if (c->attend.density) {
        FL_TRY(be->upload(be, numbers + 2 * n, c->imposed.share, floats));
        c->attend.density = numbers + 2 * n;
    }
    if (!c->attend.dense) return be->wait(be);
    FL_TRY(be->upload(be, numbers + 3 * n, c->attend.dense, n));
    c->attend.dense = (const bool *)(numbers + 3 * n);
    return be->wait(be);
}

fl_err fl_attend_config_collect(fl_attend_config *c) {
    if (!c->device) return FL_ERR_OK;
    FL_TRY(c->be->download(c->be, c->listed, c->attend.listed, heads_of(c) * (int64_t)sizeof *c->listed));
    FL_TRY(c->be->download(c->be, c->visible, c->attend.visible, c->n_layers * (int64_t)sizeof *c->visible));
    return c->be->download(c->be, &c->overflow, c->attend.overflow, sizeof c->overflow);
}

void fl_attend_config_shape(const fl_attend_config *c, fl_kv_shape *shape) {
    shape->planes = c->rope.near_tokens > 0 ? 2 : 1;
    if (shape->format != FL_KV_INT4) return;
    shape->n_outliers = c->calibration.n_outliers;
    shape->outliers = c->calibration.outliers;
}
