#include "op/block_score/block_score.h"

#include <math.h>

#include "op/ref.h"

static double score_of(const fl_block_score_args *a, int32_t tile, int32_t h, int32_t block) {
    const float *k_nope = (const float *)a->kv + ((int64_t)block * a->n_heads + h) * (a->nope_dim + a->v_dim);
    const float *k_pe = (const float *)a->k_pe + (int64_t)block * a->rope_dim;
    double s[FL_ATTN_LIST_ROWS], top = -INFINITY, sum = 0;
    for (int32_t r = 0; r < FL_ATTN_LIST_ROWS; r++) {
        int64_t row = (int64_t)tile * FL_ATTN_LIST_ROWS + r;
        const float *q = (const float *)a->q + (row * a->n_heads + h) * (a->nope_dim + a->rope_dim);
        s[r] = fl_ref_dot(q, k_nope, a->nope_dim) + fl_ref_dot(q + a->nope_dim, k_pe, a->rope_dim);
        top = fmax(top, s[r]);
    }
    for (int32_t r = 0; r < FL_ATTN_LIST_ROWS; r++) sum += exp2(s[r] - top);
    return top + log2(sum);
}

static void score_tile(void *context, int32_t tile, int32_t worker) {
    (void)worker;
    const fl_block_score_args *a = context;
    int64_t first_row = (int64_t)a->pos + (int64_t)tile * FL_ATTN_LIST_ROWS;
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t j = 0; j < a->n_blocks; j++) {
            bool before = ((int64_t)j + 1) * a->block_tokens <= first_row;
            a->score[((int64_t)tile * a->n_heads + h) * a->n_blocks + j] =
                before ? (float)score_of(a, tile, h, j) : -INFINITY;
        }
}

fl_err fl_block_score_ref(fl_backend *be, const fl_block_score_args *a) {
    FL_TRY(fl_block_score_validate(a));
    fl_block_score_args args = *a;
    fl_pool_run(be->pool, a->rows / FL_ATTN_LIST_ROWS, score_tile, &args);
    return FL_ERR_OK;
}
