/* kv_write, portable: a conversion and a copy a row, bound by memory traffic but for the quantised formats. */
#include <math.h>

#include "backend/backend.h"
#include "op/kv_format.h"
#include "op/op_convert.h"
#include "op/span.h"

enum { ROWS_PER_TASK = 128 };

/* What all latents of one timeline in one call are rounded to: low + code * scale, code 0..code_max. */
typedef struct levels {
    float low, scale, code_max;
} levels;

typedef struct job {
    const fl_kv_write_args *a;
    const fl_kv_rows *seq;
    fl_dtype act;
    float code_max; /* of a naive format, else 0 */
    levels naive;
} job;

static const void *latent_row(const job *j, int32_t i) {
    return fl_element(j->a->latent, j->act, (j->seq->row + (int64_t)i) * j->a->latent_stride);
}

/* Minimum and maximum over all rows; NaN is neither. */
static levels find_levels(const job *j) {
    float low = INFINITY, high = -INFINITY, x[FL_ATTN_HEAD_DIM_MAX];
    for (int32_t i = 0; i < j->seq->n_rows; i++) {
        fl_convert_row(x, FL_DTYPE_F32, latent_row(j, i), j->act, j->a->kv.latent_dim);
        for (int32_t d = 0; d < j->a->kv.latent_dim; d++) {
            low = x[d] < low ? x[d] : low;
            high = x[d] > high ? x[d] : high;
        }
    }
    return (levels){.low = low, .scale = (high - low) / j->code_max, .code_max = j->code_max};
}

static float round_to_level(const levels *l, float value) {
    float code = l->scale > 0 ? rintf((value - l->low) / l->scale) : value - l->low; /* 0, or NaN of NaN */
    if (code > l->code_max) code = l->code_max;
    return l->low + code * l->scale;
}

static void write_latent(const job *j, int32_t i, uint8_t *piece, int32_t slot) {
    const fl_kv_layer *kv = &j->a->kv;
    float x[FL_ATTN_HEAD_DIM_MAX];
    if (j->code_max <= 0) {
        fl_kv_latent_store(kv, piece, slot, latent_row(j, i), j->act);
        return;
    }
    fl_convert_row(x, FL_DTYPE_F32, latent_row(j, i), j->act, kv->latent_dim);
    for (int32_t d = 0; d < kv->latent_dim; d++) x[d] = round_to_level(&j->naive, x[d]);
    fl_kv_latent_store(kv, piece, slot, x, FL_DTYPE_F32);
}

/* x rotated, as f32 of a value that act holds. One product fused, the other rounded: the bits of rope. */
static void rotate(const job *j, int64_t row, float *y) {
    const float *x = j->a->k_pe + row * j->a->k_pe_stride, *table = j->a->table + row * j->a->kv.rope_dim;
    for (int32_t i = 0; i < j->a->kv.rope_dim; i += 2) {
        y[i] = fmaf(x[i], table[i], -(x[i + 1] * table[i + 1]));
        y[i + 1] = fmaf(x[i + 1], table[i], x[i] * table[i + 1]);
    }
    if (j->act == FL_DTYPE_BF16)
        for (int32_t i = 0; i < j->a->kv.rope_dim; i++) y[i] = fl_f32_of_bf16(fl_bf16_of_f32(y[i]));
}

static void write_rows(void *context, int32_t task, int32_t worker) {
    (void)worker;
    const job *j = context;
    const fl_kv_write_args *a = j->a;
    float k_pe[FL_ATTN_HEAD_DIM_MAX];
    fl_span rows = fl_span_of_task(task, ROWS_PER_TASK, j->seq->n_rows);
    for (int32_t i = rows.first; i < rows.end; i++) {
        int32_t pos = j->seq->pos + i, slot = pos % FL_KV_PAGE_TOKENS;
        int64_t row = j->seq->row + i;
        uint8_t *piece = fl_kv_piece(&a->kv, j->seq->pages[pos / FL_KV_PAGE_TOKENS]);
        write_latent(j, i, piece, slot);
        rotate(j, row, k_pe);
        fl_kv_k_pe_store(&a->kv, piece, slot, k_pe, FL_DTYPE_F32);
    }
}

fl_err fl_kv_write_cpu(fl_backend *be, const fl_kv_write_args *a) {
    FL_TRY(fl_kv_write_validate(a));
    for (int32_t s = 0; s < a->n_seqs; s++) {
        job j = {.a = a, .seq = &a->seqs[s], .act = be->act_dtype};
        j.code_max = (float)fl_kv_naive_code_max(a->kv.format);
        if (j.code_max > 0) j.naive = find_levels(&j);
        fl_pool_run(be->pool, fl_span_tasks(j.seq->n_rows, ROWS_PER_TASK), write_rows, &j);
    }
    return FL_ERR_OK;
}
