/* Products of e4m3 codes with block scales for up to eight rows without groups: as matmul_few.cu, with blocks of 128
 * inputs, one of the scales, in place of its steps. Codes become f16, which holds them exactly; a block's products are
 * summed in f32 and added times both scales. SwiGLU as codes: eight blocks, a cluster, have the 128 features of one
 * scale, and tell each other the largest of every row. Experts' rows go by the tiles of matmul_fp8_wgmma.cu. */
#include "op/cuda/codes.cuh"
#include "op/matmul/matmul_few.cuh"
#include "op/matmul/matmul_fp8.cuh"

enum {
    LANE_K = 16, /* inputs of a lane in 64 */
    HALF_K = FL_SCALE_BLOCK / 2,
    CLUSTER = FL_SCALE_BLOCK / TILE_FEATURES
};

/* A lane's 16 codes of a row in each half of a block. */
typedef struct lane_codes {
    uint4 half[2];
} lane_codes;

FL_DEVICE lane_codes read_codes(const uint8_t *row, bool there) {
    lane_codes c = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (there) c.half[i] = __ldcs((const uint4 *)(row + i * HALF_K));
    return c;
}

/* Four codes in order. */
FL_DEVICE void to_f16(uint32_t codes, uint32_t *first, uint32_t *second) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(*first), "=r"(*second)
        : "r"(codes));
}

FL_DEVICE uint32_t word_of(const uint4 &x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* The products of a block of 128 inputs: of weights' rows g and g + 8, and of this lane's row of x. */
FL_DEVICE void multiply_block(float (&d)[4], const lane_codes (&w)[2], const lane_codes &x) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t a[4], b[2];
        to_f16(word_of(w[0].half[i / 4], i % 4), &a[0], &a[2]);
        to_f16(word_of(w[1].half[i / 4], i % 4), &a[1], &a[3]);
        to_f16(word_of(x.half[i / 4], i % 4), &b[0], &b[1]);
        if (i == 0) fl_mma_f16_first(d, a, b[0], b[1]);
        else fl_mma_f16(d, a, b[0], b[1]);
    }
}

/* Where this lane reads: its rows of each tile's weights, the tiles' scales, its row of x (NULL: none) and the scales
 * of the two rows whose sums it holds. */
template <int TILES> struct lane_places {
    const uint8_t *w[TILES][2], *x;
    const float *w_scale[TILES], *x_scale[2];
};

template <int TILES>
FL_DEVICE lane_places<TILES> find_places(const fl_fp8_product &p, int32_t feature, int64_t w_scale_stride) {
    int32_t lane = threadIdx.x % 32, width = p.n / TILES;
    int32_t row = lane / 4, offset = lane % 4 * LANE_K;
    lane_places<TILES> at;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        int32_t first = tile * width + min(feature, width - 1);
        at.w_scale[tile] = p.w_scale + first / FL_SCALE_BLOCK * w_scale_stride;
#pragma unroll
        for (int i = 0; i < 2; i++)
            at.w[tile][i] =
                p.w + (int64_t)(tile * width + min(feature + lane / 4 + 8 * i, width - 1)) * p.k + offset;
    }
    at.x = row < p.rows ? p.x.codes + (int64_t)row * p.k + offset : NULL;
#pragma unroll
    for (int c = 0; c < 2; c++) at.x_scale[c] = p.x.scale + min(lane % 4 * 2 + c, p.rows - 1);
    return at;
}

/* sum = this warp's share of W x^T: every eighth block of 128 inputs, BLOCKS of them under way. */
template <int TILES, int BLOCKS>
FL_DEVICE void multiply(const fl_fp8_product &p, const lane_places<TILES> &at, float (&sum)[TILES][4]) {
    int32_t blocks = p.k / FL_SCALE_BLOCK;
    for (int32_t from = (int32_t)threadIdx.x / 32; from < blocks; from += BLOCKS * WARPS) {
        lane_codes w[BLOCKS][TILES][2], x[BLOCKS];
        float scale[BLOCKS][TILES][2];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            int32_t block = from + i * WARPS;
            bool inside = block < blocks;
            int64_t input = (int64_t)block * FL_SCALE_BLOCK;
            x[i] = read_codes(at.x + input, inside && at.x);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                for (int half = 0; half < 2; half++)
                    w[i][tile][half] = read_codes(at.w[tile][half] + input, inside);
#pragma unroll
                for (int c = 0; c < 2; c++)
                    scale[i][tile][c] =
                        inside ? at.x_scale[c][block * p.x.scale_stride] * at.w_scale[tile][block] : 0;
            }
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                float d[4];
                multiply_block(d, w[i][tile], x[i]);
#pragma unroll
                for (int j = 0; j < 4; j++) sum[tile][j] = fmaf(d[j], scale[i][tile][j % 2], sum[tile][j]);
            }
    }
}

/* A feature of a row each thread, those of a row side by side in 16 lanes; the cluster has the group's features. By
 * all threads, also of rows that are not there; the cluster has arrived at its barrier once before. */
