/* The inner part of matmul and matmul_head on AVX2: out[r][c] = sum over j of x[r][j] * w[c][j], for some rows
 * and some whole panels of a weight packed with n_block 16, k_pair 1, k_align 1. Each sum runs over j in order in
 * one f32 accumulator with FMA, whatever the number of rows and panels: that order is what makes a row's bits
 * independent of the rows beside it. */
#ifndef FL_OP_MATMUL_BLOCK_AVX2_H
#define FL_OP_MATMUL_BLOCK_AVX2_H

#include <stdint.h>

enum { FL_PANEL_AVX2 = 16 };

typedef struct fl_matmul_block_avx2 {
    const float *x; /* [n_rows], x_stride apart, k wide */
    int64_t x_stride;
    int32_t n_rows, k;
    const uint16_t *panels; /* [n_panels][k][16] bf16 */
    int32_t n_panels;
    float *out; /* [n_rows], out_stride apart, 16 * n_panels wide, all written */
    int64_t out_stride;
} fl_matmul_block_avx2;

void fl_matmul_block_run_avx2(const fl_matmul_block_avx2 *b);

/* Rows that a caller should hand over at once, so that they stay in L2 while panels stream past. */
int32_t fl_matmul_block_rows_avx2(int32_t k);

#endif
