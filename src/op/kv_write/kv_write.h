/* kv_write: stores the rows' latents (normalised, before gamma) and rotated k_pe in their pages, in the pool's format
 * (f32: as is; bf16, k_pe: to nearest, ties to even; fp8, int4: kv_format.h). Everything later is read as stored.
 *
 * int4-naive and int2-naive are controls that an evaluation must flag: the latents of each of seqs[] are rounded to 16
 * or 4 equal steps between the one minimum and maximum over all their rows and dimensions,
 *   low + code * scale,  scale = (high - low) / (levels - 1),  code = nearest to (x - low) / scale, ties to even,
 * in f32, then stored as bf16. So what is stored depends on how a prompt is cut into calls: contract 1 does not hold
 * with them.
 *
 * Exact, checked bitwise; NaN stays NaN. Cost: bytes rows ((latent_dim + rope_dim) act + a token as stored). */
#ifndef FL_OP_KV_WRITE_H
#define FL_OP_KV_WRITE_H

#include "op/op_types.h"

typedef struct fl_kv_write_args {
    const void *latent; /* [rows], latent_stride apart, latent_dim wide, act */
    int64_t latent_stride;
    const void *k_pe; /* [rows], k_pe_stride apart, rope_dim wide, act */
    int64_t k_pe_stride;
    fl_kv_layer kv;
    const fl_kv_rows *seqs; /* [n_seqs] */
    int32_t n_seqs;
} fl_kv_write_args;

fl_err fl_kv_write_validate(const fl_kv_write_args *a);
fl_cost fl_kv_write_cost(const fl_kv_write_args *a);

#endif
