#include "op/kv_read/kv_read.h"

#include "op/act.h"
#include "op/kv_format.h"
#include "op/ref.h"

fl_err fl_kv_read_ref(fl_backend *be, const fl_kv_read_args *a) {
    (void)be;
    FL_TRY(fl_kv_read_validate(a));
    int32_t latent_dim = a->kv.latent_dim, rope_dim = a->kv.rope_dim;
    fl_dtype dtype = fl_kv_format_dtype(a->kv.format);
    float *latent = a->latent, *k_pe = a->k_pe;
    for (int32_t i = 0; i < a->n; i++) {
        int32_t pos = a->pos + i * fl_kv_read_step(a), slot = pos % FL_KV_PAGE_TOKENS;
        const uint8_t *piece = fl_kv_piece(&a->kv, a->pages[pos / FL_KV_PAGE_TOKENS]);
        for (int32_t j = 0; j < latent_dim; j++)
            latent[(int64_t)i * latent_dim + j] = fl_kv_latent_at(&a->kv, piece, slot, j);
        for (int32_t j = 0; j < rope_dim; j++)
            k_pe[(int64_t)i * rope_dim + j] = fl_act_load(fl_kv_k_pe(&a->kv, piece, slot), dtype, j);
    }
    return FL_ERR_OK;
}
