/* matmul: y[r][:] = x[r][:] W_g^T for the rows r of each group g (dense layers: one group; experts: one group
 * each). Products accumulate in f32 over k in a fixed order that does not depend on the number of rows, so a
 * row's result is the same bits in any batch (contract 1; tested). Epilogues: f32, rounded to act, or SwiGLU:
 *   y[r][j] = silu(u[j]) * u[n/2 + j], u = x W^T in f32, silu(t) = t / (1 + exp(-t)); rounded to act.
 * Tolerance: |error| <= k * 2^-24 * sum|x w| for f32; one act rounding more for act; SwiGLU 1e-5 relative
 * more. Shapes: avx512 takes k in multiples of 32 and for SwiGLU n in multiples of 128, refuses others by name;
 * reference, avx2 and cuda take all. Cost: flops 2 rows n k; bytes min(n_groups, rows) n k w + rows (k act + outputs).
 *
 * Weights with block scales (fl_weight.scale, on backends with w8a8) are multiplied with quantised activations. A row
 * is quantised by groups of 128 inputs b, in f32: a = max(max |x|, 2^-100), s[b] = a / 448, code = e4m3(x * (448 / a)),
 * each operation rounded once, e4m3 to nearest even and saturating. Then with the codes' exact products
 *   u[r][j] = sum over b in order of (sum over i in b of code_x[r][i] * code_w[j][i]) * s[r][b] * scale[j / 128][b]
 * in f32, and the epilogues as above. Tolerance: a block's sum may be off by 2^-10 of the sum of its |products| (the
 * matrix units of fp8 keep about 13 bits of a sum), the sum over blocks by k / 128 roundings. Cost: a weight counts 1
 * byte. */
#ifndef FL_OP_MATMUL_H
#define FL_OP_MATMUL_H

#include "op/op_types.h"

typedef enum fl_matmul_out { FL_MATMUL_F32, FL_MATMUL_ACT, FL_MATMUL_SWIGLU } fl_matmul_out;

typedef struct fl_matmul_args {
    const void *x; /* [rows], x_stride apart, k wide, act */
    int64_t x_stride;
    const fl_weight *w; /* [n_groups], all of the same n and k */
    int32_t n_groups;
    const int32_t *group_rows; /* [n_groups + 1]: group g owns rows group_rows[g] .. group_rows[g + 1] - 1;
                                  first 0, not decreasing, last `rows`; NULL = one
                                  group with all rows */
    int32_t rows;
    fl_matmul_out out;
    void *y; /* [rows], y_stride apart; n (SwiGLU: n/2) wide */
    int64_t y_stride;
    void *scratch; /* fl_matmul_scratch_bytes(a) bytes, 64-byte aligned: the quantised activations */
} fl_matmul_args;

fl_err fl_matmul_validate_groups(const fl_matmul_args *a);
fl_err fl_matmul_validate(const fl_matmul_args *a);
fl_cost fl_matmul_cost(const fl_matmul_args *a);

/* 0 for weights without block scales. */
int64_t fl_matmul_scratch_bytes(const fl_matmul_args *a);

/* Activations as codes with scales, as they lie in scratch. */
typedef struct fl_matmul_codes {
    uint8_t *codes; /* [rows][k] e4m3 */
    float *scale; /* [k / FL_SCALE_BLOCK], scale_stride apart, one a row: a tile's scales lie side by side */
    int64_t scale_stride; /* rows rounded up to a multiple of 4 */
} fl_matmul_codes;

fl_matmul_codes fl_matmul_codes_of(const fl_matmul_args *a);

/* The refusal of backends without w8a8. */
fl_err fl_matmul_need_plain(const fl_backend *be, const fl_matmul_args *a);

#endif
