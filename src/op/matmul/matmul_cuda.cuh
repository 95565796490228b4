/* What matmul and matmul_head share on CUDA: one description of a product, and the kernels that take it.
 *   matmul_wgmma.cu  tensor cores; k and the strides of x in multiples of 8, bases 16-byte aligned
 *   matmul_plain.cu  any shape, slowly
 *   matmul_blas.cu   cuBLASLt, for large dense products where bits may depend on the batch
 *   matmul_few.cu    up to eight rows of a group, where they may too
 * Which of the first two runs depends on k, strides and alignment alone, never on rows, so a row's bits do not depend
 * on its batch. */
#ifndef FL_OP_MATMUL_MATMUL_CUDA_CUH
#define FL_OP_MATMUL_MATMUL_CUDA_CUH

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

/* y = x W_g^T for groups of rows. With group_rows, group g has rows group_rows[g] .. group_rows[g + 1] - 1 of x and
 * y; without, every group has `rows` rows of its own, x_group_stride and y_group_stride further on. Strides in
 * elements. */
typedef struct fl_product {
    const fl_bf16 *x;
    const fl_bf16 *w; /* [n_groups], w_group_stride apart: [n][k] */
    void *y;          /* f32 or bf16, by `out` */
    int64_t x_stride, x_group_stride, w_group_stride, y_stride, y_group_stride;
    const int32_t *group_rows; /* device, or NULL */
    int32_t *fault; /* device: told of wrong group_rows, which are read inside 0 .. rows whatever they say */
    int32_t n_groups, rows, n, k;
    fl_matmul_out out;
    fl_matmul_rope rope; /* FL_MATMUL_ROPE, with group_rows or one group */
    bool all_groups;     /* group_rows begins at 0 and ends at rows */
} fl_product;

/* Most groups of one call of the tensor core kernel: their tiles are counted in shared memory. */
enum { FL_PRODUCT_GROUPS_MAX = 1024 };

bool fl_product_wgmma_takes(const fl_product *p);
fl_err fl_product_wgmma(fl_cuda *cuda, const fl_product *p);
fl_err fl_product_plain(fl_cuda *cuda, const fl_product *p);

bool fl_product_few_takes(const fl_cuda *cuda, const fl_product *p);
fl_err fl_product_few(fl_cuda *cuda, const fl_product *p);

/* `done` false, and nothing launched: the library has no kernel for this. */
bool fl_product_blas_takes(const fl_cuda *cuda, const fl_product *p);
fl_err fl_product_blas(fl_cuda *cuda, const fl_product *p, bool *done);

/* The product with the weights w[0 .. p->n_groups - 1]: a launch for each run of groups whose matrices lie at one
 * distance, which is one launch for any model's. Sets w, w_group_stride, n, k, all_groups and fault itself. */
fl_err fl_product_run(fl_cuda *cuda, const fl_product *p, const fl_weight *w);

/* Tiles down the rows of groups of unknown sizes, as many as one expects: half a tile is left over in each. */
static inline double fl_product_row_tiles(int32_t rows, int32_t n_groups, int32_t tile_rows) {
    int32_t groups = rows < n_groups ? rows : n_groups;
    if (groups == 1) return (double)fl_tasks_of(rows, tile_rows);
    double tiles = (double)rows / tile_rows + 0.5 * groups;
    return tiles > groups ? tiles : groups;
}

/* Attributes of a launch in clusters, whose blocks may come before the kernel in front of it ends; they wait with
 * fl_grid_wait. */
enum { FL_EARLY_ATTRIBUTES = 2 };
typedef struct fl_early_launch {
    cudaLaunchAttribute list[FL_EARLY_ATTRIBUTES];
} fl_early_launch;

static inline fl_early_launch fl_early_clusters(int32_t blocks) {
    fl_early_launch early = {};
    early.list[0].id = cudaLaunchAttributeClusterDimension;
    early.list[0].val.clusterDim.x = (uint32_t)blocks;
    early.list[0].val.clusterDim.y = early.list[0].val.clusterDim.z = 1;
    early.list[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.list[1].val.programmaticStreamSerializationAllowed = 1;
    return early;
}

/* Features of a row of y. */
static __host__ __device__ inline int32_t fl_product_width(const fl_product *p) {
    return p->out == FL_MATMUL_SWIGLU ? p->n / 2 : p->n;
}

/* Row where group g begins; the last group ends where group n_groups would begin. */
FL_DEVICE int32_t fl_product_group_row(const fl_product *p, int32_t g) {
    return min(max(p->group_rows[g], 0), p->rows);
}

/* Entry g of group_rows, 0 .. n_groups, is right beside the one before. */
FL_DEVICE void fl_product_check_group(const fl_product *p, int32_t g) {
    int32_t row = p->group_rows[g], before = g > 0 ? p->group_rows[g - 1] : 0;
    bool first = p->all_groups && g == 0, last = p->all_groups && g == p->n_groups;
    if (row < before || row > p->rows || (first && row != 0) || (last && row != p->rows))
        atomicCAS(p->fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_GROUP_ROWS);
}

FL_DEVICE float fl_swiglu(float gate, float up) {
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

#endif
