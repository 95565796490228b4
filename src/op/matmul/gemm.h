/* Small row-tile GEMMs on oneDNN (bf16 x bf16 -> f32, optionally rounded to bf16), for the avx512 backend's matmul
 * ops. oneDNN's kernel sums k in an order that depends neither on the number of rows nor on the number of features
 * (tested), so any row count is cut into tiles of 64, 32, .. 1 rows from a fixed set of primitives: nothing is
 * compiled or allocated after the first use of a shape. */
#ifndef FL_OP_GEMM_H
#define FL_OP_GEMM_H

#include "base/err.h"

enum { FL_GEMM_ROWS = 64, FL_GEMM_STAGE_FLOATS = FL_GEMM_ROWS * 512 };

typedef struct fl_gemm fl_gemm;         /* all primitives of one backend, and the workers' stages */
typedef struct fl_gemm_set fl_gemm_set; /* the primitives of one shape */

/* x and y are dense: oneDNN's fast kernels take no others (rows of one are always dense). */
typedef struct fl_gemm_shape {
    int32_t n;   /* output features, multiple of 64 */
    int32_t k;   /* multiple of 32 */
    bool y_bf16; /* y rounded to bf16, else f32 */
} fl_gemm_shape;

fl_err fl_gemm_open(int32_t n_workers, fl_gemm **out);
void fl_gemm_close(fl_gemm *gemm);

/* The set for a shape; made at its first use. Call from the thread that issues ops. Owned by `gemm`. */
fl_err fl_gemm_get(fl_gemm *gemm, const fl_gemm_shape *shape, const fl_gemm_set **out);

/* y[rows][n] = x[rows][k] W^T on worker `worker`; w: whole blocks of 64 features in weight_pack's layout. */
void fl_gemm_run(const fl_gemm_set *set, int32_t worker, int32_t rows, const void *x, const void *w, void *y);

/* The worker's private buffer of FL_GEMM_STAGE_FLOATS f32. */
float *fl_gemm_stage(const fl_gemm *gemm, int32_t worker);

#endif
