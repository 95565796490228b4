/* Loading runs the same walk twice: first with no memory, to learn the size, then with it. So size and load can never
 * disagree, and the plan knows the size of a model it does not load. */
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fill.h"
#include "base/arena.h"
#include "base/half.h"

/* Standard deviation of random e4m3 codes: far from both ends of the format. */
#define CODE_DEVIATION 32.0f

typedef struct loader {
    fl_backend *be;
    const fl_config *config;
    const fl_checkpoint *checkpoint; /* NULL: shapes only, or a synthetic model */
    const fl_synthetic *made;        /* a synthetic model */
    bool filling;                    /* its values; else its shapes */
    int32_t n_filled, n_routers;     /* of it, so far */
    fl_arena arena;
} loader;

/* Host bytes to where the backend's ops read them. */
static fl_err put(const loader *l, void *to, const void *from, int64_t bytes) {
    if (l->be->device) return l->be->upload(l->be, to, from, bytes);
    memcpy(to, from, (size_t)bytes);
    return FL_ERR_OK;
}

/* Random values for the next tensor of a synthetic model; nothing while shapes are made. */
static fl_err fill(loader *l, void *to, fl_dtype dtype, int64_t count, float deviation) {
    if (!l->filling) return FL_ERR_OK;
    const fl_fill_args args = {.to = to,
                               .dtype = dtype,
                               .count = count,
                               .seed = fl_fill_mix(l->made->seed + (uint64_t)++l->n_filled),
                               .deviation = deviation};
    return l->be->fill(l->be, &args);
}

/* Floats of a synthetic model that are not random: all `value`, for a router's bias as the wanted skew has them. */
static fl_err fill_floats(loader *l, float *to, int64_t n, float value, bool bias) {
    if (!l->filling) return FL_ERR_OK;
    float *values = malloc((size_t)n * sizeof *values);
    if (!values) return FL_FAIL(FL_ERR_NOMEM, "%lld floats", (long long)n);
    for (int64_t i = 0; i < n; i++)
        values[i] = bias ? fl_synthetic_router_bias(l->made, l->n_routers, (int32_t)i) : value;
    l->n_routers += bias;
    fl_err err = put(l, to, values, n * (int64_t)sizeof *values);
    free(values);
    return err;
}

static fl_err place(loader *l, int32_t n, int32_t k, fl_weight *w) {
    w->n = n;
    w->k = k;
    int64_t bytes = fl_backend_weight_bytes(l->be, n, k);
    FL_TRY(fl_arena_take(&l->arena, bytes, 1, &w->data));
    fl_dtype dtype = l->be->layout.dtype;
    return fill(l, w->data, dtype, bytes / (int64_t)fl_dtype_bytes(dtype), fl_synthetic_deviation(k));
}

/* A linear weight of the layers. With w8a8 the checkpoint's e4m3 codes and block scales stay as they are, if a second
 * part (n_second, else 0) starts on a block. */
static fl_err place_linear(loader *l, int32_t n, int32_t k, int32_t n_second, fl_weight *w) {
    const fl_quantisation *q = &l->config->quantisation;
    bool blocks = q->block_rows == FL_SCALE_BLOCK && q->block_cols == FL_SCALE_BLOCK &&
                  k % FL_SCALE_BLOCK == 0 && n_second % FL_SCALE_BLOCK == 0;
    if (!l->be->w8a8 || q->type != FL_QUANTISATION_FP8 || !blocks) return place(l, n, k, w);
    float *scale;
    w->n = n;
    w->k = k;
    int64_t n_scales = (n + FL_SCALE_BLOCK - 1) / FL_SCALE_BLOCK * fl_scale_stride(k);
    FL_TRY(fl_arena_take(&l->arena, n, k, &w->data));
    FL_TRY(fl_arena_take(&l->arena, n_scales, sizeof(float), &scale));
    w->scale = scale;
    FL_TRY(fill(l, w->data, FL_DTYPE_F8_E4M3, (int64_t)n * k, CODE_DEVIATION));
    return fill_floats(l, scale, n_scales, fl_synthetic_deviation(k) / CODE_DEVIATION, false);
}

/* Rows row0 .. row0 + rows - 1 of a tensor, packed at n_offset of a weight. */
typedef struct part {
    int32_t row0, rows, cols;
    const float *col_scale;
    bool transpose;
    int32_t n_offset;
} part;

