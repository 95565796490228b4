/* Any bytes as config.json and as generation_config.json. An accepted configuration must be in range. */
#include "model/config.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const fl_config *c) {
    if (c->hidden < 1 || c->layers < 1 || c->layers > 1024 || c->heads < 1 || c->vocab_size < 1) abort();
    if (c->qk_rope_head_dim % 2 || !(c->rms_norm_eps > 0) || !(c->rope_theta > 1)) abort();
    if (c->n_routed_experts > 0) {
        if (c->n_group < 1 || c->n_routed_experts % c->n_group || c->experts_per_token > c->n_routed_experts)
            abort();
        if (c->moe_layer_freq < 1 || c->topk_group > c->n_group || !(c->routed_scaling_factor > 0)) abort();
    }
    if (c->n_eos_ids < 0 || c->n_eos_ids > FL_EOS_IDS_MAX || c->bos_id < -1 || c->bos_id >= c->vocab_size)
        abort();
    for (int32_t i = 0; i < c->n_eos_ids; i++)
        if (c->eos_ids[i] < 0 || c->eos_ids[i] >= c->vocab_size) abort();
    if (c->quantisation.type == FL_QUANTISATION_FP8 &&
        (c->quantisation.block_rows < 1 || c->quantisation.block_cols < 1))
        abort();
    for (int32_t layer = 0; layer < c->layers; layer++)
        if (fl_config_layer_is_moe(c, layer) && c->n_routed_experts == 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    fl_config config = {.vocab_size = 100, .hidden = 1, .layers = 1, .heads = 1, .bos_id = -1};
    config.rms_norm_eps = 1e-6;
    config.rope_theta = 10000;
    if (fl_config_parse_generation((const char *)bytes, n_bytes, &config) == FL_ERR_OK) check(&config);
    if (fl_config_parse((const char *)bytes, n_bytes, &config) == FL_ERR_OK) check(&config);
    return 0;
}
