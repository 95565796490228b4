#include "op/validate.h"

#include "op/kv_format.h"

static fl_err validate_int4(const char *op, const fl_kv_layer *kv) {
    if (kv->group != 32 && kv->group != 64)
        return FL_FAIL(FL_ERR_INVALID, "%s: kv.group is %d, must be 32 or 64", op, kv->group);
    if (kv->latent_dim % kv->group != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "%s: kv.latent_dim is %d, int4 needs a multiple of its group, %d",
                       op, kv->latent_dim, kv->group);
    FL_TRY(fl_need_range(op, "kv.n_outliers", kv->n_outliers, 0, FL_KV_OUTLIERS_MAX));
    for (int32_t i = 0; i < kv->n_outliers; i++)
        FL_TRY(fl_need_range(op, "kv.outliers[]", kv->outliers[i], i > 0 ? kv->outliers[i - 1] + 1 : 0,
                             kv->latent_dim - 1));
    return FL_ERR_OK;
}

fl_err fl_kv_layer_validate(const char *op, const fl_kv_layer *kv) {
    FL_TRY(fl_need_range(op, "kv.latent_dim", kv->latent_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "kv.rope_dim", kv->rope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "kv.planes", kv->planes, 0, FL_KV_PLANES_MAX));
    FL_TRY(fl_need_range(op, "kv.plane", kv->plane, 0, kv->planes > 1 ? kv->planes - 1 : 0));
    FL_TRY(fl_need_range(op, "kv.format", kv->format, 0, FL_N_KV_FORMATS - 1));
    if (kv->format == FL_KV_INT4) FL_TRY(validate_int4(op, kv));
    return fl_need_stride(op, "kv.page_stride_bytes", kv->page_stride_bytes, fl_kv_piece_bytes(kv));
}

fl_err fl_block_tokens_validate(const char *op, int32_t block_tokens) {
    FL_TRY(fl_need_range(op, "block_tokens", block_tokens, FL_KV_PAGE_TOKENS, FL_BLOCK_TOKENS_MAX));
    return fl_need_multiple(op, "block_tokens", block_tokens, FL_KV_PAGE_TOKENS);
}

fl_err fl_list_rows_validate(const char *op, int32_t rows, int32_t pos) {
    FL_TRY(fl_need_range(op, "rows", rows, FL_ATTN_LIST_ROWS, FL_ATTN_LIST_TOKENS_MAX));
    FL_TRY(fl_need_multiple(op, "rows", rows, FL_ATTN_LIST_ROWS));
    FL_TRY(fl_need_range(op, "pos", pos, 0, FL_ATTN_LIST_TOKENS_MAX - rows));
    return fl_need_multiple(op, "pos", pos, FL_ATTN_LIST_ROWS);
}

fl_err fl_attn_view_validate(const char *op, const fl_attn_view *view) {
    FL_TRY(fl_need_range(op, "view.window", view->window, 0, INT32_MAX));
    FL_TRY(fl_need_range(op, "view.segment", view->segment, 0, INT32_MAX));
    FL_TRY(fl_need_range(op, "view.sinks", view->sinks, 0, INT32_MAX));
    FL_TRY(fl_need_range(op, "view.distance_first", view->distance_first, 0, INT32_MAX));
    return fl_need_range(op, "view.distance_end", view->distance_end, 0, INT32_MAX);
}

fl_err fl_kv_rows_validate(const char *op, const fl_kv_rows *seqs, int32_t n_seqs, int32_t rows) {
    FL_TRY(fl_need_count(op, "n_seqs", n_seqs));
    for (int32_t i = 0; i < n_seqs; i++) {
        const fl_kv_rows *s = &seqs[i];
        FL_TRY(fl_need_range(op, "seqs[].n_rows", s->n_rows, 1, rows));
        FL_TRY(fl_need_range(op, "seqs[].row", s->row, 0, rows - s->n_rows));
        FL_TRY(fl_need_range(op, "seqs[].pos", s->pos, 0, INT32_MAX - s->n_rows));
    }
    return FL_ERR_OK;
}

fl_err fl_weights_validate(const char *op, const fl_weight *w, int32_t n_weights) {
    FL_TRY(fl_need_range(op, "w[].n", w[0].n, 1, FL_OP_DIM_MAX));
    FL_TRY(fl_need_range(op, "w[].k", w[0].k, 1, FL_OP_DIM_MAX));
    for (int32_t i = 1; i < n_weights; i++) {
        FL_TRY(fl_need_range(op, "w[].n", w[i].n, w[0].n, w[0].n));
        FL_TRY(fl_need_range(op, "w[].k", w[i].k, w[0].k, w[0].k));
    }
    return FL_ERR_OK;
}
