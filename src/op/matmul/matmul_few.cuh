/* What the kernels of few rows share (matmul_few.cu has the picture): which group a block takes, and the sums of its
 * warps. */
#ifndef FL_OP_MATMUL_MATMUL_FEW_CUH
#define FL_OP_MATMUL_MATMUL_FEW_CUH

#include "op/cuda/mma.cuh"
#include "op/matmul/matmul_cuda.cuh"

enum {
    WARPS = 8,
    TILE_FEATURES = 16,
    TILE_ROWS = 8,   /* of x */
    GROUPS_READ = 8, /* times 32 groups whose rows are read at once */
    ROWS_MAX = 64    /* of all groups */
};

/* Rows of a group. */
typedef struct group_rows {
    int32_t group, row, end;
} group_rows;

template <class PRODUCT> FL_DEVICE int32_t row_of(const PRODUCT &p, int32_t g) {
    return min(max(p.group_rows[g], 0), p.rows);
}

/* Entry g of group_rows is right beside the one before. */
template <class PRODUCT> FL_DEVICE void check_group(const PRODUCT &p, int32_t g) {
    int32_t row = p.group_rows[g], before = g > 0 ? p.group_rows[g - 1] : 0;
    bool first = p.all_groups && g == 0, last = p.all_groups && g == p.n_groups;
    if (row < before || row > p.rows || (first && row != 0) || (last && row != p.rows))
        atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_GROUP_ROWS);
}

/* The group with rows that has `index` such groups before it, by a whole warp; false: there are no more. */
template <class PRODUCT> FL_DEVICE bool find_group(const PRODUCT &p, int32_t index, group_rows *out) {
    int32_t lane = threadIdx.x % 32;
    for (int32_t base = 0; base < p.n_groups; base += 32 * GROUPS_READ) {
        int32_t row[GROUPS_READ], end[GROUPS_READ];
#pragma unroll
        for (int i = 0; i < GROUPS_READ; i++) {
            int32_t g = base + 32 * i + lane;
            row[i] = g < p.n_groups ? row_of(p, g) : 0;
            end[i] = g < p.n_groups ? row_of(p, g + 1) : 0;
        }
#pragma unroll
        for (int i = 0; i < GROUPS_READ; i++) {
            uint32_t full = __ballot_sync(~0u, end[i] > row[i]);
            int32_t count = __popc(full);
            if (index < count) {
                int32_t which = (int32_t)__fns(full, 0, index + 1);
                out->group = base + 32 * i + which;
                out->row = __shfl_sync(~0u, row[i], which);
                out->end = __shfl_sync(~0u, end[i], which);
                return true;
            }
            index -= count;
        }
    }
    return false;
}

/* Shares of the warps: [warp][tile][row of x][feature]. */
template <int TILES> using shares = float[WARPS][TILES][TILE_ROWS][TILE_FEATURES];

template <int TILES> FL_DEVICE void put_share(shares<TILES> &s, const float (&d)[TILES][4]) {
    int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[threadIdx.x / 32][tile][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = d[tile][i];
}

template <int TILES>
FL_DEVICE float sum_shares(const shares<TILES> &s, int32_t tile, int32_t row, int32_t feature) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += s[warp][tile][row][feature];
    return sum;
}

#endif