FL_DEVICE void store_codes(const fl_fp8_product &p, float (&largest)[CLUSTER][TILE_ROWS], int32_t row,
                           int32_t feature, float value) {
    uint32_t word = fl_pack_bf16(value, 0), rank = fl_cluster_rank();
    float most = fmaxf(FL_CODES_LEAST, fabsf(fl_low_of_bf16x2(word)));
#pragma unroll
    for (int step = 1; step < TILE_FEATURES; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    int32_t lane = (int32_t)threadIdx.x % TILE_FEATURES;
    fl_cluster_wait();
    if (row < TILE_ROWS && lane < CLUSTER) *fl_cluster_at(&largest[rank][row], lane) = most;
    fl_cluster_sync();
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) most = fmaxf(most, largest[i][row % TILE_ROWS]);
    uint32_t code = fl_codes_of_bf16x4(word, 0, fl_codes_inverse(most)) & 0xff;
    code |= __shfl_down_sync(~0u, code, 1) << 8;
    code |= __shfl_down_sync(~0u, code, 2) << 16;
    if (row >= p.rows) return;
    if (lane % 4 == 0) *(uint32_t *)(p.y_codes.codes + (int64_t)row * (p.n / 2) + feature) = code;
    if (lane == 0 && rank == 0)
        p.y_codes.scale[feature / FL_SCALE_BLOCK * p.y_codes.scale_stride + row] = fl_codes_scale(most);
}

template <fl_matmul_out OUT, int TILES>
FL_DEVICE void store(const fl_fp8_product &p, const shares<TILES> &s, float (&largest)[CLUSTER][TILE_ROWS],
                     int32_t feature) {
    int32_t lane = (int32_t)threadIdx.x % TILE_FEATURES, row = (int32_t)threadIdx.x / TILE_FEATURES;
    float value = feature_of<TILES>(s, row % TILE_ROWS, lane);
    feature += lane;
    if constexpr (OUT == FL_MATMUL_SWIGLU_CODES) {
        store_codes(p, largest, row, feature, value);
    } else if (row < p.rows && feature < p.n / TILES) {
        int64_t at = row * p.y_stride + feature;
        if (OUT == FL_MATMUL_F32) ((float *)p.y)[at] = value;
        else ((fl_bf16 *)p.y)[at] = __float2bfloat16(value);
    }
}

template <fl_matmul_out OUT, int TILES, int BLOCKS>
static __global__ void __launch_bounds__(WARPS * 32, 2)
    product_fp8_few_kernel(const fl_fp8_product p, const int64_t w_scale_stride) {
    __shared__ shares<TILES> s;
    __shared__ float largest[CLUSTER][TILE_ROWS]; /* of each block's features of a row */
    int32_t feature = (int32_t)blockIdx.x * TILE_FEATURES;
    float sum[TILES][4] = {};
    if (OUT == FL_MATMUL_SWIGLU_CODES) fl_cluster_arrive();
    multiply<TILES, BLOCKS>(p, find_places<TILES>(p, feature, w_scale_stride), sum);
    put_share<TILES>(s, sum);
    __syncthreads();
    store<OUT, TILES>(p, s, largest, feature);
}

bool fl_fp8_product_few_takes(const fl_cuda *cuda, const fl_fp8_product *p) {
    bool few = !p->group_rows && p->n_groups == 1 && p->rows > 0 && p->rows <= TILE_ROWS;
    return !cuda->base.deterministic && few && p->out != FL_MATMUL_ROPE;
}

template <fl_matmul_out OUT, int TILES, int BLOCKS>
static fl_err launch(fl_cuda *cuda, const fl_fp8_product *p) {
    cudaLaunchAttribute cluster = {
        .id = cudaLaunchAttributeClusterDimension,
        .val = {.clusterDim = {OUT == FL_MATMUL_SWIGLU_CODES ? CLUSTER : 1u, 1, 1}}};
    cudaLaunchConfig_t config = {.gridDim = dim3((unsigned)fl_tasks_of(p->n / TILES, TILE_FEATURES)),
                                 .blockDim = dim3(WARPS * 32),
                                 .dynamicSmemBytes = 0,
                                 .stream = cuda->stream,
                                 .attrs = &cluster,
                                 .numAttrs = 1};
    FL_CUDA_TRY(cudaLaunchKernelEx(&config, product_fp8_few_kernel<OUT, TILES, BLOCKS>, *p,
                                   (int64_t)fl_scale_stride(p->k)));
    return FL_CUDA_LAUNCHED("matmul of few fp8 rows");
}

fl_err fl_fp8_product_few(fl_cuda *cuda, const fl_fp8_product *p) {
    switch (p->out) {
    case FL_MATMUL_F32: return launch<FL_MATMUL_F32, 1, 2>(cuda, p);
    case FL_MATMUL_ACT: return launch<FL_MATMUL_ACT, 1, 2>(cuda, p);
    case FL_MATMUL_SWIGLU: return launch<FL_MATMUL_SWIGLU, 2, 1>(cuda, p);
    case FL_MATMUL_SWIGLU_CODES: return launch<FL_MATMUL_SWIGLU_CODES, 2, 1>(cuda, p);
    case FL_MATMUL_ROPE: break;
    }
    return FL_FAIL(FL_ERR_INTERNAL, "matmul of few fp8 rows: output %d has no kernel", (int)p->out);
}
