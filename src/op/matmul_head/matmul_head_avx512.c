/* matmul_head, AVX-512 BF16. Tasks are (head, tile of 64 rows). The heads' rows are not dense, which oneDNN does not
 * take, so they go one by one: the rows are few, and a head's weights stay in L1. */
#include "backend/backend.h"
#include "backend/op_tables.h"
#include "op/matmul/gemm.h"

typedef struct job {
    const fl_matmul_head_args *a;
    const fl_gemm_set *set;
    int32_t tiles;
} job;

static void run_head(void *context, int32_t task, int32_t worker) {
    const job *j = context;
    const fl_matmul_head_args *a = j->a;
    int32_t head = task / j->tiles, row = task % j->tiles * FL_GEMM_ROWS;
    int32_t rows = a->rows - row < FL_GEMM_ROWS ? a->rows - row : FL_GEMM_ROWS;
    const uint16_t *x = (const uint16_t *)a->x + row * a->x_row_stride + head * a->x_head_stride;
    uint16_t *y = (uint16_t *)a->y + row * a->y_row_stride + head * a->y_head_stride;
    for (int32_t r = 0; r < rows; r++, x += a->x_row_stride, y += a->y_row_stride)
        fl_gemm_run(j->set, worker, 1, x, a->w[head].data, y);
}

fl_err fl_matmul_head_avx512(fl_backend *be, const fl_matmul_head_args *a) {
    FL_TRY(fl_matmul_head_validate(a));
    if (a->rows == 0) return FL_ERR_OK;
    if (a->w->k % 32 != 0 || a->w->n % 64 != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "matmul_head: k %d must be a multiple of 32 and n %d of 64 on avx512", a->w->k,
                       a->w->n);
    job j = {.a = a, .tiles = (a->rows + FL_GEMM_ROWS - 1) / FL_GEMM_ROWS};
    const fl_gemm_shape shape = {.n = a->w->n, .k = a->w->k, .y_bf16 = true};
    FL_TRY(fl_gemm_get(be->state, &shape, &j.set));
    fl_pool_run(be->pool, a->n_heads * j.tiles, run_head, &j);
    return FL_ERR_OK;
}
