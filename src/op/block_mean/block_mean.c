#include "op/block_mean/block_mean.h"

#include "op/kv_format.h"
#include "op/validate.h"

fl_err fl_block_mean_validate(const fl_block_mean_args *a) {
    const char *op = "block_mean";
    FL_TRY(fl_kv_layer_validate(op, &a->kv));
    FL_TRY(fl_block_tokens_validate(op, a->block_tokens));
    int32_t n_max = INT32_MAX / a->block_tokens;
    FL_TRY(fl_need_range(op, "n_blocks", a->n_blocks, 1, n_max));
    return fl_need_range(op, "block", a->block, 0, n_max - a->n_blocks);
}

fl_cost fl_block_mean_cost(const fl_block_mean_args *a) {
    double width = (double)a->kv.latent_dim + a->kv.rope_dim, n = a->n_blocks, tokens = n * a->block_tokens;
    return (fl_cost){.flops = tokens * width,
                     .bytes = tokens * fl_kv_token_bytes(&a->kv) + n * width * FL_COST_ACT_BYTES};
}
