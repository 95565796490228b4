#include "op/attn_absorbed/attn_absorbed.h"

#include <math.h>
#include <string.h>

#include "op/act.h"
#include "op/kv_format.h"
#include "opcheck/opcheck_case.h"

enum { SEQS_MAX = 4 };

/* Which keys rows see. */
enum {
    EVERY_KEY,
    NEAR,
    NEAR_AND_SINKS,
    SEGMENT,
    FAR,
    FAR_STEPS,
    STEPS,
    DISTANCE,
    NOT_THE_NEXT,
    NO_KEY,
    OWN_KEY,
    FAR_BACK,
    N_SIGHTS
};

static const struct sight {
    fl_attn_view view;
    int32_t key_step;
} sights[N_SIGHTS] = {
    [NEAR] = {.view = {.window = 100}},
    [NEAR_AND_SINKS] = {.view = {.window = 60, .sinks = 3}, .key_step = 1},
    [SEGMENT] = {.view = {.window = 20, .sinks = 70, .segment = 256}},
    [FAR] = {.view = {.window = 300, .sinks = 5, .far = true}},
    [FAR_STEPS] = {.view = {.window = 9, .sinks = 2, .segment = 24, .far = true}, .key_step = 7},
    [STEPS] = {.key_step = 130},
    [DISTANCE] = {.view = {.distance_first = 40, .distance_end = 560}},
    [NOT_THE_NEXT] = {.view = {.window = 90, .distance_first = 64}},
    [NO_KEY] = {.view = {.window = 10, .distance_first = 10}},
    [OWN_KEY] = {.view = {.window = 1}},
    [FAR_BACK] = {.view = {.window = 66000, .far = true}},
};

/* rows[i] rows of timeline i, the first at position pos[i]; ends with rows 0. */
typedef struct shape {
    oc_kind kind;
    int32_t heads, latent, rope;
    fl_kv_format format;
    oc_fill fill;
    int32_t rows[SEQS_MAX], pos[SEQS_MAX];
    int32_t n_outliers; /* int4 */
    int32_t sight;      /* in sights[] */
} shape;

static const uint16_t outliers[FL_KV_OUTLIERS_MAX] = {2, 31, 32, 90, 91, 92, 120, 127};

