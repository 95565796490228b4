#include "op/kv_write/kv_write.h"

#include <math.h>
#include <string.h>

#include "op/act.h"
#include "op/kv_format.h"
#include "opcheck/opcheck_case.h"

enum { N_PAGES = 6 };

/* One or two timelines: rows[i] rows from position pos[i]; timeline 1 uses the pages from page 3 on. */
typedef struct shape {
    oc_kind kind;
    int32_t latent, rope;
    fl_kv_format format;
    int32_t rows[2], pos[2];
    int32_t group, n_outliers;
} shape;

static const uint16_t outliers[FL_KV_OUTLIERS_MAX] = {0, 1, 33, 62, 63, 64, 100, 127};

static const shape shapes[] = {
    {OC_CHECK, 1, 2, FL_KV_BF16, {1, 0}, {0, 0}, 0, 0},
    {OC_CHECK, 128, 32, FL_KV_BF16, {1, 1}, {63, 64}, 0, 0},
    {OC_CHECK, 128, 32, FL_KV_BF16, {70, 64}, {37, 0}, 0, 0},
    {OC_CHECK, 128, 32, FL_KV_F32, {65, 3}, {63, 126}, 0, 0},
    {OC_CHECK, 512, 64, FL_KV_BF16, {2, 0}, {127, 0}, 0, 0},
    {OC_CHECK, 17, 6, FL_KV_F32, {100, 0}, {5, 0}, 0, 0},
    {OC_CHECK, 40, 10, FL_KV_BF16, {63, 128}, {65, 64}, 0, 0},
    {OC_CHECK, 1, 2, FL_KV_FP8, {1, 0}, {0, 0}, 0, 0},
    {OC_CHECK, 128, 32, FL_KV_FP8, {70, 64}, {37, 0}, 0, 0},
    {OC_CHECK, 200, 10, FL_KV_FP8, {3, 0}, {63, 0}, 0, 0},
    {OC_CHECK, 512, 64, FL_KV_FP8, {2, 1}, {127, 5}, 0, 0},
    {OC_CHECK, 128, 32, FL_KV_INT4, {70, 64}, {37, 0}, 32, 0},
    {OC_CHECK, 128, 32, FL_KV_INT4, {5, 2}, {62, 0}, 64, 8},
    {OC_CHECK, 512, 64, FL_KV_INT4, {2, 1}, {127, 5}, 64, 1},
    {OC_CHECK, 32, 6, FL_KV_INT4, {9, 0}, {0, 0}, 32, 2},
    {OC_CHECK, 128, 32, FL_KV_INT4_NAIVE, {70, 64}, {37, 0}, 0, 0},
    {OC_CHECK, 24, 6, FL_KV_INT2_NAIVE, {130, 1}, {1, 0}, 0, 0},
    {OC_CHECK, 512, 64, FL_KV_BF16, {5, 6}, {60, 1}, 0, 0},
    {OC_CHECK, 96, 6, FL_KV_INT4, {7, 2}, {61, 0}, 32, 3},
    {OC_CHECK, 32, 130, FL_KV_BF16, {6, 3}, {61, 0}, 0, 0},
    {OC_CHECK, 128, 32, FL_KV_INT4_NAIVE, {9, 4}, {3, 60}, 0, 0},
    {OC_BENCH, 128, 32, FL_KV_BF16, {128, 128}, {0, 0}, 0, 0},
    {OC_BENCH, 128, 32, FL_KV_FP8, {128, 128}, {0, 0}, 0, 0},
    {OC_BENCH, 128, 32, FL_KV_INT4, {128, 128}, {0, 0}, 32, 0},
};

static const int32_t pages[N_PAGES] = {4, 1, 5, 0, 3, 2};