/* A whole tensor's codes and scales. */
static fl_err copy_codes(loader *l, const fl_tensor *t, const part *p, const fl_weight *w) {
    if (t->dtype != FL_DTYPE_F8_E4M3)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "%s: tensor %s: backend %s wants F8_E4M3 as config.json says, found %s", t->file,
                       t->name, l->be->name, t->dtype_name);
    int64_t stride = fl_scale_stride(w->k), row_bytes = t->scale_cols * (int64_t)sizeof(float);
    float *scale = (float *)w->scale + p->n_offset / FL_SCALE_BLOCK * stride;
    FL_TRY(put(l, (uint8_t *)w->data + (int64_t)p->n_offset * w->k, t->data, t->bytes));
    if (stride == t->scale_cols) return put(l, scale, t->scale_inv, t->scale_rows * row_bytes);
    for (int64_t i = 0; i < t->scale_rows; i++)
        FL_TRY(put(l, scale + i * stride, t->scale_inv + i * t->scale_cols, row_bytes));
    return FL_ERR_OK;
}

static fl_err pack(loader *l, const char *prefix, const char *name, const part *p, fl_weight *w) {
    if (!l->checkpoint) return FL_ERR_OK;
    fl_tensor t;
    FL_TRY(fl_checkpoint_find(l->checkpoint, &t, "%s%s.weight", prefix, name));
    if (w->scale) return copy_codes(l, &t, p, w);
    const fl_weight_pack_args args = {
        .src = (const uint8_t *)t.data + (int64_t)p->row0 * p->cols * (int64_t)fl_dtype_bytes(t.dtype),
        .src_dtype = t.dtype,
        .rows = p->rows,
        .cols = p->cols,
        .scale_inv = t.scale_inv,
        .scale_stride = (int32_t)t.scale_cols,
        .block_rows = t.block_rows,
        .block_cols = t.block_cols,
        .row0 = p->row0,
        .col_scale = p->col_scale,
        .transpose = p->transpose,
        .n_offset = p->n_offset,
        .w = w,
    };
    return l->be->op->weight_pack(l->be, &args);
}

/* A whole matrix [n][k] as one weight. */
static fl_err matrix(loader *l, const char *prefix, const char *name, const part *p, fl_weight *w) {
    FL_TRY(place(l, p->rows, p->cols, w));
    return pack(l, prefix, name, p, w);
}

static fl_err linear(loader *l, const char *prefix, const char *name, const part *p, fl_weight *w) {
    FL_TRY(place_linear(l, p->rows, p->cols, 0, w));
    return pack(l, prefix, name, p, w);
}

