/* cuBLASLt, loaded when a CUDA backend is opened: half a gigabyte that programs on machines without a GPU never see. */
#ifndef FL_BACKEND_CUDA_CUDA_BLAS_H
#define FL_BACKEND_CUDA_CUDA_BLAS_H

#include <cublasLt.h>

#include "base/err.h"

/* X(name): what is used of cublasLt<name>. */
#define FL_CUDA_BLAS_LIST(X)                                                                                 \
    X(Create)                                                                                                \
    X(Destroy)                                                                                               \
    X(GetStatusString)                                                                                       \
    X(Matmul)                                                                                                \
    X(MatmulAlgoGetHeuristic)                                                                                \
    X(MatmulDescCreate)                                                                                      \
    X(MatmulDescDestroy)                                                                                     \
    X(MatmulDescInit_internal)                                                                               \
    X(MatmulDescSetAttribute)                                                                                \
    X(MatmulPreferenceInit_internal)                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                          \
    X(MatrixLayoutCreate)                                                                                    \
    X(MatrixLayoutDestroy)                                                                                   \
    X(MatrixLayoutInit_internal)

typedef struct fl_cuda_blas {
#define FL_CUDA_BLAS_POINTER(name) __typeof__(&cublasLt##name) name;
    FL_CUDA_BLAS_LIST(FL_CUDA_BLAS_POINTER)
#undef FL_CUDA_BLAS_POINTER
} fl_cuda_blas;

/* Valid after fl_cuda_blas_load; never unloaded. */
extern fl_cuda_blas fl_blas;

/* FL_ERR_DEVICE: the library is not there (detail names where it was looked for). */
fl_err fl_cuda_blas_load(void);

#endif
