#include "plan/dry_run.h"

#include <stdlib.h>

#include "backend/backend_count.h"
#include "plan/memory_plan.h"

struct fl_dry_run {
    fl_backend *count;
    fl_weights *shapes;
    fl_kv_layer *kv; /* [layers] */
    const fl_attend *attend;
    int32_t *logit_rows;
    fl_sample_row *drawn; /* [logit_rows_max] greedy */
    int32_t logit_rows_max;
};

fl_kv_shape fl_kv_shape_of_config(const fl_config *config, fl_kv_format format) {
    return (fl_kv_shape){.n_layers = config->layers,
                         .latent_dim = config->kv_lora_rank,
                         .rope_dim = config->qk_rope_head_dim,
                         .format = format,
                         .group = fl_kv_format_group(format, config->kv_lora_rank)};
}

fl_err fl_dry_run_open(const fl_config *config, const fl_backend *like, const fl_kv_shape *kv,
                       const fl_attend *attend, fl_dry_run **out) {
    fl_dry_run *dry = calloc(1, sizeof *dry);
    if (!dry) return FL_FAIL(FL_ERR_NOMEM, "plan");
    fl_err err;
    dry->attend = attend;
    FL_TRY_GOTO(fl_backend_open_count(like, &dry->count));
    FL_TRY_GOTO(fl_weights_shape(dry->count, config, &dry->shapes));
    dry->kv = calloc((size_t)config->layers, sizeof *dry->kv);
    if (!dry->kv) {
        err = FL_FAIL(FL_ERR_NOMEM, "plan of %d layers", config->layers);
        goto fail;
    }
    for (int32_t i = 0; i < config->layers; i++) dry->kv[i] = fl_kv_shape_layer(kv, i);
    *out = dry;
    return FL_ERR_OK;
fail:
    fl_dry_run_close(dry);
    return err;
}

void fl_dry_run_close(fl_dry_run *dry) {
    if (!dry) return;
    fl_weights_close(dry->shapes);
    fl_backend_close(dry->count);
    free(dry->kv);
    free(dry->logit_rows);
    free(dry->drawn);
    free(dry);
}

static const fl_attend *attend_of(const fl_dry_run *dry) {
    static const fl_attend everything = {0};
    return dry->attend ? dry->attend : &everything;
}

bool fl_dry_run_wants_graph(const fl_dry_run *dry, const fl_dry_rows *rows, double flops,
                            fl_graph_piece *piece) {
    *piece = (fl_graph_piece){.document_rows = rows->document_rows,
                              .tail_rows = rows->tail_rows,
                              .pos = rows->document_rows > 0 ? rows->document_pos : rows->tail_pos,
                              .decode_rows = rows->decode_rows,
                              .decode_pos = rows->decode_pos};
    return rows->document_rows + rows->tail_rows > 0 &&
           fl_graph_wants(attend_of(dry), piece, flops / dry->shapes->config.layers);
}

fl_dry_rows fl_dry_run_bucket(const fl_dry_run *dry, const fl_graph_piece *piece, int32_t n_logits) {
    fl_graph_piece bucket = fl_graph_bucket(attend_of(dry), piece);
    return (fl_dry_rows){.document_rows = bucket.document_rows,
                         .document_pos = bucket.pos,
                         .tail_rows = bucket.tail_rows,
                         .tail_pos = bucket.pos + piece->document_rows,
                         .decode_rows = bucket.decode_rows,
                         .decode_pos = bucket.decode_pos,
                         .n_logits = bucket.decode_rows > 0 ? bucket.decode_rows + 1 : n_logits};
}

int64_t fl_dry_run_weights_bytes(const fl_dry_run *dry) {
    return dry->shapes->memory_bytes;
}

static int64_t weight_bytes(const fl_backend *be, const fl_weight *w) {
    if (!w->scale) return fl_backend_weight_bytes(be, w->n, w->k);
    int64_t scales = (w->n + FL_SCALE_BLOCK - 1) / FL_SCALE_BLOCK * fl_scale_stride(w->k);
    return (int64_t)w->n * w->k + scales * (int64_t)sizeof(float);
}

