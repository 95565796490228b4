/* The CUDA backend as its ops see it: one device, one stream, errors, tensor maps. Ops are `fl_x_cuda` in
 * src/op/x/x_cuda.cu; they check shapes with fl_x_validate, launch on the stream and return without waiting.
 *
 * What args point to: tensors, ids, page tables, lists, weights' data lie in memory the device reads (of `alloc`, or
 * of `alloc_host` in opcheck); args structs, fl_kv_rows, fl_weight and fl_attn_list themselves, fl_kv_layer and its
 * outliers lie on the host and travel as kernel parameters. */
#ifndef FL_BACKEND_CUDA_CUDA_BACKEND_H
#define FL_BACKEND_CUDA_CUDA_BACKEND_H

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"
#include "backend/cuda/cuda_blas.h"

/* What a kernel found wrong with data that the host cannot look at; told by the next wait. */
typedef enum fl_cuda_fault {
    FL_CUDA_FAULT_NONE,
    FL_CUDA_FAULT_TOKEN_ID,
    FL_CUDA_FAULT_GROUP_ROWS,
    FL_CUDA_FAULT_EXPERT_ID,
    FL_CUDA_FAULT_PLACE,
    FL_CUDA_N_FAULTS
} fl_cuda_fault;

/* What cuBLASLt chose for the shapes it was asked for; of matmul_blas.cu. */
typedef struct fl_blas_plans fl_blas_plans;

/* Pinned memory through which loading copies: one half is filled while the other is sent. */
typedef struct fl_cuda_stage {
    uint8_t *half[2];    /* [FL_CUDA_STAGE_BYTES]; NULL until the first use, and on a sealed backend */
    cudaEvent_t sent[2]; /* behind the last copy out of each */
    int32_t next;
} fl_cuda_stage;

enum { FL_CUDA_STAGE_BYTES = 32 << 20, FL_CUDA_MARKS = 8192 };

typedef struct fl_cuda {
    fl_backend base; /* first: a fl_backend * is cast back */
    int32_t device;
    cudaStream_t stream;
    cudaStream_t disturbing; /* of checks; made when first used */
    cublasLtHandle_t blas;
    void
        *workspace; /* of cuBLASLt, and short-lived partial results of an op: nothing survives the op in it */
    int64_t workspace_bytes;
    fl_blas_plans *plans;
    fl_cuda_stage stage;
    cudaEvent_t *marks; /* [FL_CUDA_MARKS] */
    cudaEvent_t fences[2];
    int32_t *seen_fault; /* host: what wait reads */
    int32_t *fault; /* device: fl_cuda_fault, the first since the last wait; kernels set it with atomicCAS */
    int32_t n_multiprocessors;
} fl_cuda;

static inline fl_cuda *fl_cuda_of(fl_backend *be) {
    return (fl_cuda *)be;
}

/* FL_ERR_OK, or an error that names what was tried and CUDA's own words. */
fl_err fl_cuda_check(cudaError_t error, const char *what);
fl_err fl_cuda_check_blas(cublasStatus_t status, const char *what);

/* [FL_CUDA_STAGE_BYTES] of pinned memory that no copy reads any more; what it holds next is sent in the order of the
 * ops. Waits for the copy before the last. */
fl_err fl_cuda_stage_take(fl_cuda *cuda, uint8_t **out);
fl_err fl_cuda_stage_send(fl_cuda *cuda, void *to, int64_t bytes);
/* Bytes of the host that may change when this returns, copied into the stage by the pool's threads. */
fl_err fl_cuda_stage_copy(fl_cuda *cuda, void *to, const void *from, int64_t bytes);
/* Waits for the copies and gives the memory back. */
void fl_cuda_stage_close(fl_cuda *cuda);

/* Recordings are CUDA graphs; cuda_graph.cu. */
fl_err fl_cuda_record(fl_backend *be);
fl_err fl_cuda_record_end(fl_backend *be, fl_recording **out);
fl_err fl_cuda_replay(fl_backend *be, const fl_recording *recording);
void fl_cuda_recording_close(fl_backend *be, fl_recording *recording);

/* Times and ranges of what is issued; cuda_marks.cu. */
fl_err fl_cuda_marks_open(fl_cuda *cuda);
void fl_cuda_marks_close(fl_cuda *cuda);
fl_err fl_cuda_mark(fl_backend *be, int32_t i);
bool fl_cuda_mark_time(fl_backend *be, int32_t i, double *time_s);
fl_err fl_cuda_hold(fl_backend *be, double time_s);
void fl_cuda_range_begin(fl_backend *be, const char *name);
void fl_cuda_range_end(fl_backend *be);

fl_err fl_blas_plans_open(fl_blas_plans **out);
void fl_blas_plans_close(fl_blas_plans *plans);

#define FL_CUDA_TRY(call)      FL_TRY(fl_cuda_check((call), #call))
#define FL_CUDA_BLAS_TRY(call) FL_TRY(fl_cuda_check_blas((call), #call))

/* After a launch: `return FL_CUDA_LAUNCHED("rmsnorm");` */
#define FL_CUDA_LAUNCHED(op) fl_cuda_check(cudaGetLastError(), op)

/* A tensor as the bulk copy engine takes it; dimension 0 is contiguous. */
typedef struct fl_tma_shape {
    const void *base;  /* 16-byte aligned */
    fl_dtype dtype;    /* BF16, F8_E4M3 or F32 */
    int32_t rank;      /* 2..4 */
    int64_t size[4];   /* elements */
    int64_t stride[4]; /* elements, [0] not read; in bytes multiples of 16 */
    int32_t box[4];    /* elements a copy brings; box[0] of 128 bytes with the swizzle, at most 256 others */
    bool swizzle;      /* the 128-byte one, which wgmma reads */
} fl_tma_shape;

/* Elements outside read as zeros. FL_ERR_INVALID: the engine cannot take this shape. */
fl_err fl_tma_map(const fl_tma_shape *shape, CUtensorMap *out);

#define X(op) fl_err fl_##op##_cuda(fl_backend *be, const fl_##op##_args *a);
#include "op/oplist.inc"
#undef X

#ifdef __cplusplus
}
#endif

#endif
