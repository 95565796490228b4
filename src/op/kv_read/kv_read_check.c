#include "op/kv_read/kv_read.h"

#include <string.h>

#include "op/act.h"
#include "op/kv_format.h"
#include "opcheck/opcheck_case.h"

enum { N_PAGES = 5 };

typedef struct shape {
    oc_kind kind;
    int32_t latent, rope, pos, n;
    fl_kv_format format;
    int32_t group, n_outliers;
    int32_t step;
} shape;

static const uint16_t outliers[FL_KV_OUTLIERS_MAX] = {0, 1, 31, 40, 63, 64, 100, 127};

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 0, 1, FL_KV_BF16, 0, 0, 0},      {OC_CHECK, 128, 32, 0, 64, FL_KV_BF16, 0, 0, 0},
    {OC_CHECK, 128, 32, 63, 2, FL_KV_BF16, 0, 0, 0},  {OC_CHECK, 128, 32, 37, 200, FL_KV_F32, 0, 0, 0},
    {OC_CHECK, 512, 64, 64, 65, FL_KV_BF16, 0, 0, 0}, {OC_CHECK, 17, 6, 319, 1, FL_KV_F32, 0, 0, 0},
    {OC_CHECK, 33, 10, 65, 63, FL_KV_BF16, 0, 0, 0},  {OC_CHECK, 1, 1, 0, 1, FL_KV_FP8, 0, 0, 0},
    {OC_CHECK, 128, 32, 37, 200, FL_KV_FP8, 0, 0, 0}, {OC_CHECK, 200, 10, 63, 2, FL_KV_FP8, 0, 0, 0},
    {OC_CHECK, 512, 64, 64, 65, FL_KV_FP8, 0, 0, 0},  {OC_CHECK, 128, 32, 37, 200, FL_KV_INT4, 32, 8, 0},
    {OC_CHECK, 128, 32, 0, 64, FL_KV_INT4, 64, 0, 0}, {OC_CHECK, 512, 64, 63, 66, FL_KV_INT4, 64, 3, 0},
    {OC_CHECK, 32, 6, 319, 1, FL_KV_INT4, 32, 1, 0},  {OC_CHECK, 33, 10, 65, 63, FL_KV_INT4_NAIVE, 0, 0, 0},
    {OC_CHECK, 128, 32, 5, 5, FL_KV_BF16, 0, 0, 64},  {OC_CHECK, 128, 32, 0, 40, FL_KV_INT4, 32, 2, 7},
    {OC_CHECK, 17, 6, 1, 3, FL_KV_FP8, 0, 0, 159},    {OC_BENCH, 128, 32, 0, 320, FL_KV_BF16, 0, 0, 0},
    {OC_BENCH, 128, 32, 0, 320, FL_KV_FP8, 0, 0, 0},  {OC_BENCH, 128, 32, 0, 320, FL_KV_INT4, 32, 0, 0},
    {OC_BENCH, 512, 64, 0, 320, FL_KV_FP8, 0, 0, 0},  {OC_BENCH, 512, 64, 0, 320, FL_KV_INT4, 64, 8, 0},
};

static const int32_t pages[N_PAGES] = {2, 4, 0, 3, 1};

/* Every element of the pool is written from its position and column, so that a wrong place shows. */
static float value_at(int32_t pos, int32_t column) {
    float scale = (float)(1 << pos / 16), sign = column % 3 == 0 ? -1 : 1;
    return sign * scale * (float)(pos % 16 * 16 + column % 16) * (column % 7 == 1 ? 0x1p-20f : 1);
}

/* What position `pos` was given: quantised formats want latents in one range. */
static float given_at(const shape *s, int32_t pos, int32_t column) {
    float value = value_at(pos, column);
    if (fl_kv_format_is_plain(s->format) || column >= s->latent) return value;
    return column % 7 == 1 ? value : value / (float)(1 << pos / 16) + (float)column / 8;
}

static fl_kv_layer make_pool(oc_run *run, const shape *s) {
    fl_kv_layer kv = {.latent_dim = s->latent,
                      .rope_dim = s->rope,
                      .format = s->format,
                      .group = s->group,
                      .n_outliers = s->n_outliers,
                      .outliers = outliers};
    kv.page_stride_bytes = fl_kv_piece_bytes(&kv) + 128;
    kv.base = oc_memory(run, N_PAGES * kv.page_stride_bytes);
    memset(kv.base, 0xff, (size_t)(N_PAGES * kv.page_stride_bytes));
    float *row = oc_memory(run, (s->latent + s->rope) * (int64_t)sizeof *row);
    for (int32_t pos = 0; pos < N_PAGES * 64; pos++) {
        uint8_t *piece = kv.base + pages[pos / 64] * kv.page_stride_bytes;
        for (int32_t j = 0; j < s->latent + s->rope; j++) row[j] = given_at(s, pos, j);
        fl_kv_latent_store(&kv, piece, pos % 64, row, FL_DTYPE_F32);
        fl_kv_k_pe_store(&kv, piece, pos % 64, row + s->latent, FL_DTYPE_F32);
    }
    return kv;
}

