/* block_score, AVX2, f32. Lanes are blocks: first a parallel pass puts the means of BLOCKS blocks side by side, then a
 * task takes one tile and head and multiplies GROUP rows at a time, their elements broadcast: 8 sums in registers are
 * what the latency of two multipliers needs. The tile's products with BLOCKS blocks are kept (8 KiB) until their
 * maxima over the rows are known. Bound by FMA. */
#include <math.h>

#include "backend/backend.h"
#include "op/vec_avx2.h"

enum {
    LANES = 8,
    VECS = 2,
    BLOCKS = LANES * VECS,
    GROUP = 4, /* rows of one register block */
    ROWS = FL_ATTN_LIST_ROWS
};

typedef struct job {
    const fl_block_score_args *a;
    int32_t dim, n_groups; /* of q and a mean; groups of BLOCKS blocks */
    float *means;          /* [n_heads][n_groups][dim][BLOCKS], 0 past the last block */
} job;

static float *means_of(const job *j, int32_t head, int32_t group) {
    return j->means + ((int64_t)head * j->n_groups + group) * j->dim * BLOCKS;
}

static void pack_group(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_block_score_args *a = j->a;
    int32_t head = task / j->n_groups, group = task % j->n_groups;
    float *out = means_of(j, head, group);
    for (int32_t i = 0; i < BLOCKS; i++) {
        int64_t block = (int64_t)group * BLOCKS + i;
        if (block >= a->n_blocks) {
            for (int32_t d = 0; d < j->dim; d++) out[d * BLOCKS + i] = 0;
            continue;
        }
        const float *nope = (const float *)a->kv + (block * a->n_heads + head) * (a->nope_dim + a->v_dim);
        const float *rope = (const float *)a->k_pe + block * a->rope_dim;
        for (int32_t d = 0; d < a->nope_dim; d++) out[d * BLOCKS + i] = nope[d];
        for (int32_t d = 0; d < a->rope_dim; d++) out[(a->nope_dim + d) * BLOCKS + i] = rope[d];
    }
}

/* products[GROUP][BLOCKS] of GROUP rows of q, `stride` elements apart; top = the larger of itself and them. */
static void multiply_rows(const float *q, int64_t stride, const float *means, int32_t dim, float *products,
                          __m256 top[VECS]) {
    __m256 sums[GROUP][VECS];
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) sums[i][v] = _mm256_setzero_ps();
    for (int32_t d = 0; d < dim; d++, means += BLOCKS) {
        __m256 mean[VECS];
        for (int v = 0; v < VECS; v++) mean[v] = _mm256_load_ps(means + v * LANES);
        for (int i = 0; i < GROUP; i++) {
            __m256 element = _mm256_broadcast_ss(q + i * stride + d);
            for (int v = 0; v < VECS; v++) sums[i][v] = _mm256_fmadd_ps(element, mean[v], sums[i][v]);
        }
    }
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) {
            top[v] = _mm256_max_ps(top[v], sums[i][v]);
            _mm256_store_ps(products + i * BLOCKS + v * LANES, sums[i][v]);
        }
}

/* score[BLOCKS] of one tile and head: q is its first row. */
static void score_group(const job *j, const float *q, const float *means, float score[BLOCKS]) {
    _Alignas(32) float products[ROWS * BLOCKS], sums[BLOCKS];
    int64_t stride = (int64_t)j->a->n_heads * j->dim;
    __m256 top[VECS], sum[VECS];
    for (int v = 0; v < VECS; v++) top[v] = _mm256_set1_ps(-INFINITY);
    for (int32_t r = 0; r < ROWS; r += GROUP)
        multiply_rows(q + r * stride, stride, means, j->dim, products + r * BLOCKS, top);
    for (int v = 0; v < VECS; v++) sum[v] = _mm256_setzero_ps();
    for (int32_t r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++) {
            __m256 product = _mm256_load_ps(products + r * BLOCKS + v * LANES);
            sum[v] = _mm256_add_ps(sum[v], fl_exp2_avx2(_mm256_sub_ps(product, top[v])));
        }
    for (int v = 0; v < VECS; v++) {
        _mm256_store_ps(sums + v * LANES, sum[v]);
        _mm256_storeu_ps(score + v * LANES, top[v]);
    }
    for (int32_t i = 0; i < BLOCKS; i++) score[i] += log2f(sums[i]);
}

/* Tasks of a head follow each other, so that its means stay in the cache. */
static void score_task(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_block_score_args *a = j->a;
    int32_t n_tiles = a->rows / ROWS, head = task / n_tiles, tile = task % n_tiles;
    int32_t visible = fl_block_score_visible(a, tile);
    const float *q = (const float *)a->q + ((int64_t)tile * ROWS * a->n_heads + head) * j->dim;
    float *out = a->score + ((int64_t)tile * a->n_heads + head) * a->n_blocks;
    for (int32_t first = 0; first < visible; first += BLOCKS) {
        float score[BLOCKS];
        score_group(j, q, means_of(j, head, first / BLOCKS), score);
        for (int32_t i = 0; i < BLOCKS && first + i < visible; i++) out[first + i] = score[i];
    }
    for (int32_t i = visible; i < a->n_blocks; i++) out[i] = -INFINITY;
}

fl_err fl_block_score_avx2(fl_backend *be, const fl_block_score_args *a) {
    FL_TRY(fl_block_score_validate(a));
    job j = {.a = a, .dim = a->nope_dim + a->rope_dim, .means = a->scratch};
    j.n_groups = (a->n_blocks + BLOCKS - 1) / BLOCKS;
    fl_pool_run(be->pool, a->n_heads * j.n_groups, pack_group, &j);
    fl_pool_run(be->pool, a->n_heads * (a->rows / ROWS), score_task, &j);
    return FL_ERR_OK;
}
