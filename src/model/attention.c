/* The attention half of a layer: projections, positions, KV, and the two ways to attend. */
#include "model/forward.h"

/* Rows a call of attn_absorbed takes, times the splits they see: bounds its partial results at any depth. */
enum { ABSORBED_SPLIT_ROWS = 4096 };

typedef struct attention {
    const fl_weights *w;
    const fl_layer *layer;
    const fl_step *step;
    const fl_kv_layer *kv;
    fl_arena *arena;
    int32_t heads, nope, rope, v, latent, q_rank;
    int64_t act_bytes; /* of one element */
    float *down;       /* [rows][q_rank + latent + rope]: q_a | latent | k_pe before norms */
    float *q_raw;      /* [rows][heads][nope + rope] before rope */
    void *q;           /* [rows][heads][nope + rope] act, rotated and scaled */
    void *latents;     /* [rows][latent] act */
    void *k_pe;        /* [rows][rope] act */
    void *out;         /* [rows][heads][v] act */
} attention;

static void *offset(const attention *t, const void *base, int64_t elements) {
    uintptr_t address = (uintptr_t)base + (uintptr_t)(elements * t->act_bytes);
    return (void *)address;
}

static fl_err take(attention *t, int64_t elements, void *out_pointer) {
    return fl_arena_take(t->arena, elements, t->act_bytes, out_pointer);
}

static fl_err multiply(const attention *t, const fl_weight *w, const void *x, int32_t rows, fl_matmul_out out,
                       void *y) {
    return fl_dense_run(t->w->be, &(fl_dense_args){.w = w, .x = x, .rows = rows, .out = out, .y = y});
}

static fl_err norm_part(const attention *t, int32_t column, int32_t dim, const float *gamma, void *y) {
    const fl_rmsnorm_args args = {.x = t->down + column,
                                  .x_stride = t->q_rank + t->latent + t->rope,
                                  .gamma = gamma,
                                  .eps = (float)t->w->config.rms_norm_eps,
                                  .rows = t->step->rows,
                                  .dim = dim,
                                  .y = y,
                                  .y_stride = dim};
    return t->w->be->op->rmsnorm(t->w->be, &args);
}

static fl_err project(attention *t, const void *normed) {
    int32_t rows = t->step->rows, q_dim = t->nope + t->rope;
    const void *q_in = normed;
    FL_TRY(fl_arena_take(t->arena, (int64_t)rows * t->layer->qkv_a.n, sizeof(float), &t->down));
    FL_TRY(fl_arena_take(t->arena, (int64_t)rows * t->heads * q_dim, sizeof(float), &t->q_raw));
    FL_TRY(take(t, (int64_t)rows * t->heads * q_dim, &t->q));
    FL_TRY(take(t, (int64_t)rows * t->latent, &t->latents));
    FL_TRY(take(t, (int64_t)rows * t->rope, &t->k_pe));
    FL_TRY(multiply(t, &t->layer->qkv_a, normed, rows, FL_MATMUL_F32, t->down));
    if (t->q_rank > 0) {
        void *q_low;
        FL_TRY(take(t, (int64_t)rows * t->q_rank, &q_low));
        FL_TRY(norm_part(t, 0, t->q_rank, t->layer->q_norm, q_low));
        q_in = q_low;
    }
    FL_TRY(multiply(t, &t->layer->q_b, q_in, rows, FL_MATMUL_F32, t->q_raw));
    return norm_part(t, t->q_rank, t->latent, NULL, t->latents); /* gamma lives in kv_b: contract 6 */
}

static fl_err rotate(const attention *t) {
    fl_backend *be = t->w->be;
    const fl_rope_args keys = {.x = t->down + t->q_rank + t->latent,
                               .x_stride = t->q_rank + t->latent + t->rope,
                               .table = t->step->rope_table,
                               .rows = t->step->rows,
                               .n_heads = 1,
                               .rope_dim = t->rope,
                               .scale = 1,
                               .y = t->k_pe,
                               .y_stride = t->rope};
    const fl_rope_args queries = {.x = t->q_raw,
                                  .x_stride = (int64_t)t->heads * (t->nope + t->rope),
                                  .table = t->step->rope_table,
                                  .rows = t->step->rows,
                                  .n_heads = t->heads,
                                  .nope_dim = t->nope,
                                  .rope_dim = t->rope,
                                  .scale = t->step->softmax_scale,
                                  .y = t->q,
                                  .y_stride = (int64_t)t->heads * (t->nope + t->rope)};
    FL_TRY(be->op->rope(be, &keys));
    return be->op->rope(be, &queries);
}

