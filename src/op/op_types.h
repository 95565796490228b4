/* What op headers share: the backend handle, cost, packed weights, stored KV. */
#ifndef FL_OP_TYPES_H
#define FL_OP_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

typedef struct fl_backend fl_backend;

/* What one call costs, as the counting backend adds it up. Bytes are memory traffic if every operand is read
 * or written once, act and packed weights counted at 2 bytes an element on every backend; flops count a
 * multiply-add as 2, exponentials and comparisons as 0. */
typedef struct fl_cost {
    double flops;
    double bytes;
} fl_cost;

/* One KV page holds this many tokens. */
enum { FL_KV_PAGE_TOKENS = 64 };

/* Largest dimension of an attention head or a latent, in every attention op. */
enum { FL_ATTN_HEAD_DIM_MAX = 1024 };

/* Most experts a layer may route to. */
enum { FL_MOE_EXPERTS_MAX = 1024 };

/* A weight matrix W[n][k] (y = x W^T) in the backend's own layout, made by weight_pack. */
typedef struct fl_weight {
    void *data; /* fl_backend_weight_bytes(be, n, k) bytes, 64-byte aligned; owned by the model */
    int32_t n;  /* output features */
    int32_t k;  /* input features */
} fl_weight;

/* One layer's part of the KV pool. The piece of page p starts at base + p * page_stride_bytes and holds
 * latent[FL_KV_PAGE_TOKENS][latent_dim], then k_pe[FL_KV_PAGE_TOKENS][rope_dim], both of `dtype` (F32 or
 * BF16). */
typedef struct fl_kv_layer {
    uint8_t *base;
    int64_t page_stride_bytes;
    int32_t latent_dim;
    int32_t rope_dim;
    fl_dtype dtype;
} fl_kv_layer;

/* Consecutive rows of a step that belong to one token timeline: row `row + i` is at position `pos + i`, and
 * position p lives in page pages[p / FL_KV_PAGE_TOKENS], slot p % FL_KV_PAGE_TOKENS. */
typedef struct fl_kv_rows {
    int32_t row;
    int32_t n_rows;
    int32_t pos;
    const int32_t *pages;
} fl_kv_rows;

static inline uint8_t *fl_kv_piece(const fl_kv_layer *layer, int32_t page) {
    return layer->base + (int64_t)page * layer->page_stride_bytes;
}

static inline int64_t fl_kv_piece_bytes(const fl_kv_layer *layer) {
    return (int64_t)FL_KV_PAGE_TOKENS * (layer->latent_dim + layer->rope_dim) *
           (int64_t)fl_dtype_bytes(layer->dtype);
}

#endif
