/* Launch shapes of ops that treat rows one by one: threadIdx.x walks the units (runs of elements) of a row, threadIdx.y
 * the rows of a block, so that short rows share a block and long ones are cut. */
#ifndef FL_OP_CUDA_ROWS_CUH
#define FL_OP_CUDA_ROWS_CUH

#include "op/cuda/device.cuh"

enum { FL_ROWS_THREADS = 256 };

typedef struct fl_rows_launch {
    dim3 grid, block;
} fl_rows_launch;

/* Blocks for rows of `units` units, each thread taking up to `each` of them: unit of step i is
 * (blockIdx.y * each + i) * blockDim.x + threadIdx.x; row is blockIdx.x * blockDim.y + threadIdx.y. */
static inline fl_rows_launch fl_rows_launch_of(int64_t rows, int64_t units, int32_t each) {
    uint32_t wide = 1;
    while (wide < FL_ROWS_THREADS && (int64_t)wide * each < units) wide *= 2;
    uint32_t high = FL_ROWS_THREADS / wide;
    fl_rows_launch launch;
    launch.block = dim3(wide, high);
    launch.grid = dim3((uint32_t)fl_tasks_of(rows, high), (uint32_t)fl_tasks_of(units, (int64_t)wide * each));
    return launch;
}

/* Whether rows `stride_bytes` apart can be taken `access` bytes at a time. */
static inline bool fl_rows_aligned(const void *base, int64_t stride_bytes, int32_t access) {
    return ((uintptr_t)base | (uintptr_t)stride_bytes) % (uintptr_t)access == 0;
}

FL_DEVICE int64_t fl_rows_row(void) {
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

FL_DEVICE int32_t fl_rows_unit(int32_t step, int32_t each) {
    return (int32_t)((blockIdx.y * (uint32_t)each + (uint32_t)step) * blockDim.x + threadIdx.x);
}

/* ---- several rows a thread ---- */

/* A thread has one unit in each of `each` rows, so that what depends on the unit is found once and `each` loads
 * are under way: unit is blockIdx.y * blockDim.x + threadIdx.x, row of step i is fl_rows_row_of(i, each). */
static inline fl_rows_launch fl_rows_tall_launch_of(int64_t rows, int64_t units, int32_t each) {
    int64_t parts = fl_tasks_of(units, FL_ROWS_THREADS), wide = fl_tasks_of(units, parts);
    int64_t high = FL_ROWS_THREADS / wide;
    fl_rows_launch launch;
    launch.block = dim3((uint32_t)wide, (uint32_t)high);
    launch.grid = dim3((uint32_t)fl_tasks_of(rows, high * each), (uint32_t)parts);
    return launch;
}

FL_DEVICE int64_t fl_rows_row_of(int32_t step, int32_t each) {
    return ((int64_t)blockIdx.x * each + step) * blockDim.y + threadIdx.y;
}

#endif
