/* The weights of a model, packed once in the backend's layout in one block of memory. Only the embedding table stays
 * where it was, mapped from the file. */
#ifndef FL_MODEL_WEIGHTS_H
#define FL_MODEL_WEIGHTS_H

#include "backend/backend.h"
#include "model/checkpoint.h"
#include "model/synthetic.h"

/* What those who read some activations want: act, codes for weights with block scales, or both. */
typedef struct fl_forms {
    bool act, codes;
} fl_forms;

typedef struct fl_ffn {
    fl_weight gate_up; /* gate rows, then up rows: SwiGLU's n */
    fl_weight down;
    fl_forms inner; /* between the two */
} fl_ffn;

typedef struct fl_layer {
    const float *attn_norm; /* [hidden] */
    const float *ffn_norm;  /* [hidden] */
    const float *q_norm;    /* [q_lora_rank] or NULL */
    fl_weight qkv_a;        /* q_a | kv_a: n = q_lora_rank + kv_lora_rank + rope; without q_lora kv_a alone */
    fl_weight q_b;          /* n = heads * (nope + rope), k = q_lora_rank (without it: hidden) */
    fl_weight kv_b;      /* n = heads * (nope + v), k = kv_lora_rank; kv_a_layernorm's gamma folded into k */
    fl_weight *absorb;   /* [heads] n = kv_lora_rank, k = nope: q_nope to the latent space, gamma folded */
    fl_weight *unabsorb; /* [heads] n = v, k = kv_lora_rank: rows of kv_b itself, no copy */
    fl_weight o;         /* n = hidden, k = heads * v */
    bool moe;
    fl_ffn dense;                            /* when not moe */
    fl_weight *expert_gate_up, *expert_down; /* [n_routed_experts] */
    fl_ffn shared;                           /* n_shared_experts as one; data NULL = none */
    fl_forms attn_in, q_in, ffn_in;   /* of the norms: before attention, of q_a's output, before the FFN */
    fl_forms o_in;                    /* of document rows; tail rows are act */
    fl_forms expert_in, expert_inner; /* of the experts' rows, between their two products */
    const float *router;              /* [n_routed_experts][hidden] */
    const float *router_bias;         /* [n_routed_experts] or NULL */
} fl_layer;

typedef struct fl_weights {
    fl_backend *be;
    fl_config config;
    const void *embed; /* [vocab][hidden], mapped or on the device; NULL when only shapes are set */
    fl_dtype embed_dtype;
    fl_layer *layers;
    const float *final_norm;
    fl_weight head; /* n = vocab */
    void *memory;   /* one block; NULL when only shapes are set */
    int64_t memory_bytes;
} fl_weights;

/* Hears done and total layers. */
typedef void fl_weights_progress_fn(void *context, int64_t done, int64_t total);

/* Shapes and sizes only, for plans: pointers are not memory. memory_bytes is what fl_weights_load will take. */
fl_err fl_weights_shape(fl_backend *be, const fl_config *config, fl_weights **out);

/* Packs everything; the checkpoint must stay open as long as the weights. `progress` may be NULL. */
fl_err fl_weights_load(fl_backend *be, const fl_checkpoint *checkpoint, fl_weights_progress_fn *progress,
                       void *progress_context, fl_weights **out);

/* Random weights in place of a checkpoint's, the embedding table among them; the two copies of kv_b's key half are not
 * the same matrix. */
fl_err fl_weights_synthetic(fl_backend *be, const fl_config *config, const fl_synthetic *made,
                            fl_weights_progress_fn *progress, void *progress_context, fl_weights **out);
void fl_weights_close(fl_weights *weights);

#endif
