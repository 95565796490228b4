/* kv_write, portable: a conversion and a copy a row, bound by memory traffic. */
#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/op_convert.h"
#include "op/span.h"

enum { ROWS_PER_TASK = 128 };

typedef struct job {
    const fl_kv_write_args *a;
    const fl_kv_rows *seq;
    fl_dtype act;
} job;

static void write_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_kv_write_args *a = j->a;
    const fl_kv_layer *kv = &a->kv;
    fl_dtype dtype = fl_kv_format_dtype(kv->format);
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, j->seq->n_rows);
    for (int32_t i = rows.first; i < rows.end; i++) {
        int32_t pos = j->seq->pos + i, slot = pos % FL_KV_PAGE_TOKENS;
        int64_t row = j->seq->row + i;
        uint8_t *piece = fl_kv_piece(kv, j->seq->pages[pos / FL_KV_PAGE_TOKENS]);
        int64_t k_pe_first = (int64_t)FL_KV_PAGE_TOKENS * kv->latent_dim;
        fl_convert_row(fl_element_mut(piece, dtype, (int64_t)slot * kv->latent_dim), dtype,
                       fl_element(a->latent, j->act, row * a->latent_stride), j->act, kv->latent_dim);
        fl_convert_row(fl_element_mut(piece, dtype, k_pe_first + (int64_t)slot * kv->rope_dim), dtype,
                       fl_element(a->k_pe, j->act, row * a->k_pe_stride), j->act, kv->rope_dim);
    }
}

fl_err fl_kv_write_cpu(fl_backend *be, const fl_kv_write_args *a) {
    FL_TRY(fl_kv_write_validate(a));
    for (int32_t s = 0; s < a->n_seqs; s++) {
        job j = {a, &a->seqs[s], be->act_dtype};
        fl_pool_run(be->pool, fl_span_tasks(j.seq->n_rows, ROWS_PER_TASK), write_rows, &j);
    }
    return FL_ERR_OK;
}
