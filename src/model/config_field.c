/* The tables, and the one reader that walks a JSON object against them. */
#include "model/config_field.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "op/sample/sample.h"

/* Upper limits are several times the largest published model; their products stay far inside int64_t. */
#define INT_FIELD(key, field, low, high, need)                                                               \
    {                                                                                                        \
        .name = key, .kind = FL_CONFIG_FIELD_INT, .offset = offsetof(fl_config, field), .min = low,          \
        .max = high, .required = need                                                                        \
    }
#define REAL_FIELD(key, field, low, high, need)                                                              \
    {                                                                                                        \
        .name = key, .kind = FL_CONFIG_FIELD_REAL, .offset = offsetof(fl_config, field), .min = low,         \
        .max = high, .required = need                                                                        \
    }
#define BOOL_FIELD(key, field)                                                                               \
    { .name = key, .kind = FL_CONFIG_FIELD_BOOL, .offset = offsetof(fl_config, field) }
#define CODE_FIELD(key)                                                                                      \
    { .name = key, .kind = FL_CONFIG_FIELD_CODE }
#define IGNORED_FIELD(key)                                                                                   \
    { .name = key, .kind = FL_CONFIG_FIELD_IGNORED }
#define FIXED_FIELD(key, one)                                                                                \
    { .name = key, .kind = FL_CONFIG_FIELD_FIXED, .text = one }
#define REFUSED_FIELD(key, why)                                                                              \
    { .name = key, .kind = FL_CONFIG_FIELD_REFUSED, .text = why }

#define WHY_SPARSE  "the model uses a learned sparse-attention indexer"
#define WHY_WINDOW  "the model's own sliding-window layers are not implemented"
#define WHY_V4      "the model is of the DeepSeek-V4 family"
#define WHY_WRAPPER "the checkpoint wraps several models; only plain text models are read"

