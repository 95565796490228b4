#include "op/block_score/block_score.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "op/codes.h"
#include "op/ref.h"

enum { ROWS = FL_ATTN_LIST_ROWS };

typedef struct job {
    const fl_block_score_args *a;
    bool by_codes;
} job;

static double log_sum(const double s[ROWS]) {
    double top = -INFINITY, sum = 0;
    for (int32_t r = 0; r < ROWS; r++) top = fmax(top, s[r]);
    for (int32_t r = 0; r < ROWS; r++) sum += exp2(s[r] - top);
    return top + log2(sum);
}

static const float *row_of(const fl_block_score_args *a, int32_t tile, int32_t h, int32_t r) {
    return (const float *)a->q + (((int64_t)tile * ROWS + r) * a->n_heads + h) * (a->nope_dim + a->rope_dim);
}

static const float *k_nope_of(const fl_block_score_args *a, int32_t h, int32_t block) {
    return (const float *)a->kv + ((int64_t)block * a->n_heads + h) * (a->nope_dim + a->v_dim);
}

static const float *k_pe_of(const fl_block_score_args *a, int32_t block) {
    return (const float *)a->k_pe + (int64_t)block * a->rope_dim;
}

/* ---- as given -------------------------------------------------------------------------------------------------- */

static double score_of(const fl_block_score_args *a, int32_t tile, int32_t h, int32_t block) {
    const float *k_nope = k_nope_of(a, h, block), *k_pe = k_pe_of(a, block);
    double s[ROWS];
    for (int32_t r = 0; r < ROWS; r++) {
        const float *q = row_of(a, tile, h, r);
        s[r] = fl_ref_dot(q, k_nope, a->nope_dim) + fl_ref_dot(q + a->nope_dim, k_pe, a->rope_dim);
    }
    return log_sum(s);
}

static void score_head(const fl_block_score_args *a, int32_t tile, int32_t h, float *score) {
    for (int32_t j = 0; j < fl_block_score_visible(a, tile); j++) score[j] = (float)score_of(a, tile, h, j);
}

/* ---- by codes -------------------------------------------------------------------------------------------------- */

/* x[n] become the values of their codes, which count `scale` each. */
static float round_to_codes(float *x, int32_t n) {
    uint8_t codes[ROWS * FL_BLOCK_SCORE_CODES_MAX];
    float scale = fl_codes_of_group(x, n, codes);
    for (int32_t i = 0; i < n; i++) x[i] = fl_f32_of_e4m3(codes[i]);
    return scale;
}

static void score_head_by_codes(const fl_block_score_args *a, int32_t tile, int32_t h, float *score) {
    float q[ROWS * FL_BLOCK_SCORE_CODES_MAX], k[FL_BLOCK_SCORE_CODES_MAX];
    int32_t dim = a->nope_dim + a->rope_dim;
    for (int32_t r = 0; r < ROWS; r++) memcpy(q + r * dim, row_of(a, tile, h, r), (size_t)dim * sizeof *q);
    double q_scale = (double)round_to_codes(q, ROWS * dim);
    for (int32_t j = 0; j < fl_block_score_visible(a, tile); j++) {
        double s[ROWS];
        memcpy(k, k_nope_of(a, h, j), (size_t)a->nope_dim * sizeof *k);
        memcpy(k + a->nope_dim, k_pe_of(a, j), (size_t)a->rope_dim * sizeof *k);
        double scale = q_scale * (double)round_to_codes(k, dim);
        for (int32_t r = 0; r < ROWS; r++) s[r] = fl_ref_dot(q + r * dim, k, dim) * scale;
        score[j] = (float)log_sum(s);
    }
}

/* ---- all ------------------------------------------------------------------------------------------------------- */

static void score_tile(void *context, int32_t tile, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_block_score_args *a = j->a;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *score = a->score + ((int64_t)tile * a->n_heads + h) * a->n_blocks;
        (j->by_codes ? score_head_by_codes : score_head)(a, tile, h, score);
        for (int32_t i = fl_block_score_visible(a, tile); i < a->n_blocks; i++) score[i] = -INFINITY;
    }
}

fl_err fl_block_score_ref(fl_backend *be, const fl_block_score_args *a) {
    FL_TRY(fl_block_score_validate(a));
    job j = {.a = a, .by_codes = fl_block_score_by_codes(be, a)};
    fl_pool_run(be->pool, a->rows / ROWS, score_tile, &j);
    return FL_ERR_OK;
}
