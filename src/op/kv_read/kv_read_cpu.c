/* kv_read, portable: one task a page, or a position where they lie apart; bound by memory traffic. */
#include "op/kv_read/kv_read_pages.h"

#include "op/op_convert.h"
#include "op/span.h"

typedef struct job {
    const fl_kv_read_args *a;
    fl_dtype act;
    fl_kv_latents_fn *read_latents;
} job;

/* Some slots of a page become rows from `row` on. */
static void read_slots(const job *j, int32_t page, fl_kv_slots slots, int64_t row) {
    const fl_kv_read_args *a = j->a;
    const fl_kv_layer *kv = &a->kv;
    const uint8_t *piece = fl_kv_piece(kv, a->pages[page]);
    j->read_latents(kv, piece, slots, j->act, fl_element_mut(a->latent, j->act, row * kv->latent_dim));
    fl_convert_row(fl_element_mut(a->k_pe, j->act, row * kv->rope_dim), j->act,
                   fl_kv_k_pe(kv, piece, slots.first), fl_kv_format_dtype(kv->format),
                   slots.n * kv->rope_dim);
}

/* Task t reads the t-th position. */
static void read_position(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    int32_t pos = j->a->pos + task * j->a->step;
    read_slots(j, pos / FL_KV_PAGE_TOKENS, (fl_kv_slots){pos % FL_KV_PAGE_TOKENS, 1}, task);
}

/* Task t reads what the range has of its t-th page. */
static void read_page(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_kv_read_args *a = j->a;
    int32_t page = a->pos / FL_KV_PAGE_TOKENS + task, page_pos = page * FL_KV_PAGE_TOKENS;
    int32_t first = page_pos > a->pos ? page_pos : a->pos;
    int32_t end = a->pos + a->n - page_pos < FL_KV_PAGE_TOKENS ? a->pos + a->n : page_pos + FL_KV_PAGE_TOKENS;
    read_slots(j, page, (fl_kv_slots){first - page_pos, end - first}, first - a->pos);
}

fl_err fl_kv_read_pages(fl_backend *be, const fl_kv_read_args *a, fl_kv_latents_fn *read_latents) {
    FL_TRY(fl_kv_read_validate(a));
    job j = {a, be->act_dtype, read_latents};
    int32_t n_pages = (a->pos + a->n - 1) / FL_KV_PAGE_TOKENS - a->pos / FL_KV_PAGE_TOKENS + 1;
    if (fl_kv_read_step(a) > 1) fl_pool_run(be->pool, a->n, read_position, &j);
    else fl_pool_run(be->pool, n_pages, read_page, &j);
    return FL_ERR_OK;
}

fl_err fl_kv_read_cpu(fl_backend *be, const fl_kv_read_args *a) {
    return fl_kv_read_pages(be, a, fl_kv_latents_read);
}