static fl_err store(const attention *t) {
    const fl_kv_write_args args = {.latent = t->latents,
                                   .latent_stride = t->latent,
                                   .k_pe = t->k_pe,
                                   .k_pe_stride = t->rope,
                                   .kv = *t->kv,
                                   .seqs = t->step->seqs,
                                   .n_seqs = t->step->n_seqs};
    return t->w->be->op->kv_write(t->w->be, &args);
}

/* One document piece: its visible keys, split by split, up from the stored latents and through the kernel. */
static fl_err attend_document(attention *t, const fl_kv_rows *piece) {
    fl_backend *be = t->w->be;
    int64_t mark = fl_arena_mark(t->arena);
    int32_t end = piece->pos + piece->n_rows;
    int32_t most = end < FL_ATTN_SPLIT_TOKENS ? end : FL_ATTN_SPLIT_TOKENS;
    fl_kv_read_args read = {.kv = *t->kv, .pages = piece->pages};
    fl_attn_prefill_args args = {.rows = piece->n_rows,
                                 .pos = piece->pos,
                                 .n_heads = t->heads,
                                 .nope_dim = t->nope,
                                 .rope_dim = t->rope,
                                 .v_dim = t->v,
                                 .q = offset(t, t->q, (int64_t)piece->row * t->heads * (t->nope + t->rope)),
                                 .n_keys = most,
                                 .out = offset(t, t->out, (int64_t)piece->row * t->heads * t->v)};
    void *kv;
    FL_TRY(take(t, (int64_t)most * t->latent, &read.latent));
    FL_TRY(take(t, (int64_t)most * t->rope, &read.k_pe));
    FL_TRY(take(t, (int64_t)most * t->layer->kv_b.n, &kv));
    FL_TRY(fl_arena_take(t->arena, fl_attn_prefill_state_bytes(args.rows, args.n_heads, args.v_dim), 1,
                         &args.state));
    FL_TRY(fl_arena_take(t->arena, fl_attn_prefill_scratch_bytes(&args), 1, &args.scratch));
    args.kv = kv;
    args.k_pe = read.k_pe;
    for (int32_t key = 0; key < end; key += FL_ATTN_SPLIT_TOKENS) {
        int32_t n_keys = end - key < FL_ATTN_SPLIT_TOKENS ? end - key : FL_ATTN_SPLIT_TOKENS;
        read.pos = args.key_pos = key;
        read.n = args.n_keys = n_keys;
        args.first = key == 0;
        args.last = key + n_keys == end;
        FL_TRY(be->op->kv_read(be, &read));
        FL_TRY(multiply(t, &t->layer->kv_b, read.latent, n_keys, FL_MATMUL_ACT, kv));
        FL_TRY(be->op->attn_prefill(be, &args));
    }
    fl_arena_reset(t->arena, mark);
    return FL_ERR_OK;
}

/* Queries of the tail rows in the latent space: [q_nope absorbed | q_pe]. */
static fl_err absorb_queries(const attention *t, int32_t row0, int32_t rows, void *q_latent) {
    fl_backend *be = t->w->be;
    int32_t q_dim = t->nope + t->rope, wide = t->latent + t->rope;
    const fl_matmul_head_args absorb = {.x = offset(t, t->q, (int64_t)row0 * t->heads * q_dim),
                                        .x_row_stride = (int64_t)t->heads * q_dim,
                                        .x_head_stride = q_dim,
                                        .w = t->layer->absorb,
                                        .n_heads = t->heads,
                                        .rows = rows,
                                        .y = q_latent,
                                        .y_row_stride = (int64_t)t->heads * wide,
                                        .y_head_stride = wide};
    FL_TRY(be->op->matmul_head(be, &absorb));
    for (int32_t h = 0; h < t->heads; h++) {
        const fl_rope_args turn = {.x = t->q_raw + ((int64_t)row0 * t->heads + h) * q_dim + t->nope,
                                   .x_stride = (int64_t)t->heads * q_dim,
                                   .table = t->step->rope_table + (int64_t)row0 * t->rope,
                                   .rows = rows,
                                   .n_heads = 1,
                                   .rope_dim = t->rope,
                                   .scale = t->step->softmax_scale,
                                   .y = offset(t, q_latent, (int64_t)h * wide + t->latent),
                                   .y_stride = (int64_t)t->heads * wide};
        FL_TRY(be->op->rope(be, &turn));
    }
    return FL_ERR_OK;
}

