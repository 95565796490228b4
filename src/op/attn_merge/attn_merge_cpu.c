/* attn_merge, portable: one task some rows, sums of a row and head in f32 on the stack. Bound by memory traffic. */
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "op/op_convert.h"
#include "op/span.h"

enum { ROWS_PER_TASK = 16 };

typedef struct job {
    const fl_attn_merge_args *a;
    fl_dtype act;
} job;

/* Weights that sum to 1, 0 for parts that saw nothing; returns the joint lse. */
static float weigh_parts(const fl_attn_merge_args *a, int64_t line, float weights[FL_ATTN_MERGE_PARTS_MAX]) {
    float top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < a->n_parts; i++) top = fmaxf(top, a->part_lse[i][line]);
    memset(weights, 0, sizeof *weights * FL_ATTN_MERGE_PARTS_MAX);
    if (!(top > -INFINITY)) return top;
    for (int32_t i = 0; i < a->n_parts; i++) sum += weights[i] = exp2f(a->part_lse[i][line] - top);
    for (int32_t i = 0; i < a->n_parts; i++) weights[i] /= sum;
    return top + log2f(sum);
}

/* The result may lie over part 0: a line is written after all of it has been read. */
static void merge_line(const job *j, int64_t line) {
    const fl_attn_merge_args *a = j->a;
    float weights[FL_ATTN_MERGE_PARTS_MAX], out[FL_ATTN_HEAD_DIM_MAX], value[FL_ATTN_HEAD_DIM_MAX];
    float lse = weigh_parts(a, line, weights);
    for (int32_t d = 0; d < a->dim; d++) out[d] = 0;
    for (int32_t i = 0; i < a->n_parts; i++) {
        if (weights[i] <= 0) continue;
        fl_convert_row(value, FL_DTYPE_F32, fl_element(a->part[i], j->act, line * a->dim), j->act, a->dim);
        for (int32_t d = 0; d < a->dim; d++) out[d] += weights[i] * value[d];
    }
    fl_convert_row(fl_element_mut(a->out, j->act, line * a->dim), j->act, out, FL_DTYPE_F32, a->dim);
    if (a->lse) a->lse[line] = lse;
}

static void merge_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, j->a->rows);
    for (int64_t line = (int64_t)rows.first * j->a->n_heads; line < (int64_t)rows.end * j->a->n_heads; line++)
        merge_line(j, line);
}

fl_err fl_attn_merge_cpu(fl_backend *be, const fl_attn_merge_args *a) {
    FL_TRY(fl_attn_merge_validate(a));
    job j = {a, be->act_dtype};
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), merge_rows, &j);
    return FL_ERR_OK;
}
