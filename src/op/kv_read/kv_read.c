#include "op/kv_read/kv_read.h"

#include "op/kv_format.h"
#include "op/validate.h"

fl_err fl_kv_read_validate(const fl_kv_read_args *a) {
    const char *op = "kv_read";
    FL_TRY(fl_kv_layer_validate(op, &a->kv));
    FL_TRY(fl_need_count(op, "n", a->n));
    FL_TRY(fl_need_range(op, "step", a->step, 0, INT32_MAX / a->n));
    return fl_need_range(op, "pos", a->pos, 0, INT32_MAX - a->n * fl_kv_read_step(a));
}

fl_cost fl_kv_read_cost(const fl_kv_read_args *a) {
    double width = (double)a->kv.latent_dim + a->kv.rope_dim;
    return (fl_cost){.flops = 0, .bytes = a->n * (width * FL_COST_ACT_BYTES + fl_kv_token_bytes(&a->kv))};
}
