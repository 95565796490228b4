/* matmul, AVX-512 BF16. Tasks are (panel of features, group, tile of 64 rows), each one oneDNN GEMM that stays in L2.
 * oneDNN takes only dense operands, so a panel that is narrower than y goes through the worker's stage, and rows that
 * are not dense go one by one. SwiGLU tasks stage a gate panel and its up panel and write only the activated half. */
#include <immintrin.h>

#include "backend/backend.h"
#include "backend/op_tables.h"
#include "op/matmul/gemm.h"
#include "op/vec_avx512.h"

/* Few rows are cut into narrow panels so that all workers share them; whole rows are cheapest for many. */
enum { PANEL_FEW = 128, PANEL_MANY = 256, PANEL_WHOLE = 1024, FEW_ROWS = 64 };

typedef struct job {
    const fl_matmul_args *a;
    const fl_gemm *gemm;
    const fl_gemm_set *set;  /* of a whole panel */
    const fl_gemm_set *tail; /* of the last, narrower panel */
    int32_t n, panel, n_tiles;
    bool direct; /* panels are whole rows of a dense y: no stage */
    bool dense_x;
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

/* A task's place: which rows, which features, where they are. */
typedef struct place {
    int32_t group, row, rows, feature, width;
    const uint8_t *x;
    uint8_t *y;
} place;

static place find_place(const job *j, int32_t task) {
    int32_t tile = task % j->n_tiles, end;
    place p = {.feature = task / j->n_tiles * j->panel};
    p.group = find_group(j, &tile, &p.row, &end);
    p.row += tile * FL_GEMM_ROWS;
    p.rows = end - p.row < FL_GEMM_ROWS ? end - p.row : FL_GEMM_ROWS;
    p.width = j->n - p.feature < j->panel ? j->n - p.feature : j->panel;
    p.x = (const uint8_t *)j->a->x + p.row * j->x_bytes;
    p.y = (uint8_t *)j->a->y + p.row * j->y_bytes + (int64_t)p.feature * (j->a->out == FL_MATMUL_F32 ? 4 : 2);
    return p;
}

/* Dense y[rows][width padded to 64] from possibly strided rows of x. */
static void multiply(const job *j, int32_t worker, const place *p, const uint8_t *w, float *y) {
    const fl_gemm_set *set = p->width == j->panel ? j->set : j->tail;
    if (j->dense_x) {
        fl_gemm_run(set, worker, p->rows, p->x, w, y);
        return;
    }
    for (int32_t r = 0; r < p->rows; r++)
        fl_gemm_run(set, worker, 1, p->x + r * j->x_bytes, w, y + (int64_t)r * ((p->width + 63) / 64 * 64));
}

static void run_plain(void *context, int32_t task, int32_t worker) {
    const job *j = context;
    const place p = find_place(j, task);
    const uint8_t *w = panel_weights(j, p.group, p.feature);
    if (j->direct) {
        fl_gemm_run(j->set, worker, p.rows, p.x, w, p.y);
        return;
    }
    float *stage = fl_gemm_stage(j->gemm, worker);
    multiply(j, worker, &p, w, stage);
    int32_t stride = (p.width + 63) / 64 * 64;
    for (int32_t r = 0; r < p.rows; r++) {
        void *y = p.y + r * j->y_bytes;
        for (int32_t i = 0; i < p.width; i += 16) {
            __mmask16 lanes = fl_lanes_avx512(i, p.width);
            __m512 v = _mm512_loadu_ps(stage + (int64_t)r * stride + i);
            if (j->a->out == FL_MATMUL_F32) _mm512_mask_storeu_ps((float *)y + i, lanes, v);
            else fl_store_bf16_avx512((uint16_t *)y + i, lanes, v);
        }
    }
}

/* t / (1 + 2^(-t log2 e)); the exponential by a polynomial on [-1/2, 1/2], relative error 3e-7. */
static __m512 silu(__m512 t) {
    const float c[] = {1.5353362e-4f, 1.3398874e-3f, 9.6184370e-3f, 5.5503324e-2f,
                       2.4022648e-1f, 6.9314720e-1f, 1.0f};
    __m512 x = _mm512_mul_ps(t, _mm512_set1_ps(-1.44269504f));
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n), p = _mm512_set1_ps(c[0]);
    for (int i = 1; i < 7; i++) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c[i]));
    return _mm512_div_ps(t, _mm512_add_ps(_mm512_scalef_ps(p, n), _mm512_set1_ps(1)));
}

