/* config.json to fl_config: the field table fills the plain numbers, this file reads the rest and checks that
 * the fields agree with each other. Defaults are those of the published configuration classes of each model
 * type. */
#include "model/config.h"

#include "base/file.h"
#include "model/config_field.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

typedef struct name_value {
    const char *name;
    int value;
} name_value;

static const name_value model_types[] = {{"deepseek_v3", FL_MODEL_DEEPSEEK_V3},
                                         {"deepseek_v2", FL_MODEL_DEEPSEEK_V2},
                                         {"kimi_k2", FL_MODEL_KIMI_K2},
                                         {NULL, 0}};
static const name_value scorings[] = {
    {"sigmoid", FL_SCORING_SIGMOID}, {"softmax", FL_SCORING_SOFTMAX}, {NULL, 0}};
static const name_value topk_methods[] = {{"greedy", FL_TOPK_GREEDY},
                                          {"group_limited_greedy", FL_TOPK_GROUP_LIMITED_GREEDY},
                                          {"noaux_tc", FL_TOPK_NOAUX_TC},
                                          {NULL, 0}};
static const name_value rope_types[] = {
    {"default", FL_ROPE_SCALING_NONE}, {"yarn", FL_ROPE_SCALING_YARN}, {NULL, 0}};
static const name_value quant_methods[] = {{"fp8", FL_QUANTISATION_FP8}, {NULL, 0}};

/* A string field with a few known values; absent or null leaves *out. */
static fl_err read_name(const json_t *object, const char *key, const name_value *names, int *out) {
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value)) return FL_ERR_OK;
    const char *found = json_string_value(value);
    char expected[128] = "";
    for (const name_value *known = names; known->name; known++) {
        if (found && strcmp(found, known->name) == 0) {
            *out = known->value;
            return FL_ERR_OK;
        }
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s%s", used ? ", " : "", known->name);
    }
    if (!found) return FL_FAIL(FL_ERR_DATA, "config.json: field '%s': expected a string (%s)", key, expected);
    return FL_FAIL(FL_ERR_DATA, "config.json: field '%s': expected one of %s, found '%.100s'", key, expected,
                   found);
}

static fl_err load_object(const char *file, const char *json, size_t json_bytes, json_t **out) {
    json_error_t why;
    json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root) return FL_FAIL(FL_ERR_DATA, "%s: not valid JSON, line %d: %s", file, why.line, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return FL_FAIL(FL_ERR_DATA, "%s: expected a JSON object", file);
    }
    *out = root;
    return FL_ERR_OK;
}

static fl_err read_rope_theta(const json_t *value, const char *where, double *out) {
    if (!value || json_is_null(value)) return FL_ERR_OK;
    double theta = json_is_number(value) ? json_number_value(value) : 0;
    if (!(theta > 1 && theta <= 1e15))
        return FL_FAIL(FL_ERR_DATA, "config.json: field '%srope_theta': expected a number in 1..1e15", where);
    *out = theta;
    return FL_ERR_OK;
}

static fl_err check_yarn(const fl_rope_scaling *scaling) {
    if (scaling->factor < 1)
        return FL_FAIL(FL_ERR_DATA, "config.json: field 'rope_scaling.factor' is missing for yarn");
    if (scaling->original_max_position_embeddings < 1)
        return FL_FAIL(
            FL_ERR_DATA,
            "config.json: field 'rope_scaling.original_max_position_embeddings' is missing for yarn");
    if (scaling->beta_slow > scaling->beta_fast)
        return FL_FAIL(FL_ERR_DATA, "config.json: rope_scaling.beta_slow %g is above beta_fast %g",
                       scaling->beta_slow, scaling->beta_fast);
    return FL_ERR_OK;
}

/* "rope_scaling" (older files, theta beside it) or "rope_parameters" (newer, theta inside). Both at once must
 * not occur: nothing says which one counts. */
