/* matmul, AVX2: tasks of (row block of one group) x (run of panels), each through matmul_block_avx2.c. Whole panels
 * go straight to y; a last partial panel and SwiGLU pass through a tile on the stack. */
#include <string.h>

#include "backend/backend.h"
#include "op/matmul/matmul_block_avx2.h"
#include "op/span.h"
#include "op/vec_avx2.h"

enum { PANELS_PER_TASK = 8, STAGE_ROWS = 96 };

typedef struct job {
    const fl_matmul_args *a;
    int32_t n, k, n_out; /* output columns: n, or n / 2 with SwiGLU */
    int32_t block_rows, n_runs;
} job;

/* Rows first..end-1 of group `group`, output panels panel..panel_end-1. */
typedef struct piece {
    int32_t group, first, end, panel, panel_end;
} piece;

static fl_matmul_block_avx2 block_of(const job *j, const piece *p, int32_t panel) {
    const fl_matmul_args *a = j->a;
    return (fl_matmul_block_avx2){
        .x = (const float *)a->x + p->first * a->x_stride,
        .x_stride = a->x_stride,
        .n_rows = p->end - p->first,
        .k = j->k,
        .panels = (const uint16_t *)a->w[p->group].data + (int64_t)panel * j->k * FL_PANEL_AVX2,
        .n_panels = 1,
    };
}

static void plain_piece(const job *j, const piece *p) {
    const fl_matmul_args *a = j->a;
    float *y = (float *)a->y + p->first * a->y_stride;
    int32_t whole_end = j->n / FL_PANEL_AVX2 < p->panel_end ? j->n / FL_PANEL_AVX2 : p->panel_end;
    fl_matmul_block_avx2 block = block_of(j, p, p->panel);
    block.n_panels = whole_end - p->panel;
    block.out = y + (int64_t)p->panel * FL_PANEL_AVX2;
    block.out_stride = a->y_stride;
    fl_matmul_block_run_avx2(&block);
    if (whole_end == p->panel_end) return;
    float stage[STAGE_ROWS][FL_PANEL_AVX2];
    block = block_of(j, p, whole_end);
    block.out = stage[0];
    block.out_stride = FL_PANEL_AVX2;
    fl_matmul_block_run_avx2(&block);
    int32_t column = whole_end * FL_PANEL_AVX2;
    for (int32_t r = 0; r < block.n_rows; r++)
        memcpy(y + r * a->y_stride + column, stage[r], (size_t)(j->n - column) * sizeof **stage);
}

/* y[0..n-1] = silu(gate) * up; both readable up to a multiple of 8. */
static void swiglu_row(float *y, const float *gate, const float *up, int32_t n) {
    const __m256 one = _mm256_set1_ps(1.0f), minus_log2e = _mm256_set1_ps(-1.44269504f);
    for (int32_t i = 0; i < n; i += 8) {
        __m256 t = _mm256_loadu_ps(gate + i);
        __m256 silu = _mm256_div_ps(t, _mm256_add_ps(one, fl_exp2_avx2(_mm256_mul_ps(t, minus_log2e))));
        fl_store_avx2(y, i, n, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
}

/* Output panels need their gate panels and the panels that hold the same columns of the up half: one more when
 * that half does not start on a panel. A single row takes several at once, as the block does. */
static void swiglu_piece(const job *j, const piece *p) {
    const fl_matmul_args *a = j->a;
    float gate[STAGE_ROWS * FL_PANEL_AVX2], up[2 * STAGE_ROWS * FL_PANEL_AVX2];
    int32_t shift = j->n_out % FL_PANEL_AVX2, step = p->end - p->first == 1 ? PANELS_PER_TASK : 1;
    for (int32_t panel = p->panel; panel < p->panel_end; panel += step) {
        int32_t column = panel * FL_PANEL_AVX2, panel_end = p->panel_end;
        int32_t end = panel_end - panel < step ? panel_end : panel + step;
        int32_t n = (j->n_out < end * FL_PANEL_AVX2 ? j->n_out : end * FL_PANEL_AVX2) - column;
        fl_matmul_block_avx2 block = block_of(j, p, panel);
        block.n_panels = end - panel;
        block.out = gate;
        block.out_stride = step * FL_PANEL_AVX2;
        fl_matmul_block_run_avx2(&block);
        block = block_of(j, p, (j->n_out + column) / FL_PANEL_AVX2);
        block.n_panels = fl_span_tasks(shift + n, FL_PANEL_AVX2);
        block.out = up;
        block.out_stride = (step + 1) * FL_PANEL_AVX2;
        fl_matmul_block_run_avx2(&block);
        for (int32_t r = 0; r < block.n_rows; r++)
            swiglu_row((float *)a->y + (p->first + r) * a->y_stride + column, gate + r * step * FL_PANEL_AVX2,
                       up + r * (step + 1) * FL_PANEL_AVX2 + shift, n);
    }
}

static int32_t group_first(const fl_matmul_args *a, int32_t group) {
    return a->group_rows ? a->group_rows[group] : group == 0 ? 0 : a->rows;
}

static int32_t group_blocks(const job *j, int32_t group) {
    return fl_span_tasks(group_first(j->a, group + 1) - group_first(j->a, group), j->block_rows);
}

static void run_piece(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    int32_t block = task / j->n_runs, run = task % j->n_runs, group = 0;
    for (; block >= group_blocks(j, group); group++) block -= group_blocks(j, group);
    int32_t first = group_first(j->a, group), rows = group_first(j->a, group + 1) - first;
    fl_span part = fl_span_of_task(block, j->block_rows, rows);
    fl_span panels = fl_span_of_task(run, PANELS_PER_TASK, fl_span_tasks(j->n_out, FL_PANEL_AVX2));
    piece p = {group, first + part.first, first + part.end, panels.first, panels.end};
    if (j->a->out == FL_MATMUL_SWIGLU) swiglu_piece(j, &p);
    else plain_piece(j, &p);
}

fl_err fl_matmul_avx2(fl_backend *be, const fl_matmul_args *a) {
    FL_TRY(fl_matmul_validate(a));
    FL_TRY(fl_matmul_validate_groups(a));
    FL_TRY(fl_matmul_need_plain(be, a));
    job j = {.a = a, .n = a->w[0].n, .k = a->w[0].k};
    j.n_out = a->out == FL_MATMUL_SWIGLU ? j.n / 2 : j.n;
    j.block_rows = fl_matmul_block_rows_avx2(j.k);
    j.n_runs = fl_span_tasks(fl_span_tasks(j.n_out, FL_PANEL_AVX2), PANELS_PER_TASK);
    int32_t n_blocks = 0;
    for (int32_t g = 0; g < a->n_groups; g++) n_blocks += group_blocks(&j, g);
    fl_pool_run(be->pool, n_blocks * j.n_runs, run_piece, &j);
    return FL_ERR_OK;
}
