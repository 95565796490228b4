/* Tensor maps for the bulk copy engine. The encoder lives in the driver, which a build need not link: it is asked for
 * once. */
#include <cudaTypedefs.h>

#include "backend/cuda/cuda_backend.h"

enum { SWIZZLE_BYTES = 128, BOX_MAX = 256 };

static fl_err find_encoder(PFN_cuTensorMapEncodeTiled_v12000 *out) {
    static void *found = NULL; /* the same for every thread: a race stores it twice */
    if (!found) {
        cudaDriverEntryPointQueryResult result;
        FL_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                     cudaEnableDefault, &result));
        if (result != cudaDriverEntryPointSuccess || !found)
            return FL_FAIL(FL_ERR_DEVICE,
                           "the CUDA driver has no cuTensorMapEncodeTiled: it is older than 12.0");
    }
    *out = (PFN_cuTensorMapEncodeTiled_v12000)found;
    return FL_ERR_OK;
}

static CUtensorMapDataType type_of(fl_dtype dtype) {
    return dtype == FL_DTYPE_BF16      ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
           : dtype == FL_DTYPE_F8_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

static fl_err check_shape(const fl_tma_shape *s) {
    int64_t element = (int64_t)fl_dtype_bytes(s->dtype);
    if (s->rank < 2 || s->rank > 4) return FL_FAIL(FL_ERR_INVALID, "tensor map: rank %d", s->rank);
    if ((uintptr_t)s->base % 16 != 0)
        return FL_FAIL(FL_ERR_INVALID, "tensor map: base is not 16-byte aligned");
    for (int32_t i = 0; i < s->rank; i++) {
        bool stride_fits = i == 0 || (s->stride[i] > 0 && s->stride[i] * element % 16 == 0);
        if (s->size[i] < 1 || s->box[i] < 1 || s->box[i] > BOX_MAX || !stride_fits)
            return FL_FAIL(FL_ERR_INVALID, "tensor map: dimension %d: size %lld, stride %lld, box %d", i,
                           (long long)s->size[i], (long long)(i ? s->stride[i] : 1), s->box[i]);
    }
    if (s->swizzle && s->box[0] * element != SWIZZLE_BYTES)
        return FL_FAIL(FL_ERR_INVALID, "tensor map: a swizzled box is %d bytes wide, found %lld",
                       SWIZZLE_BYTES, (long long)(s->box[0] * element));
    return FL_ERR_OK;
}

fl_err fl_tma_map(const fl_tma_shape *s, CUtensorMap *out) {
    PFN_cuTensorMapEncodeTiled_v12000 encode;
    cuuint64_t size[4], stride[4];
    cuuint32_t box[4], step[4] = {1, 1, 1, 1};
    FL_TRY(check_shape(s));
    FL_TRY(find_encoder(&encode));
    for (int32_t i = 0; i < s->rank; i++) {
        size[i] = (cuuint64_t)s->size[i];
        box[i] = (cuuint32_t)s->box[i];
        if (i > 0) stride[i - 1] = (cuuint64_t)s->stride[i] * fl_dtype_bytes(s->dtype);
    }
    CUresult code = encode(out, type_of(s->dtype), (cuuint32_t)s->rank, (void *)s->base, size, stride, box,
                           step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           s->swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_INVALID, "tensor map: the driver refused it (code %d)", (int)code);
}
