/* matmul with block scales on CUDA: codes, given or made by a kernel of their own, are multiplied by another.
 *   matmul_fp8.cu        quantising, and the launches
 *   matmul_fp8_wgmma.cu  tensor cores, for groups and for dense products
 *   matmul_fp8_few.cu    up to eight rows without groups, where bits may depend on the batch
 * cuBLASLt's products with block scales were faster by 3% at most at the shapes that were measured, 64 to 65,536 rows,
 * and slower at others. */
#ifndef FL_OP_MATMUL_MATMUL_FP8_CUH
#define FL_OP_MATMUL_MATMUL_FP8_CUH

#include "op/matmul/matmul_cuda.cuh"

/* u = x W_g^T of quantised rows, and the epilogue. The groups' weights and scales lie at one distance. */
typedef struct fl_fp8_product {
    fl_codes x;
    const uint8_t *w; /* [n_groups], w_group_stride apart: [n][k] */
    const float
        *w_scale; /* [n_groups], w_scale_group_stride apart: [ceil(n / 128)], fl_scale_stride(k) apart */
    int64_t w_group_stride, w_scale_group_stride;
    void *y;
    int64_t y_stride;
    fl_codes y_codes;          /* FL_MATMUL_SWIGLU_CODES */
    fl_matmul_rope rope;       /* FL_MATMUL_ROPE */
    const int32_t *group_rows; /* device, [n_groups + 1]; NULL = one group with all rows */
    int32_t n_groups, rows, n, k;
    fl_matmul_out out;
    bool all_groups; /* group_rows begins at 0 and ends at rows */
} fl_fp8_product;

/* The matmul op for weights with block scales. */
fl_err fl_matmul_fp8(fl_cuda *cuda, const fl_matmul_args *a);

/* SwiGLU: n / 2 in multiples of 64, as codes of 128. */
fl_err fl_fp8_product_wgmma(fl_cuda *cuda, const fl_fp8_product *p);

bool fl_fp8_product_few_takes(const fl_cuda *cuda, const fl_fp8_product *p);
fl_err fl_fp8_product_few(fl_cuda *cuda, const fl_fp8_product *p);

#endif