int64_t fl_dry_run_expert_bytes(const fl_dry_run *dry) {
    const fl_weights *w = dry->shapes;
    int64_t bytes = 0;
    for (int32_t i = 0; i < w->config.layers; i++) {
        const fl_layer *layer = &w->layers[i];
        for (int32_t e = 0; layer->moe && e < w->config.n_routed_experts; e++)
            bytes += weight_bytes(dry->count, &layer->expert_gate_up[e]) +
                     weight_bytes(dry->count, &layer->expert_down[e]);
    }
    return bytes;
}

int32_t fl_dry_run_tile_rows(const fl_dry_run *dry) {
    return dry->attend && dry->attend->blocks ? FL_ATTN_LIST_ROWS : FL_KV_PAGE_TOKENS;
}

/* The head reads row numbers even when counting, and the draw how its rows are drawn; any valid ones will do. */
static fl_err make_logit_rows(fl_dry_run *dry, int32_t n) {
    if (n <= dry->logit_rows_max) return FL_ERR_OK;
    int32_t *rows = calloc((size_t)n, sizeof *rows);
    fl_sample_row *drawn = calloc((size_t)n, sizeof *drawn);
    if (!rows || !drawn) {
        free(rows);
        free(drawn);
        return FL_FAIL(FL_ERR_NOMEM, "plan of %d logit rows", n);
    }
    for (int32_t i = 0; i < n; i++) drawn[i].allowed_at = -1;
    free(dry->logit_rows);
    free(dry->drawn);
    dry->logit_rows = rows;
    dry->drawn = drawn;
    dry->logit_rows_max = n;
    return FL_ERR_OK;
}

int32_t fl_dry_run_kept_blocks(const fl_dry_run *dry, int64_t ctx_tokens) {
    if (!dry->attend || !dry->attend->blocks) return 0;
    return (int32_t)(fl_align_up(ctx_tokens, FL_ATTN_LIST_ROWS) / dry->attend->block_tokens);
}

int64_t fl_dry_run_kept_bytes(const fl_dry_run *dry, const fl_kv_shape *kv, int64_t ctx_tokens) {
    const fl_mean_shape shape = {.latent_dim = kv->latent_dim,
                                 .rope_dim = kv->rope_dim,
                                 .planes = kv->planes > 1 ? kv->planes : 1,
                                 .act_bytes = (int64_t)fl_dtype_bytes(dry->count->act_dtype)};
    return kv->n_layers * fl_kept_means_bytes(&shape, fl_dry_run_kept_blocks(dry, ctx_tokens));
}

/* What the steps before left of a prompt that began at position 0. */
static fl_kept_means means_before(const fl_dry_run *dry, const fl_kv_rows *piece) {
    static uint8_t unread; /* as unread_table */
    if (!dry->attend || !dry->attend->blocks) return (fl_kept_means){0};
    return (fl_kept_means){
        .memory = &unread, .n_max = INT32_MAX, .n_known = piece->pos / dry->attend->block_tokens};
}

/* Counting reads no table, but offsets into none at all would be undefined. */
static const float unread_table[2];

typedef struct between_layers {
    fl_arena arena;
    int64_t held_bytes;
} between_layers;

static bool hold(void *context, int32_t layers_done) {
    between_layers *b = context;
    (void)layers_done;
    b->held_bytes = b->arena.used_bytes;
    return true;
}

fl_err fl_dry_run_pieces(fl_dry_run *dry, const fl_dry_pieces *p, fl_dry_cost *out) {
    FL_TRY(make_logit_rows(dry, p->n_logits));
    fl_attend attend = {0};
    if (dry->attend) attend = *dry->attend;
    attend.probe = NULL; /* nothing is measured or counted of rows that are only planned */
    attend.listed = attend.visible = attend.overflow = NULL;
    between_layers between = {.held_bytes = 0};
    const int32_t n_vocab = dry->shapes->config.vocab_size;
    const fl_sample_args sample = {
        .logits_stride = n_vocab, .n_rows = p->n_logits, .n_known = n_vocab, .rows = dry->drawn};
    const fl_kv_rows *last = &p->seqs[p->n_seqs - 1];
    const fl_step step = {.rows = last->row + last->n_rows,
                          .seqs = p->seqs,
                          .n_seqs = p->n_seqs,
                          .n_document = p->n_document,
                          .kv = dry->kv,
                          .rope_table = unread_table,
                          .far_q_table = attend.near_tokens > 0 ? unread_table : NULL,
                          .far_k_table = attend.near_tokens > 0 ? unread_table : NULL,
                          .attend = &attend,
                          .means = means_before(dry, &p->seqs[0]),
                          .softmax_scale = 1,
                          .logit_rows = dry->logit_rows,
                          .n_logit_rows = p->n_logits,
                          .sample = p->n_logits > 0 ? &sample : NULL,
                          .on_layer = hold,
                          .on_layer_context = &between};
    fl_arena_init(&between.arena, NULL, 0);
    fl_backend_count_reset(dry->count);
    FL_TRY(fl_forward(dry->shapes, &step, &between.arena));
    out->scratch_bytes = between.arena.peak_bytes;
    out->held_bytes = between.held_bytes;
    out->ops = *fl_backend_count(dry->count);
    return FL_ERR_OK;
}

