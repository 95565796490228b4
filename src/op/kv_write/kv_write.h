/* kv_write: stores the rows' latents (normalised, before gamma) and rotated k_pe in their pages, in the
 * pool's format (bf16: round to nearest even; f32: as is). Everything later is read as stored. Exact, checked
 * bitwise. Cost: bytes rows (latent_dim + rope_dim) (act + kv). */
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
