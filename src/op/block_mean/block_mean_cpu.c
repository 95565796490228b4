/* block_mean, portable: one task a block; a few tokens at a time are read as f32 and added. Bound by memory traffic
 * for bf16, by reading the codes for fp8 and int4. Columns are independent and next to each other, so the compiler
 * makes vectors of the plain loops. */
#include <string.h>

#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/op_convert.h"

enum { SLOTS = 8 }; /* tokens read at a time: their rows stay in the first cache */

typedef struct job {
    const fl_block_mean_args *a;
    fl_dtype act;
} job;

/* Sums of columns over a block, and over the page that is being added. */
typedef struct sums {
    float block[2 * FL_ATTN_HEAD_DIM_MAX];
    float page[2 * FL_ATTN_HEAD_DIM_MAX];
} sums;

static void add_rows(const float *rows, int32_t n_rows, int32_t width, float *sum) {
    for (int32_t i = 0; i < n_rows; i++, rows += width)
        for (int32_t j = 0; j < width; j++) sum[j] += rows[j];
}

/* The page's tokens in order: latents into the first columns, k_pe behind them. */
static void add_page(const fl_kv_layer *kv, const uint8_t *piece, sums *s) {
    float rows[SLOTS * FL_ATTN_HEAD_DIM_MAX];
    int32_t width = kv->latent_dim + kv->rope_dim;
    memset(s->page, 0, (size_t)width * sizeof *s->page);
    for (int32_t slot = 0; slot < FL_KV_PAGE_TOKENS; slot += SLOTS) {
        fl_kv_latents_read(kv, piece, (fl_kv_slots){slot, SLOTS}, FL_DTYPE_F32, rows);
        add_rows(rows, SLOTS, kv->latent_dim, s->page);
        fl_convert_row(rows, FL_DTYPE_F32, fl_kv_k_pe(kv, piece, slot), fl_kv_format_dtype(kv->format),
                       SLOTS * kv->rope_dim);
        add_rows(rows, SLOTS, kv->rope_dim, s->page + kv->latent_dim);
    }
    add_rows(s->page, 1, width, s->block);
}

static void mean_block(void *context, int32_t block, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_block_mean_args *a = j->a;
    const fl_kv_layer *kv = &a->kv;
    int32_t n_pages = a->block_tokens / FL_KV_PAGE_TOKENS, width = kv->latent_dim + kv->rope_dim;
    const int32_t *pages = a->pages + (int64_t)(a->block + block) * n_pages;
    sums s;
    memset(s.block, 0, (size_t)width * sizeof *s.block);
    for (int32_t i = 0; i < n_pages; i++) add_page(kv, fl_kv_piece(kv, pages[i]), &s);
    for (int32_t i = 0; i < width; i++) s.block[i] /= (float)a->block_tokens;
    fl_convert_row(fl_element_mut(a->latent, j->act, (int64_t)block * kv->latent_dim), j->act, s.block,
                   FL_DTYPE_F32, kv->latent_dim);
    fl_convert_row(fl_element_mut(a->k_pe, j->act, (int64_t)block * kv->rope_dim), j->act,
                   s.block + kv->latent_dim, FL_DTYPE_F32, kv->rope_dim);
}

fl_err fl_block_mean_cpu(fl_backend *be, const fl_block_mean_args *a) {
    FL_TRY(fl_block_mean_validate(a));
    job j = {a, be->act_dtype};
    fl_pool_run(be->pool, a->n_blocks, mean_block, &j);
    return FL_ERR_OK;
}
