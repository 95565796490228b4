/* The attention half of a layer, shared by its files: projections (attention.c), document rows (attend_document.c),
 * tail rows (attend_tail.c). */
#ifndef FL_MODEL_ATTENTION_H
#define FL_MODEL_ATTENTION_H

#include "model/forward.h"

enum { FL_PATHS_MAX = 2 };

/* One rotation of queries and keys, for the keys at some distances. One path is all distances. */
typedef struct fl_path {
    void *q;            /* [rows][heads][nope + rope] act, rotated and scaled */
    const float *table; /* [rows][rope / 2][2] that rotates q */
    int32_t k_plane;    /* of the stored k_pe */
    int32_t distance_first, distance_end;
} fl_path;

typedef struct fl_attention {
    const fl_weights *w;
    const fl_layer *layer;
    const fl_step *step;
    const fl_attend *attend;
    const fl_kv_layer *kv;
    fl_arena *arena;
    int32_t layer_index;
    int32_t heads, nope, rope, v, latent, q_rank;
    int64_t act_bytes; /* of one element */
    float softmax_scale;
    float *down;                 /* [rows][q_rank + latent + rope]: q_a | latent | k_pe before norms */
    float *q_raw;                /* [rows from q_raw_row on][heads][nope + rope] before rope */
    int32_t q_raw_row, tail_row; /* the first tail row is at or behind q_raw_row */
    void *latents;               /* [rows][latent] act */
    fl_inputs out; /* [rows][heads * v]: codes of the document rows, act of the others from out_row on */
    int32_t out_row;
    fl_path paths[FL_PATHS_MAX];
    int32_t n_paths;
} fl_attention;

/* `elements` of act behind base. */
static inline void *fl_attention_at(const fl_attention *t, const void *base, int64_t elements) {
    uintptr_t address = (uintptr_t)base + (uintptr_t)(elements * t->act_bytes);
    return (void *)address;
}

/* Room for `elements` of act from the step's arena. */
static inline fl_err fl_attention_take(fl_attention *t, int64_t elements, void *out_pointer) {
    return fl_arena_take(t->arena, elements, t->act_bytes, out_pointer);
}

/* The distances that a path and a view share, in the view. */
static inline fl_attn_view fl_path_view(const fl_path *path, fl_attn_view view) {
    view.distance_first = path->distance_first;
    view.distance_end = path->distance_end;
    return view;
}

/* A document piece attends as t->attend says. out: [piece->n_rows][heads * v], as codes where there are any; lse:
 * [piece->n_rows][heads] or NULL. */
fl_err fl_attend_document(fl_attention *t, const fl_kv_rows *piece, const fl_inputs *out, float *lse);

/* Measures for t->attend->probe what lists would keep of the piece's last tile. */
fl_err fl_attend_measure(fl_attention *t, const fl_kv_rows *piece);

/* Writes t->out.act for the tail rows, those from row0 on. */
fl_err fl_attend_tail(fl_attention *t, int32_t row0, int32_t rows);

#endif
