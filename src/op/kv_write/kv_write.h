/* kv_write: stores the rows' latents (normalised, before gamma) and their rotated k_pe in their pages, in the pool's
 * format (f32: as is; bf16, k_pe: to nearest, ties to even; fp8, int4: kv_format.h). Everything later is read as
 * stored.
 *
 * k_pe is rotated on the way, as rope does it with scale 1: for i < rope_dim / 2
 *   y[2i] = x[2i] c - x[2i+1] s,  y[2i+1] = x[2i] s + x[2i+1] c,  c = table[r][i].cos,  s = table[r][i].sin,
 * rounded to act once. The fast versions take one product in f32 and fuse the other with the sum, as theirs of rope do:
 * the bits of rope, then a copy.
 *
 * int4-naive and int2-naive are controls that an evaluation must flag: the latents of each of seqs[] are rounded to 16
 * or 4 equal steps between the one minimum and maximum over all their rows and dimensions,
 *   low + code * scale,  scale = (high - low) / (levels - 1),  code = nearest to (x - low) / scale, ties to even,
 * in f32, then stored as bf16. So what is stored depends on how a prompt is cut into calls: contract 1 does not hold
 * with them.
 *
 * Latents are exact, checked bitwise; so is k_pe where products are (checks use such tables), else within 2e-6 of the
 * pair's norm before it is rounded. NaN stays NaN. Cost: flops 3 rows rope_dim; bytes rows (latent_dim act + 8
 * rope_dim + a token as stored). */
#ifndef FL_OP_KV_WRITE_H
#define FL_OP_KV_WRITE_H

#include "op/op_types.h"

typedef struct fl_kv_write_args {
    const void *latent; /* [rows], latent_stride apart, latent_dim wide, act */
    int64_t latent_stride;
    const float *k_pe; /* [rows], k_pe_stride apart, rope_dim wide (even), before its rotation */
    int64_t k_pe_stride;
    const float *table; /* [rows][rope_dim / 2][2]: cos, sin */
    fl_kv_layer kv;
    const fl_kv_rows *seqs; /* [n_seqs] */
    int32_t n_seqs;
} fl_kv_write_args;

fl_err fl_kv_write_validate(const fl_kv_write_args *a);
fl_cost fl_kv_write_cost(const fl_kv_write_args *a);

#endif
