/* The KV pool: pages of FL_KV_PAGE_TOKENS tokens for all layers, reserved at start. A page is owned by sessions and by
 * the prefix cache through a reference count; a page with no references is free. Page layout:
 *   page p: [layer 0: latent block | k_pe block][layer 1: ...]...
 * Not locked: the engine's worker thread owns it. */
#ifndef FL_KV_POOL_H
#define FL_KV_POOL_H

#include "op/op_types.h"

typedef struct fl_kv_shape {
    int32_t n_layers, latent_dim, rope_dim;
    fl_dtype dtype;
} fl_kv_shape;

typedef struct fl_kv_pool fl_kv_pool;

int64_t fl_kv_page_bytes(const fl_kv_shape *shape);

/* `memory`: n_pages * fl_kv_page_bytes, 64-byte aligned, borrowed until close. */
fl_err fl_kv_pool_open(const fl_kv_shape *shape, int32_t n_pages, void *memory, fl_kv_pool **out);
void fl_kv_pool_close(fl_kv_pool *pool);

int32_t fl_kv_pool_pages(const fl_kv_pool *pool);
int32_t fl_kv_pool_free_pages(const fl_kv_pool *pool);

/* A free page with one reference, or -1. */
int32_t fl_kv_pool_take(fl_kv_pool *pool);
void fl_kv_pool_hold(fl_kv_pool *pool, int32_t page);
void fl_kv_pool_drop(fl_kv_pool *pool, int32_t page);
int32_t fl_kv_pool_references(const fl_kv_pool *pool, int32_t page);

/* What ops take: one layer's view. */
fl_kv_layer fl_kv_pool_layer(const fl_kv_pool *pool, int32_t layer);

#endif
