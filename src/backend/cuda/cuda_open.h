/* How the backend registry opens CUDA; builds without a CUDA compiler have the same functions, which refuse. */
#ifndef FL_BACKEND_CUDA_CUDA_OPEN_H
#define FL_BACKEND_CUDA_CUDA_OPEN_H

#include "backend/backend.h"
#include "backend/roof.h"

typedef struct fl_cuda_options {
    const char *name; /* of the backend; static */
    int32_t device;
    int32_t n_threads;  /* of the host's pool */
    bool w8a8;          /* keeps e4m3 weights as they are */
    bool deterministic; /* no library products */
} fl_cuda_options;

/* FL_ERR_DEVICE: no such device, not a Hopper, or this build has no CUDA. */
fl_err fl_cuda_open(const fl_cuda_options *options, fl_backend **out);

/* Whether fl_cuda_open would find the device. */
bool fl_cuda_available(int32_t device);

/* What plans on machines without a device need: activations, weights, limits of the CUDA backend. */
void fl_cuda_formats(fl_backend *be);

/* fl_backend.fill of a CUDA backend. */
fl_err fl_cuda_fill(fl_backend *be, const fl_fill_args *a);

/* fl_roof_measure of a CUDA backend. */
fl_err fl_cuda_roof(fl_backend *be, fl_roof *out);

/* Other work beside the backend's, on a stream of its own, that takes a random part of the multiprocessors for a random
 * time, up to a tenth of a millisecond: for checks that look for races. Returns at once. */
fl_err fl_cuda_disturb(fl_backend *be, uint64_t random);

#endif
