/* Means of blocks that the steps of a prompt leave to its next ones: only the blocks that are new are read again. A
 * mean depends on the stored keys of its block alone, so it has the bits that it would have if it were made again.
 * Layout: a part for each layer: latent[n_max][latent_dim], then for each plane k_pe[n_max][rope_dim], of act, each
 * 64-byte aligned. */
#ifndef FL_MODEL_KEPT_MEANS_H
#define FL_MODEL_KEPT_MEANS_H

#include <stdint.h>

#include "backend/backend.h"

typedef struct fl_kept_means {
    uint8_t *memory; /* NULL = none are kept; borrowed, where ops read and write */
    int32_t n_max;   /* blocks there is room for: all whole ones before the step's end */
    int32_t n_known; /* first blocks of the step's document piece whose means are there, in all layers */
} fl_kept_means;

typedef struct fl_mean_shape {
    int32_t latent_dim, rope_dim, planes;
    int64_t act_bytes; /* of one element */
} fl_mean_shape;

static inline int64_t fl_kept_latent_bytes(const fl_mean_shape *s, int32_t n_max) {
    return fl_align_up((int64_t)n_max * s->latent_dim * s->act_bytes, 64);
}

static inline int64_t fl_kept_k_pe_bytes(const fl_mean_shape *s, int32_t n_max) {
    return fl_align_up((int64_t)n_max * s->rope_dim * s->act_bytes, 64);
}

/* Of a layer. */
static inline int64_t fl_kept_means_bytes(const fl_mean_shape *s, int32_t n_max) {
    return fl_kept_latent_bytes(s, n_max) + s->planes * fl_kept_k_pe_bytes(s, n_max);
}

#endif
