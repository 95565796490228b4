#include "op/kv_write/kv_write.h"

#include "op/kv_format.h"
#include "op/validate.h"

fl_err fl_kv_write_validate(const fl_kv_write_args *a) {
    const char *op = "kv_write";
    FL_TRY(fl_kv_layer_validate(op, &a->kv));
    FL_TRY(fl_need_stride(op, "latent_stride", a->latent_stride, a->kv.latent_dim));
    FL_TRY(fl_need_multiple(op, "kv.rope_dim", a->kv.rope_dim, 2));
    FL_TRY(fl_need_stride(op, "k_pe_stride", a->k_pe_stride, a->kv.rope_dim));
    return fl_kv_rows_validate(op, a->seqs, a->n_seqs, INT32_MAX);
}

fl_cost fl_kv_write_cost(const fl_kv_write_args *a) {
    double rows = 0, latent = a->kv.latent_dim, rope = a->kv.rope_dim;
    for (int32_t i = 0; i < a->n_seqs; i++) rows += a->seqs[i].n_rows;
    return (fl_cost){
        .flops = 3 * rows * rope,
        .bytes = rows * (latent * FL_COST_ACT_BYTES + 2 * rope * sizeof(float) + fl_kv_token_bytes(&a->kv))};
}
