#include "op/moe_permute/moe_permute.h"

#include <string.h>

#include "op/ref.h"

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
    for (int32_t i = 0; i < a->rows * a->top_k; i++) {
        const float *x = (const float *)a->x + i / a->top_k * a->x_stride;
        memcpy((float *)a->y + (int64_t)a->place[i] * a->dim, x, (size_t)a->dim * sizeof *x);
    }
    return FL_ERR_OK;
}
