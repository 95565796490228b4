/* One prompt on several GPUs: what each holds, computes and receives, by layout. All of it comes from the forward
 * pass on the counting backend, once for each GPU's own share of rows and weights; only what travels between GPUs,
 * which one GPU's forward pass does not know, is counted here. A projection: no layout was run to get it.
 *
 *   tp   heads and columns of the feed-forward cut over all; every GPU sees all rows and keeps all KV, because the
 *        latent is one for all heads
 *   sp   as tp, with the KV cut along the sequence and gathered layer by layer
 *   cp   rows cut along the sequence; all weights on every GPU; keys of other GPUs' rows are gathered as stored
 *   ep   as cp, but each GPU keeps only its share of the experts; rows travel to them and back
 *
 * A step of cp and ep is a run of positions cut into 2n pieces, of which GPU i takes pieces i and 2n - 1 - i, so
 * that causal attention is even. Routing is taken to be even too. */
#ifndef FL_PLAN_LAYOUT_H
#define FL_PLAN_LAYOUT_H

#include "plan/dry_run.h"

typedef enum fl_layout { FL_LAYOUT_TP, FL_LAYOUT_SP, FL_LAYOUT_CP, FL_LAYOUT_EP, FL_N_LAYOUTS } fl_layout;

/* "tp", ...; "one" where there is one GPU, which has no layout. */
const char *fl_layout_name(fl_layout layout, int32_t n_gpus);
bool fl_layout_parse(const char *name, fl_layout *out);

/* What is asked of every layout. Pointers are borrowed. */
typedef struct fl_plan_task {
    const fl_config *config; /* its quantisation is that of the weights */
    const fl_backend *like;  /* whose formats count */
    fl_kv_shape kv;
    const fl_attend *attend; /* of document rows; arrays by head are not read */
    int64_t n_tokens;        /* of the prompt, 1 .. 2^24 */
    int64_t cached_tokens;   /* of them, whose KV is there already: whole pages, fewer than n_tokens */
    int64_t question_tokens; /* at the end, which attend everything; what is no whole tile of rows is added */
    int64_t kv_tokens;       /* that KV has room for; at least n_tokens */
} fl_plan_task;

/* Bytes on the fullest GPU. scratch is what is left of a step's arena beside activations and lists. */
typedef struct fl_share_memory {
    int64_t weights, kv;
    int64_t activations; /* residual stream, its delta and its normalised copy */
    int64_t lists;       /* ids of chosen blocks */
    int64_t scratch;
    int64_t logits;
    int64_t recordings; /* of steps */
    int64_t exchange;   /* what is received before it is used */
    int64_t total;
} fl_share_memory;

/* What falls to one GPU. */
typedef struct fl_share {
    fl_layout layout;
    int32_t n_gpus;
    int32_t span_tokens; /* rows of a step, on one GPU */
    int32_t n_steps;
    fl_share_memory memory; /* of the fullest one */
    fl_count work;          /* of the slowest one, for the whole prompt */
    double gather_bytes;    /* that a GPU receives: keys of others */
    double expert_bytes;    /* rows to experts and back */
    double reduce_bytes;    /* sums of partial results */
} fl_share;

static inline double fl_share_comm_bytes(const fl_share *s) {
    return s->gather_bytes + s->expert_bytes + s->reduce_bytes;
}

/* A model cut for a layout. */
typedef struct fl_layout_run fl_layout_run;

/* FL_ERR_UNSUPPORTED: the model cannot be cut so (detail says which number does not divide). On success the caller
 * owns *out; the task must outlive it, its tokens may change between uses. */
fl_err fl_layout_open(const fl_plan_task *task, fl_layout layout, int32_t n_gpus, fl_layout_run **out);
void fl_layout_close(fl_layout_run *run);

/* Memory alone, at a span: a multiple of 128. */
fl_err fl_layout_memory(fl_layout_run *run, int32_t span_tokens, fl_share_memory *out);

/* The longest span of at most `span_most` (0 = the GPU's share of the prompt) that fits; at least 1,024, or what
 * there is, even if that does not fit: longer spans rebuild fewer keys. */
fl_err fl_layout_span(fl_layout_run *run, int64_t memory_bytes, int32_t span_most, int32_t *out);

/* All of it. */
fl_err fl_layout_share(fl_layout_run *run, int32_t span_tokens, fl_share *out);

/* The whole prompt in one step on one GPU: the model's own work, however it is cut later. */
fl_err fl_layout_whole(const fl_plan_task *task, fl_count *out);

/* ---- bytes between GPUs, for tests ---- */

/* Keys of others that a GPU must have for `rows` document rows from `pos` on, cut over n_gpus. Blocks can be any. */
double fl_layout_remote_keys(const fl_attend *attend, int64_t pos, int64_t rows, int32_t n_gpus);

/* GPUs, its own included, to which a row's experts send it: at most top_k, at most what its topk_group groups lie
 * on; without groups the expectation of even routing. */
double fl_layout_destinations(const fl_config *config, int32_t n_gpus);

#endif
