/* The layers in order. Attention's output is added by the norm behind it, feed-forward's where experts' outputs are
 * summed, so no half layer passes over the residual stream for that alone. */
#include "model/forward.h"

#include "backend/timed.h"
#include "model/graph.h"
#include "model/stage.h"

fl_err fl_matmul_run(fl_backend *be, fl_matmul_args *args, fl_arena *arena) {
    int64_t bytes = fl_matmul_scratch_bytes(args), mark = bytes > 0 ? fl_arena_mark(arena) : 0;
    if (bytes > 0) FL_TRY(fl_arena_take(arena, bytes, 1, &args->scratch));
    FL_TRY(be->op->matmul(be, args));
    if (bytes > 0) fl_arena_reset(arena, mark);
    return FL_ERR_OK;
}

fl_err fl_dense_run(fl_backend *be, const fl_dense_args *a) {
    fl_matmul_args args = {.x = a->x.act,
                           .x_stride = a->w->k,
                           .w = a->w,
                           .n_groups = 1,
                           .rows = a->rows,
                           .out = a->out,
                           .y = a->y,
                           .y_stride = fl_matmul_width(a->out, a->w->n),
                           .y_codes = a->y_codes,
                           .rope = a->rope};
    if (a->w->scale) args.x_codes = a->x.codes;
    return fl_matmul_run(be, &args, a->arena);
}

fl_err fl_inputs_take(const fl_weights *w, fl_forms forms, int32_t rows, int32_t dim, fl_arena *arena,
                      fl_inputs *out) {
    void *codes;
    *out = (fl_inputs){0};
    if (forms.act)
        FL_TRY(
            fl_arena_take(arena, (int64_t)rows * dim, (int64_t)fl_dtype_bytes(w->be->act_dtype), &out->act));
    if (!forms.codes) return FL_ERR_OK;
    FL_TRY(fl_arena_take(arena, fl_codes_bytes(rows, dim), 1, &codes));
    out->codes = fl_codes_at(codes, rows, dim);
    return FL_ERR_OK;
}

fl_inputs fl_inputs_from(const fl_weights *w, const fl_inputs *in, int32_t row, int32_t dim) {
    int64_t act_bytes = (int64_t)row * dim * (int64_t)fl_dtype_bytes(w->be->act_dtype);
    return (fl_inputs){.act = in->act ? (uint8_t *)in->act + act_bytes : NULL,
                       .codes = fl_codes_from(&in->codes, row, dim)};
}

static fl_err norm(const fl_weights *w, const float *gamma, const void *delta, int32_t rows, float *x,
                   const fl_inputs *y) {
    const fl_rmsnorm_args args = {
        .x = x,
        .x_stride = w->config.hidden,
        .delta = delta,
        .gamma = gamma,
        .eps = (float)w->config.rms_norm_eps,
        .rows = rows,
        .dim = w->config.hidden,
        .y = y->act,
        .y_stride = w->config.hidden,
        .y_codes = y->codes,
    };
    return w->be->op->rmsnorm(w->be, &args);
}

static fl_err run_halves(const fl_weights *w, const fl_step *step, int32_t i, const fl_activations *act,
                         fl_arena *arena) {
    const fl_layer *layer = &w->layers[i];
    fl_activations half = *act;
    int64_t mark = fl_arena_mark(arena);
    FL_TRY(fl_inputs_take(w, layer->attn_in, step->rows, w->config.hidden, arena, &half.normed));
    FL_TRY(norm(w, layer->attn_norm, NULL, step->rows, act->x, &half.normed));
    FL_TRY(fl_attention_run(w, layer, step, i, &half, arena));
    fl_arena_reset(arena, mark);
    FL_TRY(fl_inputs_take(w, layer->ffn_in, step->rows, w->config.hidden, arena, &half.normed));
    FL_TRY(norm(w, layer->ffn_norm, act->delta, step->rows, act->x, &half.normed));
    FL_TRY(fl_feedforward_run(w, layer, step->rows, &half, arena));
    fl_arena_reset(arena, mark);
    return FL_ERR_OK;
}

/* Progress is what is done, not what is issued. A device is a layer behind, so that it has work while the host issues
 * the next; steps without a document need not know. */
static fl_err tell_progress(const fl_weights *w, const fl_step *step, int32_t layers_issued) {
    fl_backend *be = w->be;
    int32_t done = layers_issued;
    if (!step->on_layer) return FL_ERR_OK;
    if (step->n_document > 0 && be->fence) {
        FL_TRY(be->fence(be, layers_issued % 2));
        if (layers_issued == 1) return FL_ERR_OK;
        done = layers_issued - 1;
        FL_TRY(be->pass(be, done % 2));
    }
    if (step->on_layer(step->on_layer_context, done)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_CANCELLED, "cancelled after layer %d of %d", done, w->config.layers);
}

static fl_err run_layer(const fl_weights *w, const fl_step *step, int32_t i, const fl_activations *act,
                        fl_arena *arena) {
    fl_timed_span span = {.name = "layer", .kind = FL_TRACE_LAYER, .count = i + 1};
    fl_timed_begin(w->be, &span);
    fl_err err = run_halves(w, step, i, act, arena);
    fl_timed_end(w->be, &span);
    FL_TRY(err);
    return tell_progress(w, step, i + 1);
}