static fl_err read_rope(const json_t *root, fl_config *config) {
    const json_t *scaling = json_object_get(root, "rope_scaling");
    const json_t *parameters = json_object_get(root, "rope_parameters");
    bool has_scaling = scaling && !json_is_null(scaling),
         has_parameters = parameters && !json_is_null(parameters);
    FL_TRY(read_rope_theta(json_object_get(root, "rope_theta"), "", &config->rope_theta));
    if (has_scaling && has_parameters)
        return FL_FAIL(FL_ERR_DATA,
                       "config.json: has both rope_scaling and rope_parameters, expected one of them");
    if (!has_scaling && !has_parameters) return FL_ERR_OK;
    const json_t *object = has_scaling ? scaling : parameters;
    const char *where = has_scaling ? "rope_scaling." : "rope_parameters.";
    if (!json_is_object(object))
        return FL_FAIL(FL_ERR_DATA, "config.json: field '%.15s': expected an object or null", where);

    fl_rope_scaling read = {.beta_fast = 32, .beta_slow = 1, .mscale = 1, .mscale_all_dim = 0};
    FL_TRY(fl_config_field_read(fl_config_rope_fields, where, object, &read));
    FL_TRY(read_rope_theta(json_object_get(object, "rope_theta"), where, &config->rope_theta));
    int type = -1, newer_type = -1;
    FL_TRY(read_name(object, "type", rope_types, &type));
    FL_TRY(read_name(object, "rope_type", rope_types, &newer_type));
    if (type >= 0 && newer_type >= 0 && type != newer_type)
        return FL_FAIL(FL_ERR_DATA, "config.json: %stype and %srope_type differ", where, where);
    if (type < 0) type = newer_type;
    if (type < 0) return FL_FAIL(FL_ERR_DATA, "config.json: field '%stype' is missing", where);
    if (type == FL_ROPE_SCALING_NONE) return FL_ERR_OK;
    read.type = FL_ROPE_SCALING_YARN;
    config->rope_scaling = read;
    return check_yarn(&config->rope_scaling);
}

static fl_err read_quantisation(const json_t *root, fl_quantisation *out) {
    const json_t *object = json_object_get(root, "quantization_config");
    if (!object || json_is_null(object)) return FL_ERR_OK;
    if (!json_is_object(object))
        return FL_FAIL(FL_ERR_DATA, "config.json: field 'quantization_config': expected an object or null");
    int method = -1, fmt = -1, scale = 0;
    const name_value fmts[] = {{"e4m3", 0}, {NULL, 0}};
    /* How activations would be scaled; the weights' scales are plain fp32 either way. */
    const name_value scale_fmts[] = {{"ue8m0", 0}, {"float", 1}, {NULL, 0}};
    FL_TRY(read_name(object, "quant_method", quant_methods, &method));
    if (method < 0)
        return FL_FAIL(FL_ERR_DATA, "config.json: field 'quantization_config.quant_method' is missing");
    FL_TRY(fl_config_field_read(fl_config_quantisation_fields, "quantization_config.", object, out));
    FL_TRY(read_name(object, "fmt", fmts, &fmt));
    FL_TRY(read_name(object, "scale_fmt", scale_fmts, &scale));
    const json_t *block = json_object_get(object, "weight_block_size");
    if (!json_is_array(block) || json_array_size(block) != 2)
        return FL_FAIL(
            FL_ERR_DATA,
            "config.json: field 'quantization_config.weight_block_size': expected [rows, columns]");
    const char *name = "quantization_config.weight_block_size";
    FL_TRY(fl_config_field_int(name, json_array_get(block, 0), 1, 65536, &out->block_rows));
    FL_TRY(fl_config_field_int(name, json_array_get(block, 1), 1, 65536, &out->block_cols));
    out->type = FL_QUANTISATION_FP8;
    return FL_ERR_OK;
}

/* One id or a list of ids; absent or null leaves the list as it is. */
static fl_err read_eos(const char *file, const json_t *value, fl_config *config) {
    if (!value || json_is_null(value)) return FL_ERR_OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > FL_EOS_IDS_MAX)
        return FL_FAIL(FL_ERR_DATA, "%s: eos_token_id lists %zu ids, at most %d are accepted", file, n,
                       FL_EOS_IDS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= config->vocab_size)
            return FL_FAIL(FL_ERR_DATA, "%s: field 'eos_token_id': expected ids in 0..%d", file,
                           config->vocab_size - 1);
        config->eos_ids[i] = (int32_t)json_integer_value(id);
    }
    config->n_eos_ids = (int32_t)n;
    return FL_ERR_OK;
}

