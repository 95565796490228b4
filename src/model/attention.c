/* The attention half of a layer: projections, positions, KV, and the two ways to attend. */
#include "model/attention.h"

/* Queries are projected so many rows at a time: in f32 they would be the largest tensor of a long step. The last rows,
 * the tail among them, stay. */
enum { QUERY_ROWS = 65536 };

static fl_err norm_part(const fl_attention *t, int32_t column, int32_t dim, const float *gamma,
                        const fl_inputs *y) {
    const fl_rmsnorm_args args = {.x = t->down + column,
                                  .x_stride = t->q_rank + t->latent + t->rope,
                                  .gamma = gamma,
                                  .eps = (float)t->w->config.rms_norm_eps,
                                  .rows = t->step->rows,
                                  .dim = dim,
                                  .y = y->act,
                                  .y_stride = dim,
                                  .y_codes = y->codes};
    return t->w->be->op->rmsnorm(t->w->be, &args);
}

/* Of document rows alone: tail rows take the parts of their queries apart. q_raw begins at `row`. */
static fl_err rotate_queries(const fl_attention *t, const fl_path *path, int32_t row, int32_t rows) {
    int64_t width = (int64_t)t->heads * (t->nope + t->rope);
    if (rows > t->tail_row - row) rows = t->tail_row - row;
    if (rows <= 0) return FL_ERR_OK;
    const fl_rope_args args = {.x = t->q_raw,
                               .x_stride = width,
                               .table = path->table + (int64_t)row * t->rope,
                               .rows = rows,
                               .n_heads = t->heads,
                               .nope_dim = t->nope,
                               .rope_dim = t->rope,
                               .scale = t->softmax_scale,
                               .y = fl_attention_at(t, path->q, row * width),
                               .y_stride = width};
    return t->w->be->op->rope(t->w->be, &args);
}

/* Document rows whose queries are rotated as they are made; one rotation is all that matmul has. */
static int32_t rows_rotated(const fl_attention *t) {
    return t->w->be->matmul_rope && t->n_paths == 1 ? t->tail_row : 0;
}

static fl_err make_rotated(const fl_attention *t, const fl_inputs *q_in, int32_t rows) {
    if (rows == 0) return FL_ERR_OK;
    return fl_dense_run(t->w->be, &(fl_dense_args){.w = &t->layer->q_b,
                                                   .x = *q_in,
                                                   .rows = rows,
                                                   .out = FL_MATMUL_ROPE,
                                                   .y = t->paths[0].q,
                                                   .rope = {.table = t->paths[0].table,
                                                            .nope_dim = t->nope,
                                                            .rope_dim = t->rope,
                                                            .scale = t->softmax_scale},
                                                   .arena = t->arena});
}

/* q_in: [rows][k of q_b]. */
static fl_err make_queries(fl_attention *t, const fl_inputs *q_in) {
    const fl_weight *w = &t->layer->q_b;
    int32_t rows = t->step->rows, first = rows_rotated(t), rest = (rows - first) % QUERY_ROWS;
    FL_TRY(make_rotated(t, q_in, first));
    t->q_raw_row = first;
    for (int32_t row = first, n = rest > 0 ? rest : QUERY_ROWS; row < rows; row += n, n = QUERY_ROWS) {
        FL_TRY(fl_dense_run(t->w->be, &(fl_dense_args){.w = w,
                                                       .x = fl_inputs_from(t->w, q_in, row, w->k),
                                                       .rows = n,
                                                       .out = FL_MATMUL_F32,
                                                       .y = t->q_raw,
                                                       .arena = t->arena}));
        for (int32_t i = 0; i < t->n_paths; i++) FL_TRY(rotate_queries(t, &t->paths[i], row, n));
        t->q_raw_row = row;
    }
    return FL_ERR_OK;
}

static fl_err project(fl_attention *t, const fl_inputs *normed) {
    const fl_layer *layer = t->layer;
    int32_t rows = t->step->rows, q_dim = t->nope + t->rope;
    fl_inputs q_in = *normed, latents = {0};
    FL_TRY(fl_arena_take(t->arena, (int64_t)rows * layer->qkv_a.n, sizeof(float), &t->down));
    int32_t raw_rows = rows - rows_rotated(t);
    if (raw_rows > QUERY_ROWS) raw_rows = QUERY_ROWS;
    FL_TRY(fl_arena_take(t->arena, (int64_t)raw_rows * t->heads * q_dim, sizeof(float), &t->q_raw));
    for (int32_t i = 0; i < t->n_paths; i++)
        FL_TRY(fl_attention_take(t, (int64_t)rows * t->heads * q_dim, &t->paths[i].q));
    FL_TRY(fl_attention_take(t, (int64_t)rows * t->latent, &t->latents));
    FL_TRY(fl_dense_run(t->w->be, &(fl_dense_args){.w = &layer->qkv_a,
                                                   .x = *normed,
                                                   .rows = rows,
                                                   .out = FL_MATMUL_F32,
                                                   .y = t->down,
                                                   .arena = t->arena}));
    if (t->q_rank > 0) {
        FL_TRY(fl_inputs_take(t->w, layer->q_in, rows, t->q_rank, t->arena, &q_in));
        FL_TRY(norm_part(t, 0, t->q_rank, layer->q_norm, &q_in));
    }
    FL_TRY(make_queries(t, &q_in));
    latents.act = t->latents;
    return norm_part(t, t->q_rank, t->latent, NULL, &latents); /* gamma lives in kv_b: contract 3 */
}

