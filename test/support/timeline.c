#include "support/timeline.h"

#include <stdlib.h>

#include "engine/rope_config.h"

static fl_err open_kv(timeline *t, const timeline_options *o) {
    const fl_config *c = &t->weights->config;
    const fl_kv_shape shape = {.n_layers = c->layers,
                               .latent_dim = c->kv_lora_rank,
                               .rope_dim = c->qk_rope_head_dim,
                               .format = o->kv_format,
                               .group = fl_kv_format_group(o->kv_format, c->kv_lora_rank)};
    t->n_pages = o->ctx_tokens / FL_KV_PAGE_TOKENS + 1;
    t->pool_bytes = fl_kv_page_bytes(&shape) * t->n_pages;
    FL_TRY(t->be->alloc(t->be, t->pool_bytes, &t->pool_memory));
    FL_TRY(fl_kv_pool_open(&shape, t->n_pages, t->pool_memory, &t->pool));
    t->kv = calloc((size_t)c->layers, sizeof *t->kv);
    t->pages = calloc((size_t)t->n_pages, sizeof(int32_t));
    if (!t->kv || !t->pages) return FL_FAIL(FL_ERR_NOMEM, "timeline");
    for (int32_t i = 0; i < c->layers; i++) t->kv[i] = fl_kv_pool_layer(t->pool, i);
    for (int32_t i = 0; i < t->n_pages; i++) t->pages[t->n_pages - 1 - i] = fl_kv_pool_take(t->pool);
    return FL_ERR_OK;
}

static fl_err load_weights(timeline *t, const timeline_options *o) {
    fl_synthetic made;
    if (!o->config) {
        FL_TRY(fl_checkpoint_open(o->model_dir, &t->checkpoint));
        return fl_weights_load(t->be, t->checkpoint, NULL, NULL, &t->weights);
    }
    FL_TRY(fl_synthetic_make(o->config, 1, 1, &made));
    return fl_weights_synthetic(t->be, o->config, &made, NULL, NULL, &t->weights);
}

fl_err timeline_open(const timeline_options *o, timeline **out) {
    timeline *t = calloc(1, sizeof *t);
    if (!t) return FL_FAIL(FL_ERR_NOMEM, "timeline");
    fl_err err;
    FL_TRY_GOTO(fl_backend_open(o->backend, o->n_threads, &t->be));
    FL_TRY_GOTO(load_weights(t, o));
    FL_TRY_GOTO(open_kv(t, o));
    t->scratch_bytes = o->scratch_bytes;
    FL_TRY_GOTO(t->be->alloc(t->be, t->scratch_bytes, &t->scratch));
    fl_arena_init(&t->arena, t->scratch, t->scratch_bytes);
    const fl_config *c = &t->weights->config;
    fl_rope_of_config(c, NULL, &t->rope);
    t->softmax_scale = fl_softmax_scale_of_config(c, &t->rope);
    *out = t;
    return FL_ERR_OK;
fail:
    timeline_close(t);
    return err;
}

void timeline_close(timeline *t) {
    if (!t) return;
    fl_weights_close(t->weights);
    fl_kv_pool_close(t->pool);
    if (t->pool_memory) t->be->free(t->be, t->pool_memory, t->pool_bytes);
    if (t->scratch) t->be->free(t->be, t->scratch, t->scratch_bytes);
    fl_backend_close(t->be);
    fl_checkpoint_close(t->checkpoint);
    free(t->kv);
    free(t->pages);
    free(t);
}

fl_err timeline_run(timeline *t, const timeline_step *s) {
    int32_t document = s->rows - s->tail_rows;
    fl_kv_rows seqs[2];
    int32_t n = 0;
    if (document > 0)
        seqs[n++] = (fl_kv_rows){.row = 0, .n_rows = document, .pos = s->pos, .pages = t->pages};
    if (s->tail_rows > 0)
        seqs[n++] = (fl_kv_rows){
            .row = document, .n_rows = s->tail_rows, .pos = s->pos + document, .pages = t->pages};
    float *table = malloc((size_t)s->rows * (size_t)t->rope.dim * sizeof(float));
    int32_t *logit_rows = malloc((size_t)(s->n_logits + 1) * sizeof(int32_t));
    if (!table || !logit_rows) {
        free(table);
        free(logit_rows);
        return FL_FAIL(FL_ERR_NOMEM, "step");
    }
    fl_rope_table(&t->rope, FL_ROTATION_EXACT, s->pos, s->rows, table);
    for (int32_t i = 0; i < s->n_logits; i++) logit_rows[i] = s->rows - s->n_logits + i;
    const fl_step step = {.rows = s->rows,
                          .ids = s->ids,
                          .rope_table = table,
                          .seqs = seqs,
                          .n_seqs = n,
                          .n_document = document > 0 ? 1 : 0,
                          .kv = t->kv,
                          .softmax_scale = t->softmax_scale,
                          .logit_rows = logit_rows,
                          .n_logit_rows = s->n_logits,
                          .logits = s->logits};
    fl_err err = fl_forward(t->weights, &step, &t->arena);
    free(table);
    free(logit_rows);
    return err;
}

int32_t argmax(const float *row, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}
