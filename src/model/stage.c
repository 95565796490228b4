#include "model/stage.h"

static fl_err copy_in(fl_backend *be, fl_arena *arena, const void *from, int64_t count, int64_t item_bytes,
                      void *out_pointer) {
    void *to;
    FL_TRY(fl_arena_take(arena, count, item_bytes, &to));
    *(void **)out_pointer = to;
    return fl_backend_upload(be, to, from, count * item_bytes);
}

static fl_err copy_table(fl_backend *be, fl_arena *arena, int64_t floats, const float **table) {
    return *table ? copy_in(be, arena, *table, floats, sizeof(float), table) : FL_ERR_OK;
}

static fl_err copy_pages(fl_backend *be, fl_arena *arena, fl_kv_rows *rows) {
    int64_t pages = (rows->pos + rows->n_rows + FL_KV_PAGE_TOKENS - 1) / FL_KV_PAGE_TOKENS;
    return copy_in(be, arena, rows->pages, pages, sizeof(int32_t), &rows->pages);
}

fl_err fl_stage_open(fl_backend *be, const fl_step *step, const fl_config *config, fl_arena *arena,
                     fl_stage *stage) {
    int64_t floats = (int64_t)step->rows * config->qk_rope_head_dim;
    stage->step = *step;
    if (!be->device) return FL_ERR_OK;
    if (step->n_seqs > FL_STEP_SEQS_MAX)
        return FL_FAIL(FL_ERR_INTERNAL, "step of %d sequences, at most %d", step->n_seqs, FL_STEP_SEQS_MAX);
    FL_TRY(copy_in(be, arena, step->ids, step->rows, sizeof(int32_t), &stage->step.ids));
    FL_TRY(copy_table(be, arena, floats, &stage->step.rope_table));
    FL_TRY(copy_table(be, arena, floats, &stage->step.far_q_table));
    FL_TRY(copy_table(be, arena, floats, &stage->step.far_k_table));
    for (int32_t i = 0; i < step->n_seqs; i++) {
        stage->seqs[i] = step->seqs[i];
        FL_TRY(copy_pages(be, arena, &stage->seqs[i]));
    }
    stage->step.seqs = stage->seqs;
    return fl_arena_take(arena, (int64_t)step->n_logit_rows * config->vocab_size, sizeof(float),
                         &stage->step.logits);
}

fl_err fl_stage_close(fl_backend *be, const fl_step *step, const fl_config *config, const fl_stage *stage) {
    int64_t bytes = (int64_t)step->n_logit_rows * config->vocab_size * (int64_t)sizeof(float);
    if (!be->download) return FL_ERR_OK;
    if (bytes == 0) return be->wait(be);
    return be->download(be, step->logits, stage->step.logits, bytes);
}