static const shape shapes[] = {
    {OC_CHECK, 1, 128, 32, FL_KV_BF16, OC_NORMAL, {1}, {0}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {1}, {62}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {3}, {62}, 0, EVERY_KEY}, /* over the end of a page */
    {OC_CHECK, 3, 128, 32, FL_KV_F32, OC_NORMAL, {2, 1}, {64, 5}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_SPIKE, {1}, {511}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {2}, {511}, 0, EVERY_KEY}, /* over the end of a split */
    {OC_CHECK, 2, 512, 64, FL_KV_BF16, OC_NORMAL, {1}, {512}, 0, EVERY_KEY},
    {OC_CHECK, 16, 512, 64, FL_KV_BF16, OC_NORMAL, {2}, {100}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_LARGE, {1, 3, 2}, {1100, 0, 127}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_F32, OC_ZERO, {1, 1}, {1535, 1536}, 0, EVERY_KEY},
    {OC_CHECK, 1, 128, 32, FL_KV_BF16, OC_EQUAL, {5}, {190}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {65}, {30}, 0, EVERY_KEY},
    {OC_CHECK,
     5,
     24,
     6,
     FL_KV_F32,
     OC_NORMAL,
     {2},
     {70},
     0,
     EVERY_KEY}, /* odd head shapes: refused or right */
    {OC_CHECK, 2, 40, 16, FL_KV_BF16, OC_NORMAL, {2}, {600}, 0, EVERY_KEY},
    {OC_SLOW, 16, 512, 64, FL_KV_BF16, OC_SPIKE, {3, 2}, {2047, 900}, 0, EVERY_KEY},
    {OC_BENCH, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {1}, {2047}, 0, EVERY_KEY},
    {OC_BENCH, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {1}, {8191}, 0, EVERY_KEY},
    {OC_BENCH, 128, 512, 64, FL_KV_BF16, OC_NORMAL, {1}, {2047}, 0, EVERY_KEY},
    {OC_BENCH, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {32}, {4095}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_FP8, OC_NORMAL, {1}, {0}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_FP8, OC_NORMAL, {3, 1}, {510, 64}, 0, EVERY_KEY},
    {OC_CHECK, 2, 512, 64, FL_KV_FP8, OC_SPIKE, {9}, {125}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_INT4, OC_NORMAL, {1}, {62}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_INT4, OC_NORMAL, {3, 1}, {510, 64}, 3, EVERY_KEY},
    {OC_CHECK, 2, 512, 64, FL_KV_INT4, OC_NORMAL, {9}, {125}, 8, EVERY_KEY},
    {OC_CHECK, 5, 40, 6, FL_KV_FP8, OC_NORMAL, {2}, {70}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_INT2_NAIVE, OC_NORMAL, {2}, {70}, 0, EVERY_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {3, 1}, {700, 20}, 0, NEAR},
    {OC_CHECK, 1, 128, 32, FL_KV_BF16, OC_NORMAL, {70}, {500}, 0, NEAR},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_SPIKE, {9, 2}, {1100, 0}, 0, NEAR_AND_SINKS},
    {OC_CHECK, 3, 128, 32, FL_KV_BF16, OC_NORMAL, {25}, {1010}, 0, SEGMENT},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {3}, {1030}, 0, FAR},
    {OC_CHECK, 1, 128, 32, FL_KV_BF16, OC_SPIKE, {40, 1}, {80, 3}, 0, FAR_STEPS},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {4}, {640}, 0, STEPS},
    {OC_CHECK, 2, 512, 64, FL_KV_BF16, OC_NORMAL, {9}, {570}, 0, DISTANCE},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {9, 1}, {66, 600}, 0, NOT_THE_NEXT},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {2, 1}, {600, 5}, 0, NO_KEY},
    {OC_CHECK, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {20}, {500}, 0, OWN_KEY},
    {OC_CHECK, 5, 24, 6, FL_KV_F32, OC_NORMAL, {90}, {170}, 0, NEAR_AND_SINKS},
    {OC_CHECK, 8, 128, 32, FL_KV_INT4, OC_NORMAL, {9, 1}, {700, 60}, 1, NEAR_AND_SINKS},
    {OC_CHECK, 4, 512, 64, FL_KV_FP8, OC_NORMAL, {9}, {600}, 0, FAR},
    {OC_CHECK, 16, 512, 64, FL_KV_INT4, OC_NORMAL, {2, 1}, {1090, 200}, 0, EVERY_KEY},
    {OC_CHECK, 5, 512, 64, FL_KV_INT4, OC_SPIKE, {4, 1}, {1030, 30}, 3, FAR},
    {OC_CHECK, 16, 512, 64, FL_KV_FP8, OC_NORMAL, {2}, {1087}, 0, SEGMENT},
    {OC_SLOW, 16, 512, 64, FL_KV_INT4, OC_SPIKE, {3, 2}, {2047, 900}, 8, EVERY_KEY},
    /* 64 (row, head) pairs and more that share keys */
    {OC_CHECK, 64, 512, 64, FL_KV_BF16, OC_NORMAL, {1}, {63}, 0, EVERY_KEY},
    {OC_CHECK, 64, 512, 64, FL_KV_BF16, OC_LARGE, {1, 1}, {64, 0}, 0, EVERY_KEY},
    {OC_CHECK, 64, 512, 64, FL_KV_BF16, OC_SPIKE, {2}, {511}, 0, EVERY_KEY}, /* over the end of a split */
    {OC_CHECK, 70, 512, 64, FL_KV_BF16, OC_NORMAL, {2}, {190}, 0, EVERY_KEY},
    {OC_CHECK, 16, 512, 64, FL_KV_BF16, OC_NORMAL, {9}, {120}, 0, EVERY_KEY},
    {OC_SLOW, 64, 512, 64, FL_KV_BF16, OC_NORMAL, {2}, {300}, 0, NEAR_AND_SINKS},
    {OC_CHECK, 64, 512, 64, FL_KV_BF16, OC_NORMAL, {1}, {450}, 0, FAR},
    {OC_CHECK, 64, 512, 64, FL_KV_BF16, OC_NORMAL, {1, 1}, {70, 7}, 0, NO_KEY},
    {OC_CHECK, 64, 512, 64, FL_KV_FP8, OC_NORMAL, {1}, {130}, 0, EVERY_KEY},
    {OC_CHECK, 100, 512, 64, FL_KV_FP8, OC_SPIKE, {1}, {130}, 0, EVERY_KEY},
    {OC_SLOW, 64, 512, 64, FL_KV_FP8, OC_NORMAL, {2}, {511}, 0, EVERY_KEY},
    {OC_CHECK, 16, 512, 64, FL_KV_FP8, OC_NORMAL, {5}, {510}, 0, NEAR},
    {OC_CHECK, 64, 512, 64, FL_KV_INT4, OC_NORMAL, {1}, {100}, 0, EVERY_KEY},
    {OC_CHECK, 128, 512, 64, FL_KV_INT4, OC_SPIKE, {1}, {130}, 8, EVERY_KEY},
    {OC_SLOW, 64, 512, 64, FL_KV_INT4, OC_NORMAL, {4, 1}, {254, 9}, 2, EVERY_KEY},
    {OC_CHECK, 16, 512, 64, FL_KV_INT4, OC_NORMAL, {6, 3}, {250, 61}, 3, SEGMENT},
    {OC_SLOW, 16, 512, 64, FL_KV_FP8, OC_SPIKE, {3, 2}, {2047, 900}, 0, EVERY_KEY},
    {OC_SLOW,
     2,
     512,
     64,
     FL_KV_INT4,
     OC_NORMAL,
     {2},
     {67583},
     2,
     EVERY_KEY}, /* 132 splits; 106 longer spans */
    {OC_SLOW, 1, 512, 64, FL_KV_BF16, OC_NORMAL, {2}, {84479}, 0, EVERY_KEY}, /* 132 spans; 111 longer ones */
    {OC_SLOW, 32, 512, 64, FL_KV_BF16, OC_NORMAL, {8}, {32300}, 0, NEAR},     /* tasks of 32 lanes on cuda */
    {OC_SLOW, 128, 512, 64, FL_KV_BF16, OC_NORMAL, {1}, {67800}, 0, FAR_BACK}, /* 59 spans, two tasks each */
    {OC_BENCH, 8, 128, 32, FL_KV_FP8, OC_NORMAL, {1}, {8191}, 0, EVERY_KEY},
    {OC_BENCH, 8, 128, 32, FL_KV_INT4, OC_NORMAL, {1}, {8191}, 0, EVERY_KEY},
    {OC_BENCH, 128, 512, 64, FL_KV_FP8, OC_NORMAL, {1}, {2047}, 0, EVERY_KEY},
    {OC_BENCH, 128, 512, 64, FL_KV_INT4, OC_NORMAL, {1}, {2047}, 4, EVERY_KEY},
    {OC_BENCH, 8, 128, 32, FL_KV_BF16, OC_NORMAL, {1}, {8191}, 0, NEAR_AND_SINKS},
};

