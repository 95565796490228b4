/* The CUDA backend: opening a device, its memory, its errors. All work of a backend goes through one stream, so ops run
 * in the order they were issued and nothing waits but upload, download and wait. */
#include "backend/cuda/cuda_backend.h"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "backend/cuda/cuda_open.h"
}

enum { WORKSPACE_BYTES = 128 << 20, STAGED_BYTES_MIN = 1 << 20, CAPABILITY_MAJOR = 9 };

static const char *const fault_text[FL_CUDA_N_FAULTS] = {
    [FL_CUDA_FAULT_NONE] = "",
    [FL_CUDA_FAULT_TOKEN_ID] = "embed: ids[]: a token id is outside the vocabulary",
    [FL_CUDA_FAULT_GROUP_ROWS] = "matmul: group_rows[] does not rise from 0 to rows",
    [FL_CUDA_FAULT_EXPERT_ID] = "moe_permute: ids[]: there is no such expert",
    [FL_CUDA_FAULT_PLACE] = "moe_combine: place[]: outside the experts' rows",
};

/* ---- errors ---- */

fl_err fl_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return FL_ERR_OK;
    cudaGetLastError(); /* told here: else the next launch would be told of it, after what was only refused */
    fl_err code = error == cudaErrorMemoryAllocation ? FL_ERR_NOMEM : FL_ERR_DEVICE;
    return FL_FAIL(code, "CUDA: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

fl_err fl_cuda_check_blas(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_DEVICE, "cuBLASLt: %s: %s", what, fl_blas.GetStatusString(status));
}

/* ---- memory ---- */

static fl_err cuda_alloc(fl_backend *be, int64_t bytes, void **out) {
    fl_cuda *cuda = fl_cuda_of(be);
    size_t free_bytes = 0, total_bytes = 0;
    FL_TRY(fl_backend_may_alloc(be, bytes));
    cudaError_t error = cudaMalloc(out, (size_t)bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* not sticky: forget it */
        FL_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
        return FL_FAIL(FL_ERR_NOMEM, "CUDA device %d: %lld MiB wanted, %lld of %lld MiB free", cuda->device,
                       (long long)(bytes >> 20), (long long)(free_bytes >> 20),
                       (long long)(total_bytes >> 20));
    }
    FL_TRY(fl_cuda_check(error, "cudaMalloc"));
    return fl_cuda_check(cudaMemsetAsync(*out, 0, (size_t)bytes, cuda->stream), "clearing memory");
}

static void cuda_free(fl_backend *be, void *memory, int64_t bytes) {
    (void)be;
    (void)bytes;
    cudaFree(memory);
}

static fl_err cuda_alloc_host(fl_backend *be, int64_t bytes, void **out) {
    FL_TRY(fl_backend_may_alloc(be, bytes));
    FL_TRY(fl_cuda_check(cudaHostAlloc(out, (size_t)bytes, cudaHostAllocDefault), "pinned host memory"));
    memset(*out, 0, (size_t)bytes);
    return FL_ERR_OK;
}

static void cuda_free_host(fl_backend *be, void *memory, int64_t bytes) {
    (void)be;
    (void)bytes;
    cudaFreeHost(memory);
}

/* Much memory that is not pinned, while weights are loaded. */
static bool wants_stage(const fl_backend *be, const void *from, int64_t bytes) {
    cudaPointerAttributes of;
    if (be->sealed || bytes < STAGED_BYTES_MIN) return false;
    bool known = cudaPointerGetAttributes(&of, from) == cudaSuccess;
    return known && of.type == cudaMemoryTypeUnregistered;
}

static fl_err cuda_upload(fl_backend *be, void *to, const void *from, int64_t bytes) {
    if (wants_stage(be, from, bytes)) return fl_cuda_stage_copy(fl_cuda_of(be), to, from, bytes);
    return fl_cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, fl_cuda_of(be)->stream),
                         "upload");
}

static fl_err cuda_wait(fl_backend *be) {
    fl_cuda *cuda = fl_cuda_of(be);
    FL_TRY(fl_cuda_check(cudaMemcpyAsync(cuda->seen_fault, cuda->fault, sizeof *cuda->fault,
                                         cudaMemcpyDeviceToHost, cuda->stream),
                         "a kernel"));
    FL_TRY(fl_cuda_check(cudaStreamSynchronize(cuda->stream), "a kernel"));
    int32_t fault = *cuda->seen_fault;
    if (fault <= FL_CUDA_FAULT_NONE || fault >= FL_CUDA_N_FAULTS) return FL_ERR_OK;
    FL_CUDA_TRY(cudaMemsetAsync(cuda->fault, 0, sizeof fault, cuda->stream));
    return FL_FAIL(FL_ERR_INVALID, "%s", fault_text[fault]);
}

static fl_err cuda_fence(fl_backend *be, int32_t i) {
    return fl_cuda_check(cudaEventRecord(fl_cuda_of(be)->fences[i], fl_cuda_of(be)->stream), "a fence");
}

static fl_err cuda_pass(fl_backend *be, int32_t i) {
    return fl_cuda_check(cudaEventSynchronize(fl_cuda_of(be)->fences[i]), "a kernel");
}

static fl_err cuda_download(fl_backend *be, void *to, const void *from, int64_t bytes) {
    FL_TRY(fl_cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, fl_cuda_of(be)->stream),
                         "download"));
    return cuda_wait(be);
}

