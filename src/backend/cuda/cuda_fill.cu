/* Seeded random tensors on the device. Grid: a few blocks for each multiprocessor, strided over the values. Bound
 * by the integer products of the generator: some hundred billion values a second, so that the weights of a model
 * take less time than reserving their memory. */
#include <cuda_fp8.h>

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

extern "C" {
#include "backend/cuda/cuda_open.h"
#include "backend/fill.h"
}

enum { THREADS = 256, BLOCKS_EACH = 16 };

FL_DEVICE void put(float *to, float value) {
    *to = value;
}

FL_DEVICE void put(fl_bf16 *to, float value) {
    *to = __float2bfloat16_rn(value);
}

FL_DEVICE void put(__nv_fp8_storage_t *to, float value) {
    *to = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    fill_kernel(T *to, int64_t count, uint64_t seed, float deviation) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step)
        put(to + i, fl_fill_normal(seed, i) * deviation);
}

extern "C" fl_err fl_cuda_fill(fl_backend *be, const fl_fill_args *a) {
    FL_TRY(fl_fill_validate(a));
    if (a->count == 0) return FL_ERR_OK;
    fl_cuda *cuda = fl_cuda_of(be);
    int64_t needed = fl_tasks_of(a->count, THREADS), most = (int64_t)cuda->n_multiprocessors * BLOCKS_EACH;
    uint32_t blocks = (uint32_t)(needed < most ? needed : most);
    if (a->dtype == FL_DTYPE_F32)
        fill_kernel<<<blocks, THREADS, 0, cuda->stream>>>((float *)a->to, a->count, a->seed, a->deviation);
    else if (a->dtype == FL_DTYPE_BF16)
        fill_kernel<<<blocks, THREADS, 0, cuda->stream>>>((fl_bf16 *)a->to, a->count, a->seed, a->deviation);
    else
        fill_kernel<<<blocks, THREADS, 0, cuda->stream>>>((__nv_fp8_storage_t *)a->to, a->count, a->seed,
                                                          a->deviation);
    return FL_CUDA_LAUNCHED("fill");
}
