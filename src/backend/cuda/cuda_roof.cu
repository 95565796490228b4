/* What the device does at most, measured the way everyone can repeat: a large copy, and cuBLASLt's product of large
 * random matrices (zeros run faster than real data). */
#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

extern "C" {
#include "backend/cuda/cuda_open.h"
}

enum { SIDE = 8192, RUNS = 12, WARM = 3 };
static const int64_t copy_bytes = (int64_t)2 << 30;

typedef struct roof {
    fl_cuda *cuda;
    uint8_t *memory; /* two halves to copy; three matrices */
    int64_t bytes;
    cudaEvent_t begin, end;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layout;
} roof;

/* Values in (-1, 1), another one for each place. */
static __global__ void fill_kernel(fl_bf16 *x, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t bits = (uint32_t)i * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    x[i] = __float2bfloat16((float)(int32_t)(bits ^ bits >> 13) * 0x1p-31f);
}

static fl_err multiply(const roof *r) {
    const float one = 1, zero = 0;
    uint8_t *a = r->memory, *b = a + (int64_t)SIDE * SIDE * 2, *c = b + (int64_t)SIDE * SIDE * 2;
    return fl_cuda_check_blas(fl_blas.Matmul(r->cuda->blas, r->product, &one, a, r->layout, b, r->layout,
                                             &zero, c, r->layout, c, r->layout, NULL, r->cuda->workspace,
                                             (size_t)r->cuda->workspace_bytes, r->cuda->stream),
                              "the roof's product");
}

static fl_err copy(const roof *r) {
    return fl_cuda_check(cudaMemcpyAsync(r->memory, r->memory + copy_bytes, (size_t)copy_bytes,
                                         cudaMemcpyDeviceToDevice, r->cuda->stream),
                         "the roof's copy");
}

/* The best of RUNS, seconds. */
static fl_err best_of(const roof *r, fl_err (*run)(const roof *), double *best_s) {
    *best_s = 1e30;
    for (int i = 0; i < WARM + RUNS; i++) {
        float ms = 0;
        FL_CUDA_TRY(cudaEventRecord(r->begin, r->cuda->stream));
        FL_TRY(run(r));
        FL_CUDA_TRY(cudaEventRecord(r->end, r->cuda->stream));
        FL_CUDA_TRY(cudaEventSynchronize(r->end));
        FL_CUDA_TRY(cudaEventElapsedTime(&ms, r->begin, r->end));
        if (i >= WARM && ms * 1e-3 < *best_s) *best_s = ms * 1e-3;
    }
    return FL_ERR_OK;
}

static fl_err open_parts(roof *r) {
    fl_backend *be = &r->cuda->base;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    int64_t n = 3 * (int64_t)SIDE * SIDE;
    FL_TRY(be->alloc(be, r->bytes, (void **)&r->memory));
    fill_kernel<<<(unsigned)fl_tasks_of(n, 256), 256, 0, r->cuda->stream>>>((fl_bf16 *)r->memory, n);
    FL_TRY(FL_CUDA_LAUNCHED("the roof's matrices"));
    FL_CUDA_TRY(cudaEventCreate(&r->begin));
    FL_CUDA_TRY(cudaEventCreate(&r->end));
    FL_CUDA_BLAS_TRY(fl_blas.MatmulDescCreate(&r->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    FL_CUDA_BLAS_TRY(fl_blas.MatmulDescSetAttribute(r->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                    sizeof transposed));
    FL_CUDA_BLAS_TRY(fl_blas.MatrixLayoutCreate(&r->layout, CUDA_R_16BF, SIDE, SIDE, SIDE));
    return FL_ERR_OK;
}

fl_err fl_cuda_roof(fl_backend *be, fl_roof *out) {
    roof r = {};
    double copy_s = 1, product_s = 1;
    fl_err err;
    r.cuda = fl_cuda_of(be);
    r.bytes = 2 * copy_bytes;
    FL_TRY_GOTO(open_parts(&r));
    FL_TRY_GOTO(best_of(&r, multiply, &product_s));
    FL_TRY_GOTO(best_of(&r, copy, &copy_s));
    out->flops_per_s = 2e0 * (double)((int64_t)SIDE * SIDE * SIDE) / product_s;
    out->bytes_per_s = 2.0 * (double)copy_bytes / copy_s;
    out->format = "bf16";
fail:
    if (r.layout) fl_blas.MatrixLayoutDestroy(r.layout);
    if (r.product) fl_blas.MatmulDescDestroy(r.product);
    if (r.begin) cudaEventDestroy(r.begin);
    if (r.end) cudaEventDestroy(r.end);
    if (r.memory) be->free(be, r.memory, r.bytes);
    return err;
}