fl_err fl_dry_run_step(fl_dry_run *dry, const fl_dry_rows *rows, fl_dry_cost *out) {
    fl_kv_rows seqs[2 + FL_DECODE_ROWS_MAX];
    int32_t n = 0, row = rows->document_rows + rows->tail_rows;
    if (rows->decode_rows < 0 || rows->decode_rows > FL_DECODE_ROWS_MAX)
        return FL_FAIL(FL_ERR_INVALID, "decode_rows: expected 0..%d, found %d", FL_DECODE_ROWS_MAX,
                       rows->decode_rows);
    if (rows->document_rows > 0)
        seqs[n++] = (fl_kv_rows){.n_rows = rows->document_rows, .pos = rows->document_pos};
    if (rows->tail_rows > 0)
        seqs[n++] =
            (fl_kv_rows){.row = rows->document_rows, .n_rows = rows->tail_rows, .pos = rows->tail_pos};
    for (int32_t i = 0; i < rows->decode_rows; i++)
        seqs[n++] = (fl_kv_rows){.row = row + i, .n_rows = 1, .pos = rows->decode_pos};
    const fl_dry_pieces pieces = {
        .seqs = seqs, .n_seqs = n, .n_document = rows->document_rows > 0, .n_logits = rows->n_logits};
    return fl_dry_run_pieces(dry, &pieces, out);
}

void fl_count_add_times(fl_count *sum, const fl_count *more, double times) {
    fl_cost_add(&sum->total, fl_cost_times(more->total, times));
#define X(op) fl_cost_add(&sum->op, fl_cost_times(more->op, times));
#include "op/oplist.inc"
#undef X
}

fl_err fl_dry_run_scratch(fl_dry_run *dry, const fl_dry_rows *rows, fl_dry_scratch *out) {
    fl_dry_cost cost = {0};
    fl_backend_count_costs(dry->count, false);
    fl_err err = fl_dry_run_step(dry, rows, &cost);
    fl_backend_count_costs(dry->count, true);
    *out = (fl_dry_scratch){cost.scratch_bytes, cost.held_bytes};
    return err;
}

void fl_count_add(fl_count *sum, const fl_count *more) {
    fl_count_add_times(sum, more, 1);
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

fl_dry_rows fl_dry_prompt_step(const fl_dry_prompt *p, int32_t pos, int32_t *next) {
    int32_t document = p->document_end > pos ? p->document_end - pos : 0;
    fl_dry_rows rows = {.document_pos = pos, .document_rows = least(document, p->span_tokens)};
    rows.tail_pos = pos + rows.document_rows;
    if (rows.document_rows == document) rows.tail_rows = least(p->n_tokens - rows.tail_pos, FL_TAIL_ROWS_MAX);
    *next = pos + rows.document_rows + rows.tail_rows;
    rows.n_logits = *next == p->n_tokens;
    return rows;
}

fl_err fl_dry_run_prompt(fl_dry_run *dry, const fl_dry_prompt *p, fl_count *out) {
    *out = (fl_count){0};
    for (int32_t pos = p->pos; pos < p->n_tokens;) {
        const fl_dry_rows rows = fl_dry_prompt_step(p, pos, &pos);
        fl_dry_cost cost;
        FL_TRY(fl_dry_run_step(dry, &rows, &cost));
        fl_count_add(out, &cost.ops);
    }
    return FL_ERR_OK;
}

fl_backend *fl_dry_run_backend(fl_dry_run *dry) {
    return dry->count;
}