/* Where element j of position `pos` of timeline i must be stored. */
static int64_t place(const shape *s, int64_t stride, int32_t i, int32_t pos, int32_t j) {
    int32_t element = (int32_t)fl_dtype_bytes(fl_kv_format_dtype(s->format)), slot = pos % 64;
    int32_t index = j < s->latent ? slot * s->latent + j : 64 * s->latent + slot * s->rope + (j - s->latent);
    return pages[3 * i + pos / 64] * stride + (int64_t)index * element;
}

typedef struct fixture {
    const shape *s;
    int64_t stride;
    oc_pair latent;
    oc_mat k_pe, table;
    fl_kv_rows seqs[2];
    int32_t n_seqs;
} fixture;

static fl_kv_write_args make_args(const fixture *f, bool ref, const oc_mat *pool) {
    const oc_mat *latent = ref ? &f->latent.ref : &f->latent.be;
    return (fl_kv_write_args){.latent = latent->data,
                              .latent_stride = latent->stride,
                              .k_pe = f->k_pe.data,
                              .k_pe_stride = f->k_pe.stride,
                              .table = f->table.data,
                              .kv = {.base = pool->data,
                                     .page_stride_bytes = f->stride,
                                     .latent_dim = f->s->latent,
                                     .rope_dim = f->s->rope,
                                     .format = f->s->format,
                                     .group = f->s->group,
                                     .n_outliers = f->s->n_outliers,
                                     .outliers = outliers},
                              .seqs = f->seqs,
                              .n_seqs = f->n_seqs};
}

static double halved(double value) {
    return (double)fl_f32_of_bf16(fl_bf16_of_f32((float)value));
}

/* k_pe and rotations. `exact`: of so few bits that every product is exact. */
static void fill_k_pe(oc_run *run, fixture *f, bool exact) {
    oc_fill_mat(run, &f->k_pe, OC_SPIKE);
    for (int32_t r = 0; r < f->k_pe.rows; r++)
        for (int32_t j = 0; j < f->s->rope; j += 2) {
            double angle = oc_uniform(run) * 1000, c = cos(angle), s = sin(angle);
            oc_set(&f->table, r, j, exact ? halved(c) : c);
            oc_set(&f->table, r, j + 1, exact ? halved(s) : s);
            for (int32_t i = j; exact && i < j + 2; i++)
                oc_set(&f->k_pe, r, i, halved(oc_get(&f->k_pe, r, i)));
        }
}

/* Element j of a row's k_pe, rotated. */
static double rotated(const fixture *f, int32_t row, int32_t j) {
    double x = oc_get(&f->k_pe, row, j), other = oc_get(&f->k_pe, row, j ^ 1);
    double c = oc_get(&f->table, row, j & ~1), s = oc_get(&f->table, row, j | 1);
    return j % 2 == 0 ? x * c - other * s : x * c + other * s;
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    const fl_kv_write_args sized = make_args(&f, true, &(oc_mat){0});
    f.stride = fl_kv_piece_bytes(&sized.kv) + 64;
    int32_t rows = s->rows[0] + s->rows[1];
    /* strides of whole vectors, and others */
    f.latent = oc_act(run, rows, s->latent, s->latent + (rows % 2 ? 8 : 3), OC_NORMAL);
    f.k_pe = oc_input(run, FL_DTYPE_F32, rows, s->rope, s->rope + (rows % 2 ? 8 : 3));
    f.table = oc_input(run, FL_DTYPE_F32, rows, s->rope, s->rope);
    fill_k_pe(run, &f, true);
    const int32_t *own = oc_given(run, pages, sizeof pages);
    /* the second timeline's rows come first */
    f.seqs[0] = (fl_kv_rows){.row = s->rows[1], .n_rows = s->rows[0], .pos = s->pos[0], .pages = own};
    f.seqs[1] = (fl_kv_rows){.row = 0, .n_rows = s->rows[1], .pos = s->pos[1], .pages = own + 3};
    f.n_seqs = s->rows[1] > 0 ? 2 : 1;
    return f;
}