typedef struct fixture {
    const shape *s;
    int32_t rows, n_seqs, pos_max;
    fl_kv_rows seqs[SEQS_MAX];
    fl_kv_layer kv;
    oc_pair q;
    oc_outs out, lse;
} fixture;

static bool sees(const fixture *f, int32_t pos, int32_t t) {
    const struct sight *sight = &sights[f->s->sight];
    return fl_attn_view_sees(&sight->view, pos, t) && (sight->key_step == 0 || t % sight->key_step == 0);
}

/* Element j of key t: [latent | k_pe]. */
static double key_value(const fixture *f, const fl_kv_rows *seq, int32_t t, int32_t j) {
    const uint8_t *piece = fl_kv_piece(&f->kv, seq->pages[t / 64]);
    if (j < f->s->latent) return (double)fl_kv_latent_at(&f->kv, piece, t % 64, j);
    const void *k_pe = fl_kv_k_pe(&f->kv, piece, t % 64);
    return (double)fl_act_load(k_pe, fl_kv_format_dtype(f->kv.format), j - f->s->latent);
}

/* Page numbers in a shuffled order. */
static int32_t *shuffled(oc_run *run, int32_t n) {
    int32_t *order = oc_memory(run, n * (int64_t)sizeof *order);
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t other = oc_below(run, i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    return order;
}

/* Keys in page `index` that some row of the timeline sees. */
static bool page_is_seen(const fixture *f, const fl_kv_rows *seq, int32_t index) {
    for (int32_t row = 0; row < seq->n_rows; row++)
        for (int32_t t = index * 64; t < (index + 1) * 64; t++)
            if (sees(f, seq->pos + row, t)) return true;
    return false;
}

/* A pool with gaps of NaN between its pages, and NaN in all slots behind a timeline's last position and in the pages
 * that none of its rows sees. */
static void make_kv(oc_run *run, fixture *f) {
    const shape *s = f->s;
    int32_t n_pages = 0, next = 0, group = fl_kv_format_group(s->format, s->latent);
    f->kv = (fl_kv_layer){.latent_dim = s->latent, .rope_dim = s->rope, .format = s->format, .group = group};
    f->kv.n_outliers = s->n_outliers;
    f->kv.outliers = outliers;
    f->kv.page_stride_bytes = fl_kv_piece_bytes(&f->kv) + 64;
    for (int32_t i = 0; i < f->n_seqs; i++) n_pages += (f->seqs[i].pos + f->seqs[i].n_rows - 1) / 64 + 1;
    int32_t *order = shuffled(run, n_pages);
    float *row = oc_memory(run, (s->latent + s->rope) * (int64_t)sizeof *row);
    f->kv.base = oc_memory(run, n_pages * f->kv.page_stride_bytes);
    memset(f->kv.base, 0xff, (size_t)(n_pages * f->kv.page_stride_bytes));
    for (int32_t i = 0; i < f->n_seqs; i++) {
        fl_kv_rows *seq = &f->seqs[i];
        seq->pages = order + next;
        next += (seq->pos + seq->n_rows - 1) / 64 + 1;
        for (int32_t t = 0; t < seq->pos + seq->n_rows; t++) {
            uint8_t *piece = fl_kv_piece(&f->kv, seq->pages[t / 64]);
            for (int32_t j = 0; j < s->latent + s->rope; j++) row[j] = (float)oc_normal(run);
            fl_kv_latent_store(&f->kv, piece, t % 64, row, FL_DTYPE_F32);
            fl_kv_k_pe_store(&f->kv, piece, t % 64, row + s->latent, FL_DTYPE_F32);
        }
        for (int32_t index = 0; index * 64 < seq->pos + seq->n_rows; index++)
            if (!page_is_seen(f, seq, index))
                memset(fl_kv_piece(&f->kv, seq->pages[index]), 0xff, (size_t)f->kv.page_stride_bytes);
    }
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    for (int32_t i = 0; i < SEQS_MAX && s->rows[i] > 0; i++) {
        f.seqs[i] = (fl_kv_rows){.row = f.rows, .n_rows = s->rows[i], .pos = s->pos[i]};
        f.rows += s->rows[i];
        f.n_seqs++;
        if (s->pos[i] + s->rows[i] - 1 > f.pos_max) f.pos_max = s->pos[i] + s->rows[i] - 1;
    }
    make_kv(run, &f);
    int32_t lines = f.rows * s->heads, key_dim = s->latent + s->rope;
    double sharpness = (s->fill == OC_LARGE ? 1e-3 : s->fill == OC_SPIKE ? 0.05 : 1.5) / sqrt(key_dim);
    f.q = oc_act(run, lines, key_dim, key_dim, s->fill);
    for (int32_t i = 0; i < lines; i++)
        for (int32_t j = 0; j < key_dim; j++) oc_set(&f.q.ref, i, j, sharpness * oc_get(&f.q.ref, i, j));
    oc_act_sync(&f.q);
    f.out = oc_outs_make(run, run->be->act_dtype, lines, s->latent, s->latent);
    f.lse = oc_outs_make(run, FL_DTYPE_F32, lines, 1, 1);
    return f;
}

static fl_attn_absorbed_args make_args(oc_run *run, const fixture *f, const oc_mat *q, const oc_mat *out) {
    fl_attn_absorbed_args args = {
        .seqs = f->seqs, .n_seqs = f->n_seqs, .rows = f->rows, .n_heads = f->s->heads};
    args.kv = f->kv;
    args.view = sights[f->s->sight].view;
    args.key_step = sights[f->s->sight].key_step;
    args.q = q->data;
    args.out = out->data;
    args.scratch =
        oc_memory(run, fl_attn_absorbed_scratch_bytes(f->rows, f->s->heads, f->s->latent, f->pos_max));
    return args;
}

static fl_err attend(oc_run *run, fl_backend *be, const fl_attn_absorbed_args *args, int32_t pos_max) {
    fl_attn_absorbed_args copy = *args;
    oc_mat scratch = oc_block(
        run, fl_attn_absorbed_scratch_bytes(args->rows, args->n_heads, args->kv.latent_dim, pos_max));
    copy.scratch = scratch.data;
    FL_TRY(be->op->attn_absorbed(be, &copy));
    oc_guards(run, &scratch);
    return FL_ERR_OK;
}

/* Keys of one timeline as [keys][latent + rope], and room for their weights. */
typedef struct wide_keys {
    double *values, *p;
} wide_keys;

static wide_keys widen(oc_run *run, const fixture *f, const fl_kv_rows *seq) {
    int32_t n = seq->pos + seq->n_rows, dim = f->s->latent + f->s->rope;
    wide_keys keys = {.values = oc_memory(run, (int64_t)n * dim * (int64_t)sizeof(double)),
                      .p = oc_memory(run, n * (int64_t)sizeof(double))};
    for (int32_t i = 0; i < n * dim; i++) keys.values[i] = key_value(f, seq, i / dim, i % dim);
    return keys;
}

/* The formula for one line, in one pass over all keys, splits unknown. What sees nothing: 0. Returns the largest
 * |latent| that the line sees. */
static double expect_line(const fixture *f, const wide_keys *keys, int32_t pos, int64_t line,
                          const oc_mat *out, const oc_mat *lse) {
    const shape *s = f->s;
    int32_t dim = s->latent + s->rope;
    double m = -INFINITY, l = 0, largest = 0;
    for (int32_t t = 0; t <= pos; t++) {
        bool seen = sees(f, pos, t);
        keys->p[t] = seen ? 0 : -INFINITY;
        for (int32_t j = 0; j < dim && seen; j++)
            keys->p[t] += oc_get(&f->q.ref, line, j) * keys->values[t * dim + j];
        m = fmax(m, keys->p[t]);
    }
    for (int32_t t = 0; t <= pos; t++) l += keys->p[t] = isinf(m) ? 0 : pow(2, keys->p[t] - m);
    oc_set(lse, line, 0, l > 0 ? log(l) / log(2) + m : 0);
    double sums[FL_ATTN_HEAD_DIM_MAX] = {0};
    for (int32_t t = 0; t <= pos; t++)
        for (int32_t j = 0; j < s->latent && keys->p[t] > 0; j++) {
            sums[j] += keys->p[t] * keys->values[t * dim + j];
            largest = fmax(largest, fabs(keys->values[t * dim + j]));
        }
    for (int32_t j = 0; j < s->latent; j++) oc_set(out, line, j, l > 0 ? sums[j] / l : 0);
    return largest;
}

static void expect(oc_run *run, const fixture *f, const oc_mat *out, const oc_mat *lse, double *largest) {
    int32_t heads = f->s->heads;
    for (int32_t i = 0; i < f->n_seqs; i++) {
        wide_keys keys = widen(run, f, &f->seqs[i]);
        for (int32_t k = 0; k < f->seqs[i].n_rows * heads; k++) {
            int64_t line = (int64_t)f->seqs[i].row * heads + k;
            largest[line] = expect_line(f, &keys, f->seqs[i].pos + k / heads, line, out, lse);
        }
    }
}

/* A line that sees nothing has exactly 0 and -infinity; the latter becomes 0, for the comparisons that follow. */
static void check_blind_line(oc_run *run, const fixture *f, int32_t line) {
    const oc_mat *const outs[] = {&f->out.be, &f->out.one, &f->out.ref};
    const oc_mat *const lses[] = {&f->lse.be, &f->lse.one, &f->lse.ref};
    for (int32_t i = 0; i < 3; i++) {
        double lse = oc_get(lses[i], line, 0);
        OC_TRUE(run, isinf(lse) && lse < 0);
        for (int32_t j = 0; j < f->s->latent; j++) OC_TRUE(run, fabs(oc_get(outs[i], line, j)) <= 0);
        oc_set(lses[i], line, 0, 0);
    }
}

static void check_blind(oc_run *run, const fixture *f) {
    for (int32_t i = 0; i < f->n_seqs; i++)
        for (int32_t k = 0; k < f->seqs[i].n_rows; k++) {
            bool any = false;
            int32_t pos = f->seqs[i].pos + k, heads = f->s->heads;
            for (int32_t t = 0; t <= pos; t++) any = any || sees(f, pos, t);
            for (int32_t h = 0; h < heads && !any; h++)
                check_blind_line(run, f, (f->seqs[i].row + k) * heads + h);
        }
}

/* Each row in a call of its own: the same bits, where the backend promises it. */
static void check_rows(oc_run *run, const fixture *f) {
    if (!run->be->deterministic) return;
    oc_mat out = oc_output(run, f->out.be.dtype, f->out.be.rows, f->s->latent, f->s->latent);
    for (int32_t i = 0; i < f->n_seqs; i++)
        for (int32_t k = 0; k < f->seqs[i].n_rows; k++) {
            fl_kv_rows seq = {.n_rows = 1, .pos = f->seqs[i].pos + k, .pages = f->seqs[i].pages};
            int64_t line = (int64_t)(f->seqs[i].row + k) * f->s->heads;
            fl_attn_absorbed_args args = make_args(run, f, &f->q.be, &out);
            args.seqs = &seq;
            args.n_seqs = args.rows = 1;
            args.q = oc_at(&f->q.be, line, 0);
            args.out = oc_at(&out, line, 0);
            OC_OK(run, attend(run, run->be, &args, seq.pos));
        }
    oc_guards(run, &out);
    oc_same(run, &out, &f->out.be);
}

static void compare(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    int64_t lines = f->out.ref.rows;
    oc_mat out = oc_output(run, FL_DTYPE_F32, lines, s->latent, s->latent);
    oc_mat lse = oc_output(run, FL_DTYPE_F32, lines, 1, 1);
    double *largest = oc_memory(run, lines * (int64_t)sizeof *largest);
    double *bound = oc_memory(run, lines * s->latent * (int64_t)sizeof *bound);
    double *lse_bound = oc_memory(run, lines * (int64_t)sizeof *lse_bound);
    double tolerance = run->be->act_dtype == FL_DTYPE_F32 ? 1e-5 : 2e-2;
    check_blind(run, f);
    expect(run, f, &out, &lse, largest);
    for (int64_t i = 0; i < lines * s->latent; i++) bound[i] = tolerance * largest[i / s->latent] + 1e-30;
    for (int64_t i = 0; i < lines; i++) lse_bound[i] = tolerance * (1 + fabs(oc_get(&lse, i, 0)));
    oc_outs_near(run, &f->out, bound);
    oc_outs_near(run, &f->lse, lse_bound);
    for (int64_t i = 0; i < lines * s->latent; i++) bound[i] = 1e-6 * largest[i / s->latent] + 1e-30;
    for (int64_t i = 0; i < lines; i++) lse_bound[i] = 1e-6 * (1 + fabs(oc_get(&lse, i, 0)));
    oc_near(run, &f->out.ref, &out, bound);
    oc_near(run, &f->lse.ref, &lse, lse_bound);
}

/* Too large for the formula: the reference must do. */
static void compare_large(oc_run *run, const fixture *f) {
    double tolerance = run->be->act_dtype == FL_DTYPE_F32 ? 1e-5 : 2e-2;
    const double largest_latent = 3, largest_lse = 15;
    int64_t n = f->out.ref.rows * f->s->latent;
    double *bound = oc_memory(run, n * (int64_t)sizeof *bound);
    double *lse_bound = oc_memory(run, n * (int64_t)sizeof *lse_bound);
    for (int64_t i = 0; i < n; i++) bound[i] = tolerance * largest_latent;
    for (int64_t i = 0; i < f->out.ref.rows; i++) lse_bound[i] = tolerance * largest_lse;
    oc_outs_near(run, &f->out, bound);
    oc_outs_near(run, &f->lse, lse_bound);
}

static void check_shape(oc_run *run, const shape *s) {
    bool listed = (s->latent == 128 && s->rope == 32) || (s->latent == 512 && s->rope == 64);
    if (s->format == FL_KV_F32 && !run->be->kv_f32) return;
    if (!oc_case(run, s->kind, "attn_absorbed heads=%d dims=%d/%d kv=%s %s rows=%d,%d,%d pos=%d,%d,%d",
                 s->heads, s->latent + s->rope, s->latent, fl_kv_format_name(s->format),
                 oc_fill_name(s->fill), s->rows[0], s->rows[1], s->rows[2], s->pos[0], s->pos[1], s->pos[2]))
        return;
    fixture f = make_fixture(run, s);
    fl_attn_absorbed_args args = make_args(run, &f, &f.q.be, &f.out.be);
    fl_attn_absorbed_args one = make_args(run, &f, &f.q.be, &f.out.one);
    fl_attn_absorbed_args ref = make_args(run, &f, &f.q.ref, &f.out.ref);
    args.lse = f.lse.be.data;
    one.lse = f.lse.one.data;
    ref.lse = f.lse.ref.data;
    fl_err err = attend(run, run->be, &args, f.pos_max);
    if (!oc_ran(run, err, listed)) return;
    OC_OK(run, attend(run, run->one, &one, f.pos_max));
    OC_OK(run, attend(run, run->ref, &ref, f.pos_max));
    if (s->kind == OC_BENCH) {
        compare_large(run, &f);
    } else {
        compare(run, &f);
        check_rows(run, &f);
    }
    while (oc_timing(run, fl_attn_absorbed_cost(&args)))
        OC_OK(run, run->be->op->attn_absorbed(run->be, &args));
}

/* Two keys whose scores are 1 (latent part) and 2 (k_pe part): weights 1/3 and 2/3, lse = log2(6). */
static void check_literal(oc_run *run) {
    static const shape s = {OC_CHECK, 1, 128, 32, FL_KV_BF16, OC_ZERO, {1}, {1}, 0, EVERY_KEY};
    if (!oc_case(run, OC_CHECK, "attn_absorbed by hand")) return;
    fixture f = make_fixture(run, &s);
    uint16_t *piece = (uint16_t *)fl_kv_piece(&f.kv, f.seqs[0].pages[0]);
    for (int32_t j = 0; j < 128; j++) {
        piece[j] = fl_bf16_of_f32(j == 0 ? 0.5f : 6);
        piece[128 + j] = fl_bf16_of_f32(j == 0 ? 0 : (float)j);
    }
    for (int32_t j = 0; j < 32; j++) {
        piece[64 * 128 + j] = 0;
        piece[64 * 128 + 32 + j] = fl_bf16_of_f32(j == 31 ? 4 : 0);
    }
    oc_set(&f.q.ref, 0, 0, 2);
    oc_set(&f.q.ref, 0, 128 + 31, 0.5);
    oc_act_sync(&f.q);
    fl_attn_absorbed_args args = make_args(run, &f, &f.q.be, &f.out.be);
    args.lse = f.lse.be.data;
    OC_OK(run, run->be->op->attn_absorbed(run->be, &args));
    double near = run->be->act_dtype == FL_DTYPE_F32 ? 1e-4 : 0.5;
    for (int32_t j = 1; j < 128; j++) OC_TRUE(run, fabs(oc_get(&f.out.be, 0, j) - (2 + 2 * j / 3.0)) < near);
    OC_TRUE(run, fabs(oc_get(&f.lse.be, 0, 0) - 2.5849625) < 1e-2);
    double first = oc_get(&f.out.be, 0, 5);
    args.lse = NULL;
    OC_OK(run, run->be->op->attn_absorbed(run->be, &args));
    OC_TRUE(run, fabs(oc_get(&f.out.be, 0, 5) - first) <= 0);
}

static fl_attn_absorbed_args good_args(const fl_kv_rows *seqs) {
    return (fl_attn_absorbed_args){
        .seqs = seqs,
        .n_seqs = 2,
        .rows = 5,
        .n_heads = 8,
        .kv = {.page_stride_bytes = 64 * 160 * 2, .latent_dim = 128, .rope_dim = 32, .format = FL_KV_BF16}};
}

static void check_seq_limits(oc_run *run) {
    fl_kv_rows seqs[2] = {{.row = 0, .n_rows = 3, .pos = 0}, {.row = 3, .n_rows = 2, .pos = 9}};
    fl_attn_absorbed_args good = good_args(seqs);
    const fl_kv_rows bad[] = {
        {.row = 3, .n_rows = 0, .pos = 9},  {.row = 0, .n_rows = 6, .pos = 9},
        {.row = -1, .n_rows = 2, .pos = 9}, {.row = 4, .n_rows = 2, .pos = 9},
        {.row = 3, .n_rows = 2, .pos = -1}, {.row = 3, .n_rows = 2, .pos = INT32_MAX - 1},
        {.row = 3, .n_rows = 1, .pos = 9}};
    const char *const fields[] = {"seqs[].n_rows", "seqs[].n_rows", "seqs[].row",          "seqs[].row",
                                  "seqs[].pos",    "seqs[].pos",    "sum of seqs[].n_rows"};
    OC_OK(run, fl_attn_absorbed_validate(&good));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        seqs[1] = bad[i];
        OC_REFUSED(run, fl_attn_absorbed_validate(&good), fields[i]);
    }
    seqs[1] = (fl_kv_rows){.row = 3, .n_rows = 2, .pos = INT32_MAX - 2};
    OC_OK(run, fl_attn_absorbed_validate(&good));
    seqs[1] = (fl_kv_rows){.row = 0, .n_rows = 5, .pos = 1};
    good.seqs = &seqs[1];
    OC_ACCEPTED_WITH(run, attn_absorbed, good, n_seqs, 1);
    OC_REFUSED_WITH(run, attn_absorbed, good, n_seqs, 0, "attn_absorbed: n_seqs");
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "attn_absorbed limits")) return;
    const fl_kv_rows seqs[2] = {{.row = 0, .n_rows = 3, .pos = 0}, {.row = 3, .n_rows = 2, .pos = 9}};
    fl_attn_absorbed_args good = good_args(seqs);
    OC_OK(run, fl_attn_absorbed_validate(&good));
    OC_REFUSED_WITH(run, attn_absorbed, good, rows, 0, "attn_absorbed: rows");
    OC_REFUSED_WITH(run, attn_absorbed, good, rows, 6, "sum of seqs[].n_rows");
    OC_REFUSED_WITH(run, attn_absorbed, good, rows, INT32_MAX / 8 + 1, "attn_absorbed: rows");
    OC_ACCEPTED_WITH(run, attn_absorbed, good, n_heads, 1);
    OC_REFUSED_WITH(run, attn_absorbed, good, n_heads, 0, "attn_absorbed: n_heads");
    OC_REFUSED_WITH(run, attn_absorbed, good, n_heads, 4097, "attn_absorbed: n_heads");
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.latent_dim, 0, "attn_absorbed: kv.latent_dim");
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.latent_dim, 1025, "attn_absorbed: kv.latent_dim");
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.rope_dim, 0, "attn_absorbed: kv.rope_dim");
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.rope_dim, 1025, "attn_absorbed: kv.rope_dim");
    OC_REFUSED_WITH(run, attn_absorbed, good, view.window, -1, "attn_absorbed: view.window");
    OC_REFUSED_WITH(run, attn_absorbed, good, view.segment, -1, "attn_absorbed: view.segment");
    OC_REFUSED_WITH(run, attn_absorbed, good, view.sinks, -1, "attn_absorbed: view.sinks");
    OC_REFUSED_WITH(run, attn_absorbed, good, view.distance_first, -1, "attn_absorbed: view.distance_first");
    OC_REFUSED_WITH(run, attn_absorbed, good, view.distance_end, -1, "attn_absorbed: view.distance_end");
    OC_REFUSED_WITH(run, attn_absorbed, good, key_step, -1, "attn_absorbed: key_step");
    OC_ACCEPTED_WITH(run, attn_absorbed, good, key_step, INT32_MAX);
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.page_stride_bytes, 64 * 160 * 2 - 1, "kv.page_stride_bytes");
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.format, FL_N_KV_FORMATS, "kv.format");
    OC_REFUSED_WITH(run, attn_absorbed, good, kv.format, FL_KV_F32, "kv.page_stride_bytes");
    good.kv.page_stride_bytes = 1 << 20;
    OC_ACCEPTED_WITH(run, attn_absorbed, good, kv.format, FL_KV_F32);
    OC_ACCEPTED_WITH(run, attn_absorbed, good, kv.latent_dim, 1);
    OC_ACCEPTED_WITH(run, attn_absorbed, good, kv.latent_dim, 1024);
    OC_ACCEPTED_WITH(run, attn_absorbed, good, kv.rope_dim, 1);
    check_seq_limits(run);
}