/* Tail rows of one timeline in groups small enough that their partial results stay bounded. */
static fl_err attend_piece(const attention *t, const fl_kv_rows *piece, int32_t row0, void *q_latent,
                           void *out) {
    fl_backend *be = t->w->be;
    for (int32_t i = 0; i < piece->n_rows;) {
        int32_t splits = (piece->pos + piece->n_rows) / FL_ATTN_ABSORBED_SPLIT_TOKENS + 1;
        int32_t most = ABSORBED_SPLIT_ROWS / splits > 0 ? ABSORBED_SPLIT_ROWS / splits : 1;
        int32_t n = piece->n_rows - i < most ? piece->n_rows - i : most;
        int64_t row = piece->row + i - row0, mark = fl_arena_mark(t->arena);
        const fl_kv_rows part = {.row = 0, .n_rows = n, .pos = piece->pos + i, .pages = piece->pages};
        fl_attn_absorbed_args args = {.seqs = &part,
                                      .n_seqs = 1,
                                      .rows = n,
                                      .n_heads = t->heads,
                                      .kv = *t->kv,
                                      .q = offset(t, q_latent, row * t->heads * (t->latent + t->rope)),
                                      .out = offset(t, out, row * t->heads * t->latent)};
        int64_t bytes = fl_attn_absorbed_scratch_bytes(n, t->heads, t->latent, piece->pos + i + n - 1);
        FL_TRY(fl_arena_take(t->arena, bytes, 1, &args.scratch));
        FL_TRY(be->op->attn_absorbed(be, &args));
        fl_arena_reset(t->arena, mark);
        i += n;
    }
    return FL_ERR_OK;
}

static fl_err attend_tail(attention *t, int32_t row0, int32_t rows) {
    fl_backend *be = t->w->be;
    int64_t mark = fl_arena_mark(t->arena);
    void *q_latent, *out_latent;
    FL_TRY(take(t, (int64_t)rows * t->heads * (t->latent + t->rope), &q_latent));
    FL_TRY(take(t, (int64_t)rows * t->heads * t->latent, &out_latent));
    FL_TRY(absorb_queries(t, row0, rows, q_latent));
    for (int32_t i = t->step->n_document; i < t->step->n_seqs; i++)
        FL_TRY(attend_piece(t, &t->step->seqs[i], row0, q_latent, out_latent));
    const fl_matmul_head_args back = {.x = out_latent,
                                      .x_row_stride = (int64_t)t->heads * t->latent,
                                      .x_head_stride = t->latent,
                                      .w = t->layer->unabsorb,
                                      .n_heads = t->heads,
                                      .rows = rows,
                                      .y = offset(t, t->out, (int64_t)row0 * t->heads * t->v),
                                      .y_row_stride = (int64_t)t->heads * t->v,
                                      .y_head_stride = t->v};
    FL_TRY(be->op->matmul_head(be, &back));
    fl_arena_reset(t->arena, mark);
    return FL_ERR_OK;
}

fl_err fl_attention_run(const fl_weights *w, const fl_layer *layer, const fl_step *step, int32_t layer_index,
                        const fl_activations *act, fl_arena *arena) {
    const fl_config *c = &w->config;
    attention t = {.w = w,
                   .layer = layer,
                   .step = step,
                   .kv = &step->kv[layer_index],
                   .arena = arena,
                   .heads = c->heads,
                   .nope = c->qk_nope_head_dim,
                   .rope = c->qk_rope_head_dim,
                   .v = c->v_head_dim,
                   .latent = c->kv_lora_rank,
                   .q_rank = c->q_lora_rank,
                   .act_bytes = (int64_t)fl_dtype_bytes(w->be->act_dtype)};
    FL_TRY(take(&t, (int64_t)step->rows * t.heads * t.v, &t.out));
    FL_TRY(project(&t, act->normed));
    FL_TRY(rotate(&t));
    FL_TRY(store(&t));
    for (int32_t i = 0; i < step->n_document; i++) FL_TRY(attend_document(&t, &step->seqs[i]));
    int32_t tail = step->n_document < step->n_seqs ? step->seqs[step->n_document].row : step->rows;
    if (tail < step->rows) FL_TRY(attend_tail(&t, tail, step->rows - tail));
    return multiply(&t, &layer->o, t.out, step->rows, FL_MATMUL_F32, act->delta);
}