const fl_config_field fl_config_fields[] = {
    CODE_FIELD("model_type"),
    INT_FIELD("hidden_size", hidden, 1, 65536, true),
    INT_FIELD("num_hidden_layers", layers, 1, 1024, true),
    INT_FIELD("num_attention_heads", heads, 1, 1024, true),
    INT_FIELD("q_lora_rank", q_lora_rank, 1, 65536, false),
    INT_FIELD("kv_lora_rank", kv_lora_rank, 1, 65536, true),
    INT_FIELD("qk_nope_head_dim", qk_nope_head_dim, 1, 4096, true),
    INT_FIELD("qk_rope_head_dim", qk_rope_head_dim, 2, 4096, true),
    INT_FIELD("v_head_dim", v_head_dim, 1, 4096, true),
    INT_FIELD("intermediate_size", intermediate, 1, 1048576, true),
    INT_FIELD("moe_intermediate_size", moe_intermediate, 1, 1048576, false),
    INT_FIELD("n_routed_experts", n_routed_experts, 0, 4096, false),
    INT_FIELD("n_shared_experts", n_shared_experts, 0, 64, false),
    INT_FIELD("num_experts_per_tok", experts_per_token, 1, 256, false),
    INT_FIELD("first_k_dense_replace", first_k_dense_replace, 0, 1024, false),
    INT_FIELD("moe_layer_freq", moe_layer_freq, 1, 1024, false),
    INT_FIELD("n_group", n_group, 1, 4096, false),
    INT_FIELD("topk_group", topk_group, 1, 4096, false),
    CODE_FIELD("scoring_func"),
    CODE_FIELD("topk_method"),
    BOOL_FIELD("norm_topk_prob", norm_topk_prob),
    REAL_FIELD("routed_scaling_factor", routed_scaling_factor, 1e-6, 1e6, false),
    REAL_FIELD("rms_norm_eps", rms_norm_eps, 1e-30, 0.1, true),
    CODE_FIELD("rope_theta"),
    CODE_FIELD("rope_scaling"),
    CODE_FIELD("rope_parameters"),
    INT_FIELD("max_position_embeddings", max_position_embeddings, 1, 1 << 26, true),
    INT_FIELD("vocab_size", vocab_size, 1, FL_SAMPLE_VOCAB_MAX, true),
    BOOL_FIELD("tie_word_embeddings", tie_word_embeddings),
    INT_FIELD("num_nextn_predict_layers", n_mtp_layers, 0, 64, false),
    CODE_FIELD("eos_token_id"),
    CODE_FIELD("bos_token_id"),
    CODE_FIELD("quantization_config"),
    CODE_FIELD("num_key_value_heads"),
    CODE_FIELD("head_dim"),
    CODE_FIELD("qk_head_dim"),

    FIXED_FIELD("hidden_act", "\"silu\""),
    FIXED_FIELD("attention_bias", "false"),
    FIXED_FIELD("mlp_bias", "false"),
    FIXED_FIELD("pretraining_tp", "1"),
    FIXED_FIELD("ep_size", "1"),
    FIXED_FIELD("rope_interleave", "true"),
    FIXED_FIELD("is_encoder_decoder", "false"),
    FIXED_FIELD("is_decoder", "false"),
    FIXED_FIELD("add_cross_attention", "false"),
    FIXED_FIELD("cross_attention_hidden_size", "null"),
    FIXED_FIELD("pruned_heads", "{}"),

    IGNORED_FIELD("architectures"), /* model_type decides */
    IGNORED_FIELD("auto_map"),      /* names Python code; never run */
    IGNORED_FIELD("torch_dtype"),   /* every tensor names its own format */
    IGNORED_FIELD("dtype"),
    IGNORED_FIELD("transformers_version"),
    IGNORED_FIELD("_name_or_path"),
    IGNORED_FIELD("_attn_implementation"),
    IGNORED_FIELD("_attn_implementation_autoset"),
    IGNORED_FIELD("use_cache"),
    IGNORED_FIELD("pad_token_id"),
    IGNORED_FIELD("sep_token_id"),
    IGNORED_FIELD("decoder_start_token_id"),
    IGNORED_FIELD("tokenizer_class"),
    IGNORED_FIELD("task_specific_params"),
    IGNORED_FIELD("problem_type"),
    IGNORED_FIELD("finetuning_task"),
    IGNORED_FIELD("id2label"),
    IGNORED_FIELD("label2id"),
    IGNORED_FIELD("prefix"),
    IGNORED_FIELD("torchscript"),
    IGNORED_FIELD("use_bfloat16"),
    IGNORED_FIELD("tf_legacy_loss"),
    IGNORED_FIELD("chunk_size_feed_forward"),
    IGNORED_FIELD("return_dict"),
    IGNORED_FIELD("output_hidden_states"),
    IGNORED_FIELD("output_attentions"),
    IGNORED_FIELD("output_router_logits"),
    IGNORED_FIELD("initializer_range"), /* training only, with the ones below */
    IGNORED_FIELD("attention_dropout"),
    IGNORED_FIELD("aux_loss_alpha"),
    IGNORED_FIELD("seq_aux"),
    IGNORED_FIELD("router_aux_loss_coef"),

    REFUSED_FIELD("index_topk", WHY_SPARSE),
    REFUSED_FIELD("index_n_heads", WHY_SPARSE),
    REFUSED_FIELD("index_head_dim", WHY_SPARSE),
    REFUSED_FIELD("index_topk_freq", WHY_SPARSE),
    REFUSED_FIELD("index_skip_topk_offset", WHY_SPARSE),
    REFUSED_FIELD("indexer_types", WHY_SPARSE),
    REFUSED_FIELD("indexer_rope_interleave", WHY_SPARSE),
    REFUSED_FIELD("sliding_window", WHY_WINDOW),
    REFUSED_FIELD("use_sliding_window", WHY_WINDOW),
    REFUSED_FIELD("layer_types", "layers of different kinds are not implemented"),
    REFUSED_FIELD("mlp_layer_types", "layers of different kinds are not implemented"),
    REFUSED_FIELD("compress_ratios", WHY_V4),
    REFUSED_FIELD("compress_rope_theta", WHY_V4),
    REFUSED_FIELD("o_lora_rank", WHY_V4),
    REFUSED_FIELD("o_groups", WHY_V4),
    REFUSED_FIELD("hc_mult", WHY_V4),
    REFUSED_FIELD("num_hash_layers", WHY_V4),
    REFUSED_FIELD("swiglu_limit", WHY_V4),
    REFUSED_FIELD("expert_dtype", WHY_V4),
    REFUSED_FIELD("text_config", WHY_WRAPPER),
    REFUSED_FIELD("vision_config", WHY_WRAPPER),
    REFUSED_FIELD("compression_config", "weights in compressed-tensors formats are not read"),
    {.name = NULL},
};

#define ROPE_REAL(key, field, low, high)                                                                     \
    {                                                                                                        \
        .name = key, .kind = FL_CONFIG_FIELD_REAL, .offset = offsetof(fl_rope_scaling, field), .min = low,   \
        .max = high                                                                                          \
    }

const fl_config_field fl_config_rope_fields[] = {
    CODE_FIELD("type"),
    CODE_FIELD("rope_type"),
    CODE_FIELD("rope_theta"),
    ROPE_REAL("factor", factor, 1.0, 1e4),
    {.name = "original_max_position_embeddings",
     .kind = FL_CONFIG_FIELD_INT,
     .offset = offsetof(fl_rope_scaling, original_max_position_embeddings),
     .min = 1,
     .max = 1 << 26},
    ROPE_REAL("beta_fast", beta_fast, 1e-3, 1e6),
    ROPE_REAL("beta_slow", beta_slow, 1e-3, 1e6),
    ROPE_REAL("mscale", mscale, 0.0, 100.0),
    ROPE_REAL("mscale_all_dim", mscale_all_dim, 0.0, 100.0),
    REFUSED_FIELD("attention_factor", "the attention factor is taken from mscale and mscale_all_dim"),
    FIXED_FIELD("truncate", "true"),
    FIXED_FIELD("partial_rotary_factor", "1.0"),
    {.name = NULL},
};

