#include "engine/rope_config.h"

#include <math.h>
#include <string.h>

/* Keys nearer than this share of the trained length keep their exact distance under two paths. */
enum { NEAR_SHARE = 8, FACTOR_MAX = 64 };

static const char *const names[FL_N_ROPE_METHODS] = {[FL_ROPE_MODEL] = "model",
                                                     [FL_ROPE_YARN] = "yarn",
                                                     [FL_ROPE_NTK] = "ntk",
                                                     [FL_ROPE_TWO_PATH] = "two-path"};

fl_err fl_rope_extension_parse(const char *method, double factor, fl_rope_extension *out) {
    *out = (fl_rope_extension){0};
    if (!method) method = names[FL_ROPE_MODEL];
    int found = 0;
    while (found < FL_N_ROPE_METHODS && strcmp(method, names[found]) != 0) found++;
    if (found == FL_N_ROPE_METHODS)
        return FL_FAIL(FL_ERR_INVALID, "rope: expected model, yarn, ntk or two-path, found '%s'", method);
    if (found == FL_ROPE_MODEL && factor != 0 && factor != 1)
        return FL_FAIL(FL_ERR_INVALID,
                       "rope_factor %g needs a method: rope yarn, ntk or two-path (model has its own)",
                       factor);
    if (found != FL_ROPE_MODEL && !(factor > 1 && factor <= FACTOR_MAX))
        return FL_FAIL(FL_ERR_INVALID, "rope_factor: rope %s needs 1 < factor <= %d, found %g", method,
                       FACTOR_MAX, factor);
    *out = (fl_rope_extension){(fl_rope_method)found, found == FL_ROPE_MODEL ? 1 : factor};
    return FL_ERR_OK;
}

/* The length that plain frequencies were trained to. */
static double trained_positions(const fl_config *config) {
    const fl_rope_scaling *s = &config->rope_scaling;
    return s->type == FL_ROPE_SCALING_YARN ? s->original_max_position_embeddings
                                           : config->max_position_embeddings;
}

int64_t fl_rope_positions(const fl_config *config, const fl_rope_extension *extension) {
    if (!extension || extension->method == FL_ROPE_MODEL) return config->max_position_embeddings;
    return (int64_t)(trained_positions(config) * extension->factor);
}

/* YaRN with the model's own ramp, or with DeepSeek-V3's where the model has none. */
static void set_yarn(const fl_config *config, double factor, fl_rope_params *p) {
    const fl_rope_scaling *s = &config->rope_scaling;
    bool own = s->type == FL_ROPE_SCALING_YARN;
    p->factor = factor;
    p->beta_fast = own ? s->beta_fast : 32;
    p->beta_slow = own ? s->beta_slow : 1;
    p->mscale = own ? s->mscale : 1;
    p->mscale_all_dim = own ? s->mscale_all_dim : 1;
}

void fl_rope_of_config(const fl_config *config, const fl_rope_extension *extension, fl_rope *out) {
    fl_rope_method method = extension ? extension->method : FL_ROPE_MODEL;
    fl_rope_params p = {.dim = config->qk_rope_head_dim,
                        .theta = config->rope_theta,
                        .factor = 1,
                        .original_positions = trained_positions(config)};
    if (method == FL_ROPE_MODEL && config->rope_scaling.type == FL_ROPE_SCALING_YARN)
        set_yarn(config, config->rope_scaling.factor, &p);
    if (method == FL_ROPE_YARN) set_yarn(config, extension->factor, &p);
    if (method == FL_ROPE_NTK) p.theta = fl_rope_ntk_theta(p.theta, p.dim, extension->factor);
    fl_rope_init(&p, out);
    if (method == FL_ROPE_TWO_PATH)
        fl_rope_split(out, p.original_positions, extension->factor,
                      (int32_t)(p.original_positions / NEAR_SHARE));
}

float fl_softmax_scale_of_config(const fl_config *config, const fl_rope *rope) {
    double head_dim = config->qk_nope_head_dim + config->qk_rope_head_dim;
    return (float)(rope->softmax_factor * M_LOG2E / sqrt(head_dim));
}