static fl_err read_bos(const char *file, const json_t *value, fl_config *config) {
    if (!value || json_is_null(value)) return FL_ERR_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= config->vocab_size)
        return FL_FAIL(FL_ERR_DATA, "%s: field 'bos_token_id': expected an id in 0..%d", file,
                       config->vocab_size - 1);
    config->bos_id = (int32_t)json_integer_value(value);
    return FL_ERR_OK;
}

/* Fields that repeat what others already say must agree with them. */
static fl_err check_repeated(const json_t *root, const fl_config *config) {
    const struct {
        const char *name;
        int32_t expected;
    } repeated[] = {{"num_key_value_heads", config->heads},
                    {"head_dim", config->qk_rope_head_dim},
                    {"qk_head_dim", config->qk_nope_head_dim + config->qk_rope_head_dim}};
    for (size_t i = 0; i < sizeof repeated / sizeof repeated[0]; i++) {
        const json_t *value = json_object_get(root, repeated[i].name);
        int32_t found = 0;
        if (!value || json_is_null(value)) continue;
        FL_TRY(fl_config_field_int(repeated[i].name, value, 1, INT32_MAX, &found));
        if (found != repeated[i].expected)
            return FL_FAIL(FL_ERR_DATA, "config.json: field '%s': expected %d for this model type, found %d",
                           repeated[i].name, repeated[i].expected, found);
    }
    return FL_ERR_OK;
}

/* Fields whose published defaults differ between sources: a MoE model must spell them out. */
static fl_err check_routing_present(const json_t *root, fl_model_type type) {
    const char *const names[] = {"moe_intermediate_size",
                                 "num_experts_per_tok",
                                 "first_k_dense_replace",
                                 "norm_topk_prob",
                                 "routed_scaling_factor",
                                 "n_group",
                                 "topk_group"};
    size_t n = sizeof names / sizeof names[0];
    if (type == FL_MODEL_DEEPSEEK_V2) n -= 2; /* without groups these are null or left out */
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(root, names[i]);
        if (!value || json_is_null(value))
            return FL_FAIL(FL_ERR_DATA, "config.json: field '%s' is missing", names[i]);
    }
    return FL_ERR_OK;
}

/* Groups and counts of the router. The published sources agree on one scoring for each way of choosing;
 * anything else has no defined meaning. */
static fl_err check_routing(const fl_config *config) {
    int32_t experts = config->n_routed_experts;
    if (config->n_group > experts || experts % config->n_group != 0)
        return FL_FAIL(FL_ERR_DATA, "config.json: n_group %d does not divide n_routed_experts %d",
                       config->n_group, experts);
    if (config->topk_group > config->n_group)
        return FL_FAIL(FL_ERR_DATA, "config.json: topk_group %d is above n_group %d", config->topk_group,
                       config->n_group);
    int32_t allowed = experts / config->n_group * config->topk_group;
    if (config->topk_method == FL_TOPK_GREEDY) allowed = experts;
    if (config->experts_per_token > allowed)
        return FL_FAIL(FL_ERR_DATA,
                       "config.json: num_experts_per_tok %d is above the %d experts that can be chosen",
                       config->experts_per_token, allowed);
    bool sigmoid = config->scoring == FL_SCORING_SIGMOID, noaux = config->topk_method == FL_TOPK_NOAUX_TC;
    if (sigmoid != noaux)
        return FL_FAIL(FL_ERR_DATA, "config.json: topk_method '%s' with scoring_func '%s' is not supported",
                       topk_methods[config->topk_method].name, scorings[config->scoring].name);
    if (noaux && config->n_group > 1 && experts / config->n_group < 2)
        return FL_FAIL(FL_ERR_DATA,
                       "config.json: noaux_tc needs groups of at least 2 experts, found %d of %d",
                       config->n_group, experts);
    if (config->model_type == FL_MODEL_DEEPSEEK_V2 && config->norm_topk_prob &&
        (config->routed_scaling_factor < 1 || config->routed_scaling_factor > 1))
        return FL_FAIL(FL_ERR_DATA,
                       "config.json: deepseek_v2 with norm_topk_prob true and routed_scaling_factor %g: "
                       "published implementations disagree on its meaning",
                       config->routed_scaling_factor);
    return FL_ERR_OK;
}

