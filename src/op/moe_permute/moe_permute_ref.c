#include "op/moe_permute/moe_permute.h"

#include <string.h>

#include "op/ref.h"

static void gather(const fl_moe_permute_args *a, int32_t pair) {
    int64_t from = pair / a->top_k, to = a->place[pair];
    if (!a->x_codes.codes) {
        const float *x = (const float *)a->x + from * a->x_stride;
        memcpy((float *)a->y + to * a->dim, x, (size_t)a->dim * sizeof *x);
        return;
    }
    memcpy(a->y_codes.codes + to * a->dim, a->x_codes.codes + from * a->dim, (size_t)a->dim);
    for (int32_t b = 0; b < a->dim / FL_SCALE_BLOCK; b++)
        a->y_codes.scale[b * a->y_codes.scale_stride + to] =
            a->x_codes.scale[b * a->x_codes.scale_stride + from];
}

fl_err fl_moe_permute_ref(fl_backend *be, const fl_moe_permute_args *a) {
    (void)be;
    FL_TRY(fl_moe_permute_validate(a));
    FL_TRY(fl_moe_permute_validate_ids(a));
    int32_t next = 0;
    for (int32_t e = 0; e < a->n_experts; e++) {
        a->group_rows[e] = next;
        for (int32_t i = 0; i < a->rows * a->top_k; i++)
            if (a->ids[i] == e) a->place[i] = next++;
    }
    a->group_rows[a->n_experts] = next;
    for (int32_t i = 0; i < a->rows * a->top_k; i++) gather(a, i);
    return FL_ERR_OK;
}
