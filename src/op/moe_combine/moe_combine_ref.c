#include "op/moe_combine/moe_combine.h"

#include "op/ref.h"

fl_err fl_moe_combine_ref(fl_backend *be, const fl_moe_combine_args *a) {
    (void)be;
    const float *y = a->y, *shared = a->shared;
    FL_TRY(fl_moe_combine_validate(a));
    FL_TRY(fl_moe_combine_validate_places(a));
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t j = 0; j < a->dim; j++) {
            int64_t at = (int64_t)r * a->dim + j;
            double sum = shared ? (double)shared[at] : 0;
            for (int32_t s = 0; s < a->top_k; s++) {
                int64_t slot = (int64_t)r * a->top_k + s;
                sum += (double)a->weights[slot] * (double)y[(int64_t)a->place[slot] * a->dim + j];
            }
            a->x[at] = (float)((double)a->x[at] + sum);
        }
    return FL_ERR_OK;
}
