/* matmul_head, AVX2: tasks of (head, row block) through matmul_block_avx2.c. */
#include <string.h>

#include "backend/backend.h"
#include "op/matmul/matmul_block_avx2.h"
#include "op/span.h"

enum { STAGE_ROWS = 96 };

typedef struct job {
    const fl_matmul_head_args *a;
    int32_t block_rows, n_blocks;
} job;

static void run_head(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_matmul_head_args *a = j->a;
    int32_t head = task / j->n_blocks, n = a->w[head].n, k = a->w[head].k;
    fl_span rows = fl_span_of_task(task % j->n_blocks, j->block_rows, a->rows);
    float *y = (float *)a->y + rows.first * a->y_row_stride + head * a->y_head_stride;
    fl_matmul_block_avx2 block = {
        .x = (const float *)a->x + rows.first * a->x_row_stride + head * a->x_head_stride,
        .x_stride = a->x_row_stride,
        .n_rows = rows.end - rows.first,
        .k = k,
        .panels = a->w[head].data,
        .n_panels = n / FL_PANEL_AVX2,
        .out = y,
        .out_stride = a->y_row_stride,
    };
    fl_matmul_block_run_avx2(&block);
    int32_t column = block.n_panels * FL_PANEL_AVX2;
    if (column == n) return;
    float stage[STAGE_ROWS][FL_PANEL_AVX2];
    block.panels += (int64_t)column * k;
    block.n_panels = 1;
    block.out = stage[0];
    block.out_stride = FL_PANEL_AVX2;
    fl_matmul_block_run_avx2(&block);
    for (int32_t r = 0; r < block.n_rows; r++)
        memcpy(y + r * a->y_row_stride + column, stage[r], (size_t)(n - column) * sizeof **stage);
}

fl_err fl_matmul_head_avx2(fl_backend *be, const fl_matmul_head_args *a) {
    FL_TRY(fl_matmul_head_validate(a));
    job j = {.a = a, .block_rows = fl_matmul_block_rows_avx2(a->w[0].k)};
    j.n_blocks = fl_span_tasks(a->rows, j.block_rows);
    fl_pool_run(be->pool, a->n_heads * j.n_blocks, run_head, &j);
    return FL_ERR_OK;
}
