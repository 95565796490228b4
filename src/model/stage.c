#include "model/stage.h"

#include <string.h>

#include "model/graph.h"

/* The room may be more than what there is to copy. */
typedef struct item {
    const void *from;
    int64_t bytes, room_bytes;
} item;

static fl_err copy_in(fl_backend *be, fl_stage *stage, fl_arena *arena, item i, void *out_pointer) {
    uint8_t *to;
    FL_TRY(fl_arena_take(arena, i.room_bytes, 1, &to));
    memcpy(out_pointer, &to, sizeof to);
    if (!stage->host) return fl_backend_upload(be, to, i.from, i.bytes);
    if (!stage->base) stage->base = to;
    if (to - stage->base + i.room_bytes > stage->host_bytes)
        return FL_FAIL(FL_ERR_INTERNAL, "a step of %d rows gathers more than %lld bytes", stage->step.rows,
                       (long long)stage->host_bytes);
    memcpy(stage->host + (to - stage->base), i.from, (size_t)i.bytes);
    return FL_ERR_OK;
}

static fl_err copy_table(fl_backend *be, fl_stage *stage, fl_arena *arena, int64_t floats,
                         const float **table) {
    int64_t bytes = floats * (int64_t)sizeof(float);
    return *table ? copy_in(be, stage, arena, (item){*table, bytes, bytes}, table) : FL_ERR_OK;
}

static int64_t pages_bytes(int64_t tokens) {
    return (tokens + FL_KV_PAGE_TOKENS - 1) / FL_KV_PAGE_TOKENS * (int64_t)sizeof(int32_t);
}

static fl_err copy_pages(fl_backend *be, fl_stage *stage, fl_arena *arena, fl_kv_rows *rows, bool document) {
    int64_t bytes = pages_bytes((int64_t)rows->pos + rows->n_rows), room_bytes = bytes;
    if (stage->recordable && !document) room_bytes = pages_bytes((int64_t)stage->ceiling + 1);
    return copy_in(be, stage, arena, (item){rows->pages, bytes, room_bytes}, &rows->pages);
}

/* Numbers of the wanted rows; what the bucket has more of are of its first row. */
static fl_err copy_wanted(fl_backend *be, fl_stage *stage, fl_arena *arena) {
    fl_step *step = &stage->step;
    int32_t wanted[1 + FL_GRAPH_ROWS_MAX] = {0}, n = fl_step_logit_rows(step);
    int64_t bytes = n * (int64_t)sizeof(int32_t);
    if (!step->bucketed || n == 0) return FL_ERR_OK;
    for (int32_t i = 0; i < step->n_logit_rows; i++) wanted[i] = step->logit_rows[i];
    return copy_in(be, stage, arena, (item){wanted, bytes, bytes}, &step->logit_row_at);
}

/* Positions of tail rows, each of them, where ops read them. */
static fl_err copy_positions(fl_backend *be, fl_stage *stage, fl_arena *arena) {
    fl_step *step = &stage->step;
    int32_t positions[FL_GRAPH_TAIL_ROWS_MAX], n = 0;
    const int32_t *at;
    for (int32_t i = step->n_document; i < step->n_seqs; i++)
        for (int32_t k = 0; k < stage->seqs[i].n_rows; k++) positions[n++] = stage->seqs[i].pos + k;
    int64_t bytes = n * (int64_t)sizeof(int32_t);
    if (n > 0) FL_TRY(copy_in(be, stage, arena, (item){positions, bytes, bytes}, &at));
    for (int32_t i = step->n_document; i < step->n_seqs; i++) {
        stage->seqs[i].pos = stage->ceiling - (stage->seqs[i].n_rows - 1);
        stage->seqs[i].pos_at = at;
        at += stage->seqs[i].n_rows;
    }
    return copy_wanted(be, stage, arena);
}

/* A bucket with document rows has room for any tail of its size behind them. */
static void open_recordable(fl_stage *stage, const fl_step *step) {
    int32_t last = step->n_document > 0 ? step->seqs[0].pos + step->rows - step->n_beside - 1 : 0;
    if (!fl_graphs_take(step->graphs, step)) return;
    for (int32_t i = step->n_document; i < step->n_seqs; i++) {
        int32_t last_of_seq = step->seqs[i].pos + step->seqs[i].n_rows - 1;
        last = last_of_seq > last ? last_of_seq : last;
    }
    stage->recordable = true;
    stage->ceiling = fl_graphs_ceiling(step->graphs, last, step->n_beside > 0);
}

/* What is copied from here on is gathered. */
static void gather(fl_stage *stage, const fl_arena *arena) {
    if (!stage->recordable) return;
    stage->host = fl_graphs_host(stage->step.graphs, &stage->host_bytes);
    stage->mark = fl_arena_mark(arena);
}

fl_err fl_stage_open(fl_backend *be, const fl_step *step, const fl_config *config, fl_arena *arena,
                     fl_stage *stage) {
    int64_t floats = (int64_t)step->rows * config->qk_rope_head_dim;
    int64_t ids_bytes = step->rows * (int64_t)sizeof(int32_t);
    bool few = step->rows <= FL_GRAPH_TAIL_ROWS_MAX;
    stage->step = *step;
    stage->recordable = false;
    stage->base = stage->host = NULL;
    if (!be->device) return FL_ERR_OK;
    if (step->n_seqs > FL_STEP_SEQS_MAX)
        return FL_FAIL(FL_ERR_INTERNAL, "step of %d sequences, at most %d", step->n_seqs, FL_STEP_SEQS_MAX);
    open_recordable(stage, step);
    if (few) gather(stage, arena);
    FL_TRY(copy_in(be, stage, arena, (item){step->ids, ids_bytes, ids_bytes}, &stage->step.ids));
    FL_TRY(copy_table(be, stage, arena, floats, &stage->step.rope_table));
    FL_TRY(copy_table(be, stage, arena, floats, &stage->step.far_q_table));
    FL_TRY(copy_table(be, stage, arena, floats, &stage->step.far_k_table));
    if (!few) gather(stage, arena);
    for (int32_t i = 0; i < step->n_seqs; i++) {
        stage->seqs[i] = step->seqs[i];
        FL_TRY(copy_pages(be, stage, arena, &stage->seqs[i], i < step->n_document));
    }
    stage->step.seqs = stage->seqs;
    if (stage->recordable) FL_TRY(copy_positions(be, stage, arena));
    if (stage->host)
        FL_TRY(fl_backend_upload(be, stage->base, stage->host, fl_arena_mark(arena) - stage->mark));
    return fl_arena_take(arena, (int64_t)fl_step_logit_rows(step) * config->vocab_size, sizeof(float),
                         &stage->step.logits);
}

fl_err fl_stage_close(fl_backend *be, const fl_step *step, const fl_config *config, const fl_stage *stage) {
    int64_t rows = step->n_logit_rows - (step->sample ? step->sample->n_rows : 0);
    int64_t bytes = rows * config->vocab_size * (int64_t)sizeof(float);
    if (!be->download) return FL_ERR_OK;
    if (bytes == 0) return be->wait(be);
    return be->download(be, step->logits, stage->step.logits, bytes);
}
