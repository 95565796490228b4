/* What a checkpoint's config.json and generation_config.json say, checked, as one plain struct. Every field
 * that would change the result must be known: an unknown one is refused by name instead of being ignored, so
 * a model variant can never run as something it is not. All failures are FL_ERR_DATA with the field, the
 * expected and the found value. */
#ifndef FL_MODEL_CONFIG_H
#define FL_MODEL_CONFIG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum fl_model_type {
    FL_MODEL_DEEPSEEK_V3, /* also R1 and V3.1 */
    FL_MODEL_DEEPSEEK_V2, /* also V2-Lite and V2.5 */
    FL_MODEL_KIMI_K2,     /* the architecture of deepseek_v3 in other sizes */
} fl_model_type;

/* How router logits become scores. */
typedef enum fl_scoring { FL_SCORING_SIGMOID, FL_SCORING_SOFTMAX } fl_scoring;

/* How experts are chosen from the scores. */
typedef enum fl_topk_method {
    FL_TOPK_GREEDY,               /* the best of all experts */
    FL_TOPK_GROUP_LIMITED_GREEDY, /* the best of the topk_group groups with the largest single score */
    FL_TOPK_NOAUX_TC, /* score + e_score_correction_bias; a group counts the sum of its two best */
} fl_topk_method;

typedef enum fl_rope_scaling_type { FL_ROPE_SCALING_NONE, FL_ROPE_SCALING_YARN } fl_rope_scaling_type;

/* YaRN (formulas: model/positions). All but `type` are 0 with FL_ROPE_SCALING_NONE. */
typedef struct fl_rope_scaling {
    fl_rope_scaling_type type;
    double factor;                            /* context extension, 1..10000 */
    int32_t original_max_position_embeddings; /* length the frequencies were trained for */
    double beta_fast, beta_slow;              /* rotations at the two ends of the ramp; slow <= fast */
    double mscale, mscale_all_dim;            /* 0..100; absent: 1 and 0 */
} fl_rope_scaling;

typedef enum fl_quantisation_type { FL_QUANTISATION_NONE, FL_QUANTISATION_FP8 } fl_quantisation_type;

/* Linear weights stored as F8_E4M3 with one factor a block: w[i][j] = fp8[i][j] * scale_inv[i / rows][j /
 * cols]. */
typedef struct fl_quantisation {
    fl_quantisation_type type;
    int32_t block_rows, block_cols; /* 0 with FL_QUANTISATION_NONE */
} fl_quantisation;

enum { FL_EOS_IDS_MAX = 16 };

typedef struct fl_config {
    fl_model_type model_type;
    const char *model_type_name; /* "deepseek_v3", ...; static */
    int32_t hidden;              /* width of the residual stream */
    int32_t layers;              /* decoder layers, multi-token prediction not counted */
    int32_t heads;
    int32_t q_lora_rank;      /* 0 = none: q_proj in place of q_a_proj, q_a_layernorm, q_b_proj */
    int32_t kv_lora_rank;     /* width of the KV latent */
    int32_t qk_nope_head_dim; /* query/key dimensions without position, a head */
    int32_t qk_rope_head_dim; /* rotated dimensions, a head; even; one shared key for all heads */
    int32_t v_head_dim;
    int32_t intermediate;          /* dense MLP width */
    int32_t moe_intermediate;      /* width of one expert; 0 for a dense model */
    int32_t n_routed_experts;      /* 0 = dense model: all routing fields below are 0 */
    int32_t n_shared_experts;      /* one MLP of n_shared_experts * moe_intermediate; 0 = none */
    int32_t experts_per_token;     /* 1..n_routed_experts */
    int32_t first_k_dense_replace; /* layers before it have a dense MLP */
    int32_t moe_layer_freq;        /* from there on every layer divisible by it is MoE */
    int32_t n_group, topk_group;   /* n_group divides n_routed_experts; 1 and 1 = no groups */
    fl_scoring scoring;
    fl_topk_method topk_method;
    bool norm_topk_prob;          /* chosen weights are divided by their sum */
    double routed_scaling_factor; /* then multiplied by this */
    double rms_norm_eps;
    double rope_theta;
    fl_rope_scaling rope_scaling;
    int32_t max_position_embeddings; /* already extended: never multiply it by the YaRN factor */
    int32_t vocab_size;
    bool tie_word_embeddings;        /* lm_head is embed_tokens */
    int32_t n_mtp_layers;            /* model.layers.{layers .. layers+n-1}.* exist and are ignored */
    int32_t eos_ids[FL_EOS_IDS_MAX]; /* [n_eos_ids], generation_config.json first, else config.json */
    int32_t n_eos_ids;               /* 0 = none named */
    int32_t bos_id;                  /* -1 = none */
    fl_quantisation quantisation;
} fl_config;

/* Reads dir/config.json and, where it exists, dir/generation_config.json. FL_ERR_IO: a file exists and cannot
 * be read. FL_ERR_DATA: everything else. *out is unspecified on failure. */
fl_err fl_config_read(const char *dir, fl_config *out);

/* The text of a config.json alone: `json_bytes` bytes, no NUL needed. */
fl_err fl_config_parse(const char *json, size_t json_bytes, fl_config *out);

/* Takes bos and eos from the text of a generation_config.json into an already parsed config. Its sampling
 * defaults are not used: requests say how to sample. */
fl_err fl_config_parse_generation(const char *json, size_t json_bytes, fl_config *config);

/* Whether decoder layer `layer` (0-based) routes to experts. */
bool fl_config_layer_is_moe(const fl_config *config, int32_t layer);

#endif
