/* matmul, AVX-512 BF16. Tasks are (group, panel of features, tile of 64 rows), each one oneDNN GEMM that stays in L2.
 * SwiGLU tasks compute a gate panel and its up panel into the worker's stage and write only the activated half. */
#include <immintrin.h>

#include "backend/backend.h"
#include "backend/gemm.h"
#include "op/simd_avx512.h"

enum { PANEL_FEW = 128, PANEL_MANY = 256, FEW_ROWS = 8 };

typedef struct job {
    const fl_matmul_args *a;
    const fl_gemm *gemm;
    const fl_gemm_set *set;  /* of a whole panel */
    const fl_gemm_set *tail; /* of the last, narrower panel, staged when it is not a multiple of 64 wide */
    int32_t n, panel, n_panels;
    int64_t x_bytes, y_bytes; /* of a row */
} job;

/* Row tiles of group g start at tile `*tile` of the whole; finds the group a tile index lies in. */
static int32_t find_group(const job *j, int32_t *tile, int32_t *row0, int32_t *row1) {
    if (!j->a->group_rows) {
        *row0 = 0;
        *row1 = j->a->rows;
        return 0;
    }
    for (int32_t g = 0;; g++) {
        *row0 = j->a->group_rows[g];
        *row1 = j->a->group_rows[g + 1];
        int32_t tiles = (*row1 - *row0 + FL_GEMM_ROWS - 1) / FL_GEMM_ROWS;
        if (*tile < tiles) return g;
        *tile -= tiles;
    }
}

static int32_t count_tiles(const fl_matmul_args *a) {
    if (!a->group_rows) return (a->rows + FL_GEMM_ROWS - 1) / FL_GEMM_ROWS;
    int32_t tiles = 0;
    for (int32_t g = 0; g < a->n_groups; g++)
        tiles += (a->group_rows[g + 1] - a->group_rows[g] + FL_GEMM_ROWS - 1) / FL_GEMM_ROWS;
    return tiles;
}

static const uint8_t *panel_weights(const job *j, int32_t group, int32_t feature) {
    return (const uint8_t *)j->a->w[group].data + (int64_t)feature * j->a->w->k * 2;
}

/* The last panel when n is not a multiple of 64: oneDNN writes whole blocks, so it writes to the stage. */
static void run_ragged_panel(const job *j, int32_t worker, int32_t rows, const void *x, const void *w, uint8_t *y) {
    float *stage = fl_gemm_stage(j->gemm, worker);
    int32_t width = j->n % j->panel;
    int32_t stride = (width + 63) / 64 * 64;
    fl_gemm_run(j->tail, worker, rows, x, w, stage);
    for (int32_t r = 0; r < rows; r++, y += j->y_bytes) {
        const float *from = stage + (int64_t)r * stride;
        for (int32_t i = 0; i < width; i += 16) {
            __mmask16 mask = fl_mask16(width - i);
            __m512 v = _mm512_loadu_ps(from + i);
            if (j->a->out == FL_MATMUL_F32)
                _mm512_mask_storeu_ps((float *)(void *)y + i, mask, v);
            else
                _mm256_mask_storeu_epi16((uint16_t *)(void *)y + i, mask, fl_bf16_of_ps(v));
        }
    }
}

static void run_plain(void *context, int32_t task, int32_t worker) {
    const job *j = context;
    int32_t row0, row1, tiles = count_tiles(j->a), panel = task / tiles, tile = task % tiles;
    int32_t group = find_group(j, &tile, &row0, &row1);
    row0 += tile * FL_GEMM_ROWS;
    int32_t rows = row1 - row0 < FL_GEMM_ROWS ? row1 - row0 : FL_GEMM_ROWS;
    int32_t feature = panel * j->panel;
    const uint8_t *x = (const uint8_t *)j->a->x + row0 * j->x_bytes;
    const uint8_t *w = panel_weights(j, group, feature);
    uint8_t *y = (uint8_t *)j->a->y + row0 * j->y_bytes + (int64_t)feature * (j->a->out == FL_MATMUL_F32 ? 4 : 2);
    if (feature + j->panel <= j->n)
        fl_gemm_run(j->set, worker, rows, x, w, y);
    else
        run_ragged_panel(j, worker, rows, x, w, y);
}

