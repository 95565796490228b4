/* weight_pack, portable: to bf16 in any layout. A task owns whole panels of the packed matrix, so no two
 * write the same panel; source rows are widened in chunks that stay in L1. */
#include "backend/backend.h"
#include "base/half.h"
#include "op/span.h"
#include "op/weight_pack/weight_pack_source.h"

enum { CHUNK = 512, FEATURES_PER_TASK = 128 };

typedef struct job {
    const fl_weight_pack_args *a;
    const fl_weight_layout *layout;
    int32_t step; /* features of the packed matrix a task owns: whole panels */
    fl_pack_source source;
} job;

/* Source rows as packed features: each chunk goes k_pair by k_pair down its panel. */
static void pack_rows(const job *j, fl_span features) {
    const fl_weight_pack_args *a = j->a;
    const fl_weight_layout *layout = j->layout;
    int32_t pair = layout->k_pair, stride = layout->n_block * pair;
    float chunk[CHUNK];
    for (int32_t i = features.first; i < features.end; i++) {
        uint16_t *to = (uint16_t *)a->w->data + fl_weight_index(layout, a->w->k, i, 0);
        for (int32_t first = 0; first < a->cols; first += CHUNK) {
            int32_t n = a->cols - first < CHUNK ? a->cols - first : CHUNK;
            fl_pack_source_read(&j->source, i - a->n_offset, first, n, chunk);
            for (int32_t c = 0; c < n; to += stride)
                for (int32_t p = 0; p < pair && c < n; p++, c++) to[p] = fl_bf16_of_f32(chunk[c]);
        }
    }
}

/* Source columns as packed features: a chunk of a source row is one k of several panels. */
static void pack_columns(const job *j, fl_span features) {
    const fl_weight_pack_args *a = j->a;
    const fl_weight_layout *layout = j->layout;
    float chunk[CHUNK];
    for (int32_t k = 0; k < a->rows; k++)
        for (int32_t first = features.first; first < features.end; first += CHUNK) {
            int32_t n = features.end - first < CHUNK ? features.end - first : CHUNK;
            fl_pack_source_read(&j->source, k, first - a->n_offset, n, chunk);
            for (int32_t c = 0; c < n;) {
                int32_t lane = (first + c) % layout->n_block;
                uint16_t *to = (uint16_t *)a->w->data + fl_weight_index(layout, a->w->k, first + c, k);
                for (; lane < layout->n_block && c < n; lane++, c++, to += layout->k_pair)
                    *to = fl_bf16_of_f32(chunk[c]);
            }
        }
}

static void pack_panels(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_weight_pack_args *a = j->a;
    int32_t n = a->transpose ? a->cols : a->rows;
    int32_t first = (a->n_offset / j->step + task) * j->step;
    fl_span features = {first > a->n_offset ? first : a->n_offset,
                        a->n_offset + n - first < j->step ? a->n_offset + n : first + j->step};
    if (a->transpose) pack_columns(j, features);
    else pack_rows(j, features);
}

fl_err fl_weight_pack_cpu(fl_backend *be, const fl_weight_pack_args *a) {
    FL_TRY(fl_weight_pack_validate(a));
    if (be->layout.dtype != FL_DTYPE_BF16 || CHUNK % be->layout.k_pair != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "weight_pack: packed format %s in groups of %d, expected BF16 in "
                       "groups that divide %d",
                       fl_dtype_name(be->layout.dtype), be->layout.k_pair, CHUNK);
    job j = {.a = a, .layout = &be->layout, .source = fl_pack_source_of(a)};
    j.step = (int32_t)fl_align_up(FEATURES_PER_TASK, be->layout.n_block);
    int32_t n = a->transpose ? a->cols : a->rows;
    int32_t n_tasks = fl_span_tasks(a->n_offset + n, j.step) - a->n_offset / j.step;
    fl_pool_run(be->pool, n_tasks, pack_panels, &j);
    return FL_ERR_OK;
}