/* The wanted rows of a bucket, whose numbers lie in memory. */
static fl_err norm_picked(const fl_weights *w, const fl_step *step, const fl_activations *act,
                          fl_arena *arena, const fl_inputs *y) {
    int32_t rows = fl_step_logit_rows(step);
    float *x;
    FL_TRY(fl_arena_take(arena, (int64_t)rows * w->config.hidden, sizeof(float), &x));
    const fl_embed_args pick = {.ids = step->logit_row_at,
                                .table = act->x,
                                .table_dtype = FL_DTYPE_F32,
                                .rows = rows,
                                .dim = w->config.hidden,
                                .n_vocab = step->rows,
                                .x = x};
    FL_TRY(w->be->op->embed(w->be, &pick));
    return norm(w, w->final_norm, NULL, rows, x, y);
}

/* The wanted rows only: a 512K-token prompt needs one row of logits. Neighbours are normalised together. */
static fl_err norm_wanted(const fl_weights *w, const fl_step *step, const fl_activations *act,
                          const fl_inputs *y) {
    int64_t hidden = w->config.hidden;
    for (int32_t i = 0, n; i < step->n_logit_rows; i += n) {
        int64_t row = step->logit_rows[i];
        const fl_inputs part = fl_inputs_from(w, y, i, w->config.hidden);
        for (n = 1; i + n < step->n_logit_rows && step->logit_rows[i + n] == row + n;) n++;
        FL_TRY(norm(w, w->final_norm, NULL, n, act->x + row * hidden, &part));
    }
    return FL_ERR_OK;
}

static fl_err run_head(const fl_weights *w, const fl_step *step, const fl_activations *act, fl_arena *arena) {
    fl_inputs normed;
    int32_t rows = fl_step_logit_rows(step);
    if (rows == 0) return FL_ERR_OK;
    FL_TRY(fl_inputs_take(w, (fl_forms){.act = true}, rows, w->config.hidden, arena, &normed));
    if (step->logit_row_at) FL_TRY(norm_picked(w, step, act, arena, &normed));
    else FL_TRY(norm_wanted(w, step, act, &normed));
    return fl_dense_run(
        w->be,
        &(fl_dense_args){.w = &w->head, .x = normed, .rows = rows, .out = FL_MATMUL_F32, .y = step->logits});
}

static fl_err run_all(const fl_weights *w, const fl_step *step, fl_arena *arena) {
    const fl_config *c = &w->config;
    fl_activations act = {0};
    FL_TRY(fl_arena_take(arena, (int64_t)step->rows * c->hidden, sizeof(float), &act.x));
    FL_TRY(fl_arena_take(arena, (int64_t)step->rows * c->hidden, (int64_t)fl_dtype_bytes(w->be->act_dtype),
                         &act.delta));
    const fl_embed_args embed = {
        .ids = step->ids,
        .table = w->embed,
        .table_dtype = w->embed_dtype,
        .rows = step->rows,
        .dim = c->hidden,
        .n_vocab = c->vocab_size,
        .x = act.x,
    };
    FL_TRY(w->be->op->embed(w->be, &embed));
    for (int32_t i = 0; i < c->layers; i++) FL_TRY(run_layer(w, step, i, &act, arena));
    return run_head(w, step, &act, arena);
}

/* Behind the step and no part of its recording: what is drawn changes from step to step. */
static fl_err draw(const fl_weights *w, const fl_step *step, fl_arena *arena) {
    if (!step->sample) return FL_ERR_OK;
    fl_sample_args args = *step->sample;
    int64_t first = step->n_logit_rows - args.n_rows, mark = fl_arena_mark(arena);
    if (step->logits)
        args.logits = step->logits + first * args.logits_stride; /* none when costs are counted */
    if (!w->be->device) FL_TRY(fl_arena_take(arena, fl_sample_scratch_bytes(args.n_known), 1, &args.scratch));
    FL_TRY(w->be->op->sample(w->be, &args));
    fl_arena_reset(arena, mark);
    return FL_ERR_OK;
}

/* A staged step, as recordings issue it. */
typedef struct issuing {
    const fl_weights *weights;
    const fl_step *step;
    fl_arena *arena;
} issuing;

static fl_err issue(void *context) {
    const issuing *i = context;
    int64_t mark = fl_arena_mark(i->arena);
    fl_err err = run_all(i->weights, i->step, i->arena);
    fl_arena_reset(i->arena, mark);
    return err;
}

static fl_err run_staged(const fl_weights *weights, fl_stage *stage, int64_t mark, fl_arena *arena) {
    issuing all = {.weights = weights, .step = &stage->step, .arena = arena};
    const fl_step *step = &stage->step;
    const fl_graph_shape shape = {.rows = step->rows,
                                  .document_rows = step->n_document > 0 ? step->seqs[0].n_rows : 0,
                                  .document_pos = step->n_document > 0 ? step->seqs[0].pos : 0,
                                  .known_means = step->means.n_known,
                                  .n_seqs = step->n_seqs,
                                  .n_logit_rows = fl_step_logit_rows(step),
                                  .ceiling = stage->ceiling,
                                  .arena_bytes = mark};
    if (!stage->recordable) return issue(&all);
    stage->step.on_layer = NULL;
    return fl_graphs_run(stage->step.graphs, &shape, issue, &all);
}

fl_err fl_forward(const fl_weights *weights, const fl_step *step, fl_arena *arena) {
    int64_t mark = fl_arena_mark(arena);
    fl_stage stage;
    fl_err err = fl_stage_open(weights->be, step, &weights->config, arena, &stage);
    if (err == FL_ERR_OK) err = run_staged(weights, &stage, mark, arena);
    fl_timed_step_issued(weights->be);
    if (err == FL_ERR_OK) err = draw(weights, &stage.step, arena);
    if (err == FL_ERR_OK) err = fl_stage_close(weights->be, step, &weights->config, &stage);
    else if (weights->be->wait)
        (void)weights->be->wait(weights->be); /* nothing may still read the caller's arrays */
    fl_arena_reset(arena, mark);
    return err;
}
