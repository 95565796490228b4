#include "op/attn_merge/attn_merge.h"

#include <math.h>

#include "op/ref.h"

static void merge_line(const fl_attn_merge_args *a, int64_t line) {
    double maximum = -INFINITY, sum = 0, weights[FL_ATTN_MERGE_PARTS_MAX];
    for (int32_t i = 0; i < a->n_parts; i++) maximum = fmax(maximum, (double)a->part_lse[i][line]);
    bool saw = maximum > -INFINITY;
    for (int32_t i = 0; i < a->n_parts; i++)
        sum += weights[i] = saw ? exp2((double)a->part_lse[i][line] - maximum) : 0;
    for (int32_t j = 0; j < a->dim; j++) {
        int64_t at = line * a->dim + j;
        double out = 0;
        for (int32_t i = 0; i < a->n_parts; i++)
            if (weights[i] > 0) out += weights[i] * (double)((const float *)a->part[i])[at];
        ((float *)a->out)[at] = (float)(saw ? out / sum : 0);
    }
    if (a->lse) a->lse[line] = (float)(maximum + log2(sum));
}

fl_err fl_attn_merge_ref(fl_backend *be, const fl_attn_merge_args *a) {
    (void)be;
    FL_TRY(fl_attn_merge_validate(a));
    for (int64_t line = 0; line < (int64_t)a->rows * a->n_heads; line++) merge_line(a, line);
    return FL_ERR_OK;
}
