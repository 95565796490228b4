/* kv_read: positions pos .. pos + n - 1 of a timeline from their pages into contiguous act rows
 * (dequantised as kv_format.h says, rounded to act). Exact, checked bitwise. Cost: bytes
 * n ((latent_dim + rope_dim) act + a token as stored). */
#ifndef FL_OP_KV_READ_H
#define FL_OP_KV_READ_H

#include "op/op_types.h"

typedef struct fl_kv_read_args {
    fl_kv_layer kv;
    const int32_t *pages; /* page of position p: pages[p / FL_KV_PAGE_TOKENS] */
    int32_t pos, n;
    void *latent; /* [n][latent_dim] act */
    void *k_pe;   /* [n][rope_dim] act */
} fl_kv_read_args;

fl_err fl_kv_read_validate(const fl_kv_read_args *a);
fl_cost fl_kv_read_cost(const fl_kv_read_args *a);

#endif
