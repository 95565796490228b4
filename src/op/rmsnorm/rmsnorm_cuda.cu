/* rmsnorm, CUDA. A warp a row up to 512 dimensions (several rows at a time if they are short, so that enough loads are
 * under way), else a block, of 128 threads up to 2,048 dimensions and of 256 above; bound by memory traffic. A thread
 * takes quads of elements, keeps the first QUADS of them in registers between the sum and the scaling, and reads the
 * rest of a longer row again. QUADS is no larger than dim asks for, which leaves registers for more rows at once. Which
 * thread adds what in which order depends on dim alone: not on rows, not on whether the row's addresses allow 16-byte
 * accesses. The 128 elements that a warp has at once are one group of codes. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/codes.cuh"
#include "op/cuda/rows.cuh"

enum { WARPS = 4, WARP_DIM_MAX = 512, BLOCK_THREADS = 256, SHORT_THREADS = 128, QUADS_MAX = 7 };

typedef struct params {
    float *x;
    const fl_bf16 *delta;
    const float *gamma;
    fl_bf16 *y; /* or NULL */
    fl_codes y_codes;
    int64_t x_stride, y_stride;
    int32_t rows, dim;
    float eps;
} params;

/* Quads of a row: 16 bytes at once, or what the row still has of it, zeros behind. */
template <bool WIDE> FL_DEVICE float4 load4(const float *from, int32_t n) {
    if (WIDE) return *(const float4 *)from;
    return make_float4(from[0], n > 1 ? from[1] : 0.0f, n > 2 ? from[2] : 0.0f, n > 3 ? from[3] : 0.0f);
}

/* The same of what no thread writes, which the compiler may then read early. */
template <bool WIDE> FL_DEVICE float4 load4_constant(const float *from, int32_t n) {
    if (WIDE) return __ldg((const float4 *)from);
    return make_float4(__ldg(from), n > 1 ? __ldg(from + 1) : 0.0f, n > 2 ? __ldg(from + 2) : 0.0f,
                       n > 3 ? __ldg(from + 3) : 0.0f);
}

/* Alike, bf16. */
template <bool WIDE> FL_DEVICE float4 load4_bf16(const fl_bf16 *from, int32_t n) {
    if (WIDE) {
        uint2 v = __ldg((const uint2 *)from);
        return make_float4(fl_low_of_bf16x2(v.x), fl_high_of_bf16x2(v.x), fl_low_of_bf16x2(v.y),
                           fl_high_of_bf16x2(v.y));
    }
    return make_float4(__bfloat162float(from[0]), n > 1 ? __bfloat162float(from[1]) : 0.0f,
                       n > 2 ? __bfloat162float(from[2]) : 0.0f, n > 3 ? __bfloat162float(from[3]) : 0.0f);
}

template <bool WIDE> FL_DEVICE void store4(float *to, float4 v, int32_t n) {
    if (WIDE) {
        *(float4 *)to = v;
        return;
    }
    to[0] = v.x;
    if (n > 1) to[1] = v.y;
    if (n > 2) to[2] = v.z;
    if (n > 3) to[3] = v.w;
}

template <bool WIDE> FL_DEVICE void store4_bf16(fl_bf16 *to, float4 v, int32_t n) {
    if (WIDE) {
        *(uint2 *)to = make_uint2(fl_pack_bf16(v.x, v.y), fl_pack_bf16(v.z, v.w));
        return;
    }
    to[0] = __float2bfloat16_rn(v.x);
    if (n > 1) to[1] = __float2bfloat16_rn(v.y);
    if (n > 2) to[2] = __float2bfloat16_rn(v.z);
    if (n > 3) to[3] = __float2bfloat16_rn(v.w);
}

