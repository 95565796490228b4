/* moe_permute, portable: a counting sort on one thread (4 bytes a pair), then the gather over the pool. */
#include <string.h>

#include "backend/backend.h"
#include "op/op_convert.h"
#include "op/span.h"

enum { ROWS_PER_TASK = 32 };

typedef struct job {
    const fl_moe_permute_args *a;
    fl_dtype act;
} job;

/* Fills place and group_rows. While pairs are placed, group_rows[e] is the next free place of expert e. */
static void sort_pairs(const fl_moe_permute_args *a) {
    int32_t n_pairs = a->rows * a->top_k, *next = a->group_rows;
    memset(next, 0, ((size_t)a->n_experts + 1) * sizeof *next);
    for (int32_t i = 0; i < n_pairs; i++) next[a->ids[i] + 1]++;
    for (int32_t e = 0; e < a->n_experts; e++) next[e + 1] += next[e];
    for (int32_t i = 0; i < n_pairs; i++) a->place[i] = next[a->ids[i]]++;
    memmove(next + 1, next, (size_t)a->n_experts * sizeof *next); /* each holds its group's end: shift back */
    next[0] = 0;
}

static void gather_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_moe_permute_args *a = j->a;
    size_t row_bytes = (size_t)a->dim * fl_dtype_bytes(j->act);
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, a->rows);
    for (int64_t r = rows.first; r < rows.end; r++)
        for (int32_t s = 0; s < a->top_k; s++)
            memcpy(fl_element_mut(a->y, j->act, (int64_t)a->place[r * a->top_k + s] * a->dim),
                   fl_element(a->x, j->act, r * a->x_stride), row_bytes);
}

fl_err fl_moe_permute_cpu(fl_backend *be, const fl_moe_permute_args *a) {
    FL_TRY(fl_moe_permute_validate(a));
    FL_TRY(fl_codes_refuse(be, "moe_permute", &a->x_codes));
    FL_TRY(fl_moe_permute_validate_ids(a));
    sort_pairs(a);
    job j = {a, be->act_dtype};
    fl_pool_run(be->pool, fl_span_tasks(a->rows, ROWS_PER_TASK), gather_rows, &j);
    return FL_ERR_OK;
}
