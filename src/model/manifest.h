/* The tensors a checkpoint of a given configuration must hold, one after the other. The list is never stored:
 * a configuration with absurd counts costs nothing but the first tensor that is missing. Shapes are [out,
 * in]. */
#ifndef FL_MODEL_MANIFEST_H
#define FL_MODEL_MANIFEST_H

#include "model/config.h"

typedef enum fl_manifest_kind {
    FL_MANIFEST_LINEAR, /* F32, BF16, F16, or F8_E4M3 with name + "_scale_inv" of block factors */
    FL_MANIFEST_TABLE,  /* embeddings, output head, router: F32, BF16 or F16 */
    FL_MANIFEST_VECTOR, /* norms and biases: F32, BF16 or F16 */
} fl_manifest_kind;

/* How often a token uses the tensor; for counting active parameters. */
typedef enum fl_manifest_use {
    FL_MANIFEST_USE_ALWAYS,
    FL_MANIFEST_USE_LOOKUP, /* embed_tokens: one row */
    FL_MANIFEST_USE_ROUTED, /* an expert: experts_per_token of n_routed_experts */
} fl_manifest_use;

typedef struct fl_manifest_tensor {
    const char *name; /* borrowed for the call */
    fl_manifest_kind kind;
    fl_manifest_use use;
    int32_t ndim; /* 1 or 2 */
    int64_t dims[2];
    bool optional; /* lm_head of tied embeddings */
} fl_manifest_tensor;

/* Called once a tensor; a failure ends the visit and is returned. */
typedef fl_err fl_manifest_fn(void *context, const fl_manifest_tensor *tensor);

fl_err fl_manifest_visit(const fl_config *config, fl_manifest_fn *fn, void *context);

/* Whether a tensor that is not in the list may be there all the same: layers for multi-token prediction and
 * rotary tables, which are recomputed from the configuration. */
bool fl_manifest_ignores(const fl_config *config, const char *name);

#endif
