#include "op/block_mean/block_mean.h"

#include "op/act.h"
#include "op/kv_format.h"
#include "op/ref.h"

/* One stored value: of the latent, or behind it of k_pe. */
static double value_of(const fl_block_mean_args *a, int32_t pos, int32_t column) {
    int32_t slot = pos % FL_KV_PAGE_TOKENS;
    const uint8_t *piece = fl_kv_piece(&a->kv, a->pages[pos / FL_KV_PAGE_TOKENS]);
    if (column < a->kv.latent_dim) return (double)fl_kv_latent_at(&a->kv, piece, slot, column);
    return (double)fl_act_load(fl_kv_k_pe(&a->kv, piece, slot), fl_kv_format_dtype(a->kv.format),
                               column - a->kv.latent_dim);
}

/* Mean of `width` columns from `first` on over a block. */
static void mean_of(const fl_block_mean_args *a, int32_t block, int32_t first, int32_t width, float *out) {
    for (int32_t j = 0; j < width; j++) {
        double sum = 0;
        for (int32_t i = 0; i < a->block_tokens; i++)
            sum += value_of(a, block * a->block_tokens + i, first + j);
        out[j] = (float)(sum / a->block_tokens);
    }
}

fl_err fl_block_mean_ref(fl_backend *be, const fl_block_mean_args *a) {
    (void)be;
    FL_TRY(fl_block_mean_validate(a));
    int32_t latent_dim = a->kv.latent_dim, rope_dim = a->kv.rope_dim;
    for (int32_t b = 0; b < a->n_blocks; b++) {
        mean_of(a, a->block + b, 0, latent_dim, (float *)a->latent + (int64_t)b * latent_dim);
        mean_of(a, a->block + b, latent_dim, rope_dim, (float *)a->k_pe + (int64_t)b * rope_dim);
    }
    return FL_ERR_OK;
}
