/* The KV pool: pages of FL_KV_PAGE_TOKENS tokens for all layers, reserved at start. A page is owned by sessions and by
 * the prefix cache through a reference count; a page with no references is free. Page layout:
 *   page p: [layer 0: a piece, op/kv_format.h][layer 1: ...]...
 * Not locked: the engine's worker thread owns it. */
#ifndef FL_KV_POOL_H
#define FL_KV_POOL_H

#include "op/kv_format.h"

typedef struct fl_kv_shape {
    int32_t n_layers, latent_dim, rope_dim;
    fl_kv_format format;
    int32_t group;      /* fl_kv_layer.group; fl_kv_format_group if nothing else is asked for */
    int32_t planes;     /* rotations of k_pe kept; 0 counts as 1 */
    int32_t n_outliers; /* of every layer */
    const uint16_t
        *outliers; /* [n_layers][n_outliers] latent dimensions, ascending in a layer; borrowed for as long
                                 as layers made of it live; NULL if n_outliers is 0 */
} fl_kv_shape;

typedef struct fl_kv_pool fl_kv_pool;

/* What ops take, without pages: base is NULL, page_stride_bytes as in a pool. */
fl_kv_layer fl_kv_shape_layer(const fl_kv_shape *shape, int32_t layer);

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

/* Where a page lies: fl_kv_page_bytes of all layers, one behind the other. */
void *fl_kv_pool_page(const fl_kv_pool *pool, int32_t page);

/* One layer of the pool, as ops take it. */
fl_kv_layer fl_kv_pool_layer(const fl_kv_pool *pool, int32_t layer);

#endif
