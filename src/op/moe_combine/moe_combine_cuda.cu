/* moe_combine, CUDA. Rows as in rows.cuh, units of 4 elements. Bound by memory traffic: top_k 16-byte loads a unit,
 * independent of each other, then one store. Slots are added in order with one rounding each, in both paths alike. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/rows.cuh"

enum { UNIT = 4, UNITS_EACH = 1, BATCH = 8 };

typedef struct params {
    const float *y, *weights, *shared;
    const int32_t *place;
    int32_t rows, top_k, dim;
    float *out;
    int32_t *fault;
} params;

/* The loads of BATCH slots first, so that they are under way together; a wrong place reads row 0, and is told. */
static __global__ void __launch_bounds__(FL_ROWS_THREADS) combine_wide_kernel(const params p) {
    int64_t row = fl_rows_row();
    int32_t first = fl_rows_unit(0, UNITS_EACH) * UNIT;
    if (row >= p.rows || first >= p.dim) return;
    int64_t at = row * p.dim + first;
    const int32_t *place = p.place + row * p.top_k;
    const float *weights = p.weights + row * p.top_k;
    bool known = true;
    float4 sum = p.shared ? *(const float4 *)(p.shared + at) : make_float4(0, 0, 0, 0);
    for (int32_t s = 0; s < p.top_k; s += BATCH) {
        int32_t from[BATCH];
        float4 v[BATCH];
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) from[i] = s + i < p.top_k ? __ldg(place + s + i) : 0;
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            bool inside = from[i] >= 0 && from[i] < p.rows * p.top_k;
            known = known && inside;
            const float *y = p.y + (int64_t)(inside ? from[i] : 0) * p.dim + first;
            v[i] = s + i < p.top_k ? __ldg((const float4 *)y) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            if (s + i >= p.top_k) continue;
            float weight = __ldg(weights + s + i);
            sum.x = __fmaf_rn(weight, v[i].x, sum.x);
            sum.y = __fmaf_rn(weight, v[i].y, sum.y);
            sum.z = __fmaf_rn(weight, v[i].z, sum.z);
            sum.w = __fmaf_rn(weight, v[i].w, sum.w);
        }
    }
    *(float4 *)(p.out + at) = sum;
    if (!known) atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_PLACE);
}

/* Units are single elements. */
static __global__ void __launch_bounds__(FL_ROWS_THREADS) combine_narrow_kernel(const params p) {
    int64_t row = fl_rows_row();
    int32_t j = fl_rows_unit(0, UNITS_EACH);
    if (row >= p.rows || j >= p.dim) return;
    int64_t at = row * p.dim + j;
    bool known = true;
    float sum = p.shared ? p.shared[at] : 0.0f;
    for (int32_t s = 0; s < p.top_k; s++) {
        int32_t from = p.place[row * p.top_k + s];
        bool inside = from >= 0 && from < p.rows * p.top_k;
        known = known && inside;
        float y = p.y[(int64_t)(inside ? from : 0) * p.dim + j];
        sum = __fmaf_rn(p.weights[row * p.top_k + s], y, sum);
    }
    p.out[at] = sum;
    if (!known) atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_PLACE);
}

extern "C" fl_err fl_moe_combine_cuda(fl_backend *be, const fl_moe_combine_args *a) {
    FL_TRY(fl_moe_combine_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    params p = {};
    p.y = a->y;
    p.weights = a->weights;
    p.shared = a->shared;
    p.place = a->place;
    p.rows = a->rows;
    p.top_k = a->top_k;
    p.dim = a->dim;
    p.out = a->out;
    p.fault = cuda->fault;
    int64_t row_bytes = (int64_t)a->dim * (int64_t)sizeof(float);
    bool wide = fl_rows_aligned(a->y, row_bytes, 16) && fl_rows_aligned(a->out, row_bytes, 16) &&
                fl_rows_aligned(a->shared, row_bytes, 16); /* NULL is aligned */
    fl_rows_launch launch = fl_rows_launch_of(a->rows, wide ? a->dim / UNIT : a->dim, UNITS_EACH);
    if (wide) combine_wide_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(p);
    else combine_narrow_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(p);
    return FL_CUDA_LAUNCHED("moe_combine");
}
