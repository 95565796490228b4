#include "model/shapes.h"

#include <stdlib.h>
#include <string.h>

enum { POSITIONS = 1 << 20 };

/* What all of them share; `more` is the fields of one. */
#define SHAPE(more)                                                                                          \
    {                                                                                                        \
        .model_type_name = "deepseek_v3", .moe_layer_freq = 1, .scoring = FL_SCORING_SIGMOID,                \
        .topk_method = FL_TOPK_NOAUX_TC, .norm_topk_prob = true, .max_position_embeddings = POSITIONS,       \
        .bos_id = -1, more                                                                                   \
    }
#define FIELDS(...) __VA_ARGS__

#define MOONLIGHT                                                                                            \
    FIELDS(.hidden = 2048, .layers = 27, .heads = 16, .kv_lora_rank = 512, .qk_nope_head_dim = 128,          \
           .qk_rope_head_dim = 64, .v_head_dim = 128, .intermediate = 11264, .moe_intermediate = 1408,       \
           .n_routed_experts = 64, .n_shared_experts = 2, .experts_per_token = 6,                            \
           .first_k_dense_replace = 1, .n_group = 1, .topk_group = 1, .routed_scaling_factor = 2.446,        \
           .rms_norm_eps = 1e-5, .rope_theta = 50000, .vocab_size = 163840)

#define DEEPSEEK_V3                                                                                          \
    FIELDS(.hidden = 7168, .layers = 61, .heads = 128, .q_lora_rank = 1536, .kv_lora_rank = 512,             \
           .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128, .intermediate = 18432,        \
           .moe_intermediate = 2048, .n_routed_experts = 256, .n_shared_experts = 1, .experts_per_token = 8, \
           .first_k_dense_replace = 3, .n_group = 8, .topk_group = 4, .routed_scaling_factor = 2.5,          \
           .rms_norm_eps = 1e-6, .rope_theta = 10000, .vocab_size = 129280,                                  \
           .rope_scaling = {FL_ROPE_SCALING_YARN, 40, 4096, 32, 1, 1, 1})

#define SPARK                                                                                                \
    FIELDS(.hidden = 512, .layers = 8, .heads = 8, .q_lora_rank = 256, .kv_lora_rank = 128,                  \
           .qk_nope_head_dim = 64, .qk_rope_head_dim = 32, .v_head_dim = 64, .intermediate = 1024,           \
           .moe_intermediate = 256, .n_routed_experts = 16, .n_shared_experts = 1, .experts_per_token = 4,   \
           .first_k_dense_replace = 1, .n_group = 4, .topk_group = 2, .routed_scaling_factor = 2.5,          \
           .rms_norm_eps = 1e-6, .rope_theta = 500000, .vocab_size = 8192)

/* Of no use but to run many steps quickly: for tests. */
#define TINY                                                                                                 \
    FIELDS(.hidden = 64, .layers = 2, .heads = 1, .kv_lora_rank = 64, .qk_nope_head_dim = 64,                \
           .qk_rope_head_dim = 32, .v_head_dim = 64, .intermediate = 64, .moe_intermediate = 64,             \
           .n_routed_experts = 4, .n_shared_experts = 1, .experts_per_token = 2, .first_k_dense_replace = 1, \
           .n_group = 1, .topk_group = 1, .routed_scaling_factor = 2.5, .rms_norm_eps = 1e-6,                \
           .rope_theta = 10000, .vocab_size = 256)

#define IN_FP8(...) __VA_ARGS__, .quantisation = {FL_QUANTISATION_FP8, 128, 128}

/* In the number format in which they are published; moonlight in e4m3 too, to compare the two paths at one size. */
static const struct shape {
    const char *name;
    fl_config config;
} shapes[] = {
    {"moonlight-16b-a3b", SHAPE(FIELDS(MOONLIGHT))},
    {"moonlight-16b-a3b-fp8", SHAPE(IN_FP8(MOONLIGHT))},
    {"deepseek-v3", SHAPE(IN_FP8(DEEPSEEK_V3))},
    {"spark-66m", SHAPE(IN_FP8(SPARK))},
    {"tiny", SHAPE(FIELDS(TINY))},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const struct shape *find(const char *name, size_t length) {
    for (size_t i = 0; i < N_SHAPES; i++)
        if (strlen(shapes[i].name) == length && strncmp(shapes[i].name, name, length) == 0) return &shapes[i];
    return NULL;
}

fl_err fl_shape_find(const char *text, fl_config *out) {
    size_t length = strcspn(text, ":");
    const struct shape *found = find(text, length);
    if (!found)
        return FL_FAIL(FL_ERR_INVALID,
                       "synthetic model: expected moonlight-16b-a3b, moonlight-16b-a3b-fp8, deepseek-v3, "
                       "spark-66m or tiny, each with :LAYERS or without, found '%s'",
                       text);
    *out = found->config;
    if (text[length] == '\0') return FL_ERR_OK;
    char *end;
    long layers = strtol(text + length + 1, &end, 10);
    bool whole = text[length + 1] >= '0' && text[length + 1] <= '9' && *end == '\0';
    if (!whole || layers < 1 || layers > out->layers)
        return FL_FAIL(FL_ERR_INVALID, "synthetic model %s: expected 1 to %d layers, found '%s'", found->name,
                       out->layers, text + length + 1);
    out->layers = (int32_t)layers;
    return FL_ERR_OK;
}
