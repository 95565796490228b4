/* embed, CUDA. Rows as in rows.cuh, units of 8 elements. Bound by memory traffic: one or two 16-byte loads and two
 * 16-byte stores a unit. A table mapped from a file may lie at any byte: it is then read byte by byte. Ids are on the
 * device: a wrong one makes a row of zeros and a fault that the next wait tells. */
#include <cuda_fp16.h>

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/rows.cuh"

enum { UNIT = 8, UNITS_EACH = 2 };

typedef struct params {
    const int32_t *ids;
    const uint8_t *table;
    fl_dtype dtype;
    int32_t element_bytes, rows, dim, n_vocab;
    float *x;
    int32_t *fault;
    bool wide;
} params;

FL_DEVICE float widen(fl_dtype dtype, uint32_t bits) {
    if (dtype == FL_DTYPE_F32) return __uint_as_float(bits);
    if (dtype == FL_DTYPE_BF16) return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half((uint16_t)bits));
}

/* 8 elements at a 16-byte address. */
FL_DEVICE void load_wide(const params &p, const uint8_t *from, float out[UNIT]) {
    uint4 a = __ldg((const uint4 *)from);
    uint32_t words[8] = {a.x, a.y, a.z, a.w};
    if (p.dtype == FL_DTYPE_F32) {
        uint4 b = __ldg((const uint4 *)from + 1);
        words[4] = b.x;
        words[5] = b.y;
        words[6] = b.z;
        words[7] = b.w;
    }
#pragma unroll
    for (int32_t i = 0; i < UNIT; i++)
        out[i] = widen(p.dtype, p.dtype == FL_DTYPE_F32 ? words[i] : words[i / 2] >> i % 2 * 16 & 0xffffu);
}

FL_DEVICE float load_bytes(const params &p, const uint8_t *from) {
    uint32_t bits = 0;
    for (int32_t i = 0; i < p.element_bytes; i++) bits |= (uint32_t)from[i] << 8 * i;
    return widen(p.dtype, bits);
}

static __global__ void __launch_bounds__(FL_ROWS_THREADS) embed_kernel(const params p) {
    int64_t row = fl_rows_row();
    if (row >= p.rows) return;
    int32_t id = p.ids[row];
    bool known = id >= 0 && id < p.n_vocab;
    if (!known && fl_rows_unit(0, UNITS_EACH) == 0)
        atomicCAS(p.fault, FL_CUDA_FAULT_NONE, FL_CUDA_FAULT_TOKEN_ID);
    const uint8_t *from = p.table + (int64_t)(known ? id : 0) * p.dim * p.element_bytes;
    float *to = p.x + row * p.dim;
#pragma unroll
    for (int32_t k = 0; k < UNITS_EACH; k++) {
        int32_t first = fl_rows_unit(k, UNITS_EACH) * UNIT;
        if (first >= p.dim) return;
        float x[UNIT] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (p.wide) {
            if (known) load_wide(p, from + (int64_t)first * p.element_bytes, x);
            float4 *out = (float4 *)(to + first);
            out[0] = make_float4(x[0], x[1], x[2], x[3]);
            out[1] = make_float4(x[4], x[5], x[6], x[7]);
            continue;
        }
        for (int32_t j = first; j < min(first + UNIT, p.dim); j++)
            to[j] = known ? load_bytes(p, from + (int64_t)j * p.element_bytes) : 0.0f;
    }
}

extern "C" fl_err fl_embed_cuda(fl_backend *be, const fl_embed_args *a) {
    FL_TRY(fl_embed_validate(a));
    fl_cuda *cuda = fl_cuda_of(be);
    params p = {};
    p.ids = a->ids;
    p.table = (const uint8_t *)a->table;
    p.dtype = a->table_dtype;
    p.element_bytes = (int32_t)fl_dtype_bytes(a->table_dtype);
    p.rows = a->rows;
    p.dim = a->dim;
    p.n_vocab = a->n_vocab;
    p.x = a->x;
    p.fault = cuda->fault;
    p.wide = a->dim % UNIT == 0 && fl_rows_aligned(a->table, (int64_t)a->dim * p.element_bytes, 16) &&
             fl_rows_aligned(a->x, (int64_t)a->dim * (int64_t)sizeof(float), 16);
    fl_rows_launch launch = fl_rows_launch_of(a->rows, fl_tasks_of(a->dim, UNIT), UNITS_EACH);
    embed_kernel<<<launch.grid, launch.block, 0, cuda->stream>>>(p);
    return FL_CUDA_LAUNCHED("embed");
}
