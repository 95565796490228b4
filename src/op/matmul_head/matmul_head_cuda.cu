/* matmul_head on CUDA: matmul's kernels with a group for each head, all with the same number of rows. */
#include "op/matmul/matmul_cuda.cuh"

extern "C" fl_err fl_matmul_head_cuda(fl_backend *be, const fl_matmul_head_args *a) {
    FL_TRY(fl_matmul_head_validate(a));
    fl_product p = {.x = (const fl_bf16 *)a->x,
                    .y = a->y,
                    .x_stride = a->x_row_stride,
                    .x_group_stride = a->x_head_stride,
                    .y_stride = a->y_row_stride,
                    .y_group_stride = a->y_head_stride,
                    .n_groups = a->n_heads,
                    .rows = a->rows,
                    .out = FL_MATMUL_ACT};
    return fl_product_run(fl_cuda_of(be), &p, a->w);
}
