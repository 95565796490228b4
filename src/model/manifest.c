/* Names as the published checkpoints of DeepSeek-V2, V3 and Kimi K2 have them. */
#include "model/manifest.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 160 };

typedef struct visit {
    const fl_config *config;
    fl_manifest_fn *fn;
    void *context;
    char prefix[NAME_BYTES / 2]; /* "model.layers.7.", "model.layers.7.mlp.experts.3." */
} visit;

static void set_prefix(visit *v, const char *format, ...) FL_PRINTF(2, 3);

static void set_prefix(visit *v, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(v->prefix, sizeof v->prefix, format, args);
    va_end(args);
}

static fl_err call(visit *v, const char *name, fl_manifest_tensor tensor) {
    char whole[NAME_BYTES];
    snprintf(whole, sizeof whole, "%s%s.weight", v->prefix, name);
    tensor.name = whole;
    return v->fn(v->context, &tensor);
}

static fl_err linear(visit *v, const char *name, int64_t out, int64_t in) {
    return call(v, name, (fl_manifest_tensor){.kind = FL_MANIFEST_LINEAR, .ndim = 2, .dims = {out, in}});
}

static fl_err norm(visit *v, const char *name, int64_t n) {
    return call(v, name, (fl_manifest_tensor){.kind = FL_MANIFEST_VECTOR, .ndim = 1, .dims = {n}});
}

static fl_err mlp(visit *v, int64_t width, fl_manifest_use use) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        fl_manifest_tensor tensor = {.kind = FL_MANIFEST_LINEAR, .use = use, .ndim = 2};
        tensor.dims[i == 2] = width;
        tensor.dims[i != 2] = v->config->hidden;
        FL_TRY(call(v, names[i], tensor));
    }
    return FL_ERR_OK;
}

static fl_err attention(visit *v) {
    const fl_config *c = v->config;
    int64_t query = (int64_t)c->heads * (c->qk_nope_head_dim + c->qk_rope_head_dim);
    if (c->q_lora_rank == 0) {
        FL_TRY(linear(v, "self_attn.q_proj", query, c->hidden));
    } else {
        FL_TRY(linear(v, "self_attn.q_a_proj", c->q_lora_rank, c->hidden));
        FL_TRY(norm(v, "self_attn.q_a_layernorm", c->q_lora_rank));
        FL_TRY(linear(v, "self_attn.q_b_proj", query, c->q_lora_rank));
    }
    FL_TRY(
        linear(v, "self_attn.kv_a_proj_with_mqa", (int64_t)c->kv_lora_rank + c->qk_rope_head_dim, c->hidden));
    FL_TRY(norm(v, "self_attn.kv_a_layernorm", c->kv_lora_rank));
    FL_TRY(linear(v, "self_attn.kv_b_proj", (int64_t)c->heads * (c->qk_nope_head_dim + c->v_head_dim),
                  c->kv_lora_rank));
    return linear(v, "self_attn.o_proj", c->hidden, (int64_t)c->heads * c->v_head_dim);
}

static fl_err experts(visit *v, int32_t layer) {
    const fl_config *c = v->config;
    set_prefix(v, "model.layers.%d.mlp.", layer);
    FL_TRY(call(v, "gate",
                (fl_manifest_tensor){
                    .kind = FL_MANIFEST_TABLE, .ndim = 2, .dims = {c->n_routed_experts, c->hidden}}));
    if (c->topk_method == FL_TOPK_NOAUX_TC) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%sgate.e_score_correction_bias", v->prefix);
        fl_manifest_tensor bias = {
            .name = name, .kind = FL_MANIFEST_VECTOR, .ndim = 1, .dims = {c->n_routed_experts}};
        FL_TRY(v->fn(v->context, &bias));
    }
    if (c->n_shared_experts > 0) {
        set_prefix(v, "model.layers.%d.mlp.shared_experts.", layer);
        FL_TRY(mlp(v, (int64_t)c->n_shared_experts * c->moe_intermediate, FL_MANIFEST_USE_ALWAYS));
    }
    for (int32_t expert = 0; expert < c->n_routed_experts; expert++) {
        set_prefix(v, "model.layers.%d.mlp.experts.%d.", layer, expert);
        FL_TRY(mlp(v, c->moe_intermediate, FL_MANIFEST_USE_ROUTED));
    }
    return FL_ERR_OK;
}

fl_err fl_manifest_visit(const fl_config *config, fl_manifest_fn *fn, void *context) {
    visit v = {.config = config, .fn = fn, .context = context};
    fl_manifest_tensor table = {
        .kind = FL_MANIFEST_TABLE, .ndim = 2, .dims = {config->vocab_size, config->hidden}};
    fl_manifest_tensor head = table;
    table.use = FL_MANIFEST_USE_LOOKUP;
    head.optional = config->tie_word_embeddings;
    FL_TRY(call(&v, "model.embed_tokens", table));
    FL_TRY(norm(&v, "model.norm", config->hidden));
    FL_TRY(call(&v, "lm_head", head));
    for (int32_t layer = 0; layer < config->layers; layer++) {
        set_prefix(&v, "model.layers.%d.", layer);
        FL_TRY(norm(&v, "input_layernorm", config->hidden));
        FL_TRY(norm(&v, "post_attention_layernorm", config->hidden));
        FL_TRY(attention(&v));
        if (fl_config_layer_is_moe(config, layer)) {
            FL_TRY(experts(&v, layer));
        } else {
            set_prefix(&v, "model.layers.%d.mlp.", layer);
            FL_TRY(mlp(&v, config->intermediate, FL_MANIFEST_USE_ALWAYS));
        }
    }
    return FL_ERR_OK;
}

bool fl_manifest_ignores(const fl_config *config, const char *name) {
    static const char prefix[] = "model.layers.", rotary[] = ".self_attn.rotary_emb.inv_freq";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    char *rest = NULL;
    const char *digits = name + sizeof prefix - 1;
    if (*digits < '0' || *digits > '9') return false;
    long layer = strtol(digits, &rest, 10);
    if (layer >= (long)config->layers + config->n_mtp_layers)
        return false; /* includes LONG_MAX of an overflow */
    return *rest == '.' && (layer >= config->layers || strcmp(rest, rotary) == 0);
}