/* Launches are refused on streams of another device than the thread's current one, which is device 0 until told. */
static fl_err cuda_enter(fl_backend *be) {
    return fl_cuda_check(cudaSetDevice(fl_cuda_of(be)->device), "choosing the device");
}

/* ---- opening ---- */

static int64_t cuda_free_bytes(fl_backend *be) {
    (void)be;
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? (int64_t)free_bytes : 0;
}

static void cuda_seal(fl_backend *be) {
    fl_cuda_stage_close(fl_cuda_of(be));
}

static void cuda_close(fl_backend *be) {
    fl_cuda *cuda = fl_cuda_of(be);
    fl_cuda_stage_close(cuda);
    fl_cuda_marks_close(cuda);
    fl_blas_plans_close(cuda->plans);
    if (cuda->blas) fl_blas.Destroy(cuda->blas);
    cudaFree(cuda->workspace);
    cudaFree(cuda->fault);
    if (cuda->disturbing) cudaStreamDestroy(cuda->disturbing);
    for (int32_t i = 0; i < 2; i++)
        if (cuda->fences[i]) cudaEventDestroy(cuda->fences[i]);
    cudaFreeHost(cuda->seen_fault);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    fl_pool_close(cuda->base.pool);
    free(cuda);
}

bool fl_cuda_available(int32_t device) {
    int count = 0, major = 0;
    bool found = cudaGetDeviceCount(&count) == cudaSuccess && device < count &&
                 cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    cudaGetLastError();
    return found && major == CAPABILITY_MAJOR;
}

static fl_err find_device(int32_t device) {
    int count = 0, major = 0, minor = 0;
    FL_TRY(fl_cuda_check(cudaGetDeviceCount(&count), "looking for a device"));
    if (device < 0 || device >= count)
        return FL_FAIL(FL_ERR_DEVICE, "CUDA device %d: this machine has %d", device, count);
    FL_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    FL_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    if (major != CAPABILITY_MAJOR)
        return FL_FAIL(FL_ERR_DEVICE,
                       "CUDA device %d has compute capability %d.%d, this build needs %d.0 (Hopper)", device,
                       major, minor, CAPABILITY_MAJOR);
    return fl_cuda_check(cudaSetDevice(device), "choosing the device");
}

static fl_err open_parts(fl_cuda *cuda, int32_t n_threads) {
    FL_TRY(fl_pool_open(n_threads, &cuda->base.pool));
    FL_CUDA_TRY(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    FL_CUDA_TRY(
        cudaDeviceGetAttribute(&cuda->n_multiprocessors, cudaDevAttrMultiProcessorCount, cuda->device));
    for (int32_t i = 0; i < 2; i++)
        FL_CUDA_TRY(cudaEventCreateWithFlags(&cuda->fences[i], cudaEventDisableTiming));
    FL_TRY(fl_cuda_marks_open(cuda));
    FL_TRY(fl_cuda_blas_load());
    FL_CUDA_BLAS_TRY(fl_blas.Create(&cuda->blas));
    FL_TRY(fl_blas_plans_open(&cuda->plans));
    cuda->workspace_bytes = WORKSPACE_BYTES;
    FL_TRY(cuda_alloc(&cuda->base, cuda->workspace_bytes, &cuda->workspace));
    FL_TRY(cuda_alloc(&cuda->base, sizeof *cuda->fault, (void **)&cuda->fault));
    FL_TRY(cuda_alloc_host(&cuda->base, sizeof *cuda->fault, (void **)&cuda->seen_fault));
    return cuda_wait(&cuda->base);
}

fl_err fl_cuda_open(const fl_cuda_options *options, fl_backend **out) {
    FL_TRY(find_device(options->device));
    fl_cuda *cuda = (fl_cuda *)calloc(1, sizeof *cuda);
    if (!cuda) return FL_FAIL(FL_ERR_NOMEM, "backend %s", options->name);
    cuda->device = options->device;
    fl_backend *be = &cuda->base;
    fl_cuda_formats(be);
    be->name = options->name;
    be->w8a8 = options->w8a8;
    be->deterministic = options->deterministic;
    be->op = &fl_op_table_cuda;
    be->enter = cuda_enter;
    be->alloc = cuda_alloc;
    be->free = cuda_free;
    be->alloc_host = cuda_alloc_host;
    be->free_host = cuda_free_host;
    be->upload = cuda_upload;
    be->download = cuda_download;
    be->wait = cuda_wait;
    be->fence = cuda_fence;
    be->pass = cuda_pass;
    be->record = fl_cuda_record;
    be->record_end = fl_cuda_record_end;
    be->replay = fl_cuda_replay;
    be->recording_close = fl_cuda_recording_close;
    be->marks_max = FL_CUDA_MARKS;
    be->mark = fl_cuda_mark;
    be->mark_time = fl_cuda_mark_time;
    be->hold = fl_cuda_hold;
    be->range_begin = fl_cuda_range_begin;
    be->range_end = fl_cuda_range_end;
    be->free_bytes = cuda_free_bytes;
    be->seal = cuda_seal;
    be->fill = fl_cuda_fill;
    be->close = cuda_close;
    fl_err err = open_parts(cuda, options->n_threads);
    if (err != FL_ERR_OK) cuda_close(be);
    else *out = be;
    return err;
}
