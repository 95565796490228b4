#include "op/block_mean/block_mean.h"

#include "op/act.h"
#include "op/kv_format.h"
#include "op/ref.h"

/* Mean of `width` columns over a block; `first` is where they begin in a page, in elements. */
static void mean_of(const fl_block_mean_args *a, int32_t block, int32_t first, int32_t width, float *out) {
    for (int32_t j = 0; j < width; j++) {
        double sum = 0;
        for (int32_t i = 0; i < a->block_tokens; i++) {
            int32_t pos = block * a->block_tokens + i, slot = pos % FL_KV_PAGE_TOKENS;
            const uint8_t *piece = fl_kv_piece(&a->kv, a->pages[pos / FL_KV_PAGE_TOKENS]);
            sum += (double)fl_act_load(piece, fl_kv_format_dtype(a->kv.format), first + slot * width + j);
        }
        out[j] = (float)(sum / a->block_tokens);
    }
}

fl_err fl_block_mean_ref(fl_backend *be, const fl_block_mean_args *a) {
    (void)be;
    FL_TRY(fl_block_mean_validate(a));
    int32_t latent_dim = a->kv.latent_dim, rope_dim = a->kv.rope_dim;
    for (int32_t b = 0; b < a->n_blocks; b++) {
        mean_of(a, a->block + b, 0, latent_dim, (float *)a->latent + (int64_t)b * latent_dim);
        mean_of(a, a->block + b, FL_KV_PAGE_TOKENS * latent_dim, rope_dim,
                (float *)a->k_pe + (int64_t)b * rope_dim);
    }
    return FL_ERR_OK;
}
