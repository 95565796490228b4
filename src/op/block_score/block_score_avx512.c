/* block_score, AVX-512 with BF16. Lanes are blocks: first a parallel pass packs the means of each head as pairs of
 * dimensions across BLOCKS blocks, then a task takes one tile and head and multiplies GROUP rows at a time, their
 * pairs broadcast, so that the sum over rows needs no horizontal step. The tile's products with BLOCKS blocks are kept
 * (32 KiB) until their maxima over the rows are known. Bound by vdpbf16ps: (nope + rope) / 2 of them for 16 products,
 * beside some 10 instructions of powers and sums. */
#include <math.h>

#include "backend/backend.h"
#include "op/simd_avx512.h"

enum {
    LANES = 16,
    VECS = 4,
    BLOCKS = LANES * VECS,
    GROUP = 4, /* rows of one register block */
    ROWS = FL_ATTN_LIST_ROWS
};

typedef struct job {
    const fl_block_score_args *a;
    int32_t n_pairs, n_groups; /* pairs of dimensions; groups of BLOCKS blocks */
    uint32_t *means;           /* [n_heads][n_groups][n_pairs][BLOCKS] */
} job;

static uint32_t *means_of(const job *j, int32_t head, int32_t group) {
    return j->means + ((int64_t)head * j->n_groups + group) * j->n_pairs * BLOCKS;
}

static void pack_group(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_block_score_args *a = j->a;
    int32_t head = task / j->n_groups, group = task % j->n_groups, first = group * BLOCKS;
    int32_t n = a->n_blocks - first < BLOCKS ? a->n_blocks - first : BLOCKS;
    int64_t head_width = a->nope_dim + a->v_dim, stride = a->n_heads * head_width;
    uint32_t *out = means_of(j, head, group);
    fl_simd_pack_rows((const uint16_t *)a->kv + first * stride + head * head_width, stride, n,
                      a->nope_dim / 2, BLOCKS, out);
    fl_simd_pack_rows((const uint16_t *)a->k_pe + (int64_t)first * a->rope_dim, a->rope_dim, n,
                      a->rope_dim / 2, BLOCKS, out + a->nope_dim / 2 * BLOCKS);
}

/* products[GROUP][BLOCKS] of GROUP rows of q, `stride` elements apart; top = the larger of itself and them. */
static void multiply_rows(const uint16_t *q, int64_t stride, const uint32_t *means, int32_t n_pairs,
                          float *products, __m512 top[VECS]) {
    __m512 sums[GROUP][VECS];
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) sums[i][v] = _mm512_setzero_ps();
    for (int32_t p = 0; p < n_pairs; p++, means += BLOCKS) {
        __m512i mean[VECS];
        for (int v = 0; v < VECS; v++) mean[v] = _mm512_load_si512(means + v * LANES);
        for (int i = 0; i < GROUP; i++) {
            __m512i pair = fl_simd_pair((const uint32_t *)(const void *)(q + i * stride) + p);
            for (int v = 0; v < VECS; v++) sums[i][v] = fl_simd_dot2(sums[i][v], pair, mean[v]);
        }
    }
    for (int i = 0; i < GROUP; i++)
        for (int v = 0; v < VECS; v++) {
            top[v] = _mm512_max_ps(top[v], sums[i][v]);
            _mm512_store_ps(products + i * BLOCKS + v * LANES, sums[i][v]);
        }
}

/* score[BLOCKS] of one tile and head: q is its first row. */
static void score_group(const job *j, const uint16_t *q, const uint32_t *means, float score[BLOCKS]) {
    _Alignas(64) float products[ROWS * BLOCKS], sums[BLOCKS];
    int64_t stride = (int64_t)j->a->n_heads * 2 * j->n_pairs;
    __m512 top[VECS];
    for (int v = 0; v < VECS; v++) top[v] = _mm512_set1_ps(-INFINITY);
    for (int32_t r = 0; r < ROWS; r += GROUP)
        multiply_rows(q + r * stride, stride, means, j->n_pairs, products + r * BLOCKS, top);
    __m512 sum[VECS];
    for (int v = 0; v < VECS; v++) sum[v] = _mm512_setzero_ps();
    for (int32_t r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++) {
            __m512 product = _mm512_load_ps(products + r * BLOCKS + v * LANES);
            sum[v] = _mm512_add_ps(sum[v], fl_simd_exp2_weight(_mm512_sub_ps(product, top[v])));
        }
    for (int v = 0; v < VECS; v++) {
        _mm512_store_ps(sums + v * LANES, sum[v]);
        _mm512_storeu_ps(score + v * LANES, top[v]);
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
    const uint16_t *q = (const uint16_t *)a->q + ((int64_t)tile * ROWS * a->n_heads + head) * 2 * j->n_pairs;
    float *out = a->score + ((int64_t)tile * a->n_heads + head) * a->n_blocks;
    for (int32_t first = 0; first < visible; first += BLOCKS) {
        float score[BLOCKS];
        score_group(j, q, means_of(j, head, first / BLOCKS), score);
        for (int32_t i = 0; i < BLOCKS && first + i < visible; i++) out[first + i] = score[i];
    }
    for (int32_t i = visible; i < a->n_blocks; i++) out[i] = -INFINITY;
}

fl_err fl_block_score_avx512(fl_backend *be, const fl_block_score_args *a) {
    FL_TRY(fl_block_score_validate(a));
    if (a->nope_dim % 2 != 0 || a->rope_dim % 2 != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "block_score on avx512: head shape nope %d + rope %d: both must be even", a->nope_dim,
                       a->rope_dim);
    job j = {.a = a, .n_pairs = (a->nope_dim + a->rope_dim) / 2, .means = a->scratch};
    j.n_groups = (a->n_blocks + BLOCKS - 1) / BLOCKS;
    fl_pool_run(be->pool, a->n_heads * j.n_groups, pack_group, &j);
    fl_pool_run(be->pool, a->n_heads * (a->rows / ROWS), score_task, &j);
    return FL_ERR_OK;
}
