/* Kernels that only take time, to change who comes first among the blocks of another kernel. */
#include "backend/cuda/cuda_backend.h"

extern "C" {
#include "backend/cuda/cuda_open.h"
}

enum { THREADS = 128, NANOSECONDS_MAX = 100000 };

static __global__ void spin_kernel(uint32_t random) {
    uint32_t own = (random ^ blockIdx.x * 2654435761u) * 2246822519u;
    int64_t nanoseconds = own % NANOSECONDS_MAX, begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}

fl_err fl_cuda_disturb(fl_backend *be, uint64_t random) {
    fl_cuda *cuda = fl_cuda_of(be);
    if (!cuda->disturbing) FL_CUDA_TRY(cudaStreamCreateWithFlags(&cuda->disturbing, cudaStreamNonBlocking));
    uint32_t blocks = 1 + (uint32_t)(random >> 8) % (4 * (uint32_t)cuda->n_multiprocessors);
    spin_kernel<<<blocks, THREADS, 0, cuda->disturbing>>>((uint32_t)random);
    return FL_CUDA_LAUNCHED("a disturbance");
}
