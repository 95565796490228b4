/* When the device did what: marks are CUDA events in the stream, read once it has drained, so that nothing waits for an
 * op to be timed. Ranges are NVTX's: Nsight Systems shows them over the kernels they launched; without a profiler
 * they are a test of a pointer. */
#include <nvtx3/nvToolsExt.h>

#include <stdlib.h>

#include "backend/cuda/cuda_backend.h"

fl_err fl_cuda_marks_open(fl_cuda *cuda) {
    cuda->marks = (cudaEvent_t *)calloc(FL_CUDA_MARKS, sizeof *cuda->marks);
    if (!cuda->marks) return FL_FAIL(FL_ERR_NOMEM, "marks");
    for (int32_t i = 0; i < FL_CUDA_MARKS; i++) FL_CUDA_TRY(cudaEventCreate(&cuda->marks[i]));
    return FL_ERR_OK;
}

void fl_cuda_marks_close(fl_cuda *cuda) {
    for (int32_t i = 0; cuda->marks && i < FL_CUDA_MARKS; i++)
        if (cuda->marks[i]) cudaEventDestroy(cuda->marks[i]);
    free(cuda->marks);
}

fl_err fl_cuda_mark(fl_backend *be, int32_t i) {
    fl_cuda *cuda = fl_cuda_of(be);
    return fl_cuda_check(cudaEventRecord(cuda->marks[i], cuda->stream), "marking the time");
}

bool fl_cuda_mark_time(fl_backend *be, int32_t i, double *time_s) {
    fl_cuda *cuda = fl_cuda_of(be);
    float time_ms = 0;
    bool known = cudaEventElapsedTime(&time_ms, cuda->marks[0], cuda->marks[i]) == cudaSuccess;
    if (!known)
        cudaGetLastError(); /* a step that failed has marks that were never reached: no fault of their own */
    *time_s = 1e-3 * (double)time_ms;
    return known;
}

static __global__ void hold_kernel(int64_t nanoseconds) {
    int64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}

fl_err fl_cuda_hold(fl_backend *be, double time_s) {
    hold_kernel<<<1, 1, 0, fl_cuda_of(be)->stream>>>((int64_t)(1e9 * time_s));
    return FL_CUDA_LAUNCHED("holding the queue");
}

void fl_cuda_range_begin(fl_backend *be, const char *name) {
    (void)be;
    nvtxRangePushA(name);
}

void fl_cuda_range_end(fl_backend *be) {
    (void)be;
    nvtxRangePop();
}
