/* kv_read: positions pos, pos + step, .. of a timeline, n in all, from their pages into contiguous act rows
 * (dequantised as kv_format.h says, rounded to act). Exact, checked bitwise. Cost: bytes
 * n ((latent_dim + rope_dim) act + a token as stored). */
#ifndef FL_OP_KV_READ_H
#define FL_OP_KV_READ_H

#include "op/op_types.h"

typedef struct fl_kv_read_args {
    fl_kv_layer kv;
    const int32_t *pages; /* page of position p: pages[p / FL_KV_PAGE_TOKENS] */
    int32_t pos, n;
    int32_t step; /* from one position to the next; 0 counts as 1 */
    void *latent; /* [n][latent_dim] act */
    void *k_pe;   /* [n][rope_dim] act */
} fl_kv_read_args;

static inline int32_t fl_kv_read_step(const fl_kv_read_args *a) {
    return a->step < 1 ? 1 : a->step;
}

fl_err fl_kv_read_validate(const fl_kv_read_args *a);
fl_cost fl_kv_read_cost(const fl_kv_read_args *a);

#endif
