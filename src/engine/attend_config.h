/* From settings, calibration and the checkpoint's dimensions to what rows attend. */
#ifndef FL_ENGINE_ATTEND_CONFIG_H
#define FL_ENGINE_ATTEND_CONFIG_H

#include "attn/density.h"
#include "attn/policy.h"
#include "backend/backend.h"
#include "engine/rope_config.h"
#include "kv/kv_pool.h"

typedef struct fl_attend_config {
    fl_policy policy;
    char policy_text[FL_POLICY_TEXT_BYTES];
    fl_rope_extension extension;
    fl_rope rope;
    float softmax_scale;
    fl_calibration calibration;
    bool calibrated;
    fl_attend attend;
    float *log2_alpha, *mean_bias; /* [layers][heads], of attend */
    fl_density_table imposed;      /* of attend; share NULL = lists are as scores say */
    /* What block lists held, grown by steps. */
    int64_t *listed;  /* [layers][heads] */
    int64_t *visible; /* [layers] */
    int64_t overflow;
    int32_t n_layers, n_heads;
    /* On a device: where its ops read and count; listed, visible and overflow are copied back by collect. */
    fl_backend *be;
    uint8_t *device;
    int64_t device_bytes;
} fl_attend_config;

/* *config must stay where it is while `attend` is in use. The caller closes it in any case. */
fl_err fl_attend_config_open(const fl_config *model, const fl_settings *settings, int64_t ctx_tokens,
                             fl_attend_config *config);
void fl_attend_config_close(fl_attend_config *config);

/* Moves what ops read to a device; nothing on host backends. The backend must outlive the config. */
fl_err fl_attend_config_place(fl_attend_config *config, fl_backend *be);

/* After a step: what lists held is known to the host. */
fl_err fl_attend_config_collect(fl_attend_config *config);

/* Share of visible blocks that lists held so far; 1 without lists. */
double fl_attend_config_density(const fl_attend_config *config);

/* The same of every layer and head: out[layers][heads]; 1 where nothing was visible yet. */
void fl_attend_config_density_by_head(const fl_attend_config *config, float *out);

/* Forgets what lists held, while no step runs. */
fl_err fl_attend_config_reset_counts(fl_attend_config *config);

/* What the KV format takes from it: outlier dimensions, a plane of k_pe for each rotation. */
void fl_attend_config_shape(const fl_attend_config *config, fl_kv_shape *shape);

#endif
