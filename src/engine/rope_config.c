#include "engine/rope_config.h"

#include <math.h>

void fl_rope_of_config(const fl_config *config, fl_rope *out) {
    const fl_rope_scaling *s = &config->rope_scaling;
    const fl_rope_params params = {.dim = config->qk_rope_head_dim,
                                   .theta = config->rope_theta,
                                   .factor = s->type == FL_ROPE_SCALING_YARN ? s->factor : 1,
                                   .original_positions = s->original_max_position_embeddings,
                                   .beta_fast = s->beta_fast,
                                   .beta_slow = s->beta_slow,
                                   .mscale = s->mscale,
                                   .mscale_all_dim = s->mscale_all_dim};
    fl_rope_init(&params, out);
}

float fl_softmax_scale_of_config(const fl_config *config, const fl_rope *rope) {
    double head_dim = config->qk_nope_head_dim + config->qk_rope_head_dim;
    return (float)(rope->softmax_factor * M_LOG2E / sqrt(head_dim));
}