static void run_swiglu(void *context, int32_t task, int32_t worker) {
    const job *j = context;
    int32_t row0, row1, tiles = count_tiles(j->a), panel = task / tiles, tile = task % tiles;
    int32_t group = find_group(j, &tile, &row0, &row1);
    row0 += tile * FL_GEMM_ROWS;
    int32_t rows = row1 - row0 < FL_GEMM_ROWS ? row1 - row0 : FL_GEMM_ROWS;
    int32_t feature = panel * j->panel;
    int32_t width = j->n - feature < j->panel ? j->n - feature : j->panel;
    const fl_gemm_set *set = width == j->panel ? j->set : j->tail;
    const uint8_t *x = (const uint8_t *)j->a->x + row0 * j->x_bytes;
    float *gate = fl_gemm_stage(j->gemm, worker), *up = gate + FL_GEMM_STAGE_FLOATS / 2;
    fl_gemm_run(set, worker, rows, x, panel_weights(j, group, feature), gate);
    fl_gemm_run(set, worker, rows, x, panel_weights(j, group, j->n + feature), up);
    for (int32_t r = 0; r < rows; r++) {
        uint16_t *y = (uint16_t *)(void *)((uint8_t *)j->a->y + (row0 + r) * j->y_bytes) + feature;
        for (int32_t i = 0; i < width; i += 16) {
            __m512 g = _mm512_loadu_ps(gate + (int64_t)r * width + i), u = _mm512_loadu_ps(up + (int64_t)r * width + i);
            __m512 v = _mm512_mul_ps(_mm512_mul_ps(g, fl_sigmoid_ps(g)), u);
            _mm256_storeu_si256((__m256i *)(void *)(y + i), fl_bf16_of_ps(v));
        }
    }
}

/* The primitive sets of whole panels and of the narrower last one. */
static fl_err get_sets(fl_gemm *gemm, job *j) {
    const fl_matmul_args *a = j->a;
    bool swiglu = a->out == FL_MATMUL_SWIGLU;
    fl_gemm_shape shape = {.k = a->w->k, .x_stride = (int32_t)a->x_stride, .y_bf16 = a->out == FL_MATMUL_ACT};
    int32_t tail = j->n % j->panel;
    if (j->n >= j->panel) {
        shape.n = j->panel;
        shape.y_stride = swiglu ? shape.n : (int32_t)a->y_stride;
        FL_TRY(fl_gemm_get(gemm, &shape, &j->set));
    }
    if (tail == 0) return FL_ERR_OK;
    shape.n = (tail + 63) / 64 * 64;
    shape.y_stride = shape.n;
    shape.y_bf16 = false; /* the stage is f32 */
    return fl_gemm_get(gemm, &shape, &j->tail);
}

fl_err fl_matmul_avx512(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    if (a->rows == 0) return FL_ERR_OK;
    bool swiglu = a->out == FL_MATMUL_SWIGLU;
    if (a->w->k % 32 != 0 || (swiglu && a->w->n % 128 != 0))
        return FL_FAIL(FL_ERR_UNSUPPORTED, "matmul: k %d must be a multiple of 32 and SwiGLU's n %d of 128 on avx512",
                       a->w->k, a->w->n);
    fl_gemm *gemm = be->state;
    job j = {.a = a, .gemm = gemm, .n = swiglu ? a->w->n / 2 : a->w->n};
    j.panel = a->rows <= FEW_ROWS ? PANEL_FEW : PANEL_MANY;
    j.n_panels = (j.n + j.panel - 1) / j.panel;
    j.x_bytes = a->x_stride * 2;
    j.y_bytes = a->y_stride * (a->out == FL_MATMUL_F32 ? 4 : 2);
    FL_TRY(get_sets(gemm, &j));
    fl_pool_run(be->pool, j.n_panels * count_tiles(a), swiglu ? run_swiglu : run_plain, &j);
    return FL_ERR_OK;
}