FL_DEVICE float4 add4(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

FL_DEVICE float add_squares(float sum, float4 v) {
    sum = __fmaf_rn(v.x, v.x, sum);
    sum = __fmaf_rn(v.y, v.y, sum);
    sum = __fmaf_rn(v.z, v.z, sum);
    return __fmaf_rn(v.w, v.w, sum);
}

/* The codes of a warp's elements from `first` on in its first lane. By whole warps. */
FL_DEVICE void put4_codes(const params &p, int64_t row, int32_t first, float4 v) {
    uint32_t words[2] = {fl_pack_bf16(v.x, v.y), fl_pack_bf16(v.z, v.w)};
    float most = FL_CODES_LEAST;
#pragma unroll
    for (int i = 0; i < 2; i++)
        most = fmaxf(most, fmaxf(fabsf(fl_low_of_bf16x2(words[i])), fabsf(fl_high_of_bf16x2(words[i]))));
    most = fl_warp_max_positive(most);
    *(uint32_t *)(p.y_codes.codes + row * p.dim + first) =
        fl_codes_of_bf16x4(words[0], words[1], fl_codes_inverse(most));
    if (threadIdx.x % 32 == 0)
        p.y_codes.scale[first / FL_SCALE_BLOCK * p.y_codes.scale_stride + row] = fl_codes_scale(most);
}

template <bool WIDE> FL_DEVICE void put4(const params &p, int64_t row, int32_t first, float4 v, float scale) {
    int32_t n = p.dim - first;
    v = make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale),
                    __fmul_rn(v.w, scale));
    if (p.gamma) {
        float4 g = load4_constant<WIDE>(p.gamma + first, n);
        v = make_float4(__fmul_rn(v.x, g.x), __fmul_rn(v.y, g.y), __fmul_rn(v.z, g.z), __fmul_rn(v.w, g.w));
    }
    if (p.y) store4_bf16<WIDE>(p.y + row * p.y_stride + first, v, n);
    if (p.y_codes.codes) put4_codes(p, row, first, v);
}

/* The sum over a row's threads: the warp's tree, then warps in index order. */
template <int THREADS> FL_DEVICE float row_sum(float sum) {
    __shared__ float of_warp[THREADS / 32];
    sum = fl_warp_sum(sum);
    if (THREADS == 32) return sum;
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = of_warp[0];
#pragma unroll
    for (int32_t i = 1; i < THREADS / 32; i++) sum = __fadd_rn(sum, of_warp[i]);
    return sum;
}

/* Blocks of a multiprocessor: with QUADS_MAX the compiler would take fewer registers than four of them have, and issue
 * loads later; 0 leaves it to the compiler. */
static constexpr int blocks_wanted(int quads, bool wide) {
    return wide && quads == QUADS_MAX ? 4 : 0;
}

/* blockDim (THREADS, warps or 1). One thread's part of ROWS rows side by side; one row where THREADS is more than a
 * warp. Only with QUADS_MAX may rows be longer than what the threads keep. */
template <int THREADS, int QUADS, int ROWS, bool WIDE>
static __global__ void __launch_bounds__(THREADS == 32 ? 32 * WARPS : THREADS, blocks_wanted(QUADS, WIDE))
    rmsnorm_kernel(const params p) {
    int64_t row = fl_rows_row() * ROWS;
    if (row >= p.rows) return; /* whole warps; whole blocks where a block synchronises */
    int32_t start = (int32_t)threadIdx.x * 4, rest = start + QUADS * THREADS * 4;
    int32_t rows = ROWS == 1 ? 1 : (int32_t)min((int64_t)ROWS, p.rows - row);
    float *x = p.x + row * p.x_stride;
    const fl_bf16 *delta = p.delta ? p.delta + row * p.dim : NULL;
    float4 v[ROWS][QUADS];
#pragma unroll
    for (int32_t i = 0; i < ROWS * QUADS; i++) {
        int32_t r = i / QUADS, k = i % QUADS, first = start + k * THREADS * 4;
        v[r][k] = r < rows && first < p.dim ? load4<WIDE>(x + r * p.x_stride + first, p.dim - first)
                                            : make_float4(0, 0, 0, 0);
    }
    if (delta) {
        float4 d[ROWS][QUADS];
#pragma unroll
        for (int32_t i = 0; i < ROWS * QUADS; i++) {
            int32_t r = i / QUADS, k = i % QUADS, first = start + k * THREADS * 4;
            d[r][k] = r < rows && first < p.dim
                          ? load4_bf16<WIDE>(delta + (int64_t)r * p.dim + first, p.dim - first)
                          : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int32_t i = 0; i < ROWS * QUADS; i++) {
            int32_t r = i / QUADS, k = i % QUADS, first = start + k * THREADS * 4;
            v[r][k] = add4(v[r][k], d[r][k]);
            if (r < rows && first < p.dim) store4<WIDE>(x + r * p.x_stride + first, v[r][k], p.dim - first);
        }
    }
#pragma unroll
    for (int32_t r = 0; r < ROWS; r++) {
        float sum = 0;
#pragma unroll
        for (int32_t k = 0; k < QUADS; k++) sum = add_squares(sum, v[r][k]);
#pragma unroll 1
        for (int32_t first = rest; QUADS == QUADS_MAX && first < p.dim; first += THREADS * 4) {
            float4 more = load4<WIDE>(x + first, p.dim - first);
            if (delta) {
                more = add4(more, load4_bf16<WIDE>(delta + first, p.dim - first));
                store4<WIDE>(x + first, more, p.dim - first);
            }
            sum = add_squares(sum, more);
        }
        float mean = __fdiv_rn(row_sum<THREADS>(sum), (float)p.dim);
        float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
#pragma unroll
        for (int32_t k = 0; k < QUADS; k++) {
            int32_t first = start + k * THREADS * 4;
            if (r < rows && first < p.dim) put4<WIDE>(p, row + r, first, v[r][k], scale);
        }
#pragma unroll 1
        for (int32_t first = rest; QUADS == QUADS_MAX && first < p.dim;
             first += THREADS * 4) /* x holds the sum now */
            put4<WIDE>(p, row, first, load4<WIDE>(x + first, p.dim - first), scale);
    }
}

