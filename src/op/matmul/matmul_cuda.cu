/* matmul on CUDA: which kernel takes a call. */
#include "op/matmul/matmul_cuda.cuh"
#include "op/matmul/matmul_fp8.cuh"

/* End of the run of groups from `begin` whose matrices lie at one distance, and that distance in elements. */
static int32_t run_end(const fl_weight *w, int32_t begin, int32_t n_groups, int64_t *stride) {
    int32_t end = begin + 1;
    *stride = (int64_t)w[begin].n * w[begin].k;
    if (end == n_groups) return end;
    int64_t bytes = (const uint8_t *)w[end].data - (const uint8_t *)w[begin].data;
    if (bytes < *stride * (int64_t)sizeof(fl_bf16) || bytes % (int64_t)sizeof(fl_bf16) != 0) return end;
    *stride = bytes / (int64_t)sizeof(fl_bf16);
    while (end < n_groups && end - begin < FL_PRODUCT_GROUPS_MAX &&
           (const uint8_t *)w[end].data - (const uint8_t *)w[end - 1].data == bytes)
        end++;
    return end;
}

static fl_err run_groups(fl_cuda *cuda, const fl_product *p) {
    if (fl_product_few_takes(cuda, p)) return fl_product_few(cuda, p);
    if (fl_product_blas_takes(cuda, p)) {
        bool done = false;
        FL_TRY(fl_product_blas(cuda, p, &done));
        if (done) return FL_ERR_OK;
    }
    return fl_product_wgmma_takes(p) ? fl_product_wgmma(cuda, p) : fl_product_plain(cuda, p);
}

fl_err fl_product_run(fl_cuda *cuda, const fl_product *all, const fl_weight *w) {
    for (int32_t begin = 0, end; begin < all->n_groups; begin = end) {
        fl_product p = *all;
        end = run_end(w, begin, all->n_groups, &p.w_group_stride);
        p.n_groups = end - begin;
        p.all_groups = p.n_groups == all->n_groups;
        p.fault = cuda->fault;
        p.n = w[begin].n;
        p.k = w[begin].k;
        p.w = (const fl_bf16 *)w[begin].data;
        if (all->group_rows) {
            p.group_rows += begin;
        } else {
            p.x += begin * p.x_group_stride;
            int64_t y_bytes = p.out == FL_MATMUL_F32 ? sizeof(float) : sizeof(fl_bf16);
            p.y = (uint8_t *)p.y + begin * p.y_group_stride * y_bytes;
        }
        FL_TRY(run_groups(cuda, &p));
    }
    return FL_ERR_OK;
}

extern "C" fl_err fl_matmul_cuda(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    if (!be->w8a8) FL_TRY(fl_matmul_need_plain(be, a));
    if (!a->group_rows && a->n_groups != 1) return fl_matmul_validate_groups(a);
    if (a->w[0].scale) return fl_matmul_fp8(fl_cuda_of(be), a);
    fl_product p = {.x = (const fl_bf16 *)a->x,
                    .y = a->y,
                    .x_stride = a->x_stride,
                    .y_stride = a->y_stride,
                    .group_rows = a->group_rows,
                    .n_groups = a->n_groups,
                    .rows = a->rows,
                    .out = a->out,
                    .rope = a->rope};
    return fl_product_run(fl_cuda_of(be), &p, a->w);
}
