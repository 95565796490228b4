#include "op/kv_write/kv_write.h"

#include "op/act.h"
#include "op/kv_format.h"
#include "op/ref.h"

fl_err fl_kv_write_ref(fl_backend *be, const fl_kv_write_args *a) {
    (void)be;
    FL_TRY(fl_kv_write_validate(a));
    int32_t latent_dim = a->kv.latent_dim, rope_dim = a->kv.rope_dim;
    fl_dtype dtype = fl_kv_format_dtype(a->kv.format);
    for (int32_t s = 0; s < a->n_seqs; s++)
        for (int32_t i = 0; i < a->seqs[s].n_rows; i++) {
            const fl_kv_rows *seq = &a->seqs[s];
            int32_t row = seq->row + i, pos = seq->pos + i, slot = pos % FL_KV_PAGE_TOKENS;
            uint8_t *piece = fl_kv_piece(&a->kv, seq->pages[pos / FL_KV_PAGE_TOKENS]);
            const float *latent = (const float *)a->latent + row * a->latent_stride;
            const float *k_pe = (const float *)a->k_pe + row * a->k_pe_stride;
            for (int32_t j = 0; j < latent_dim; j++)
                fl_act_store(piece, dtype, slot * latent_dim + j, latent[j]);
            for (int32_t j = 0; j < rope_dim; j++)
                fl_act_store(piece, dtype, FL_KV_PAGE_TOKENS * latent_dim + slot * rope_dim + j, k_pe[j]);
        }
    return FL_ERR_OK;
}