static float element(const fl_tensor *t, int64_t i) {
    const uint8_t *at = (const uint8_t *)t->data + i * (int64_t)fl_dtype_bytes(t->dtype);
    uint16_t half;
    float value;
    if (t->dtype == FL_DTYPE_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return t->dtype == FL_DTYPE_BF16 ? fl_f32_of_bf16(half) : fl_f32_of_f16(half);
}

/* A small array (norm, router, bias), widened to f32 in memory of the host; the caller frees *out. */
static fl_err read_floats(const loader *l, const char *prefix, const char *name, int64_t n, float **out) {
    fl_tensor t;
    FL_TRY(fl_checkpoint_find(l->checkpoint, &t, "%s%s", prefix, name));
    if (t.dtype == FL_DTYPE_F8_E4M3)
        return FL_FAIL(FL_ERR_DATA, "%s: tensor %s: expected F32, BF16 or F16, found F8_E4M3", t.file,
                       t.name);
    float *values = malloc((size_t)n * sizeof *values);
    if (!values) return FL_FAIL(FL_ERR_NOMEM, "tensor %s", t.name);
    for (int64_t i = 0; i < n; i++) values[i] = element(&t, i);
    *out = values;
    return FL_ERR_OK;
}

/* Norms are 1 in a synthetic model. */
static fl_err fill_small(loader *l, const char *name, int64_t n, float *to) {
    if (strcmp(name, "gate.weight") == 0)
        return fill(l, to, FL_DTYPE_F32, n, fl_synthetic_deviation(l->config->hidden));
    return fill_floats(l, to, n, 1, strcmp(name, "gate.e_score_correction_bias") == 0);
}

static fl_err floats(loader *l, const char *prefix, const char *name, int64_t n, const float **out) {
    float *values, *read = NULL;
    FL_TRY(fl_arena_take(&l->arena, n, sizeof(float), &values));
    *out = values;
    if (!l->checkpoint) return fill_small(l, name, n, values);
    FL_TRY(read_floats(l, prefix, name, n, &read));
    fl_err err = put(l, values, read, n * (int64_t)sizeof *values);
    free(read);
    return err;
}

static fl_err load_ffn(loader *l, const char *prefix, int32_t inter, fl_weight *gate_up, fl_weight *down) {
    int32_t hidden = l->config->hidden;
    const part gate = {.rows = inter, .cols = hidden},
               up = {.rows = inter, .cols = hidden, .n_offset = inter};
    FL_TRY(place_linear(l, 2 * inter, hidden, inter, gate_up));
    FL_TRY(pack(l, prefix, "gate_proj", &gate, gate_up));
    FL_TRY(pack(l, prefix, "up_proj", &up, gate_up));
    return linear(l, prefix, "down_proj", &(part){.rows = hidden, .cols = inter}, down);
}

static fl_err load_moe(loader *l, const char *prefix, fl_layer *layer) {
    const fl_config *c = l->config;
    int32_t n = c->n_routed_experts;
    char name[128];
    layer->moe = true;
    layer->expert_gate_up = calloc((size_t)n, sizeof(fl_weight));
    layer->expert_down = calloc((size_t)n, sizeof(fl_weight));
    if (!layer->expert_gate_up || !layer->expert_down) return FL_FAIL(FL_ERR_NOMEM, "%d experts", n);
    for (int32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%sexperts.%d.", prefix, i);
        FL_TRY(load_ffn(l, name, c->moe_intermediate, &layer->expert_gate_up[i], &layer->expert_down[i]));
    }
    if (c->n_shared_experts > 0) {
        int32_t inter = c->n_shared_experts * c->moe_intermediate;
        snprintf(name, sizeof name, "%sshared_experts.", prefix);
        FL_TRY(load_ffn(l, name, inter, &layer->shared.gate_up, &layer->shared.down));
    }
    FL_TRY(floats(l, prefix, "gate.weight", (int64_t)n * c->hidden, &layer->router));
    if (c->topk_method == FL_TOPK_NOAUX_TC)
        FL_TRY(floats(l, prefix, "gate.e_score_correction_bias", n, &layer->router_bias));
    return FL_ERR_OK;
}

/* kv_b as prefill takes it, and its halves a head for the absorbed path. `gamma` is the host's. */
static fl_err pack_kv_b(loader *l, const char *prefix, const float *gamma, fl_layer *layer) {
    const fl_config *c = l->config;
    const fl_weight_layout *layout = &l->be->layout;
    int32_t nope = c->qk_nope_head_dim, v = c->v_head_dim, latent = c->kv_lora_rank;
    const part whole = {.rows = c->heads * (nope + v), .cols = latent, .col_scale = gamma};
    FL_TRY(matrix(l, prefix, "kv_b_proj", &whole, &layer->kv_b));
    for (int32_t h = 0; h < c->heads; h++) {
        int32_t row = h * (nope + v);
        const part keys = {.row0 = row, .rows = nope, .cols = latent, .col_scale = gamma, .transpose = true};
        FL_TRY(place(l, latent, nope, &layer->absorb[h]));
        FL_TRY(pack(l, prefix, "kv_b_proj", &keys, &layer->absorb[h]));
        int64_t at = fl_weight_index(layout, latent, row + nope, 0) * (int64_t)fl_dtype_bytes(layout->dtype);
        layer->unabsorb[h] = (fl_weight){.data = (uint8_t *)layer->kv_b.data + at, .n = v, .k = latent};
    }
    return FL_ERR_OK;
}

static fl_err load_kv_b(loader *l, const char *prefix, fl_layer *layer) {
    const fl_config *c = l->config;
    int32_t block = l->be->layout.n_block;
    float *gamma = NULL;
    if (c->qk_nope_head_dim % block != 0 || c->v_head_dim % block != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "backend %s needs qk_nope_head_dim %d and v_head_dim %d to be multiples of %d",
                       l->be->name, c->qk_nope_head_dim, c->v_head_dim, block);
    layer->absorb = calloc((size_t)c->heads, sizeof(fl_weight));
    layer->unabsorb = calloc((size_t)c->heads, sizeof(fl_weight));
    if (!layer->absorb || !layer->unabsorb) return FL_FAIL(FL_ERR_NOMEM, "%d heads", c->heads);
    if (l->checkpoint) FL_TRY(read_floats(l, prefix, "kv_a_layernorm.weight", c->kv_lora_rank, &gamma));
    fl_err err = pack_kv_b(l, prefix, gamma, layer);
    free(gamma);
    return err;
}

static fl_err load_attention(loader *l, const char *prefix, fl_layer *layer) {
    const fl_config *c = l->config;
    int32_t q_rank = c->q_lora_rank, kv_n = c->kv_lora_rank + c->qk_rope_head_dim;
    int32_t q_n = c->heads * (c->qk_nope_head_dim + c->qk_rope_head_dim);
    const part kv_a = {.rows = kv_n, .cols = c->hidden, .n_offset = q_rank};
    FL_TRY(place_linear(l, q_rank + kv_n, c->hidden, q_rank, &layer->qkv_a));
    FL_TRY(pack(l, prefix, "kv_a_proj_with_mqa", &kv_a, &layer->qkv_a));
    if (q_rank > 0) {
        FL_TRY(pack(l, prefix, "q_a_proj", &(part){.rows = q_rank, .cols = c->hidden}, &layer->qkv_a));
        FL_TRY(floats(l, prefix, "q_a_layernorm.weight", q_rank, &layer->q_norm));
        FL_TRY(linear(l, prefix, "q_b_proj", &(part){.rows = q_n, .cols = q_rank}, &layer->q_b));
    } else {
        FL_TRY(linear(l, prefix, "q_proj", &(part){.rows = q_n, .cols = c->hidden}, &layer->q_b));
    }
    FL_TRY(load_kv_b(l, prefix, layer));
    return linear(l, prefix, "o_proj", &(part){.rows = c->hidden, .cols = c->heads * c->v_head_dim},
                  &layer->o);
}

static fl_forms form_of(const fl_weight *w) {
    return (fl_forms){.act = !w->scale, .codes = w->scale != NULL};
}

static fl_forms both_forms(fl_forms a, fl_forms b) {
    return (fl_forms){.act = a.act || b.act, .codes = a.codes || b.codes};
}

/* SwiGLU makes codes where weights have scales, for weights that have them. */
static fl_forms inner_form(const fl_weight *gate_up, const fl_weight *down) {
    bool codes = gate_up->scale && down->scale;
    return (fl_forms){.act = !codes, .codes = codes};
}

/* Here it is decided what is handed on as codes. attn_prefill makes them of heads that are one group wide. */
static void choose_forms(const fl_config *c, fl_layer *layer) {
    const fl_forms act = {.act = true}; /* the router's */
    layer->attn_in = form_of(&layer->qkv_a);
    layer->q_in = form_of(&layer->q_b);
    layer->o_in = c->v_head_dim == FL_SCALE_BLOCK ? form_of(&layer->o) : act;
    if (!layer->q_norm) layer->attn_in = both_forms(layer->attn_in, layer->q_in);
    layer->dense.inner = inner_form(&layer->dense.gate_up, &layer->dense.down);
    layer->ffn_in = form_of(&layer->dense.gate_up);
    if (!layer->moe) return;
    layer->shared.inner = inner_form(&layer->shared.gate_up, &layer->shared.down);
    layer->expert_in = form_of(layer->expert_gate_up);
    layer->expert_inner = inner_form(layer->expert_gate_up, layer->expert_down);
    layer->ffn_in = both_forms(act, layer->expert_in);
    if (layer->shared.down.n > 0) layer->ffn_in = both_forms(layer->ffn_in, form_of(&layer->shared.gate_up));
}

static fl_err load_feedforward(loader *l, const char *prefix, bool moe, fl_layer *layer) {
    if (moe) return load_moe(l, prefix, layer);
    return load_ffn(l, prefix, l->config->intermediate, &layer->dense.gate_up, &layer->dense.down);
}

static fl_err load_layer(loader *l, int32_t i, fl_layer *layer) {
    const fl_config *c = l->config;
    char prefix[64], name[96];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
    FL_TRY(floats(l, prefix, "input_layernorm.weight", c->hidden, &layer->attn_norm));
    FL_TRY(floats(l, prefix, "post_attention_layernorm.weight", c->hidden, &layer->ffn_norm));
    snprintf(name, sizeof name, "%sself_attn.", prefix);
    FL_TRY(load_attention(l, name, layer));
    snprintf(name, sizeof name, "%smlp.", prefix);
    FL_TRY(load_feedforward(l, name, fl_config_layer_is_moe(c, i), layer));
    choose_forms(c, layer);
    return FL_ERR_OK;
}

/* The embedding table stays where it is mapped, or is copied to the device as it is. */
static fl_err load_embed(loader *l, fl_weights *w) {
    const fl_config *c = l->config;
    int64_t n = (int64_t)c->vocab_size * c->hidden;
    fl_tensor table;
    void *memory = NULL;
    /* Its format is known to a checkpoint only: room for the widest. */
    if (l->be->device || l->made) FL_TRY(fl_arena_take(&l->arena, n, sizeof(float), &memory));
    if (l->filling) {
        w->embed_dtype = FL_DTYPE_BF16;
        w->embed = memory;
        return fill(l, memory, FL_DTYPE_BF16, n, 1);
    }
    if (!l->checkpoint) return FL_ERR_OK;
    FL_TRY(fl_checkpoint_find(l->checkpoint, &table, "model.embed_tokens.weight"));
    w->embed_dtype = table.dtype;
    w->embed = l->be->device ? memory : table.data;
    return l->be->device ? put(l, memory, table.data, n * (int64_t)fl_dtype_bytes(table.dtype)) : FL_ERR_OK;
}

static void free_layers(fl_weights *w) {
    for (int32_t i = 0; w->layers && i < w->config.layers; i++) {
        free(w->layers[i].absorb);
        free(w->layers[i].unabsorb);
        free(w->layers[i].expert_gate_up);
        free(w->layers[i].expert_down);
    }
    free(w->layers);
    w->layers = NULL;
}

static fl_err walk(loader *l, fl_weights *w, fl_weights_progress_fn *progress, void *context) {
    const fl_config *c = l->config;
    w->layers = calloc((size_t)c->layers, sizeof(fl_layer));
    if (!w->layers) return FL_FAIL(FL_ERR_NOMEM, "%d layers", c->layers);
    FL_TRY(floats(l, "", "model.norm.weight", c->hidden, &w->final_norm));
    FL_TRY(matrix(l, "", "lm_head", &(part){.rows = c->vocab_size, .cols = c->hidden}, &w->head));
    FL_TRY(load_embed(l, w));
    for (int32_t i = 0; i < c->layers; i++) {
        FL_TRY(load_layer(l, i, &w->layers[i]));
        if (progress) progress(context, i + 1, c->layers);
    }
    return FL_ERR_OK;
}

static fl_err make_shape(loader l, fl_weights **out) {
    fl_weights *w = calloc(1, sizeof *w);
    if (!w) return FL_FAIL(FL_ERR_NOMEM, "weights");
    w->be = l.be;
    w->config = *l.config;
    fl_err err = walk(&l, w, NULL, NULL);
    w->memory_bytes = l.arena.peak_bytes;
    if (err != FL_ERR_OK) fl_weights_close(w);
    else *out = w;
    return err;
}

fl_err fl_weights_shape(fl_backend *be, const fl_config *config, fl_weights **out) {
    return make_shape((loader){.be = be, .config = config}, out);
}

static fl_err load(loader l, fl_weights_progress_fn *progress, void *progress_context, fl_weights **out) {
    fl_backend *be = l.be;
    fl_weights *w = NULL;
    loader shape = l;
    shape.checkpoint = NULL;
    shape.filling = false;
    fl_err err = make_shape(shape, &w);
    if (err != FL_ERR_OK) return err;
    free_layers(w);
    FL_TRY_GOTO(be->alloc(be, w->memory_bytes, &w->memory));
    fl_arena_init(&l.arena, w->memory, w->memory_bytes);
    FL_TRY_GOTO(walk(&l, w, progress, progress_context));
    if (be->wait) FL_TRY_GOTO(be->wait(be));
    *out = w;
    return FL_ERR_OK;
fail:
    fl_weights_close(w);
    return err;
}

fl_err fl_weights_load(fl_backend *be, const fl_checkpoint *checkpoint, fl_weights_progress_fn *progress,
                       void *progress_context, fl_weights **out) {
    const loader l = {.be = be, .config = fl_checkpoint_config(checkpoint), .checkpoint = checkpoint};
    return load(l, progress, progress_context, out);
}

fl_err fl_weights_synthetic(fl_backend *be, const fl_config *config, const fl_synthetic *made,
                            fl_weights_progress_fn *progress, void *progress_context, fl_weights **out) {
    const loader l = {.be = be, .config = config, .made = made, .filling = true};
    if (!be->fill) return FL_FAIL(FL_ERR_UNSUPPORTED, "backend %s makes no synthetic weights", be->name);
    return load(l, progress, progress_context, out);
}

void fl_weights_close(fl_weights *w) {
    if (!w) return;
    free_layers(w);
    if (w->memory) w->be->free(w->be, w->memory, w->memory_bytes);
    free(w);
}
