#include "kv/kv_pool.h"

#include <stdlib.h>

struct fl_kv_pool {
    fl_kv_shape shape;
    uint8_t *memory;
    int32_t n_pages, n_free;
    int32_t *free_pages; /* stack of n_free page numbers */
    int32_t *references; /* [n_pages] */
};

fl_kv_layer fl_kv_shape_layer(const fl_kv_shape *shape, int32_t layer) {
    fl_kv_layer kv = {.latent_dim = shape->latent_dim,
                      .rope_dim = shape->rope_dim,
                      .format = shape->format,
                      .group = shape->group,
                      .n_outliers = shape->n_outliers,
                      .planes = shape->planes};
    if (shape->n_outliers > 0) kv.outliers = shape->outliers + layer * shape->n_outliers;
    kv.page_stride_bytes = fl_kv_piece_bytes(&kv) * shape->n_layers;
    return kv;
}

int64_t fl_kv_page_bytes(const fl_kv_shape *shape) {
    return fl_kv_shape_layer(shape, 0).page_stride_bytes;
}

fl_err fl_kv_pool_open(const fl_kv_shape *shape, int32_t n_pages, void *memory, fl_kv_pool **out) {
    fl_kv_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return FL_FAIL(FL_ERR_NOMEM, "KV pool");
    pool->shape = *shape;
    pool->memory = memory;
    pool->n_pages = pool->n_free = n_pages;
    pool->free_pages = malloc((size_t)n_pages * sizeof(int32_t));
    pool->references = calloc((size_t)n_pages, sizeof(int32_t));
    if (!pool->free_pages || !pool->references) {
        fl_kv_pool_close(pool);
        return FL_FAIL(FL_ERR_NOMEM, "KV pool of %d pages", n_pages);
    }
    for (int32_t i = 0; i < n_pages; i++) pool->free_pages[i] = n_pages - 1 - i;
    *out = pool;
    return FL_ERR_OK;
}

void fl_kv_pool_close(fl_kv_pool *pool) {
    if (!pool) return;
    free(pool->free_pages);
    free(pool->references);
    free(pool);
}

int32_t fl_kv_pool_pages(const fl_kv_pool *pool) {
    return pool->n_pages;
}

int32_t fl_kv_pool_free_pages(const fl_kv_pool *pool) {
    return pool->n_free;
}

int32_t fl_kv_pool_take(fl_kv_pool *pool) {
    if (pool->n_free == 0) return -1;
    int32_t page = pool->free_pages[--pool->n_free];
    pool->references[page] = 1;
    return page;
}

void fl_kv_pool_hold(fl_kv_pool *pool, int32_t page) {
    pool->references[page]++;
}

void fl_kv_pool_drop(fl_kv_pool *pool, int32_t page) {
    if (--pool->references[page] == 0) pool->free_pages[pool->n_free++] = page;
}

int32_t fl_kv_pool_references(const fl_kv_pool *pool, int32_t page) {
    return pool->references[page];
}

void *fl_kv_pool_page(const fl_kv_pool *pool, int32_t page) {
    return pool->memory + page * fl_kv_page_bytes(&pool->shape);
}

fl_kv_layer fl_kv_pool_layer(const fl_kv_pool *pool, int32_t layer) {
    fl_kv_layer kv = fl_kv_shape_layer(&pool->shape, layer);
    kv.base = pool->memory + layer * fl_kv_piece_bytes(&kv);
    return kv;
}