/* Plain formats: every byte. */
static void expect(const fixture *f, const oc_mat *pool) {
    for (int32_t i = 0; i < f->n_seqs; i++)
        for (int32_t r = 0; r < f->seqs[i].n_rows; r++)
            for (int32_t j = 0; j < f->s->latent + f->s->rope; j++) {
                int32_t row = f->seqs[i].row + r, column = j - f->s->latent;
                float value = (float)(column < 0 ? oc_get(&f->latent.ref, row, j) : rotated(f, row, column));
                uint8_t *at = (uint8_t *)pool->data + place(f->s, f->stride, i, f->seqs[i].pos + r, j);
                fl_act_store(at, fl_kv_format_dtype(f->s->format), 0, value);
            }
}

static double row_top(const oc_mat *m, int32_t row) {
    double top = 0;
    for (int32_t j = 0; j < m->width; j++) top = fmax(top, fabs(oc_get(m, row, j)));
    return top;
}

/* Half a step of the quantiser around x, and the rounding of what is stored or computed. */
static double step_bound(const fl_kv_layer *kv, double x, double top, double all_top) {
    if (kv->format == FL_KV_FP8) return fabs(x) / 16 + top / 448 / 1024;
    if (kv->format == FL_KV_INT4) return top / 15 * 1.01;
    return all_top / fl_kv_naive_code_max(kv->format) * 1.01 + all_top / 256;
}

/* One position of a quantised format: it reads as something near what was given. */
static void row_near_input(oc_run *run, const fixture *f, const fl_kv_write_args *args, int32_t i,
                           int32_t r) {
    const fl_kv_layer *kv = &args->kv;
    int32_t row = f->seqs[i].row + r, pos = f->seqs[i].pos + r;
    const uint8_t *piece = fl_kv_piece(kv, f->seqs[i].pages[pos / 64]);
    double top = row_top(&f->latent.ref, row), all_top = 0;
    for (int32_t k = 0; k < f->seqs[i].n_rows; k++)
        all_top = fmax(all_top, row_top(&f->latent.ref, f->seqs[i].row + k));
    for (int32_t j = 0; j < kv->latent_dim; j++) {
        double x = oc_get(&f->latent.ref, row, j), got = (double)fl_kv_latent_at(kv, piece, pos % 64, j);
        OC_TRUE(run, fabs(got - x) <= step_bound(kv, x, top, all_top));
    }
    for (int32_t j = 0; j < kv->rope_dim; j++) {
        float k_pe = fl_act_load(fl_kv_k_pe(kv, piece, pos % 64), FL_DTYPE_BF16, j);
        OC_TRUE(run, fl_bf16_of_f32((float)rotated(f, row, j)) == fl_bf16_of_f32(k_pe));
    }
}

static void expect_quantised(oc_run *run, const fixture *f, const oc_mat *pool) {
    fl_kv_write_args args = make_args(f, true, pool);
    OC_OK(run, run->ref->op->kv_write(run->ref, &args));
    for (int32_t i = 0; i < f->n_seqs; i++)
        for (int32_t r = 0; r < f->seqs[i].n_rows; r++) row_near_input(run, f, &args, i, r);
}

static void check_shape(oc_run *run, const shape *s) {
    bool plain = fl_kv_format_is_plain(s->format) && fl_kv_naive_code_max(s->format) == 0;
    if (s->format == FL_KV_F32 && !run->be->kv_f32) return;
    if (!oc_case(run, s->kind, "kv_write dims=%d+%d %s/%d+%d rows=%d,%d pos=%d,%d", s->latent, s->rope,
                 fl_kv_format_name(s->format), s->group, s->n_outliers, s->rows[0], s->rows[1], s->pos[0],
                 s->pos[1]))
        return;
    fixture f = make_fixture(run, s);
    oc_mat expected = oc_block(run, N_PAGES * f.stride);
    if (plain) expect(&f, &expected);
    else expect_quantised(run, &f, &expected);
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    for (int32_t i = 0; i < 3; i++) {
        oc_mat pool = oc_block(run, N_PAGES * f.stride); /* what is not written keeps its 0xAA */
        fl_kv_write_args args = make_args(&f, i == 2, &pool);
        OC_OK(run, backends[i]->op->kv_write(backends[i], &args));
        oc_guards(run, &pool);
        oc_same(run, &pool, &expected);
        while (i == 0 && oc_timing(run, fl_kv_write_cost(&args)))
            OC_OK(run, run->be->op->kv_write(run->be, &args));
    }
}