const fl_config_field fl_config_quantisation_fields[] = {
    CODE_FIELD("quant_method"),
    CODE_FIELD("fmt"),
    CODE_FIELD("weight_block_size"),
    CODE_FIELD("scale_fmt"),
    FIXED_FIELD("activation_scheme", "\"dynamic\""),
    IGNORED_FIELD("modules_to_not_convert"), /* every tensor names its own format */
    IGNORED_FIELD("ignored_layers"),
    IGNORED_FIELD("dequantize"),
    {.name = NULL},
};

/* Short JSON text of a value for messages. */
static void describe(const json_t *value, char *text, size_t size) {
    size_t n = json_dumpb(value, text, size - 1, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (n > size - 1) { /* it did not fit: show the beginning */
        n = size - 1;
        memcpy(text + n - 3, "...", 3);
    }
    text[n] = '\0';
}

enum { DESCRIPTION_BYTES = 80 };

static fl_err fail_value(const char *where, const char *name, const char *expected, const json_t *value) {
    char found[DESCRIPTION_BYTES];
    describe(value, found, sizeof found);
    return FL_FAIL(FL_ERR_DATA, "config.json: field '%s%s': expected %s, found %s", where, name, expected,
                   found);
}

fl_err fl_config_field_int(const char *name, const json_t *value, int64_t min, int64_t max, int32_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max) {
        char expected[DESCRIPTION_BYTES];
        snprintf(expected, sizeof expected, "a whole number in %lld..%lld", (long long)min, (long long)max);
        return fail_value("", name, expected, value);
    }
    *out = (int32_t)json_integer_value(value);
    return FL_ERR_OK;
}

static fl_err read_int(const fl_config_field *field, const char *where, const json_t *value, int32_t *out) {
    char name[DESCRIPTION_BYTES];
    snprintf(name, sizeof name, "%s%s", where, field->name);
    return fl_config_field_int(name, value, (int64_t)field->min, (int64_t)field->max, out);
}

static fl_err read_real(const fl_config_field *field, const char *where, const json_t *value, double *out) {
    double number = json_is_number(value) ? json_number_value(value) : (double)NAN;
    if (!(number >= field->min && number <= field->max)) {
        char expected[DESCRIPTION_BYTES];
        snprintf(expected, sizeof expected, "a number in %g..%g", field->min, field->max);
        return fail_value(where, field->name, expected, value);
    }
    *out = number;
    return FL_ERR_OK;
}

static fl_err check_fixed(const fl_config_field *field, const char *where, const json_t *value) {
    json_t *fixed = json_loads(field->text, JSON_DECODE_ANY, NULL);
    if (!fixed) return FL_FAIL(FL_ERR_NOMEM, "config.json: field '%s'", field->name);
    bool numbers = json_is_number(value) && json_is_number(fixed); /* 1 and 1.0 are the same */
    bool equal = numbers ? !(json_number_value(value) < json_number_value(fixed)) &&
                               !(json_number_value(value) > json_number_value(fixed))
                         : json_equal(value, fixed) != 0;
    json_decref(fixed);
    return equal ? FL_ERR_OK : fail_value(where, field->name, field->text, value);
}

static fl_err read_field(const fl_config_field *field, const char *where, const json_t *value, void *target) {
    char *place = (char *)target + field->offset;
    if (json_is_null(value)) return FL_ERR_OK;
    switch (field->kind) {
    case FL_CONFIG_FIELD_INT: return read_int(field, where, value, (int32_t *)(void *)place);
    case FL_CONFIG_FIELD_REAL: return read_real(field, where, value, (double *)(void *)place);
    case FL_CONFIG_FIELD_BOOL:
        if (!json_is_boolean(value)) return fail_value(where, field->name, "true or false", value);
        *(bool *)place = json_is_true(value);
        return FL_ERR_OK;
    case FL_CONFIG_FIELD_FIXED: return check_fixed(field, where, value);
    case FL_CONFIG_FIELD_REFUSED:
        if (json_is_false(value)) return FL_ERR_OK;
        return FL_FAIL(FL_ERR_DATA, "config.json: field '%s%s' is not supported: %s", where, field->name,
                       field->text);
    case FL_CONFIG_FIELD_CODE:
    case FL_CONFIG_FIELD_IGNORED: break;
    }
    return FL_ERR_OK;
}

static const fl_config_field *find_field(const fl_config_field *fields, const char *name) {
    for (const fl_config_field *field = fields; field->name; field++)
        if (strcmp(field->name, name) == 0) return field;
    return NULL;
}

fl_err fl_config_field_read(const fl_config_field *fields, const char *where, const json_t *object,
                            void *target) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        const fl_config_field *field = find_field(fields, key);
        if (!field)
            return FL_FAIL(
                FL_ERR_DATA,
                "config.json: field '%s%.100s' is not known to firstlight, so running the model without "
                "it could give wrong answers",
                where, key);
        FL_TRY(read_field(field, where, value, target));
    }
    for (const fl_config_field *field = fields; field->name; field++)
        if (field->required &&
            (!json_object_get(object, field->name) || json_is_null(json_object_get(object, field->name))))
            return FL_FAIL(FL_ERR_DATA, "config.json: field '%s%s' is missing", where, field->name);
    return FL_ERR_OK;
}
