/* A model and one token timeline driven by hand, below the engine: tests choose how a prompt is cut into steps. */
#ifndef TEST_TIMELINE_H
#define TEST_TIMELINE_H

#include "attn/positions.h"
#include "base/arena.h"
#include "kv/kv_pool.h"
#include "model/forward.h"

typedef struct timeline {
    fl_checkpoint *checkpoint;
    fl_backend *be;
    fl_weights *weights;
    fl_kv_pool *pool;
    fl_kv_layer *kv;
    fl_rope rope;
    float softmax_scale;
    void *pool_memory, *scratch;
    int64_t pool_bytes, scratch_bytes;
    fl_arena arena;
    int32_t *pages; /* of the timeline, in an order that is not the pool's */
    int32_t n_pages;
} timeline;

typedef struct timeline_options {
    const char *model_dir, *backend;
    const fl_config *config; /* of a model with random weights, in place of model_dir; or NULL */
    int32_t n_threads, ctx_tokens;
    fl_kv_format kv_format;
    int64_t scratch_bytes;
} timeline_options;

fl_err timeline_open(const timeline_options *options, timeline **out);
void timeline_close(timeline *t);

/* Rows pos .. pos + rows - 1 with these ids as one step; logits of the last n_logits rows (or NULL). */
typedef struct timeline_step {
    const int32_t *ids;
    int32_t pos, rows;
    int32_t tail_rows; /* the last of them attend absorbed */
    int32_t n_logits;
    float *logits;
} timeline_step;
fl_err timeline_run(timeline *t, const timeline_step *step);

/* max |logit| position. */
int32_t argmax(const float *row, int32_t n);

#endif