/* What is stored of k_pe is what rope makes of it, bit for bit, with tables of any bits. */
static void check_rotation(oc_run *run) {
    static const shape s = {OC_CHECK, 32, 64, FL_KV_BF16, {70, 0}, {3, 0}, 0, 0};
    if (!oc_case(run, s.kind, "kv_write rotation")) return;
    fixture f = make_fixture(run, &s);
    fill_k_pe(run, &f, false);
    oc_mat pool = oc_block(run, N_PAGES * f.stride);
    oc_mat turned = oc_output(run, run->be->act_dtype, s.rows[0], s.rope, s.rope);
    const fl_kv_write_args args = make_args(&f, run->is_reference, &pool);
    const fl_rope_args rope = {.x = args.k_pe,
                               .x_stride = args.k_pe_stride,
                               .table = args.table,
                               .rows = s.rows[0],
                               .n_heads = 1,
                               .rope_dim = s.rope,
                               .scale = 1,
                               .y = turned.data,
                               .y_stride = s.rope};
    OC_OK(run, run->be->op->kv_write(run->be, &args));
    OC_OK(run, run->be->op->rope(run->be, &rope));
    for (int32_t r = 0; r < s.rows[0]; r++)
        for (int32_t j = 0; j < s.rope; j++) {
            int64_t at = place(&s, f.stride, 0, s.pos[0] + r, s.latent + j);
            float stored = fl_act_load((uint8_t *)pool.data + at, FL_DTYPE_BF16, 0);
            OC_TRUE(run, fl_bf16_of_f32(stored) == fl_bf16_of_f32((float)oc_get(&turned, r, j)));
        }
}

/* Round to nearest, ties to even: by literal bits. Only f32 act can hold such values. */
static void check_rounding(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "kv_write rounding")) return;
    const float values[8] = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -0x1.01p0f,
                             0,         -0.0f,     0x1.fep127f,   0x1p-130f};
    const uint16_t rounded[8] = {0x3f80, 0x3f82, 0x3f81, 0xbf80, 0, 0x8000, 0x7f7f, 0x0008};
    oc_pair latent = oc_act(run, 1, 8, 8, OC_ZERO);
    const float straight[2] = {1, 0}, *k_pe = oc_given(run, (const float[2]){0, 0}, sizeof straight);
    for (int32_t j = 0; j < 8; j++) oc_set(&latent.be, 0, j, (double)values[j]);
    const fl_kv_rows seq = {.n_rows = 1, .pages = oc_memory(run, sizeof(int32_t))};
    uint16_t *pool = oc_memory(run, 64 * 10 * 2);
    fl_kv_write_args args = {.latent = latent.be.data, .latent_stride = 8, .k_pe = k_pe, .k_pe_stride = 2};
    args.table = oc_given(run, straight, sizeof straight);
    args.kv = (fl_kv_layer){(uint8_t *)pool, 64 * 10 * 2, 8, 2, FL_KV_BF16, 0, 0, NULL, 0, 0};
    args.seqs = &seq;
    args.n_seqs = 1;
    OC_OK(run, run->be->op->kv_write(run->be, &args));
    for (int32_t j = 0; j < 8; j++) OC_TRUE(run, pool[j] == rounded[j]);
    args.n_seqs = 0;
    OC_REFUSED(run, run->be->op->kv_write(run->be, &args), "kv_write: n_seqs");
}

