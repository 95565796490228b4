/* block_mean, portable: one task a block, bound by memory traffic. Columns are independent and next to each other, so
 * the compiler makes vectors of the plain loops. */
#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/op_convert.h"

typedef struct job {
    const fl_block_mean_args *a;
    fl_dtype act;
} job;

/* Latents or k_pe of a page. */
typedef enum stored { LATENTS, K_PE } stored;

/* sums += the page's tokens, in order. */
static void add_page(const fl_kv_layer *kv, const uint8_t *piece, stored what, float *sums) {
    float page[FL_ATTN_HEAD_DIM_MAX] = {0}, row[FL_ATTN_HEAD_DIM_MAX];
    int32_t width = what == LATENTS ? kv->latent_dim : kv->rope_dim;
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot++) {
        if (what == LATENTS) fl_kv_latents_read(kv, piece, (fl_kv_slots){slot, 1}, FL_DTYPE_F32, row);
        else
            fl_convert_row(row, FL_DTYPE_F32, fl_kv_k_pe(kv, piece, slot), fl_kv_format_dtype(kv->format),
                           width);
        for (int32_t j = 0; j < width; j++) page[j] += row[j];
    }
    for (int32_t j = 0; j < width; j++) sums[j] += page[j];
}

static void mean_columns(const job *j, int32_t block, stored what, void *out) {
    const fl_block_mean_args *a = j->a;
    float sums[FL_ATTN_HEAD_DIM_MAX] = {0};
    int32_t width = what == LATENTS ? a->kv.latent_dim : a->kv.rope_dim;
    int32_t n_pages = a->block_tokens / FL_KV_PAGE_TOKENS;
    const int32_t *pages = a->pages + (int64_t)(a->block + block) * n_pages;
    for (int32_t i = 0; i < n_pages; i++) add_page(&a->kv, fl_kv_piece(&a->kv, pages[i]), what, sums);
    for (int32_t i = 0; i < width; i++) sums[i] /= (float)a->block_tokens;
    fl_convert_row(fl_element_mut(out, j->act, (int64_t)block * width), j->act, sums, FL_DTYPE_F32, width);
}

static void mean_block(void *context, int32_t block, int32_t worker) {
    (void)worker;
    const job *j = context;
    mean_columns(j, block, LATENTS, j->a->latent);
    mean_columns(j, block, K_PE, j->a->k_pe);
}

fl_err fl_block_mean_cpu(fl_backend *be, const fl_block_mean_args *a) {
    FL_TRY(fl_block_mean_validate(a));
    job j = {a, be->act_dtype};
    fl_pool_run(be->pool, a->n_blocks, mean_block, &j);
    return FL_ERR_OK;
}
