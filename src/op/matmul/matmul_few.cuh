/* What the kernels of few rows share (matmul_few.cu has the picture): the sums of a block's warps. */
#ifndef FL_OP_MATMUL_MATMUL_FEW_CUH
#define FL_OP_MATMUL_MATMUL_FEW_CUH

#include "op/cuda/mma.cuh"
#include "op/matmul/matmul_cuda.cuh"

enum {
    WARPS = 8,
    TILE_FEATURES = 16,
    TILE_ROWS = 8 /* of x */
};

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

/* A feature of y: of two tiles SwiGLU's. */
template <int TILES> FL_DEVICE float feature_of(const shares<TILES> &s, int32_t row, int32_t feature) {
    float value = sum_shares<TILES>(s, 0, row, feature);
    return TILES == 2 ? fl_swiglu(value, sum_shares<TILES>(s, TILES - 1, row, feature)) : value;
}

#endif