/* More rows or timelines than a device takes in one way, or at once: the bits of the reference. */
static void check_many(oc_run *run, fl_kv_format format, int32_t timelines, int32_t rows_each) {
    if (!oc_case(run, OC_CHECK, "kv_write %s timelines=%d rows=%d", fl_kv_format_name(format), timelines,
                 rows_each))
        return;
    const shape s = {.latent = 128, .rope = 32, .format = format, .group = fl_kv_format_group(format, 128)};
    fixture f = {.s = &s};
    int32_t rows = timelines * rows_each, each = (62 + rows_each) / 64 + 1; /* pages, from slot 63 at most */
    int32_t *all_pages = oc_memory(run, timelines * each * (int64_t)sizeof *all_pages);
    fl_kv_rows *seqs = oc_memory(run, timelines * (int64_t)sizeof *seqs);
    f.latent = oc_act(run, rows, s.latent, s.latent, OC_NORMAL);
    f.k_pe = oc_input(run, FL_DTYPE_F32, rows, s.rope, s.rope);
    f.table = oc_input(run, FL_DTYPE_F32, rows, s.rope, s.rope);
    fill_k_pe(run, &f, true);
    for (int32_t i = 0; i < timelines * each; i++) all_pages[i] = timelines * each - 1 - i;
    for (int32_t i = 0; i < timelines; i++)
        seqs[i] = (fl_kv_rows){
            .row = i * rows_each, .n_rows = rows_each, .pos = i * 37 % 64, .pages = all_pages + i * each};
    const fl_kv_write_args sized = make_args(&f, true, &(oc_mat){0});
    f.stride = fl_kv_piece_bytes(&sized.kv) + 64;
    fl_backend *const backends[] = {run->ref, run->be, run->one};
    oc_mat pools[3];
    for (int32_t i = 0; i < 3; i++) {
        pools[i] = oc_block(run, timelines * each * f.stride);
        fl_kv_write_args args = make_args(&f, i == 0, &pools[i]);
        args.seqs = seqs;
        args.n_seqs = timelines;
        OC_OK(run, backends[i]->op->kv_write(backends[i], &args));
        oc_guards(run, &pools[i]);
        oc_same(run, &pools[i], &pools[0]);
    }
}

