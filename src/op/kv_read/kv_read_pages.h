/* What the CPU versions of kv_read share. */
#ifndef FL_OP_KV_READ_PAGES_H
#define FL_OP_KV_READ_PAGES_H

#include "backend/op_tables.h"
#include "op/kv_format.h"

typedef void fl_kv_latents_fn(const fl_kv_layer *layer, const uint8_t *piece, fl_kv_slots slots, fl_dtype act,
                              void *out);

/* kv_read with a given way of reading latents. */
fl_err fl_kv_read_pages(fl_backend *be, const fl_kv_read_args *a, fl_kv_latents_fn *read_latents);

#endif
