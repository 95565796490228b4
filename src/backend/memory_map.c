#include "backend/memory_map.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

fl_err fl_memory_map(const char *owner, int64_t bytes, fl_memory_kind kind, void **out) {
    if (bytes < 1)
        return FL_FAIL(FL_ERR_INVALID, "%s backend: cannot allocate %lld bytes", owner, (long long)bytes);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (kind == FL_MEMORY_ADDRESSES ? MAP_NORESERVE : 0);
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
        return FL_FAIL(FL_ERR_NOMEM, "%s backend: no memory for %lld bytes: %s", owner, (long long)bytes,
                       strerror(errno));
    /* A hint: with 4 KiB pages a decode step over a long context spends a quarter of its time on address
     * translation. */
    if (kind == FL_MEMORY_RESERVED) madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    *out = memory;
    return FL_ERR_OK;
}

void fl_memory_unmap(fl_backend *be, void *memory, int64_t bytes) {
    (void)be;
    if (memory) munmap(memory, (size_t)bytes);
}
