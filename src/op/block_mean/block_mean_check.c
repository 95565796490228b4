#include "op/block_mean/block_mean.h"

#include <math.h>
#include <string.h>

#include "op/act.h"
#include "op/kv_format.h"
#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t latent, rope, block_tokens, block, n_blocks;
    fl_kv_format format;
    int32_t group, n_outliers, planes;
    oc_fill fill;
} shape;

static const uint16_t outliers[FL_KV_OUTLIERS_MAX] = {0, 1, 31, 40, 63, 64, 100, 127};

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 64, 0, 1, FL_KV_BF16, 0, 0, 1, OC_NORMAL},
    {OC_CHECK, 128, 32, 64, 2, 3, FL_KV_BF16, 0, 0, 2, OC_NORMAL},
    {OC_CHECK, 128, 32, 128, 0, 3, FL_KV_BF16, 0, 0, 1, OC_LARGE},
    {OC_CHECK, 128, 32, 128, 1, 2, FL_KV_F32, 0, 0, 1, OC_NORMAL},
    {OC_CHECK, 512, 64, 192, 1, 2, FL_KV_BF16, 0, 0, 1, OC_SPIKE},
    {OC_CHECK, 17, 6, 1024, 0, 1, FL_KV_F32, 0, 0, 1, OC_TINY},
    {OC_CHECK, 33, 10, 1024, 1, 1, FL_KV_BF16, 0, 0, 1, OC_EQUAL},
    {OC_CHECK, 1024, 1, 64, 1, 1, FL_KV_BF16, 0, 0, 1, OC_ZERO},
    {OC_CHECK, 128, 32, 128, 1, 2, FL_KV_FP8, 0, 0, 2, OC_NORMAL},
    {OC_CHECK, 200, 10, 64, 3, 1, FL_KV_FP8, 0, 0, 1, OC_LARGE},
    {OC_CHECK, 17, 6, 1024, 0, 1, FL_KV_FP8, 0, 0, 1, OC_EQUAL},
    {OC_CHECK, 128, 32, 128, 1, 2, FL_KV_INT4, 32, 8, 1, OC_NORMAL},
    {OC_CHECK, 512, 64, 64, 0, 3, FL_KV_INT4, 64, 3, 2, OC_NORMAL},
    {OC_CHECK, 64, 6, 1024, 0, 1, FL_KV_INT4, 64, 0, 1, OC_EQUAL},
    {OC_CHECK, 33, 10, 64, 1, 1, FL_KV_INT4_NAIVE, 0, 0, 1, OC_NORMAL},
    {OC_BENCH, 128, 32, 128, 0, 256, FL_KV_BF16, 0, 0, 1, OC_NORMAL},
    {OC_BENCH, 128, 32, 128, 0, 256, FL_KV_FP8, 0, 0, 2, OC_NORMAL},
    {OC_BENCH, 128, 32, 128, 0, 256, FL_KV_INT4, 32, 8, 1, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_mat values; /* [tokens of the blocks][latent + rope], as they read from their pages */
    int32_t *pages;
    fl_kv_layer kv;
    oc_outs latent, k_pe;
} fixture;

/* Row t of the values goes to its page, and becomes what is read there. */
static void store_token(const fixture *f, int32_t pos, int32_t t) {
    const shape *s = f->s;
    int32_t slot = pos % FL_KV_PAGE_TOKENS;
    uint8_t *piece = fl_kv_piece(&f->kv, f->pages[pos / FL_KV_PAGE_TOKENS]);
    fl_kv_latent_store(&f->kv, piece, slot, oc_at(&f->values, t, 0), FL_DTYPE_F32);
    fl_kv_k_pe_store(&f->kv, piece, slot, oc_at(&f->values, t, s->latent), FL_DTYPE_F32);
    for (int32_t j = 0; j < s->latent; j++)
        oc_set(&f->values, t, j, (double)fl_kv_latent_at(&f->kv, piece, slot, j));
    for (int32_t j = 0; j < s->rope; j++)
        oc_set(&f->values, t, s->latent + j,
               (double)fl_act_load(fl_kv_k_pe(&f->kv, piece, slot), fl_kv_format_dtype(s->format), j));
}

