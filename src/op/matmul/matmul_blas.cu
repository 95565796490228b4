/* matmul on CUDA through cuBLASLt: large dense products of a backend that need not be deterministic (the library
 * chooses a kernel by the number of rows, so a row's bits may depend on its batch).
 *
 * cuBLASLt counts columns first: y = x W^T with rows apart is D = A^T B with A = W (k x n), B = x (k x rows) and
 * D = y (n x rows), each with its row stride as leading dimension. Choosing a kernel takes the host tens of
 * microseconds, so what was chosen is kept: a plan for each shape, the oldest forgotten. */
#include <stdlib.h>
#include <string.h>

#include "op/matmul/matmul_cuda.cuh"

enum { PLANS_MAX = 256, ROWS_MIN = 64, ALIGN_MAX = 256, ALIGN_MIN = 16 };

/* What the choice depends on. */
typedef struct key {
    int64_t x_stride, y_stride, out;
    int32_t rows, n, k;
    int32_t x_align, w_align, y_align; /* bytes */
} key;
static_assert(__has_unique_object_representations(key), "compared as bytes: no padding");

typedef struct plan {
    key shape;
    bool possible; /* the library has a kernel */
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, y;
    cublasLtMatmulAlgo_t algo;
} plan;

struct fl_blas_plans {
    plan list[PLANS_MAX];
    int32_t n, next; /* next: the one to be replaced when all are in use */
};

fl_err fl_blas_plans_open(fl_blas_plans **out) {
    *out = (fl_blas_plans *)calloc(1, sizeof **out);
    return *out ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "plans of cuBLASLt");
}

void fl_blas_plans_close(fl_blas_plans *plans) {
    free(plans);
}

static int32_t align_of(const void *address) {
    uintptr_t lowest = (uintptr_t)address & (~(uintptr_t)address + 1);
    return lowest < ALIGN_MAX ? (int32_t)lowest : ALIGN_MAX;
}

static key key_of(const fl_product *p) {
    return (key){.x_stride = p->x_stride,
                 .y_stride = p->y_stride,
                 .out = (int64_t)p->out,
                 .rows = p->rows,
                 .n = p->n,
                 .k = p->k,
                 .x_align = align_of(p->x),
                 .w_align = align_of(p->w),
                 .y_align = align_of(p->y)};
}

static fl_err prefer(cublasLtMatmulPreference_t wish, cublasLtMatmulPreferenceAttributes_t what,
                     const void *value, size_t bytes) {
    FL_CUDA_BLAS_TRY(fl_blas.MatmulPreferenceSetAttribute(wish, what, value, bytes));
    return FL_ERR_OK;
}

/* Partial sums, where k is split, are added in f32: anything else would round more often than the contract allows. */
static fl_err make_wish(const fl_cuda *cuda, const key *s, cublasLtMatmulPreferenceOpaque_t *wish) {
    const uint64_t bytes = (uint64_t)cuda->workspace_bytes;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align[] = {(uint32_t)s->w_align, (uint32_t)s->x_align, (uint32_t)s->y_align};
    FL_CUDA_BLAS_TRY(fl_blas.MatmulPreferenceInit_internal(wish, sizeof(cublasLtMatmulPreferenceOpaque_t)));
    FL_TRY(prefer(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    FL_TRY(prefer(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    FL_TRY(prefer(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0], sizeof align[0]));
    FL_TRY(prefer(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1], sizeof align[1]));
    FL_TRY(prefer(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2], sizeof align[2]));
    return prefer(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof align[2]);
}

static fl_err describe(cublasLtMatmulDescOpaque_t *product, cublasLtMatmulDescAttributes_t what,
                       const void *value, size_t bytes) {
    FL_CUDA_BLAS_TRY(fl_blas.MatmulDescSetAttribute(product, what, value, bytes));
    return FL_ERR_OK;
}

static fl_err make_plan(fl_cuda *cuda, const key *s, plan *out) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t y_type = s->out == FL_MATMUL_F32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    FL_CUDA_BLAS_TRY(fl_blas.MatmulDescInit_internal(&out->product, sizeof(cublasLtMatmulDescOpaque_t),
                                                     CUBLAS_COMPUTE_32F, CUDA_R_32F));
    FL_TRY(describe(&out->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    FL_CUDA_BLAS_TRY(fl_blas.MatrixLayoutInit_internal(&out->w, sizeof(cublasLtMatrixLayoutOpaque_t),
                                                       CUDA_R_16BF, s->k, s->n, s->k));
    FL_CUDA_BLAS_TRY(fl_blas.MatrixLayoutInit_internal(&out->x, sizeof(cublasLtMatrixLayoutOpaque_t),
                                                       CUDA_R_16BF, s->k, s->rows, s->x_stride));
    FL_CUDA_BLAS_TRY(fl_blas.MatrixLayoutInit_internal(&out->y, sizeof(cublasLtMatrixLayoutOpaque_t), y_type,
                                                       s->n, s->rows, s->y_stride));
    FL_TRY(make_wish(cuda, s, &wish));
    cublasStatus_t status = fl_blas.MatmulAlgoGetHeuristic(cuda->blas, &out->product, &out->w, &out->x,
                                                           &out->y, &out->y, &wish, 1, &found, &n_found);
    out->possible = status == CUBLAS_STATUS_SUCCESS && n_found > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    if (out->possible) out->algo = found.algo;
    return FL_ERR_OK;
}

/* The plan of a shape, which is made if there is none. */
static fl_err find_plan(fl_cuda *cuda, const key *shape, plan **out) {
    fl_blas_plans *plans = cuda->plans;
    for (int32_t i = 0; i < plans->n; i++) {
        *out = &plans->list[i];
        if (memcmp(&plans->list[i].shape, shape, sizeof *shape) == 0) return FL_ERR_OK;
    }
    plan made = {.shape = *shape};
    FL_TRY(make_plan(cuda, shape, &made));
    plan *place = &plans->list[plans->next];
    plans->next = (plans->next + 1) % PLANS_MAX;
    if (plans->n < PLANS_MAX) plans->n++;
    *place = made;
    *out = place;
    return FL_ERR_OK;
}

bool fl_product_blas_takes(const fl_cuda *cuda, const fl_product *p) {
    bool plain = p->out == FL_MATMUL_F32 || p->out == FL_MATMUL_ACT;
    bool dense = p->n_groups == 1 && !p->group_rows && plain;
    bool aligned = (uintptr_t)p->x % ALIGN_MIN == 0 && (uintptr_t)p->w % ALIGN_MIN == 0 &&
                   (uintptr_t)p->y % ALIGN_MIN == 0 && p->x_stride % 8 == 0 && p->y_stride % 8 == 0 &&
                   p->k % 8 == 0 && p->n % 8 == 0;
    return !cuda->base.deterministic && dense && aligned && p->rows >= ROWS_MIN;
}

fl_err fl_product_blas(fl_cuda *cuda, const fl_product *p, bool *done) {
    const float one = 1, zero = 0;
    plan *plan = NULL;
    key shape = key_of(p);
    FL_TRY(find_plan(cuda, &shape, &plan));
    *done = plan->possible;
    if (!plan->possible) return FL_ERR_OK;
    FL_CUDA_BLAS_TRY(fl_blas.Matmul(cuda->blas, &plan->product, &one, p->w, &plan->w, p->x, &plan->x, &zero,
                                    p->y, &plan->y, p->y, &plan->y, &plan->algo, cuda->workspace,
                                    (size_t)cuda->workspace_bytes, cuda->stream));
    return FL_ERR_OK;
}
