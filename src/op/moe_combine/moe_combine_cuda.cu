/* moe_combine, CUDA. Rows as in rows.cuh, units of 8 elements. Bound by memory traffic: top_k 16-byte loads a unit,
 * independent of each other, then the stores. Slots are added in order with one rounding each and x last, in both paths
 * alike. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/rows.cuh"

enum { UNIT = 8, UNITS_EACH = 1, BATCH = 8 };

typedef struct params {
    const fl_bf16 *y, *shared;
    const float *weights;
    const int32_t *place;
    int32_t rows, top_k, dim;
    float *x;
    int32_t *fault;
} params;

/* sum += weight v, eight elements of bf16. */
FL_DEVICE void add_unit(float (&sum)[UNIT], float weight, uint4 v) {
    const uint32_t pairs[UNIT / 2] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < UNIT / 2; i++) {
        sum[2 * i] = __fmaf_rn(weight, fl_low_of_bf16x2(pairs[i]), sum[2 * i]);
        sum[2 * i + 1] = __fmaf_rn(weight, fl_high_of_bf16x2(pairs[i]), sum[2 * i + 1]);
    }
}

/* The loads of BATCH slots first, so that they are under way together; a wrong place reads row 0, and is told. */
static __global__ void __launch_bounds__(FL_ROWS_THREADS) combine_wide_kernel(const params p) {
    int64_t row = fl_rows_row();
    int32_t first = fl_rows_unit(0, UNITS_EACH) * UNIT;
    if (row >= p.rows || first >= p.dim) return;
    int64_t at = row * p.dim + first;
    const int32_t *place = p.place + row * p.top_k;
    const float *weights = p.weights + row * p.top_k;
    bool known = true;
    float4 *x = (float4 *)(p.x + at);
    float4 low = x[0], high = x[1];
    float sum[UNIT] = {};
    if (p.shared) add_unit(sum, 1, __ldg((const uint4 *)(p.shared + at)));
    for (int32_t s = 0; s < p.top_k; s += BATCH) {
        int32_t from[BATCH];
        uint4 v[BATCH];
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) from[i] = s + i < p.top_k ? __ldg(place + s + i) : 0;
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            bool inside = from[i] >= 0 && from[i] < p.rows * p.top_k;
            known = known && inside;
            const fl_bf16 *y = p.y + (int64_t)(inside ? from[i] : 0) * p.dim + first;
            v[i] = s + i < p.top_k ? __ldg((const uint4 *)y) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++)
            if (s + i < p.top_k) add_unit(sum, __ldg(weights + s + i), v[i]);
    }
    x[0] = make_float4(__fadd_rn(low.x, sum[0]), __fadd_rn(low.y, sum[1]), __fadd_rn(low.z, sum[2]),
                       __fadd_rn(low.w, sum[3]));
    x[1] = make_float4(__fadd_rn(high.x, sum[4]), __fadd_rn(high.y, sum[5]), __fadd_rn(high.z, sum[6]),
                       __fadd_rn(high.w, sum[7]));
    if (!known) atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_PLACE);
}

/* Units are single elements. */
static __global__ void __launch_bounds__(FL_ROWS_THREADS) combine_narrow_kernel(const params p) {
    int64_t row = fl_rows_row();
    int32_t j = fl_rows_unit(0, UNITS_EACH);
    if (row >= p.rows || j >= p.dim) return;
    int64_t at = row * p.dim + j;
    bool known = true;
    float sum = p.shared ? __bfloat162float(p.shared[at]) : 0.0f;
    for (int32_t s = 0; s < p.top_k; s++) {
        int32_t from = p.place[row * p.top_k + s];
        bool inside = from >= 0 && from < p.rows * p.top_k;
        known = known && inside;
        float y = __bfloat162float(p.y[(int64_t)(inside ? from : 0) * p.dim + j]);
        sum = __fmaf_rn(p.weights[row * p.top_k + s], y, sum);
    }
    p.x[at] = __fadd_rn(p.x[at], sum);
    if (!known) atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_PLACE);
}

extern "C" fl_err fl_moe_combine_cuda(fl_backend *be, const fl_moe_combine_args *a) {
    FL_TRY(fl_moe_combine_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    params p = {};
    p.y = (const fl_bf16 *)a->y;
    p.weights = a->weights;
    p.shared = (const fl_bf16 *)a->shared;
    p.place = a->place;
    p.rows = a->rows;
    p.top_k = a->top_k;
    p.dim = a->dim;
    p.x = a->x;
    p.fault = cuda->fault;
    int64_t row_bytes = (int64_t)a->dim * (int64_t)sizeof(fl_bf16);
    bool wide = fl_rows_aligned(a->y, row_bytes, 16) && fl_rows_aligned(a->x, row_bytes, 16) &&
                fl_rows_aligned(a->shared, row_bytes, 16); /* NULL is aligned */
    fl_rows_launch launch = fl_rows_launch_of(a->rows, wide ? a->dim / UNIT : a->dim, UNITS_EACH);
    if (wide) combine_wide_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(p);
    else combine_narrow_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(p);
    return FL_CUDA_LAUNCHED("moe_combine");
}