template <int QUADS, int ROWS, bool WIDE> static void launch_warps(const params &p, cudaStream_t stream) {
    static_assert(QUADS * 128 <= WARP_DIM_MAX, "whole rows in registers");
    rmsnorm_kernel<32, QUADS, ROWS, WIDE>
        <<<(uint32_t)fl_tasks_of(p.rows, WARPS * ROWS), dim3(32, WARPS), 0, stream>>>(p);
}

template <int THREADS, int QUADS, bool WIDE> static void launch_blocks(const params &p, cudaStream_t stream) {
    rmsnorm_kernel<THREADS, QUADS, 1, WIDE><<<(uint32_t)p.rows, THREADS, 0, stream>>>(p);
}

template <bool WIDE> static void launch(const params &p, cudaStream_t stream) {
    if (p.dim <= 128) launch_warps<1, 4, WIDE>(p, stream);
    else if (p.dim <= 256) launch_warps<2, 2, WIDE>(p, stream);
    else if (p.dim <= WARP_DIM_MAX) launch_warps<4, 1, WIDE>(p, stream);
    else if (p.dim <= 1024) launch_blocks<SHORT_THREADS, 2, WIDE>(p, stream);
    else if (p.dim <= 2048) launch_blocks<SHORT_THREADS, 4, WIDE>(p, stream);
    else if (p.dim <= 4096) launch_blocks<BLOCK_THREADS, 4, WIDE>(p, stream);
    else launch_blocks<BLOCK_THREADS, QUADS_MAX, WIDE>(p, stream);
}

extern "C" fl_err fl_rmsnorm_cuda(fl_backend *be, const fl_rmsnorm_args *a) {
    FL_TRY(fl_rmsnorm_validate(a));
    if (!be->w8a8) FL_TRY(fl_codes_refuse(be, "rmsnorm", &a->y_codes));
    params p = {};
    p.x = a->x;
    p.delta = (const fl_bf16 *)a->delta;
    p.gamma = a->gamma;
    p.y = (fl_bf16 *)a->y;
    p.y_codes = a->y_codes;
    p.x_stride = a->x_stride;
    p.y_stride = a->y_stride;
    p.rows = a->rows;
    p.dim = a->dim;
    p.eps = a->eps;
    int64_t float_bytes = (int64_t)sizeof(float);
    bool wide = a->dim % 4 == 0 && fl_rows_aligned(a->x, a->x_stride * float_bytes, 16) &&
                fl_rows_aligned(a->delta, 0, 8) && fl_rows_aligned(a->gamma, 0, 16) &&
                fl_rows_aligned(a->y, a->y_stride * (int64_t)sizeof(fl_bf16), 8);
    if (wide) launch<true>(p, fl_cuda_of(be)->stream);
    else launch<false>(p, fl_cuda_of(be)->stream);
    return FL_CUDA_LAUNCHED("rmsnorm");
}