static void run_swiglu(void *context, int32_t task, int32_t worker) {
    const job *j = context;
    const place p = find_place(j, task);
    float *gate = fl_gemm_stage(j->gemm, worker), *up = gate + FL_GEMM_STAGE_FLOATS / 2;
    multiply(j, worker, &p, panel_weights(j, p.group, p.feature), gate);
    multiply(j, worker, &p, panel_weights(j, p.group, j->n + p.feature), up);
    for (int32_t r = 0; r < p.rows; r++) {
        uint16_t *y = (uint16_t *)(void *)(p.y + r * j->y_bytes);
        for (int32_t i = 0; i < p.width; i += 16) {
            int64_t at = (int64_t)r * p.width + i;
            __m512 v = _mm512_mul_ps(silu(_mm512_loadu_ps(gate + at)), _mm512_loadu_ps(up + at));
            fl_store_bf16_avx512(y + i, 0xffff, v);
        }
    }
}

static bool choose_direct(const fl_matmul_args *a) {
    bool one_row = a->rows == 1;
    bool dense = a->x_stride == a->w->k && a->y_stride == a->w->n && a->w->n <= PANEL_WHOLE;
    bool many = a->rows > FEW_ROWS && a->n_groups == 1;
    return a->out != FL_MATMUL_SWIGLU && a->w->n % 64 == 0 &&
           (one_row || (dense && (many || a->n_groups > 1)));
}

static int32_t choose_panel(const job *j) {
    if (j->direct && j->a->rows > 1) return j->n;
    int32_t panel = j->a->rows > FEW_ROWS ? PANEL_MANY : PANEL_FEW;
    return j->direct && j->n % panel != 0 ? 64 : panel;
}

static fl_err get_sets(fl_gemm *gemm, job *j) {
    bool y_bf16 = j->direct && j->a->out == FL_MATMUL_ACT;
    int32_t tail = j->n % j->panel;
    fl_gemm_shape shape = {.n = j->panel, .k = j->a->w->k, .y_bf16 = y_bf16};
    if (j->n >= j->panel) FL_TRY(fl_gemm_get(gemm, &shape, &j->set));
    shape.n = (tail + 63) / 64 * 64;
    return tail > 0 ? fl_gemm_get(gemm, &shape, &j->tail) : FL_ERR_OK;
}

fl_err fl_matmul_avx512(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    FL_TRY(fl_matmul_validate_groups(a));
    FL_TRY(fl_matmul_need_plain(be, a));
    bool swiglu = a->out == FL_MATMUL_SWIGLU;
    if (a->w->k % 32 != 0 || (swiglu && a->w->n % 128 != 0))
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "matmul: k %d must be a multiple of 32 and SwiGLU's n %d of 128 on avx512", a->w->k,
                       a->w->n);
    fl_gemm *gemm = be->state;
    job j = {.a = a,
             .gemm = gemm,
             .n = swiglu ? a->w->n / 2 : a->w->n,
             .n_tiles = count_tiles(a),
             .direct = choose_direct(a),
             .dense_x = a->x_stride == a->w->k,
             .x_bytes = a->x_stride * 2,
             .y_bytes = a->y_stride * (a->out == FL_MATMUL_F32 ? 4 : 2)};
    j.panel = choose_panel(&j);
    FL_TRY(get_sets(gemm, &j));
    fl_pool_run(be->pool, (j.n + j.panel - 1) / j.panel * j.n_tiles, swiglu ? run_swiglu : run_plain, &j);
    return FL_ERR_OK;
}