/* The pages lie in reverse order; those before the first block hold NaNs, as do other planes. */
static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    int32_t first = s->block * s->block_tokens, n_tokens = s->n_blocks * s->block_tokens;
    int32_t n_pages = (first + n_tokens) / FL_KV_PAGE_TOKENS, width = s->latent + s->rope;
    f.kv = (fl_kv_layer){.latent_dim = s->latent,
                         .rope_dim = s->rope,
                         .format = s->format,
                         .group = s->group,
                         .n_outliers = s->n_outliers,
                         .outliers = outliers,
                         .planes = s->planes,
                         .plane = s->planes - 1};
    f.kv.page_stride_bytes = fl_kv_piece_bytes(&f.kv) + 64;
    f.kv.base = oc_memory_fenced(run, n_pages * f.kv.page_stride_bytes);
    memset(f.kv.base, 0xff, (size_t)(n_pages * f.kv.page_stride_bytes));
    f.pages = oc_memory(run, n_pages * (int64_t)sizeof *f.pages);
    for (int32_t i = 0; i < n_pages; i++) f.pages[i] = n_pages - 1 - i;
    f.values = oc_input(run, FL_DTYPE_F32, n_tokens, width, width);
    oc_fill_mat(run, &f.values, s->fill);
    for (int32_t t = 0; t < n_tokens; t++) store_token(&f, first + t, t);
    f.latent = oc_outs_make(run, run->be->act_dtype, s->n_blocks, s->latent, s->latent);
    f.k_pe = oc_outs_make(run, run->be->act_dtype, s->n_blocks, s->rope, s->rope);
    return f;
}

static fl_block_mean_args make_args(const fixture *f, const oc_mat *latent, const oc_mat *k_pe) {
    return (fl_block_mean_args){.kv = f->kv,
                                .pages = f->pages,
                                .block_tokens = f->s->block_tokens,
                                .block = f->s->block,
                                .n_blocks = f->s->n_blocks,
                                .latent = latent->data,
                                .k_pe = k_pe->data};
}

/* Columns from `first` on against sums of the values; the reference must be right to an f32 rounding. */
static void compare(oc_run *run, const fixture *f, const oc_outs *outs, int32_t first) {
    const shape *s = f->s;
    oc_mat want = oc_output(run, FL_DTYPE_F32, outs->ref.rows, outs->ref.width, outs->ref.width);
    int64_t n = want.rows * want.width;
    double *bound = oc_memory(run, n * (int64_t)sizeof *bound),
           *exact = oc_memory(run, n * (int64_t)sizeof *exact);
    for (int64_t i = 0; i < n; i++) {
        int64_t block = i / want.width, column = i % want.width;
        double sum = 0, largest = 0;
        for (int64_t t = 0; t < s->block_tokens; t++) {
            double value = oc_get(&f->values, block * s->block_tokens + t, first + column);
            sum += value;
            largest = fmax(largest, fabs(value));
        }
        double mean = sum / s->block_tokens;
        oc_set(&want, block, column, mean);
        exact[i] = 1e-12 * largest + 2 * oc_rounding(FL_DTYPE_F32, mean);
        bound[i] = 1e-6 * largest + oc_rounding(outs->be.dtype, fabs(mean) + 1e-6 * largest);
    }
    oc_near(run, &outs->ref, &want, exact);
    oc_outs_near(run, outs, bound);
}

