/* matmul: y[r][:] = x[r][:] W_g^T for the rows r of each group g (dense layers: one group; experts: one group
 * each). Products accumulate in f32 over k in a fixed order that does not depend on the number of rows, so a
 * row's result is the same bits in any batch (contract 1; tested). Epilogues: f32, rounded to act, or SwiGLU:
 *   y[r][j] = silu(u[j]) * u[n/2 + j], u = x W^T in f32, silu(t) = t / (1 + exp(-t)); rounded to act;
 * with block scales also SwiGLU as codes (codes.h) of what is rounded to act. Or rope (op/rope/rope.h) of u, whose n
 * are heads side by side: what the op rope makes of an f32 result.
 * Tolerance: |error| <= k * 2^-24 * sum|x w| for f32; one act rounding more for act; SwiGLU 1e-5 relative
 * more. Shapes: avx512 takes k in multiples of 32 and for SwiGLU n in multiples of 128, refuses others by name;
 * reference, avx2 and cuda take all. Cost: flops 2 rows n k; bytes min(n_groups, rows) n k w + rows (k act + outputs);
 * a table of rope besides; what epilogues compute is not counted.
 *
 * Weights with block scales (fl_weight.scale, on backends with w8a8) are multiplied with quantised activations: codes
 * with scales s[b] of 128 inputs b, as codes.h has it, made here or given. With the codes' exact products
 *   u[r][j] = sum over b in order of (sum over i in b of code_x[r][i] * code_w[j][i]) * s[r][b] * scale[j / 128][b]
 * in f32, and the epilogues as above. Tolerance: a block's sum may be off by 2^-10 of the sum of its |products| (the
 * matrix units of fp8 keep about 13 bits of a sum), the sum over blocks by k / 128 roundings. Cost: a weight counts 1
 * byte, codes theirs and their scales'. */
#ifndef FL_OP_MATMUL_H
#define FL_OP_MATMUL_H

#include "op/codes.h"

typedef enum fl_matmul_out {
    FL_MATMUL_F32,
    FL_MATMUL_ACT,
    FL_MATMUL_SWIGLU,
    FL_MATMUL_SWIGLU_CODES, /* weights with block scales; n / 2 a multiple of FL_SCALE_BLOCK */
    FL_MATMUL_ROPE, /* on backends with matmul_rope; n a multiple of nope_dim + rope_dim; rounded to act */
} fl_matmul_out;

typedef struct fl_matmul_rope {
    const float *table; /* [rows][rope_dim / 2][2]: cos, sin */
    int32_t nope_dim;   /* of each head, before rope_dim */
    int32_t rope_dim;   /* even */
    float scale;
} fl_matmul_rope;

typedef struct fl_matmul_args {
    const void *x; /* [rows], x_stride apart, k wide, act; not looked at where x_codes are there */
    int64_t x_stride;
    fl_codes x_codes;   /* of x, for weights with block scales */
    const fl_weight *w; /* [n_groups], all of the same n and k */
    int32_t n_groups;
    const int32_t *group_rows; /* [n_groups + 1]: group g owns rows group_rows[g] .. group_rows[g + 1] - 1;
                                  first 0, not decreasing, last `rows`; NULL = one
                                  group with all rows */
    int32_t rows;
    fl_matmul_out out;
    void *y; /* [rows], y_stride apart; n (SwiGLU: n/2) wide */
    int64_t y_stride;
    fl_codes y_codes;    /* FL_MATMUL_SWIGLU_CODES, in place of y */
    fl_matmul_rope rope; /* FL_MATMUL_ROPE */
    void *scratch;       /* fl_matmul_scratch_bytes(a) bytes, 64-byte aligned: codes that were not given */
} fl_matmul_args;

static inline bool fl_matmul_is_swiglu(fl_matmul_out out) {
    return out == FL_MATMUL_SWIGLU || out == FL_MATMUL_SWIGLU_CODES;
}

/* Features of a row of the result. */
static inline int32_t fl_matmul_width(fl_matmul_out out, int32_t n) {
    return fl_matmul_is_swiglu(out) ? n / 2 : n;
}

fl_err fl_matmul_validate_groups(const fl_matmul_args *a);
fl_err fl_matmul_validate(const fl_matmul_args *a);
fl_cost fl_matmul_cost(const fl_matmul_args *a);

/* 0 for weights without block scales, and where codes are given. */
int64_t fl_matmul_scratch_bytes(const fl_matmul_args *a);

/* The codes of a product with block scales: those given, or `*made` true and room for them in scratch. */
fl_codes fl_matmul_codes_of(const fl_matmul_args *a, bool *made);

/* The refusals of backends without w8a8 or matmul_rope. */
fl_err fl_matmul_need_plain(const fl_backend *be, const fl_matmul_args *a);

#endif