/* Stores the latents and, rotated for one plane, k_pe. */
static fl_err store(const fl_attention *t, const float *table, int32_t plane) {
    fl_backend *be = t->w->be;
    fl_kv_write_args args = {.latent = t->latents,
                             .latent_stride = t->latent,
                             .k_pe = t->down + t->q_rank + t->latent,
                             .k_pe_stride = t->q_rank + t->latent + t->rope,
                             .table = table,
                             .kv = *t->kv,
                             .seqs = t->step->seqs,
                             .n_seqs = t->step->n_seqs};
    args.kv.plane = plane;
    return be->op->kv_write(be, &args);
}

/* One rotation for all distances, or exact ones near and the step's far ones beyond. */
static void choose_paths(fl_attention *t) {
    int32_t near = t->attend->near_tokens;
    t->n_paths = near > 0 ? 2 : 1;
    t->paths[0] = (fl_path){.table = t->step->rope_table, .k_plane = 0, .distance_end = near};
    t->paths[1] = (fl_path){.table = t->step->far_q_table, .k_plane = 1, .distance_first = near};
}

/* Codes of document rows, if o's weights want them and no activations beside; then act of the rows behind alone. */
static fl_err take_outputs(fl_attention *t) {
    fl_forms forms = t->layer->o_in;
    int32_t width = t->heads * t->v;
    t->out_row = forms.act ? 0 : t->tail_row;
    if (t->out_row > 0) FL_TRY(fl_inputs_take(t->w, forms, t->out_row, width, t->arena, &t->out));
    return fl_attention_take(t, (int64_t)(t->step->rows - t->out_row) * width, &t->out.act);
}

/* Where the document rows from `row` on go. */
static fl_inputs outputs_of(const fl_attention *t, int32_t row) {
    fl_inputs out = fl_inputs_from(t->w, &t->out, row, t->heads * t->v);
    if (t->out_row > 0) out.act = NULL;
    return out;
}

/* o's rows `row` .. of x and of y. */
static fl_err project_rows(const fl_attention *t, fl_inputs x, int32_t row, int32_t rows, void *y) {
    const fl_weight *o = &t->layer->o;
    if (rows == 0) return FL_ERR_OK;
    return fl_dense_run(t->w->be, &(fl_dense_args){.w = o,
                                                   .x = x,
                                                   .rows = rows,
                                                   .out = FL_MATMUL_ACT,
                                                   .y = fl_attention_at(t, y, (int64_t)row * o->n),
                                                   .arena = t->arena});
}

static fl_err project_back(const fl_attention *t, void *y) {
    FL_TRY(project_rows(t, (fl_inputs){.codes = t->out.codes}, 0, t->out_row, y));
    return project_rows(t, (fl_inputs){.act = t->out.act}, t->out_row, t->step->rows - t->out_row, y);
}

fl_err fl_attention_run(const fl_weights *w, const fl_layer *layer, const fl_step *step, int32_t layer_index,
                        const fl_activations *act, fl_arena *arena) {
    static const fl_attend everything = {0};
    const fl_config *c = &w->config;
    fl_attention t = {.w = w,
                      .layer = layer,
                      .step = step,
                      .attend = step->attend ? step->attend : &everything,
                      .kv = &step->kv[layer_index],
                      .arena = arena,
                      .layer_index = layer_index,
                      .heads = c->heads,
                      .nope = c->qk_nope_head_dim,
                      .rope = c->qk_rope_head_dim,
                      .v = c->v_head_dim,
                      .latent = c->kv_lora_rank,
                      .q_rank = c->q_lora_rank,
                      .act_bytes = (int64_t)fl_dtype_bytes(w->be->act_dtype),
                      .softmax_scale = step->softmax_scale};
    t.tail_row = step->n_document < step->n_seqs ? step->seqs[step->n_document].row : step->rows;
    if (t.attend->temperature) t.softmax_scale *= t.attend->temperature[layer_index];
    choose_paths(&t);
    FL_TRY(take_outputs(&t));
    FL_TRY(project(&t, &act->normed));
    for (int32_t i = 0; i < t.n_paths; i++)
        FL_TRY(store(&t, i == 0 ? step->rope_table : step->far_k_table, i));
    for (int32_t i = 0; i < step->n_document; i++) {
        const fl_kv_rows *piece = &step->seqs[i];
        const fl_inputs out = outputs_of(&t, piece->row);
        FL_TRY(fl_attend_document(&t, piece, &out, NULL));
        if (t.attend->probe) FL_TRY(fl_attend_measure(&t, piece));
    }
    if (t.tail_row < t.q_raw_row)
        return FL_FAIL(FL_ERR_INTERNAL, "tail of %d rows, at most %d", step->rows - t.tail_row, QUERY_ROWS);
    if (t.tail_row < step->rows) FL_TRY(fl_attend_tail(&t, t.tail_row, step->rows - t.tail_row));
    return project_back(&t, act->delta);
}