static fl_err check_together(const json_t *root, fl_config *config) {
    if (config->qk_rope_head_dim % 2 != 0)
        return FL_FAIL(FL_ERR_DATA, "config.json: qk_rope_head_dim %d is odd, positions rotate pairs",
                       config->qk_rope_head_dim);
    FL_TRY(check_repeated(root, config));
    if (config->first_k_dense_replace > config->layers)
        return FL_FAIL(FL_ERR_DATA, "config.json: first_k_dense_replace %d is above num_hidden_layers %d",
                       config->first_k_dense_replace, config->layers);
    if (config->n_routed_experts > 0) {
        FL_TRY(check_routing_present(root, config->model_type));
        return check_routing(config);
    }
    config->moe_intermediate = config->n_shared_experts = config->experts_per_token = 0;
    config->first_k_dense_replace = config->moe_layer_freq = config->n_group = config->topk_group = 0;
    config->norm_topk_prob = false;
    config->routed_scaling_factor = 0;
    return FL_ERR_OK;
}

static fl_err parse_root(const json_t *root, fl_config *config) {
    int type = -1;
    FL_TRY(read_name(root, "model_type", model_types, &type));
    if (type < 0) return FL_FAIL(FL_ERR_DATA, "config.json: field 'model_type' is missing");
    bool v2 = type == FL_MODEL_DEEPSEEK_V2;
    *config = (fl_config){.model_type = (fl_model_type)type,
                          .model_type_name = model_types[type].name,
                          .moe_layer_freq = 1,
                          .n_group = 1,
                          .topk_group = 1,
                          .norm_topk_prob = !v2,
                          .routed_scaling_factor = v2 ? 1.0 : 2.5,
                          .bos_id = -1};
    FL_TRY(fl_config_field_read(fl_config_fields, "", root, config));
    int scoring = v2 ? FL_SCORING_SOFTMAX : FL_SCORING_SIGMOID;
    int method = v2 ? FL_TOPK_GREEDY : FL_TOPK_NOAUX_TC;
    FL_TRY(read_name(root, "scoring_func", scorings, &scoring));
    FL_TRY(read_name(root, "topk_method", topk_methods, &method));
    config->scoring = (fl_scoring)scoring;
    config->topk_method = (fl_topk_method)method;
    FL_TRY(read_rope(root, config));
    if (config->rope_theta <= 0) return FL_FAIL(FL_ERR_DATA, "config.json: field 'rope_theta' is missing");
    FL_TRY(read_quantisation(root, &config->quantisation));
    FL_TRY(check_together(root, config));
    FL_TRY(read_eos("config.json", json_object_get(root, "eos_token_id"), config));
    return read_bos("config.json", json_object_get(root, "bos_token_id"), config);
}

fl_err fl_config_parse(const char *json, size_t json_bytes, fl_config *out) {
    json_t *root = NULL;
    FL_TRY(load_object("config.json", json, json_bytes, &root));
    fl_err err = parse_root(root, out);
    json_decref(root);
    return err;
}

fl_err fl_config_parse_generation(const char *json, size_t json_bytes, fl_config *config) {
    json_t *root = NULL;
    FL_TRY(load_object("generation_config.json", json, json_bytes, &root));
    fl_err err = read_eos("generation_config.json", json_object_get(root, "eos_token_id"), config);
    if (err == FL_ERR_OK)
        err = read_bos("generation_config.json", json_object_get(root, "bos_token_id"), config);
    json_decref(root);
    return err;
}

fl_err fl_config_read(const char *dir, fl_config *out) {
    char *text = NULL;
    size_t n_bytes = 0;
    FL_TRY(fl_file_read(dir, "config.json", CONFIG_BYTES_MAX, &text, &n_bytes));
    fl_err err = fl_config_parse(text, n_bytes, out);
    free(text);
    if (err != FL_ERR_OK || !fl_file_exists(dir, "generation_config.json")) return err;
    FL_TRY(fl_file_read(dir, "generation_config.json", CONFIG_BYTES_MAX, &text, &n_bytes));
    err = fl_config_parse_generation(text, n_bytes, out);
    free(text);
    return err;
}

bool fl_config_layer_is_moe(const fl_config *config, int32_t layer) {
    return config->n_routed_experts > 0 && layer >= config->first_k_dense_replace &&
           layer % config->moe_layer_freq == 0;
}
