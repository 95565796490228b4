/* block_mean, portable: one task a block, bound by memory traffic. Columns are independent and next to each other, so
 * the compiler makes vectors of the plain loops. */
#include <string.h>

#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/op_convert.h"

typedef struct job {
    const fl_block_mean_args *a;
    fl_dtype act;
} job;

/* sums += the page's tokens, in order. */
static void add_page(const void *rows, fl_dtype dtype, int32_t width, float *sums) {
    float page[FL_ATTN_HEAD_DIM_MAX];
    memset(page, 0, (size_t)width * sizeof *page);
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot++) {
        const void *row = fl_element(rows, dtype, (int64_t)slot * width);
        const uint16_t *half = row;
        const float *wide = row;
        if (dtype == FL_DTYPE_BF16)
            for (int32_t j = 0; j < width; j++) page[j] += fl_f32_of_bf16(half[j]);
        else
            for (int32_t j = 0; j < width; j++) page[j] += wide[j];
    }
    for (int32_t j = 0; j < width; j++) sums[j] += page[j];
}

/* Mean of `width` columns that begin `first` elements into each page of a block. */
static void mean_columns(const job *j, int32_t block, int64_t first, int32_t width, void *out) {
    const fl_block_mean_args *a = j->a;
    float sums[FL_ATTN_HEAD_DIM_MAX];
    fl_dtype dtype = fl_kv_format_dtype(a->kv.format);
    int32_t n_pages = a->block_tokens / FL_KV_PAGE_TOKENS;
    const int32_t *pages = a->pages + (int64_t)(a->block + block) * n_pages;
    memset(sums, 0, (size_t)width * sizeof *sums);
    for (int32_t i = 0; i < n_pages; i++)
        add_page(fl_element(fl_kv_piece(&a->kv, pages[i]), dtype, first), dtype, width, sums);
    for (int32_t i = 0; i < width; i++) sums[i] /= (float)a->block_tokens;
    fl_convert_row(fl_element_mut(out, j->act, (int64_t)block * width), j->act, sums, FL_DTYPE_F32, width);
}

static void mean_block(void *context, int32_t block, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_kv_layer *kv = &j->a->kv;
    mean_columns(j, block, 0, kv->latent_dim, j->a->latent);
    mean_columns(j, block, (int64_t)FL_KV_PAGE_TOKENS * kv->latent_dim, kv->rope_dim, j->a->k_pe);
}

fl_err fl_block_mean_cpu(fl_backend *be, const fl_block_mean_args *a) {
    FL_TRY(fl_block_mean_validate(a));
    job j = {a, be->act_dtype};
    fl_pool_run(be->pool, a->n_blocks, mean_block, &j);
    return FL_ERR_OK;
}