/* Each block alone gives the same bits. */
static void check_alone(oc_run *run, const fixture *f) {
    oc_mat latent = oc_output(run, f->latent.be.dtype, f->s->n_blocks, f->s->latent, f->s->latent);
    oc_mat k_pe = oc_output(run, f->k_pe.be.dtype, f->s->n_blocks, f->s->rope, f->s->rope);
    for (int32_t b = 0; b < f->s->n_blocks; b++) {
        fl_block_mean_args args = make_args(f, &latent, &k_pe);
        args.block += b;
        args.n_blocks = 1;
        args.latent = oc_at(&latent, b, 0);
        args.k_pe = oc_at(&k_pe, b, 0);
        OC_OK(run, run->be->op->block_mean(run->be, &args));
    }
    oc_same(run, &latent, &f->latent.be);
    oc_same(run, &k_pe, &f->k_pe.be);
}

static void check_shape(oc_run *run, const shape *s) {
    if (s->format == FL_KV_F32 && !run->be->kv_f32) return;
    if (!oc_case(run, s->kind, "block_mean dims=%d+%d %s/%d+%d planes=%d tokens=%d blocks=%d+%d %s",
                 s->latent, s->rope, fl_kv_format_name(s->format), s->group, s->n_outliers, s->planes,
                 s->block_tokens, s->block, s->n_blocks, oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    fl_block_mean_args args = make_args(&f, &f.latent.ref, &f.k_pe.ref);
    OC_OK(run, run->ref->op->block_mean(run->ref, &args));
    args = make_args(&f, &f.latent.one, &f.k_pe.one);
    OC_OK(run, run->one->op->block_mean(run->one, &args));
    args = make_args(&f, &f.latent.be, &f.k_pe.be);
    OC_OK(run, run->be->op->block_mean(run->be, &args));
    compare(run, &f, &f.latent, 0);
    compare(run, &f, &f.k_pe, s->latent);
    if (s->kind != OC_BENCH) check_alone(run, &f);
    while (oc_timing(run, fl_block_mean_cost(&args))) OC_OK(run, run->be->op->block_mean(run->be, &args));
}

static void check_limits(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "block_mean limits and cost")) return;
    fl_block_mean_args good = {.block_tokens = 128, .block = 1, .n_blocks = 2};
    good.kv =
        (fl_kv_layer){.page_stride_bytes = 64 * 12 * 2, .latent_dim = 8, .rope_dim = 4, .format = FL_KV_BF16};
    OC_OK(run, fl_block_mean_validate(&good));
    OC_REFUSED_WITH(run, block_mean, good, kv.page_stride_bytes, 64 * 12 * 2 - 1,
                    "block_mean: kv.page_stride_bytes");
    OC_ACCEPTED_WITH(run, block_mean, good, block_tokens, 64);
    OC_ACCEPTED_WITH(run, block_mean, good, block_tokens, 1024);
    OC_REFUSED_WITH(run, block_mean, good, block_tokens, 0, "block_mean: block_tokens");
    OC_REFUSED_WITH(run, block_mean, good, block_tokens, 96, "block_mean: block_tokens");
    OC_REFUSED_WITH(run, block_mean, good, block_tokens, 1088, "block_mean: block_tokens");
    OC_ACCEPTED_WITH(run, block_mean, good, n_blocks, 1);
    OC_REFUSED_WITH(run, block_mean, good, n_blocks, 0, "block_mean: n_blocks");
    OC_ACCEPTED_WITH(run, block_mean, good, block, 0);
    OC_REFUSED_WITH(run, block_mean, good, block, -1, "block_mean: block");
    OC_ACCEPTED_WITH(run, block_mean, good, block, INT32_MAX / 128 - 2);
    OC_REFUSED_WITH(run, block_mean, good, block, INT32_MAX / 128 - 1, "block_mean: block");
    oc_cost(run, fl_block_mean_cost(&good), 2 * 128 * 12, 2 * 128 * 12 * 2 + 2 * 12 * 2);
    good.kv.format = FL_KV_FP8;
    oc_cost(run, fl_block_mean_cost(&good), 2 * 128 * 12, 2 * 128 * (8 + 4 + 4 * 2) + 2 * 12 * 2);
    good.n_blocks = 0;
    OC_REFUSED(run, run->be->op->block_mean(run->be, &good), "block_mean: n_blocks");
}

void fl_block_mean_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_limits(run);
}
