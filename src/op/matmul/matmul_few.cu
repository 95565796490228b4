/* matmul on CUDA for up to eight rows, or up to eight of each of a few groups: what answers ask for, one token each.
 * Grid: a block for each 16 features of y, for SwiGLU the 16 gates and their ups, of each group that has rows. Block:
 * eight warps that go through k side by side, 32 inputs at a time; their sums are added in order at the end. Bound by
 * reading the weights, once: a warp asks for up to 8 KiB of them before it multiplies, and nothing passes shared
 * memory. Weights are the rows of the product, so that eight rows of x cost what one does. A lane's 16 bytes of a row
 * are eight neighbouring inputs, where mma wants pairs eight apart: x is read in the same way, and a sum over k may go
 * in any order.
 *
 * A row's sums do not depend on the rows beside it, but differ from those of the other kernels: deterministic backends
 * go without this one. */
#include "op/matmul/matmul_few.cuh"

enum {
    STEP_K = 32,
    LANE_K = 8,      /* inputs of a lane in a step */
    GROUPS_READ = 8, /* times 32 groups whose rows are read at once */
    ROWS_MAX = 64    /* of all groups */
};

/* Rows of a group. */
typedef struct group_rows {
    int32_t group, row, end;
} group_rows;

/* The group with rows that has `index` such groups before it, by a whole warp; false: there are no more. */
template <class PRODUCT> FL_DEVICE bool find_group(const PRODUCT &p, int32_t index, group_rows *out) {
    int32_t lane = threadIdx.x % 32;
    for (int32_t base = 0; base < p.n_groups; base += 32 * GROUPS_READ) {
        int32_t row[GROUPS_READ], end[GROUPS_READ];
#pragma unroll
        for (int i = 0; i < GROUPS_READ; i++) {
            int32_t g = base + 32 * i + lane;
            row[i] = g < p.n_groups ? fl_product_group_row(&p, g) : 0;
            end[i] = g < p.n_groups ? fl_product_group_row(&p, g + 1) : 0;
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

/* This lane's weights: rows g and g + 8 of each tile, g = lane / 4, from its first input on. Features behind the last
 * one read as the last. */
template <int TILES> struct lane_weights { const fl_bf16 *row[TILES][2]; };

template <int TILES>
FL_DEVICE lane_weights<TILES> find_weights(const fl_product &p, int32_t group, int32_t feature) {
    int32_t lane = threadIdx.x % 32, width = fl_product_width(&p);
    const fl_bf16 *w = p.w + group * p.w_group_stride + lane % 4 * LANE_K;
    lane_weights<TILES> all;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t at = tile * width + min(feature + lane / 4 + 8 * i, width - 1);
            all.row[tile][i] = w + (int64_t)at * p.k;
        }
    return all;
}

/* The products of 32 inputs. */
FL_DEVICE void multiply_step(float (&d)[4], const uint4 (&w)[2], const uint4 &x) {
    const uint32_t first[4] = {w[0].x, w[1].x, w[0].y, w[1].y}, second[4] = {w[0].z, w[1].z, w[0].w, w[1].w};
    fl_mma_bf16(d, first, x.x, x.y);
    fl_mma_bf16(d, second, x.z, x.w);
}

/* d = this warp's share of W x^T. x: this lane's row from its first input on, NULL: there is none. */
template <int TILES, int STEPS>
FL_DEVICE void multiply(const fl_product &p, const lane_weights<TILES> &w, const fl_bf16 *x,
                        float (&d)[TILES][4]) {
    int32_t left = p.k - (int32_t)threadIdx.x % 4 * LANE_K; /* inputs from this lane's first on */
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (int32_t from = (int32_t)threadIdx.x / 32 * STEP_K; from < p.k; from += STEPS * WARPS * STEP_K) {
        uint4 weights[STEPS][TILES][2], inputs[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int32_t at = from + i * WARPS * STEP_K;
            bool inside = at < left;
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    weights[i][tile][half] = inside ? __ldcs((const uint4 *)(w.row[tile][half] + at)) : none;
            inputs[i] = inside && x ? __ldg((const uint4 *)(x + at)) : none;
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) multiply_step(d[tile], weights[i][tile], inputs[i]);
    }
}

/* Rows rows.row .. of at most TILE_ROWS, a feature of a row each thread. */
template <int TILES>
FL_DEVICE void store(const fl_product &p, const shares<TILES> &s, const group_rows &rows, int32_t feature) {
    int32_t i = (int32_t)threadIdx.x % TILE_FEATURES, row = (int32_t)threadIdx.x / TILE_FEATURES;
    if (row >= TILE_ROWS || rows.row + row >= rows.end || feature + i >= fl_product_width(&p)) return;
    int64_t at = (rows.row + row) * p.y_stride + feature + i;
    float value = feature_of<TILES>(s, row, i);
    if (p.out == FL_MATMUL_F32) ((float *)p.y)[at] = value;
    else ((fl_bf16 *)p.y)[at] = __float2bfloat16(value);
}

/* TILES: one, or the gates and the ups. STEPS: loads under way. */
template <int TILES, int STEPS>
static __global__ void __launch_bounds__(WARPS * 32, 2) product_few_kernel(const fl_product p) {
    __shared__ shares<TILES> s;
    int32_t lane = threadIdx.x % 32, feature = (int32_t)blockIdx.x * TILE_FEATURES;
    group_rows rows = {0, 0, p.rows};
    if (p.group_rows) {
        if (blockIdx.x == 0 && blockIdx.y == 0)
            for (int32_t g = threadIdx.x; g <= p.n_groups; g += WARPS * 32) fl_product_check_group(&p, g);
        if (!find_group(p, (int32_t)blockIdx.y, &rows)) return;
    }
    const lane_weights<TILES> w = find_weights<TILES>(p, rows.group, feature);
    for (; rows.row < rows.end; rows.row += TILE_ROWS) {
        float d[TILES][4] = {};
        int64_t row = rows.row + lane / 4;
        multiply<TILES, STEPS>(p, w, row < rows.end ? p.x + row * p.x_stride + lane % 4 * LANE_K : NULL, d);
        put_share<TILES>(s, d);
        __syncthreads();
        store<TILES>(p, s, rows, feature);
        __syncthreads();
    }
}

bool fl_product_few_takes(const fl_cuda *cuda, const fl_product *p) {
    bool few = p->group_rows ? p->rows <= ROWS_MAX : p->n_groups == 1 && p->rows <= TILE_ROWS;
    return !cuda->base.deterministic && few && p->rows > 0 && p->out != FL_MATMUL_ROPE &&
           fl_product_wgmma_takes(p);
}

fl_err fl_product_few(fl_cuda *cuda, const fl_product *p) {
    int32_t groups = !p->group_rows ? 1 : p->rows < p->n_groups ? p->rows : p->n_groups;
    dim3 grid((unsigned)fl_tasks_of(fl_product_width(p), TILE_FEATURES), (unsigned)groups);
    if (p->out == FL_MATMUL_SWIGLU) product_few_kernel<2, 4><<<grid, WARPS * 32, 0, cuda->stream>>>(*p);
    else product_few_kernel<1, 8><<<grid, WARPS * 32, 0, cuda->stream>>>(*p);
    return FL_CUDA_LAUNCHED("matmul of few rows");
}
