/* rope, CUDA. Rows as in rows.cuh, units of 4 elements: a 16-byte load of x, one of the row's table where the unit
 * turns, an 8-byte store. Bound by memory traffic; the table of a row is read once a head, from the caches. Where
 * dimensions or strides forbid that, units are single elements that look at their pair; the arithmetic is the
 * same, so the bits are. */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/rope.cuh"
#include "op/cuda/rows.cuh"

enum { UNIT = 4, ROWS_EACH = 4, UNITS_EACH = 2 };

typedef struct params {
    const float *x, *table;
    fl_bf16 *y, *y_pe;
    int64_t x_stride, y_stride, y_pe_stride;
    int32_t rows, width, nope_dim, rope_dim, y_pe_head;
    float scale;
} params;

/* Where element `in_head` of a head goes. */
FL_DEVICE fl_bf16 *place_of(const params &p, int64_t row, int32_t head, int32_t in_head) {
    if (in_head < p.nope_dim)
        return p.y + row * p.y_stride + (int64_t)head * (p.nope_dim + p.rope_dim) + in_head;
    return p.y_pe + row * p.y_pe_stride + (int64_t)head * p.y_pe_head + (in_head - p.nope_dim);
}

static __global__ void __launch_bounds__(FL_ROWS_THREADS) rope_wide_kernel(const params p) {
    int32_t first = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x) * UNIT;
    if (first >= p.width) return;
    int32_t head = first / (p.nope_dim + p.rope_dim), in_head = first % (p.nope_dim + p.rope_dim);
    int32_t turned = in_head - p.nope_dim;
    float4 x[ROWS_EACH], table[ROWS_EACH];
#pragma unroll
    for (int32_t k = 0; k < ROWS_EACH; k++) {
        int64_t row = fl_rows_row_of(k, ROWS_EACH);
        if (row >= p.rows) continue;
        x[k] = *(const float4 *)(p.x + row * p.x_stride + first);
        if (turned >= 0) table[k] = __ldg((const float4 *)(p.table + row * p.rope_dim + turned));
    }
#pragma unroll
    for (int32_t k = 0; k < ROWS_EACH; k++) {
        int64_t row = fl_rows_row_of(k, ROWS_EACH);
        if (row >= p.rows) return;
        float4 v = x[k], r = table[k];
        if (turned >= 0)
            v = make_float4(fl_rope_even(v.x, v.y, r.x, r.y), fl_rope_odd(v.x, v.y, r.x, r.y),
                            fl_rope_even(v.z, v.w, r.z, r.w), fl_rope_odd(v.z, v.w, r.z, r.w));
        *(uint2 *)place_of(p, row, head, in_head) =
            make_uint2(fl_pack_bf16(__fmul_rn(v.x, p.scale), __fmul_rn(v.y, p.scale)),
                       fl_pack_bf16(__fmul_rn(v.z, p.scale), __fmul_rn(v.w, p.scale)));
    }
}

static __global__ void __launch_bounds__(FL_ROWS_THREADS) rope_narrow_kernel(const params p) {
    int64_t row = fl_rows_row();
    if (row >= p.rows) return;
    const float *x = p.x + row * p.x_stride, *table = p.table + row * p.rope_dim;
    for (int32_t k = 0; k < UNITS_EACH; k++) {
        int32_t at = fl_rows_unit(k, UNITS_EACH);
        if (at >= p.width) return;
        int32_t head = at / (p.nope_dim + p.rope_dim), in_head = at % (p.nope_dim + p.rope_dim);
        int32_t turned = in_head - p.nope_dim, odd = turned & 1;
        float v = x[at];
        if (turned >= 0) {
            float2 pair = make_float2(x[at - odd], x[at - odd + 1]);
            float cosine = table[turned - odd], sine = table[turned - odd + 1];
            v = odd ? fl_rope_odd(pair.x, pair.y, cosine, sine) : fl_rope_even(pair.x, pair.y, cosine, sine);
        }
        *place_of(p, row, head, in_head) = __float2bfloat16_rn(__fmul_rn(v, p.scale));
    }
}

extern "C" fl_err fl_rope_cuda(fl_backend *be, const fl_rope_args *a) {
    FL_TRY(fl_rope_validate(a));
    cudaStream_t stream = fl_cuda_of(be)->stream;
    const fl_rope_args apart = fl_rope_apart(a, be->act_dtype);
    params p = {};
    p.x = a->x;
    p.table = a->table;
    p.y = (fl_bf16 *)a->y;
    p.y_pe = (fl_bf16 *)apart.y_pe;
    p.y_pe_stride = apart.y_pe_stride;
    p.y_pe_head = apart.y_pe_head_stride;
    p.x_stride = a->x_stride;
    p.y_stride = a->y_stride;
    p.rows = a->rows;
    p.width = a->n_heads * (a->nope_dim + a->rope_dim);
    p.nope_dim = a->nope_dim;
    p.rope_dim = a->rope_dim;
    p.scale = a->scale;
    bool wide = a->nope_dim % UNIT == 0 && a->rope_dim % UNIT == 0 && p.y_pe_head % UNIT == 0 &&
                fl_rows_aligned(a->x, a->x_stride * (int64_t)sizeof(float), 16) &&
                fl_rows_aligned(a->table, (int64_t)a->rope_dim * (int64_t)sizeof(float), 16) &&
                fl_rows_aligned(a->y, a->y_stride * (int64_t)sizeof(fl_bf16), 8) &&
                fl_rows_aligned(p.y_pe, p.y_pe_stride * (int64_t)sizeof(fl_bf16), 8);
    fl_rows_launch launch = wide ? fl_rows_tall_launch_of(a->rows, p.width / UNIT, ROWS_EACH)
                                 : fl_rows_launch_of(a->rows, p.width, UNITS_EACH);
    if (wide) rope_wide_kernel<<<launch.grid, launch.block, 0, stream>>>(p);
    else rope_narrow_kernel<<<launch.grid, launch.block, 0, stream>>>(p);
    return FL_CUDA_LAUNCHED("rope");
}