static void check_int4_limits(oc_run *run, const fl_kv_write_args *plain) {
    static const uint16_t unordered[] = {3, 3}, beyond[] = {5, 128};
    fl_kv_write_args good = *plain;
    good.kv = (fl_kv_layer){NULL, 1 << 20, 128, 4, FL_KV_INT4, 32, 8, outliers, 0, 0};
    good.latent_stride = 128;
    OC_OK(run, fl_kv_write_validate(&good));
    OC_ACCEPTED_WITH(run, kv_write, good, kv.group, 64);
    OC_REFUSED_WITH(run, kv_write, good, kv.group, 16, "kv_write: kv.group");
    OC_REFUSED_WITH(run, kv_write, good, kv.group, 0, "kv_write: kv.group");
    OC_REFUSED_WITH(run, kv_write, good, kv.latent_dim, 96 + 8, "kv_write: kv.latent_dim");
    OC_REFUSED_WITH(run, kv_write, good, kv.n_outliers, 9, "kv_write: kv.n_outliers");
    OC_REFUSED_WITH(run, kv_write, good, kv.n_outliers, -1, "kv_write: kv.n_outliers");
    good.kv.n_outliers = 2;
    OC_REFUSED_WITH(run, kv_write, good, kv.outliers, unordered, "kv_write: kv.outliers");
    OC_REFUSED_WITH(run, kv_write, good, kv.outliers, beyond, "kv_write: kv.outliers");
    int64_t piece_bytes = 64 * (64 + 4 * 4 + 2 * 2 + 4 * 2);
    OC_ACCEPTED_WITH(run, kv_write, good, kv.page_stride_bytes, piece_bytes);
    OC_REFUSED_WITH(run, kv_write, good, kv.page_stride_bytes, piece_bytes - 1, "kv.page_stride_bytes");
    oc_cost(run, fl_kv_write_cost(&good), 5 * 4 * 3, 5 * (128 * 2 + 4 * 8 + 64 + 16 + 4 + 8));
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "kv_write limits and cost")) return;
    fl_kv_rows seqs[2] = {{.row = 0, .n_rows = 3, .pos = 4}, {.row = 9, .n_rows = 2, .pos = 0}};
    fl_kv_write_args good = {.latent_stride = 8, .k_pe_stride = 4, .seqs = seqs, .n_seqs = 2};
    good.kv = (fl_kv_layer){NULL, 64 * 12 * 2, 8, 4, FL_KV_BF16, 0, 0, NULL, 0, 0};
    OC_OK(run, fl_kv_write_validate(&good));
    OC_REFUSED_WITH(run, kv_write, good, latent_stride, 7, "kv_write: latent_stride");
    OC_REFUSED_WITH(run, kv_write, good, k_pe_stride, 3, "kv_write: k_pe_stride");
    OC_REFUSED_WITH(run, kv_write, good, kv.page_stride_bytes, 64 * 12 * 2 - 1,
                    "kv_write: kv.page_stride_bytes");
    OC_REFUSED_WITH(run, kv_write, good, kv.format, FL_N_KV_FORMATS, "kv_write: kv.format");
    OC_REFUSED_WITH(run, kv_write, good, kv.latent_dim, 0, "kv_write: kv.latent_dim");
    OC_REFUSED_WITH(run, kv_write, good, kv.rope_dim, 0, "kv_write: kv.rope_dim");
    OC_REFUSED_WITH(run, kv_write, good, kv.rope_dim, 3, "kv_write: kv.rope_dim");
    OC_REFUSED_WITH(run, kv_write, good, kv.plane, 1, "kv_write: kv.plane");
    OC_REFUSED_WITH(run, kv_write, good, kv.plane, -1, "kv_write: kv.plane");
    OC_REFUSED_WITH(run, kv_write, good, kv.planes, -1, "kv_write: kv.planes");
    OC_REFUSED_WITH(run, kv_write, good, n_seqs, 0, "kv_write: n_seqs");
    OC_ACCEPTED_WITH(run, kv_write, good, n_seqs, 1);
    oc_cost(run, fl_kv_write_cost(&good), 5 * 4 * 3, 5 * (8 * 2 + 4 * 8 + 12 * 2));
    good.kv.format = FL_KV_F32;
    oc_cost(run, fl_kv_write_cost(&good), 5 * 4 * 3, 5 * (8 * 2 + 4 * 8 + 12 * 4));
    good.kv.format = FL_KV_FP8;
    oc_cost(run, fl_kv_write_cost(&good), 5 * 4 * 3, 5 * (8 * 2 + 4 * 8 + 8 + 4 + 4 * 2));
    check_int4_limits(run, &good);
    good.kv.format = FL_KV_BF16;
    seqs[1].n_rows = 0;
    OC_REFUSED(run, fl_kv_write_validate(&good), "kv_write: seqs[].n_rows");
    seqs[1] = (fl_kv_rows){.row = -1, .n_rows = 1};
    OC_REFUSED(run, fl_kv_write_validate(&good), "kv_write: seqs[].row");
    seqs[1] = (fl_kv_rows){.row = INT32_MAX - 1, .n_rows = 1};
    OC_OK(run, fl_kv_write_validate(&good));
    seqs[1] = (fl_kv_rows){.n_rows = 1, .pos = -1};
    OC_REFUSED(run, fl_kv_write_validate(&good), "kv_write: seqs[].pos");
}

void fl_kv_write_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    static const fl_kv_format formats[] = {FL_KV_BF16, FL_KV_FP8, FL_KV_INT4};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        check_many(run, formats[i], 1, 4099);
        check_many(run, formats[i], 70, 3);
    }
    check_rotation(run);
    check_rounding(run);
    check_limits(run);
}
