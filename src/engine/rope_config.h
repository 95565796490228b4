/* The rotary positions and softmax scale a checkpoint's configuration asks for. */
#ifndef FL_ENGINE_ROPE_CONFIG_H
#define FL_ENGINE_ROPE_CONFIG_H

#include "attn/positions.h"
#include "model/config.h"

void fl_rope_of_config(const fl_config *config, fl_rope *out);

/* head_dim^-1/2, the YaRN factor, and log2(e): scores are exponents of 2 everywhere. */
float fl_softmax_scale_of_config(const fl_config *config, const fl_rope *rope);

#endif
