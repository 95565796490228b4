/* Big memory of backends: straight from the system, zeroed, page aligned, given back when freed. */
#ifndef FL_BACKEND_MEMORY_MAP_H
#define FL_BACKEND_MEMORY_MAP_H

#include "op/op_types.h"

/* RESERVED counts against what the system is ready to give. ADDRESSES is address space only: memory comes
 * when a page is written, so a model far larger than this machine can be planned. */
typedef enum fl_memory_kind { FL_MEMORY_RESERVED, FL_MEMORY_ADDRESSES } fl_memory_kind;

/* bytes >= 1. `owner` names the backend in the error. FL_ERR_NOMEM: the system refused. */
fl_err fl_memory_map(const char *owner, int64_t bytes, fl_memory_kind kind, void **out);

/* Has the shape of fl_backend.free; memory may be NULL. */
void fl_memory_unmap(fl_backend *be, void *memory, int64_t bytes);

#endif
