/* Loading cuBLASLt: by its name, then from where it was when this was built. */
#include <cublasLt.h>
#include <dlfcn.h>

extern "C" {
#include "backend/cuda/cuda_blas.h"
}

#define TEXT_OF(x)        #x
#define LIBRARY_OF(major) "libcublasLt.so." TEXT_OF(major)

fl_cuda_blas fl_blas;

/* The same for every thread: a race loads it twice. */
fl_err fl_cuda_blas_load(void) {
    static const char *const places[] = {LIBRARY_OF(CUBLAS_VER_MAJOR),
                                         FL_CUDA_LIBRARY_DIR "/" LIBRARY_OF(CUBLAS_VER_MAJOR)};
    if (fl_blas.Create) return FL_ERR_OK;
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return FL_FAIL(FL_ERR_DEVICE,
                       "cuBLASLt is needed for matrix products and was not found: %s (%s); set "
                       "LD_LIBRARY_PATH",
                       places[0], dlerror());
    fl_cuda_blas found = {};
#define FIND(name)                                                                                           \
    found.name = (__typeof__(found.name))dlsym(library, "cublasLt" #name);                                   \
    if (!found.name) return FL_FAIL(FL_ERR_DEVICE, "%s has no cublasLt" #name, places[0]);
    FL_CUDA_BLAS_LIST(FIND)
#undef FIND
    fl_blas = found;
    return FL_ERR_OK;
}
