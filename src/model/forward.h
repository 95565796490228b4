/* One forward step: some rows of some timelines through all layers. The engine says which rows, where their KV goes
 * and what they attend (as op arguments); the model knows layers and weights and never looks at a page or a policy.
 *
 * Two kinds of rows. Document rows are many and attend non-absorbed: K and V are rebuilt from the latents, split by
 * split (1.7x to 3.4x fewer FLOPs). Tail rows (questions, decode) are few and attend absorbed, in the latent space. A
 * row's kind is part of its definition; its bits depend on nothing else in the step. */
#ifndef FL_MODEL_FORWARD_H
#define FL_MODEL_FORWARD_H

#include "base/arena.h"
#include "model/kept_means.h"
#include "model/weights.h"
#include "op/attend.h"

/* Where the step is, told after each layer (of a device that reads a document one layer later, and not after the last);
 * returning false ends the step with FL_ERR_CANCELLED. */
typedef bool fl_layer_fn(void *context, int32_t layers_done);

typedef struct fl_graphs fl_graphs; /* model/graph.h */

typedef struct fl_step {
    int32_t rows;
    const int32_t *ids;      /* [rows] */
    const float *rope_table; /* [rows][rope_dim / 2][2] */
    const float *far_q_table,
        *far_k_table;        /* alike, for distances of attend->near_tokens and more; else NULL */
    const fl_attend *attend; /* NULL = every row attends everything before it */
    const fl_kv_rows
        *seqs; /* [n_seqs] in row order: first the n_document document pieces, then tail pieces */
    int32_t n_seqs, n_document;
    const fl_kv_layer *kv; /* [layers] */
    fl_kept_means means;   /* with block lists and one document piece; else they are made in the arena */
    float softmax_scale;
    const int32_t *logit_rows; /* [n_logit_rows] rows whose logits are wanted */
    int32_t n_logit_rows;
    float *
        logits; /* [n_logit_rows][vocab]; of rows that a token is drawn for a device's are not brought back */
    const fl_sample_args
        *sample; /* NULL = no token is drawn. Else of the last sample->n_rows of logit_rows: the op's
                                     arguments but for logits and scratch; tokens are there when the step is done */
    fl_layer_fn *on_layer; /* or NULL */
    void *on_layer_context;
    /* A piece of one prompt in its bucket (model/graph.h), and n_beside rows of answers behind it, those of nobody
     * included. Then logits are made of one row more than these, without answers of the wanted row if there is one;
     * which rows they are is memory, where the stage has put it. */
    bool bucketed;
    int32_t n_beside;
    const int32_t *logit_row_at; /* the stage's; else NULL */
    fl_graphs *graphs;           /* NULL = every op of the step is issued; replays tell nothing to on_layer */
} fl_step;

/* Rows of logits that the step makes: of a bucket beside answers the last may be of nobody. */
static inline int32_t fl_step_logit_rows(const fl_step *step) {
    return step->n_beside > 0 ? step->n_beside + 1 : step->n_logit_rows;
}

/* Runs the step; scratch comes from the arena and goes back to it. All of the step's KV is written even for rows
 * without logits. */
fl_err fl_forward(const fl_weights *weights, const fl_step *step, fl_arena *arena);

/* Inputs of products in the forms that their weights want; the others are NULL. */
typedef struct fl_inputs {
    void *act; /* [rows][dim] */
    fl_codes codes;
} fl_inputs;

fl_err fl_inputs_take(const fl_weights *weights, fl_forms forms, int32_t rows, int32_t dim, fl_arena *arena,
                      fl_inputs *out);

/* Those of the rows from `row` on. */
fl_inputs fl_inputs_from(const fl_weights *weights, const fl_inputs *in, int32_t row, int32_t dim);

/* y = x W^T for dense rows of x and y, with an epilogue of the matmul op. */
typedef struct fl_dense_args {
    const fl_weight *w;
    fl_inputs x; /* [rows][k]: codes where there are any and w has block scales, else act */
    int32_t rows;
    fl_matmul_out out;
    void *y; /* [rows][n], SwiGLU: [rows][n / 2] */
    fl_codes y_codes;
    fl_matmul_rope rope;
    fl_arena *arena; /* for matmul's scratch; NULL where w has no block scales */
} fl_dense_args;

fl_err fl_dense_run(fl_backend *be, const fl_dense_args *args);

/* The matmul op with scratch from the arena; args->scratch is set here. */
fl_err fl_matmul_run(fl_backend *be, fl_matmul_args *args, fl_arena *arena);

typedef struct fl_activations {
    float *x;         /* [rows][hidden] residual stream */
    void *delta;      /* [rows][hidden] act: what a dense product adds to it, until the op that adds it */
    fl_inputs normed; /* [rows][hidden], of the half that runs */
} fl_activations;

/* Halves of a layer, which read `normed`. Attention leaves its output in delta, which the next norm adds to x;
 * feed-forward adds its own. */
fl_err fl_attention_run(const fl_weights *weights, const fl_layer *layer, const fl_step *step,
                        int32_t layer_index, const fl_activations *act, fl_arena *arena);
fl_err fl_feedforward_run(const fl_weights *weights, const fl_layer *layer, int32_t rows,
                          const fl_activations *act, fl_arena *arena);

#endif
