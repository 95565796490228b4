/* attn_merge, CUDA. A line (row, head) belongs to one block: threadIdx.x walks its runs of 8, threadIdx.y the block's
 * lines. Bound by memory traffic. Every thread works out its line's weights itself, at most 8 exponentials. The new lse
 * may replace a part's: it is written when all threads of the block have read theirs. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/rows.cuh"

enum { RUN = 8, RUNS_MAX = 128 };

typedef struct params {
    const uint16_t *part[FL_ATTN_MERGE_PARTS_MAX];
    const float *part_lse[FL_ATTN_MERGE_PARTS_MAX];
    uint16_t *out;
    float *lse;
    int64_t lines;
    int32_t n_parts, dim;
    bool wide;
} params;

/* weights[i] of part i, 0 for parts that saw nothing; returns the lse of the line. */
FL_DEVICE float weigh(const params &p, int64_t line, float weights[FL_ATTN_MERGE_PARTS_MAX]) {
    float lse[FL_ATTN_MERGE_PARTS_MAX], top = -INFINITY, sum = 0;
#pragma unroll
    for (int32_t i = 0; i < FL_ATTN_MERGE_PARTS_MAX; i++) {
        lse[i] = i < p.n_parts ? p.part_lse[i][line] : -INFINITY;
        top = fmaxf(top, lse[i]);
    }
#pragma unroll
    for (int32_t i = 0; i < FL_ATTN_MERGE_PARTS_MAX; i++) {
        weights[i] = lse[i] > -INFINITY ? exp2f(__fsub_rn(lse[i], top)) : 0.0f;
        sum = __fadd_rn(sum, weights[i]);
    }
    if (!(top > -INFINITY)) return -INFINITY;
#pragma unroll
    for (int32_t i = 0; i < FL_ATTN_MERGE_PARTS_MAX; i++) weights[i] = __fdiv_rn(weights[i], sum);
    return __fadd_rn(top, log2f(sum));
}

FL_DEVICE void add8(float sum[RUN], float weight, uint4 x) {
    uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int32_t i = 0; i < RUN / 2; i++) {
        sum[2 * i] = __fmaf_rn(weight, fl_low_of_bf16x2(words[i]), sum[2 * i]);
        sum[2 * i + 1] = __fmaf_rn(weight, fl_high_of_bf16x2(words[i]), sum[2 * i + 1]);
    }
}

FL_DEVICE void merge_wide(const params &p, int64_t at, const float weights[FL_ATTN_MERGE_PARTS_MAX]) {
    float sum[RUN] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int32_t i = 0; i < FL_ATTN_MERGE_PARTS_MAX; i++)
        if (i < p.n_parts && weights[i] > 0) add8(sum, weights[i], *(const uint4 *)(p.part[i] + at));
    *(uint4 *)(p.out + at) = make_uint4(fl_pack_bf16(sum[0], sum[1]), fl_pack_bf16(sum[2], sum[3]),
                                        fl_pack_bf16(sum[4], sum[5]), fl_pack_bf16(sum[6], sum[7]));
}

FL_DEVICE void merge_one(const params &p, int64_t at, const float weights[FL_ATTN_MERGE_PARTS_MAX]) {
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < FL_ATTN_MERGE_PARTS_MAX; i++)
        if (i < p.n_parts && weights[i] > 0)
            sum = __fmaf_rn(weights[i], __uint_as_float((uint32_t)p.part[i][at] << 16), sum);
    p.out[at] = (uint16_t)fl_pack_bf16(sum, 0);
}

static __global__ void __launch_bounds__(FL_ROWS_THREADS)
    attn_merge_kernel(const __grid_constant__ params p) {
    int64_t line = fl_rows_row();
    bool inside = line < p.lines;
    float weights[FL_ATTN_MERGE_PARTS_MAX], lse = -INFINITY;
    if (inside) lse = weigh(p, line, weights);
    __syncthreads();
    if (!inside) return;
    if (p.lse && threadIdx.x == 0) p.lse[line] = lse;
    for (int32_t first = (int32_t)threadIdx.x * RUN; first < p.dim; first += (int32_t)blockDim.x * RUN) {
        int64_t at = line * p.dim + first;
        if (p.wide) merge_wide(p, at, weights);
        else
            for (int32_t i = 0; i < min(RUN, p.dim - first); i++) merge_one(p, at + i, weights);
    }
}

extern "C" fl_err fl_attn_merge_cuda(fl_backend *be, const fl_attn_merge_args *a) {
    FL_TRY(fl_attn_merge_validate(a));
    params p = {};
    int64_t line_bytes = (int64_t)a->dim * (int64_t)sizeof(fl_bf16);
    p.wide = fl_rows_aligned(a->out, line_bytes, 16);
    for (int32_t i = 0; i < a->n_parts; i++) {
        p.part[i] = (const uint16_t *)a->part[i];
        p.part_lse[i] = a->part_lse[i];
        p.wide = p.wide && fl_rows_aligned(a->part[i], line_bytes, 16);
    }
    p.out = (uint16_t *)a->out;
    p.lse = a->lse;
    p.lines = (int64_t)a->rows * a->n_heads;
    p.n_parts = a->n_parts;
    p.dim = a->dim;
    static_assert(RUNS_MAX * RUN >= (int)FL_ATTN_HEAD_DIM_MAX && RUNS_MAX <= (int)FL_ROWS_THREADS,
                  "one block");
    fl_rows_launch launch = fl_rows_launch_of(p.lines, fl_tasks_of(a->dim, RUN), 1);
    if (fl_tasks_of(p.lines, launch.block.y) > INT32_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "attn_merge: rows x n_heads is %lld, too many for one launch",
                       (long long)p.lines);
    attn_merge_kernel<<<launch.grid, launch.block, 0, fl_cuda_of(be)->stream>>>(p);
    return FL_CUDA_LAUNCHED("attn_merge");
}