static void check_sizes(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "attn_absorbed sizes and cost")) return;
    OC_TRUE(run, fl_attn_absorbed_scratch_bytes(1, 1, 128, 0) == (128 + 16) * 4);
    OC_TRUE(run, fl_attn_absorbed_scratch_bytes(3, 8, 129, 511) == 3 * 8 * (144 + 16) * 4);
    OC_TRUE(run, fl_attn_absorbed_scratch_bytes(3, 8, 127, 512) == 3 * 8 * 2 * (128 + 16) * 4);
    OC_TRUE(run, fl_attn_absorbed_scratch_bytes(1, 1, 16, 1535) == 3 * (16 + 16) * 4);
    const fl_kv_rows seqs[2] = {{.row = 0, .n_rows = 3, .pos = 0}, {.row = 3, .n_rows = 2, .pos = 9}};
    fl_attn_absorbed_args args = good_args(seqs);
    double pairs = 1 + 2 + 3 + 10 + 11, keys = 3 + 11;
    double bytes = keys * 160 * 2 + 5 * 8 * (160 + 128) * 2;
    oc_cost(run, fl_attn_absorbed_cost(&args), 2 * pairs * 8 * 288, bytes);
    float lse;
    args.lse = &lse;
    oc_cost(run, fl_attn_absorbed_cost(&args), 2 * pairs * 8 * 288, bytes + 5 * 8 * 4);
    args.kv.format = FL_KV_F32;
    oc_cost(run, fl_attn_absorbed_cost(&args), 2 * pairs * 8 * 288, bytes + 5 * 8 * 4 + keys * 160 * 2);
}

