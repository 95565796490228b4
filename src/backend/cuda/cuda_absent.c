/* Builds without a CUDA compiler: the same functions, which refuse. */
#ifndef FL_HAS_CUDA
#include "backend/cuda/cuda_open.h"

fl_err fl_cuda_open(const fl_cuda_options *options, fl_backend **out) {
    (void)out;
    return FL_FAIL(FL_ERR_DEVICE,
                   "backend %s: this build has no CUDA, no CUDA compiler was there when it was made",
                   options->name);
}

bool fl_cuda_available(int32_t device) {
    (void)device;
    return false;
}

fl_err fl_cuda_roof(fl_backend *be, fl_roof *out) {
    (void)be;
    (void)out;
    return FL_FAIL(FL_ERR_DEVICE, "this build has no CUDA");
}

fl_err fl_cuda_disturb(fl_backend *be, uint64_t random) {
    (void)be;
    (void)random;
    return FL_FAIL(FL_ERR_DEVICE, "this build has no CUDA");
}
#else
typedef int fl_cuda_absent_nothing; /* a translation unit may not be empty */
#endif
