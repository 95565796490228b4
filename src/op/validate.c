#include "op/validate.h"

#include "op/kv_format.h"

fl_err fl_kv_layer_validate(const char *op, const fl_kv_layer *kv) {
    FL_TRY(fl_need_range(op, "kv.latent_dim", kv->latent_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "kv.rope_dim", kv->rope_dim, 1, FL_ATTN_HEAD_DIM_MAX));
    FL_TRY(fl_need_range(op, "kv.format", kv->format, 0, FL_N_KV_FORMATS - 1));
    if (!fl_kv_format_is_plain(kv->format))
        return FL_FAIL(FL_ERR_UNSUPPORTED, "%s: kv.format is %s, which no backend stores yet", op,
                       fl_kv_format_name(kv->format));
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
