/* embed, portable: rows are copied or widened, bound by memory traffic. */
#include <string.h>

#include "backend/backend.h"
#include "base/half.h"
#include "op/span.h"

enum { ROWS_PER_TASK = 64 };

static void widen_row(float *x, const uint8_t *from, fl_dtype dtype, int32_t dim) {
    if (dtype == FL_DTYPE_F32) {
        memcpy(x, from, (size_t)dim * sizeof *x);
        return;
    }
    for (int32_t i = 0; i < dim; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * (size_t)i, sizeof half); /* the file gives no alignment */
        x[i] = dtype == FL_DTYPE_BF16 ? fl_f32_of_bf16(half) : fl_f32_of_f16(half);
    }
}

static void embed_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const fl_embed_args *a = context;
    int64_t row_bytes = a->dim * (int64_t)fl_dtype_bytes(a->table_dtype);
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, a->rows);
    for (int32_t r = rows.first; r < rows.end; r++)
        widen_row(a->x + (int64_t)r * a->dim, (const uint8_t *)a->table + a->ids[r] * row_bytes,
                  a->table_dtype, a->dim);
}

fl_err fl_embed_cpu(fl_backend *be, const fl_embed_args *a) {
    FL_TRY(fl_embed_validate(a));
    FL_TRY(fl_embed_validate_ids(a));
    fl_embed_args copy = *a;
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), embed_rows, &copy);
    return FL_ERR_OK;
}