/* Pairs, and keys that some row sees, counted one by one. */
static void check_sight_cost(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "attn_absorbed cost of views")) return;
    for (int32_t sight = 0; sight < N_SIGHTS; sight++)
        for (int32_t pos = 0; pos < 700; pos += 69) {
            const shape s = {.sight = sight};
            const fixture f = {.s = &s};
            const fl_kv_rows seqs[] = {{.row = 0, .n_rows = 5, .pos = pos}};
            fl_attn_absorbed_args args = good_args(seqs);
            args.n_seqs = 1;
            args.view = sights[sight].view;
            args.key_step = sights[sight].key_step;
            double pairs = 0, keys = 0;
            for (int32_t t = 0; t < pos + 5; t++) {
                int32_t rows = 0;
                for (int32_t row = 0; row < 5; row++) rows += sees(&f, pos + row, t);
                pairs += rows;
                keys += rows > 0;
            }
            oc_cost(run, fl_attn_absorbed_cost(&args), 2 * pairs * 8 * 288,
                    keys * 160 * 2 + 5 * 8 * (160 + 128) * 2);
        }
}

static void check_refuses(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "attn_absorbed refuses no rows")) return;
    fl_attn_absorbed_args args = good_args(NULL);
    args.rows = 0;
    OC_REFUSED(run, run->be->op->attn_absorbed(run->be, &args), "rows");
}

void fl_attn_absorbed_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_literal(run);
    check_limits(run);
    check_sizes(run);
    check_sight_cost(run);
    check_refuses(run);
}