/* Plain formats: what was given. Quantised ones: by the definition of each element. */
static double expected_at(const shape *s, const fl_kv_layer *kv, int32_t pos, int32_t column) {
    const uint8_t *piece = fl_kv_piece(kv, pages[pos / 64]);
    if (fl_kv_format_is_plain(s->format) || column >= s->latent) return (double)given_at(s, pos, column);
    return (double)fl_kv_latent_at(kv, piece, pos % 64, column);
}

static void check_shape(oc_run *run, const shape *s) {
    if (s->format == FL_KV_F32 && !run->be->kv_f32) return;
    if (!oc_case(run, s->kind, "kv_read dims=%d+%d %s/%d+%d pos=%d n=%d step=%d", s->latent, s->rope,
                 fl_kv_format_name(s->format), s->group, s->n_outliers, s->pos, s->n, s->step))
        return;
    fl_kv_read_args args = {.kv = make_pool(run, s),
                            .pages = oc_given(run, pages, sizeof pages),
                            .pos = s->pos,
                            .n = s->n,
                            .step = s->step};
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    for (int32_t i = 0; i < 3; i++) {
        fl_dtype dtype = backends[i]->act_dtype;
        oc_mat latent = oc_output(run, dtype, s->n, s->latent, s->latent);
        oc_mat k_pe = oc_output(run, dtype, s->n, s->rope, s->rope);
        args.latent = latent.data;
        args.k_pe = k_pe.data;
        OC_OK(run, backends[i]->op->kv_read(backends[i], &args));
        oc_guards(run, &latent);
        oc_guards(run, &k_pe);
        oc_mat want_latent = oc_output(run, dtype, s->n, s->latent, s->latent);
        oc_mat want_k_pe = oc_output(run, dtype, s->n, s->rope, s->rope);
        for (int32_t t = 0; t < s->n; t++) {
            int32_t pos = s->pos + t * fl_kv_read_step(&args);
            for (int32_t j = 0; j < s->latent; j++)
                oc_set(&want_latent, t, j, expected_at(s, &args.kv, pos, j));
            for (int32_t j = 0; j < s->rope; j++)
                oc_set(&want_k_pe, t, j, expected_at(s, &args.kv, pos, s->latent + j));
        }
        oc_same(run, &latent, &want_latent);
        oc_same(run, &k_pe, &want_k_pe);
        while (i == 0 && oc_timing(run, fl_kv_read_cost(&args)))
            OC_OK(run, run->be->op->kv_read(run->be, &args));
    }
}

static void check_limits(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "kv_read limits and cost")) return;
    fl_kv_read_args good = {.pos = 3, .n = 5};
    good.kv = (fl_kv_layer){NULL, 64 * 12 * 2, 8, 4, FL_KV_BF16, 0, 0, NULL, 0, 0};
    OC_OK(run, fl_kv_read_validate(&good));
    OC_ACCEPTED_WITH(run, kv_read, good, n, 1);
    OC_REFUSED_WITH(run, kv_read, good, n, 0, "kv_read: n");
    OC_ACCEPTED_WITH(run, kv_read, good, pos, 0);
    OC_REFUSED_WITH(run, kv_read, good, pos, -1, "kv_read: pos");
    OC_ACCEPTED_WITH(run, kv_read, good, pos, INT32_MAX - 5);
    OC_REFUSED_WITH(run, kv_read, good, pos, INT32_MAX - 4, "kv_read: pos");
    OC_ACCEPTED_WITH(run, kv_read, good, step, (INT32_MAX - 3) / 5);
    OC_REFUSED_WITH(run, kv_read, good, step, INT32_MAX / 5, "kv_read: pos");
    OC_REFUSED_WITH(run, kv_read, good, step, INT32_MAX / 5 + 1, "kv_read: step");
    OC_REFUSED_WITH(run, kv_read, good, step, -1, "kv_read: step");
    OC_REFUSED_WITH(run, kv_read, good, kv.page_stride_bytes, 64 * 12 * 2 - 1,
                    "kv_read: kv.page_stride_bytes");
    OC_REFUSED_WITH(run, kv_read, good, kv.format, FL_N_KV_FORMATS, "kv_read: kv.format");
    oc_cost(run, fl_kv_read_cost(&good), 0, 5 * 12 * 4);
    good.kv.format = FL_KV_F32;
    oc_cost(run, fl_kv_read_cost(&good), 0, 5 * 12 * 6);
    good.kv.format = FL_KV_FP8;
    oc_cost(run, fl_kv_read_cost(&good), 0, 5 * (12 * 2 + 8 + 4 + 4 * 2));
    good.n = 0;
    OC_REFUSED(run, run->be->op->kv_read(run->be, &good), "kv_read: ");
}

void fl_kv_read_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_limits(run);
}
