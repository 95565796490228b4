/* One call of attn_prefill as its CUDA kernels see it. */
#ifndef FL_OP_ATTN_PREFILL_CUDA_CUH
#define FL_OP_ATTN_PREFILL_CUDA_CUH

#include "backend/cuda/cuda_backend.h"
#include "op/cuda/device.cuh"

extern "C" {
#include "op/attn_prefill/attn_prefill.h"
#include "op/attn_prefill/attn_prefill_tiles.h"
}

/* Keys of a call, all tokens or all means. */
typedef struct fl_prefill_part {
    fl_attn_keys keys;
    bool means;
    const float *key_bias; /* [n_heads] or NULL */
} fl_prefill_part;

typedef struct fl_prefill_call {
    fl_prefill_part part[2]; /* taken in order, over the same rows and lists */
    int32_t n_parts;
    int32_t rows, n_heads;
    int32_t first_tile, row_tiles; /* the tiles of rows to be done */
    uint32_t n_tasks;              /* row_tiles * n_heads */
    const uint16_t *ids;           /* [tiles of all rows][n_heads][capacity], or NULL: no list */
    const int32_t *n_ids;          /* [tiles of all rows][n_heads], -1: dense */
    int32_t capacity;
    bool first, last;
    void *state;
    fl_bf16 *out;
    fl_codes codes; /* in place of out where there are any */
    float *lse;
} fl_prefill_call;

/* The walk of a row tile and head. */
static __device__ inline fl_attn_walk fl_prefill_walk(const fl_prefill_call *c, const fl_prefill_part *part,
                                                      int32_t tile, int32_t head) {
    if (!c->ids) return fl_attn_walk_all(&part->keys, tile, false);
    int64_t at = (int64_t)tile * c->n_heads + head;
    int32_t n = c->n_ids[at];
    if (part->means) return fl_attn_walk_means(&part->keys, tile, n < 0);
    if (n < 0) return fl_attn_walk_all(&part->keys, tile, true);
    return fl_attn_walk_listed(&part->keys, tile, c->ids + at * c->capacity, n);
}

/* Any head shape, on CUDA cores: attn_prefill_plain.cu. */
fl_err fl_prefill_plain(fl_cuda *cuda, const fl_attn_prefill_args *a, const fl_prefill_call *c);

#endif
