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
    double fp8_flops; /* of flops: products of e4m3 codes, which units of their own may do faster */
} fl_cost;

static inline fl_cost fl_cost_times(fl_cost cost, double times) {
    return (fl_cost){
        .flops = cost.flops * times, .bytes = cost.bytes * times, .fp8_flops = cost.fp8_flops * times};
}

static inline void fl_cost_add(fl_cost *sum, fl_cost more) {
    sum->flops += more.flops;
    sum->bytes += more.bytes;
    sum->fp8_flops += more.fp8_flops;
}

/* One KV page holds this many tokens. */
enum { FL_KV_PAGE_TOKENS = 64 };

/* Largest dimension of an attention head or a latent, in every attention op. */
enum { FL_ATTN_HEAD_DIM_MAX = 1024 };

/* Most experts a layer may route to. */
enum { FL_MOE_EXPERTS_MAX = 1024 };

/* A weight matrix W[n][k] (y = x W^T), 64-byte aligned, owned by the model: in the backend's own layout, made by
 * weight_pack (fl_backend_weight_bytes(be, n, k) bytes), or with block scales as e4m3 codes [n][k], k a multiple of
 * FL_SCALE_BLOCK: W[i][j] = code * scale[i / FL_SCALE_BLOCK][j / FL_SCALE_BLOCK]. */
typedef struct fl_weight {
    void *data;
    int32_t n; /* output features */
    int32_t k; /* input features */
    const float
        *scale; /* [ceil(n / FL_SCALE_BLOCK)], fl_scale_stride(k) apart; NULL = the backend's layout */
} fl_weight;

/* Weights share a scale by blocks of so many features and inputs, quantised activations by so many inputs. */
enum { FL_SCALE_BLOCK = 128 };

/* Floats between rows of a weight's block scales: a multiple of 4, as matrix libraries read them. */
static inline int64_t fl_scale_stride(int32_t k) {
    return ((int64_t)k / FL_SCALE_BLOCK + 3) / 4 * 4;
}

/* How KV is stored; kv_format.h draws the layouts. The naive ones are controls of the evaluation. */
typedef enum fl_kv_format {
    FL_KV_F32,
    FL_KV_BF16,
    FL_KV_FP8,
    FL_KV_INT4,
    FL_KV_INT4_NAIVE,
    FL_KV_INT2_NAIVE,
    FL_N_KV_FORMATS
} fl_kv_format;

/* Latent dimensions that int4 may keep in 16 bits. */
enum { FL_KV_OUTLIERS_MAX = 8 };

/* Rotations of k_pe that a page may hold. */
enum { FL_KV_PLANES_MAX = 2 };

/* One layer's part of the KV pool. The piece of page p starts at base + p * page_stride_bytes. */
typedef struct fl_kv_layer {
    uint8_t *base;
    int64_t page_stride_bytes;
    int32_t latent_dim;
    int32_t rope_dim;
    fl_kv_format format;
    int32_t group;            /* int4: latent dimensions that share scale and minimum, 32 or 64; else 0 */
    int32_t n_outliers;       /* int4: 0..FL_KV_OUTLIERS_MAX; else 0 */
    const uint16_t *outliers; /* [n_outliers] latent dimensions, ascending; borrowed */
    int32_t planes;           /* rotations of k_pe that a piece holds, one after another; 0 counts as 1 */
    int32_t plane;            /* the one that ops read and write */
} fl_kv_layer;

/* Consecutive rows of a step that belong to one token timeline: row `row + i` is at position `pos + i`, and
 * position p lives in page pages[p / FL_KV_PAGE_TOKENS], slot p % FL_KV_PAGE_TOKENS. */
typedef struct fl_kv_rows {
    int32_t row;
    int32_t n_rows;
    int32_t pos;
    const int32_t *pages;
    /* NULL, or (of a device that records, kv_write and attn_absorbed alone) where they read the first row's position
     * when they run: `pos` is then the largest that it can be, which sizes what is launched. */
    const int32_t *pos_at;
} fl_kv_rows;

/* Which keys a row sees in one call of an attention op, besides causality. All 0 = every key. With d = p - t, the
 * distance from row p back to key t:
 *   near(p, t) = window == 0, or d < window, or t < sinks, or (segment > 0 and t / segment == p / segment)
 *   seen       = d >= 0 and near(p, t) != far and d >= distance_first and (distance_end == 0 or d < distance_end)
 * A pattern is a few calls with disjoint views over one running state; a new pattern is new numbers. */
typedef struct fl_attn_view {
    int32_t window;  /* tokens, the row's own included; 0 = all are near */
    int32_t segment; /* tokens; 0 = no segments */
    int32_t sinks;   /* first tokens of the timeline */
    bool far;        /* this call sees the keys that are not near */
    int32_t distance_first, distance_end;
} fl_attn_view;

static inline bool fl_attn_view_sees(const fl_attn_view *v, int32_t p, int32_t t) {
    int32_t d = p - t;
    bool near = v->window == 0 || d < v->window || t < v->sinks ||
                (v->segment > 0 && t / v->segment == p / v->segment);
    return d >= 0 && near != v->far && d >= v->distance_first &&
           (v->distance_end == 0 || d < v->distance_end);
}

/* Block lists are made for tiles of this many rows, at positions that are multiples of it. */
enum { FL_ATTN_LIST_ROWS = 128 };

/* Lists have 16-bit ids: they reach so far into a timeline. */
enum { FL_ATTN_LIST_TOKENS_MAX = 65536 * FL_KV_PAGE_TOKENS };

/* Largest block of block_mean, block_score and block_select. */
enum { FL_BLOCK_TOKENS_MAX = 1024 };

/* Blocks of FL_KV_PAGE_TOKENS keys that each tile of rows attends, by head. Block b is positions
 * [b * FL_KV_PAGE_TOKENS, (b + 1) * FL_KV_PAGE_TOKENS). */
typedef struct fl_attn_list {
    uint16_t *ids; /* [tiles][n_heads][capacity], ascending */
    int32_t *n; /* [tiles][n_heads] entries used, or -1: the head is dense in this tile, it sees every key */
    int32_t capacity;
    double planned_blocks; /* of an average tile and head: what cost functions count, for ids hold no plan */
} fl_attn_list;

static inline uint8_t *fl_kv_piece(const fl_kv_layer *layer, int32_t page) {
    return layer->base + (int64_t)page * layer->page_stride_bytes;
}

#endif
