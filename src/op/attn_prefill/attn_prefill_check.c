#include "op/attn_prefill/attn_prefill.h"

#include <math.h>
#include <string.h>

#include "op/attn_prefill/attn_prefill_view_check.h"
#include "opcheck/opcheck_case.h"

/* Rows at pos .. pos + rows - 1 over keys 0 .. keys - 1, in splits. */
typedef struct shape {
    oc_kind kind;
    int32_t rows, pos, keys, heads, nope, rope, v;
    oc_fill fill; /* of q: how sharp the softmax is */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 0, 1, 2, 64, 32, 64, OC_NORMAL},
    {OC_CHECK, 2, 0, 2, 1, 128, 64, 128, OC_NORMAL},
    {OC_CHECK, 63, 0, 63, 2, 64, 32, 64, OC_NORMAL},
    {OC_CHECK, 64, 0, 64, 1, 64, 32, 64, OC_SPIKE},
    {OC_CHECK, 65, 0, 65, 3, 64, 32, 64, OC_NORMAL},
    {OC_CHECK, 70, 37, 107, 2, 64, 32, 64, OC_NORMAL},
    {OC_CHECK, 33, 100, 133, 2, 128, 64, 128, OC_NORMAL},
    {OC_CHECK, 5, 300, 305, 8, 64, 32, 64, OC_LARGE},
    {OC_CHECK, 40, 129, 400, 1, 64, 32, 64, OC_NORMAL}, /* keys that no row sees */
    {OC_CHECK, 100, 4, 104, 2, 64, 32, 64, OC_ZERO},
    {OC_CHECK, 17, 60, 77, 1, 128, 64, 128, OC_LARGE},
    {OC_CHECK, 9, 130, 139, 1, 64, 32, 64, OC_EQUAL},
    {OC_CHECK, 70, 4060, 4130, 1, 64, 32, 64, OC_NORMAL}, /* rows on both sides of a split's start */
    {OC_CHECK, 3, 4095, 4098, 1, 128, 64, 128, OC_ZERO},
    {OC_CHECK, 2, 8300, 8302, 1, 64, 32, 64, OC_LARGE}, /* three splits */
    {OC_CHECK, 66, 3, 69, 2, 5, 4, 7, OC_NORMAL},       /* odd head shapes: refused or right */
    {OC_CHECK, 3, 65, 68, 1, 48, 16, 40, OC_NORMAL},
    {OC_SLOW, 400, 0, 400, 4, 128, 64, 128, OC_NORMAL},
    {OC_SLOW, 150, 8150, 8300, 2, 64, 32, 64, OC_SPIKE},
    {OC_BENCH, 512, 0, 512, 8, 64, 32, 64, OC_NORMAL},
    {OC_BENCH, 512, 3584, 4096, 8, 64, 32, 64, OC_NORMAL},
    {OC_BENCH, 256, 768, 1024, 16, 128, 64, 128, OC_NORMAL},
};

static const shape shapes_of_codes[] = {
    {OC_CHECK, 1, 0, 1, 1, 128, 64, 128, OC_NORMAL},
    {OC_CHECK, 70, 37, 107, 3, 128, 64, 128, OC_NORMAL},
    {OC_CHECK, 130, 256, 386, 2, 128, 64, 128, OC_SPIKE},
    {OC_CHECK, 5, 128, 133, 1, 128, 64, 128, OC_ZERO},
    {OC_CHECK, 9, 0, 9, 2, 48, 16, 128, OC_NORMAL},
    {OC_SLOW, 333, 384, 717, 5, 128, 64, 128, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_pair q, kv, k_pe;
    oc_outs out;
} fixture;

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static fl_attn_prefill_args shape_args(const shape *s, int32_t rows, int32_t pos) {
    return (fl_attn_prefill_args){.rows = rows,
                                  .pos = pos,
                                  .n_heads = s->heads,
                                  .nope_dim = s->nope,
                                  .rope_dim = s->rope,
                                  .v_dim = s->v};
}

/* Rows first .. first + n - 1 of the shape. Keys behind the last of them are left out if only_visible: as when a
 * prompt is computed in chunks. */
typedef struct span {
    int32_t first, n;
    bool only_visible;
} span;

/* Attention of a span over all splits, into the same rows of `out`. */
static fl_err attend(oc_run *run, fl_backend *be, const fixture *f, const oc_mat *out, span rows) {
    int32_t first = rows.first, n = rows.n;
    const shape *s = f->s;
    bool ref = be == run->ref;
    const oc_mat *q = ref ? &f->q.ref : &f->q.be, *kv = ref ? &f->kv.ref : &f->kv.be;
    const oc_mat *k_pe = ref ? &f->k_pe.ref : &f->k_pe.be;
    int32_t keys = rows.only_visible ? smaller(s->keys, s->pos + first + n) : s->keys;
    int64_t state_bytes = fl_attn_prefill_state_bytes(n, s->heads, s->v);
    oc_mat state = oc_block(run, state_bytes);
    memset(state.data, 0xff, (size_t)state_bytes); /* NaN: `first` must start every part of it */
    for (int32_t key = 0; key < keys; key += FL_ATTN_SPLIT_TOKENS) {
        fl_attn_prefill_args args = shape_args(s, n, s->pos + first);
        args.q = oc_at(q, (int64_t)first * s->heads, 0);
        args.kv = oc_at(kv, (int64_t)key * s->heads, 0);
        args.k_pe = oc_at(k_pe, key, 0);
        args.key_pos = key;
        args.n_keys = smaller(FL_ATTN_SPLIT_TOKENS, keys - key);
        args.first = key == 0;
        args.last = key + args.n_keys == keys;
        args.state = state.data;
        args.out = oc_at(out, (int64_t)first * s->heads, 0);
        oc_mat scratch = oc_block(run, fl_attn_prefill_scratch_bytes(&args));
        args.scratch = scratch.data;
        FL_TRY(be->op->attn_prefill(be, &args));
        oc_guards(run, &scratch);
        if (!args.last && first == 0 && n == s->rows) oc_untouched(run, out);
    }
    oc_guards(run, &state);
    return FL_ERR_OK;
}

static double score(const fixture *f, int32_t line, int32_t t, int32_t h) {
    const shape *s = f->s;
    double sum = 0;
    for (int32_t j = 0; j < s->nope; j++)
        sum += oc_get(&f->q.ref, line, j) * oc_get(&f->kv.ref, t * s->heads + h, j);
    for (int32_t j = 0; j < s->rope; j++)
        sum += oc_get(&f->q.ref, line, s->nope + j) * oc_get(&f->k_pe.ref, t, j);
    return sum;
}

/* The formula over all keys at once, splits unknown. bound: relative to the largest |v| the row may meet. */
static void expect(oc_run *run, const fixture *f, const oc_mat *expected, double *bound, double tolerance) {
    const shape *s = f->s;
    double *p = oc_memory(run, s->keys * (int64_t)sizeof *p);
    for (int32_t line = 0; line < s->rows * s->heads; line++) {
        int32_t h = line % s->heads, visible = smaller(s->keys, s->pos + line / s->heads + 1);
        double m = -INFINITY, l = 0;
        for (int32_t t = 0; t < visible; t++) m = fmax(m, p[t] = score(f, line, t, h));
        for (int32_t t = 0; t < visible; t++) l += p[t] = pow(2, p[t] - m);
        for (int32_t j = 0; j < s->v; j++) {
            double sum = 0, largest = 0;
            for (int32_t t = 0; t < visible; t++) {
                double v = oc_get(&f->kv.ref, t * s->heads + h, s->nope + j);
                sum += p[t] * v;
                largest = fmax(largest, fabs(v));
            }
            oc_set(expected, line, j, sum / l);
            bound[(int64_t)line * s->v + j] = tolerance * largest;
        }
    }
}

/* Chunks of the rows, and single rows: the same bits. */
static void check_chunks(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    oc_mat out = oc_output(run, f->out.be.dtype, f->out.be.rows, s->v, s->v);
    for (int32_t first = 0, n; first < s->rows; first += n) {
        n = 1 + oc_below(run, smaller(s->rows - first, 70));
        OC_OK(run, attend(run, run->be, f, &out, (span){first, n, true}));
    }
    oc_guards(run, &out);
    oc_same(run, &out, &f->out.be);
    int32_t rows[] = {0, s->rows / 2, s->rows - 1};
    oc_reset(&out);
    oc_copy(&out, &f->out.be);
    for (int32_t i = 0; i < 3; i++) OC_OK(run, attend(run, run->be, f, &out, (span){rows[i], 1, i == 1}));
    oc_same(run, &out, &f->out.be);
}

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    int32_t lines = s->rows * s->heads, q_dim = s->nope + s->rope, kv_dim = s->nope + s->v;
    double sharpness = (s->fill == OC_LARGE ? 1e-3 : s->fill == OC_SPIKE ? 0.05 : 1.5) / sqrt(q_dim);
    f.q = oc_act(run, lines, q_dim, q_dim, s->fill);
    f.kv = oc_act(run, (int64_t)s->keys * s->heads, kv_dim, kv_dim, OC_NORMAL);
    f.k_pe = oc_act(run, s->keys, s->rope, s->rope, OC_NORMAL);
    for (int32_t i = 0; i < lines; i++)
        for (int32_t j = 0; j < q_dim; j++) oc_set(&f.q.ref, i, j, sharpness * oc_get(&f.q.ref, i, j));
    oc_act_sync(&f.q);
    f.out = oc_outs_make(run, run->be->act_dtype, lines, s->v, s->v);
    return f;
}

static void compare(oc_run *run, const fixture *f, double tolerance) {
    oc_mat expected = oc_output(run, FL_DTYPE_F32, f->out.ref.rows, f->s->v, f->s->v);
    double *bound = oc_memory(run, expected.rows * f->s->v * (int64_t)sizeof *bound);
    expect(run, f, &expected, bound, tolerance);
    oc_outs_near(run, &f->out, bound);
    for (int64_t i = 0; i < expected.rows * f->s->v; i++) bound[i] *= 1e-6 / tolerance;
    oc_near(run, &f->out.ref, &expected, bound);
    check_chunks(run, f);
}

/* All of it in one call. */
static fl_attn_prefill_args whole_call(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    fl_attn_prefill_args args = shape_args(s, s->rows, s->pos);
    args.n_keys = s->keys;
    args.first = args.last = true;
    args.q = f->q.be.data;
    args.kv = f->kv.be.data;
    args.k_pe = f->k_pe.be.data;
    args.state = oc_memory(run, fl_attn_prefill_state_bytes(s->rows, s->heads, s->v));
    args.scratch = oc_memory(run, fl_attn_prefill_scratch_bytes(&args));
    args.out = f->out.be.data;
    return args;
}

/* The shapes to time fit in one split, and are too large for the formula: the reference must do. */
static void time_shape(oc_run *run, const fixture *f, double tolerance) {
    const shape *s = f->s;
    const double largest_v = 3;
    double *bound = oc_memory(run, f->out.ref.rows * s->v * (int64_t)sizeof *bound);
    for (int64_t i = 0; i < f->out.ref.rows * s->v; i++) bound[i] = tolerance * largest_v;
    oc_outs_near(run, &f->out, bound);
    fl_attn_prefill_args args = whole_call(run, f);
    while (oc_timing(run, fl_attn_prefill_cost(&args))) OC_OK(run, run->be->op->attn_prefill(run->be, &args));
}

static void check_shape(oc_run *run, const shape *s) {
    bool listed =
        (s->nope == 64 && s->rope == 32 && s->v == 64) || (s->nope == 128 && s->rope == 64 && s->v == 128);
    if (!oc_case(run, s->kind, "attn_prefill rows=%d pos=%d keys=%d heads=%d dims=%d+%d/%d %s", s->rows,
                 s->pos, s->keys, s->heads, s->nope, s->rope, s->v, oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    span all = {0, s->rows, false};
    fl_err err = attend(run, run->be, &f, &f.out.be, all);
    if (!oc_ran(run, err, listed)) return;
    OC_OK(run, attend(run, run->one, &f, &f.out.one, all));
    OC_OK(run, attend(run, run->ref, &f, &f.out.ref, all));
    double tolerance = run->be->act_dtype == FL_DTYPE_F32 ? 1e-5 : 2e-2;
    if (s->kind == OC_BENCH) time_shape(run, &f, tolerance);
    else compare(run, &f, tolerance);
}

/* Two keys: scores 1 (from k_nope) and 2 (from k_pe) are weights 1/3 and 2/3; the first row sees one key only. */
static void check_literal(oc_run *run) {
    static const shape s = {OC_CHECK, 2, 0, 2, 1, 64, 32, 64, OC_ZERO};
    if (!oc_case(run, OC_CHECK, "attn_prefill by hand")) return;
    fixture f = make_fixture(run, &s);
    for (int32_t j = 0; j < 128; j++)
        for (int32_t t = 0; t < 2; t++) oc_set(&f.kv.ref, t, j, j < 64 ? 0 : t == 0 ? 3 : j - 64);
    for (int32_t j = 0; j < 32; j++)
        for (int32_t t = 0; t < 2; t++) oc_set(&f.k_pe.ref, t, j, 0);
    for (int32_t r = 0; r < 2; r++) {
        oc_set(&f.q.ref, r, 63, 2);
        oc_set(&f.q.ref, r, 95, 4);
    }
    oc_set(&f.kv.ref, 0, 63, 0.5);
    oc_set(&f.k_pe.ref, 1, 31, 0.5);
    oc_act_sync(&f.q);
    oc_act_sync(&f.kv);
    oc_act_sync(&f.k_pe);
    OC_OK(run, attend(run, run->be, &f, &f.out.be, (span){0, 2, false}));
    double near = run->be->act_dtype == FL_DTYPE_F32 ? 1e-5 : 0.2;
    for (int32_t j = 0; j < 64; j++) {
        OC_TRUE(run, fabs(oc_get(&f.out.be, 0, j) - 3) < 0.02);
        OC_TRUE(run, fabs(oc_get(&f.out.be, 1, j) - (1 + 2 * j / 3.0)) < near);
    }
}

/* Codes are those of the act output, a head one group of a row's; with lists as well, which a kernel may take by
 * another way. */
static void check_codes(oc_run *run, const shape *s, bool with_list) {
    if (!oc_case(run, s->kind, "attn_prefill codes rows=%d pos=%d heads=%d dims=%d+%d/%d%s", s->rows, s->pos,
                 s->heads, s->nope, s->rope, s->v, with_list ? " dense list" : ""))
        return;
    fixture f = make_fixture(run, s);
    int32_t width = s->heads * s->v, tiles = (s->rows + FL_ATTN_LIST_ROWS - 1) / FL_ATTN_LIST_ROWS;
    uint16_t no_block = 0;
    fl_attn_list list = {.ids = oc_given(run, &no_block, sizeof no_block), .capacity = 1};
    list.n = oc_memory(run, (int64_t)tiles * s->heads * (int64_t)sizeof *list.n);
    for (int32_t i = 0; i < tiles * s->heads; i++) list.n[i] = -1;
    fl_attn_prefill_args args = whole_call(run, &f);
    if (with_list) args.list = &list;
    oc_codes got = oc_codes_make(run, s->rows, width, 0), again = oc_codes_make(run, s->rows, width, 3);
    if (!run->be->w8a8 && !run->is_reference) {
        args.out_codes = got.at;
        OC_REFUSED(run, run->be->op->attn_prefill(run->be, &args), "attn_prefill: backend");
        oc_untouched(run, &f.out.be);
        return;
    }
    OC_OK(run, run->be->op->attn_prefill(run->be, &args));
    oc_mat rows = f.out.be;
    rows.rows = s->rows;
    rows.width = rows.stride = width;
    const oc_codes want = oc_codes_of(run, &rows, 0);
    args.out = NULL;
    args.out_codes = got.at;
    OC_OK(run, run->be->op->attn_prefill(run->be, &args));
    oc_codes_same(run, &got, &want);
    args.out_codes = again.at;
    OC_OK(run, run->one->op->attn_prefill(run->one, &args));
    oc_codes_same(run, &again, &want);
}

static fl_attn_prefill_args good_args(void) {
    return (fl_attn_prefill_args){.rows = 3,
                                  .pos = 10,
                                  .n_heads = 2,
                                  .nope_dim = 64,
                                  .rope_dim = 32,
                                  .v_dim = 64,
                                  .n_keys = 13,
                                  .first = true,
                                  .last = true};
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "attn_prefill limits")) return;
    fl_attn_prefill_args good = good_args();
    OC_OK(run, fl_attn_prefill_validate(&good));
    OC_ACCEPTED_WITH(run, attn_prefill, good, rows, 1);
    OC_REFUSED_WITH(run, attn_prefill, good, rows, 0, "attn_prefill: rows");
    OC_ACCEPTED_WITH(run, attn_prefill, good, pos, 0);
    OC_REFUSED_WITH(run, attn_prefill, good, pos, -1, "attn_prefill: pos");
    OC_ACCEPTED_WITH(run, attn_prefill, good, pos, INT32_MAX - 3);
    OC_REFUSED_WITH(run, attn_prefill, good, pos, INT32_MAX - 2, "attn_prefill: pos");
    OC_ACCEPTED_WITH(run, attn_prefill, good, n_heads, 1);
    OC_REFUSED_WITH(run, attn_prefill, good, n_heads, 0, "attn_prefill: n_heads");
    OC_REFUSED_WITH(run, attn_prefill, good, n_heads, 4097, "attn_prefill: n_heads");
    OC_ACCEPTED_WITH(run, attn_prefill, good, nope_dim, 1);
    OC_REFUSED_WITH(run, attn_prefill, good, nope_dim, 0, "attn_prefill: nope_dim");
    OC_REFUSED_WITH(run, attn_prefill, good, nope_dim, 1025, "attn_prefill: nope_dim");
    OC_ACCEPTED_WITH(run, attn_prefill, good, rope_dim, 1);
    OC_REFUSED_WITH(run, attn_prefill, good, rope_dim, 0, "attn_prefill: rope_dim");
    OC_REFUSED_WITH(run, attn_prefill, good, rope_dim, 1025, "attn_prefill: rope_dim");
    OC_ACCEPTED_WITH(run, attn_prefill, good, v_dim, 1);
    OC_REFUSED_WITH(run, attn_prefill, good, v_dim, 0, "attn_prefill: v_dim");
    OC_REFUSED_WITH(run, attn_prefill, good, v_dim, 1025, "attn_prefill: v_dim");
    OC_ACCEPTED_WITH(run, attn_prefill, good, n_keys, 1);
    OC_REFUSED_WITH(run, attn_prefill, good, n_keys, 0, "attn_prefill: n_keys");
    OC_ACCEPTED_WITH(run, attn_prefill, good, n_keys, FL_ATTN_LIST_TOKENS_MAX);
    OC_REFUSED_WITH(run, attn_prefill, good, n_keys, FL_ATTN_LIST_TOKENS_MAX + 1, "attn_prefill: n_keys");
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, 4096, "key_pos of the first call");
    good.first = false;
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_pos, 4096);
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, 4097, "attn_prefill: key_pos");
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, -4096, "attn_prefill: key_pos");
    good.n_keys = 4096;
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_pos, INT32_MAX - 4096 - 63);
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, INT32_MAX - 4095, "attn_prefill: key_pos");
}

static void check_sizes(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "attn_prefill sizes and cost")) return;
    fl_attn_prefill_args args = good_args();
    const int64_t plan =
        64 * 16 + (2 * 16 + 2) * 8 + 16 + 32; /* spans of 64 rows; 34 words; to whole lines */
    OC_TRUE(run, fl_attn_prefill_state_bytes(1, 2, 64) == 64 * 2 * 128 * 4);
    OC_TRUE(run, fl_attn_prefill_state_bytes(65, 3, 65) == 128 * 3 * 192 * 4);
    OC_TRUE(run, fl_attn_prefill_scratch_bytes(&args) == 64 * 2 * (128 + 64) * 4 + plan);
    args.n_keys = 65;
    args.nope_dim = 97;
    args.v_dim = 65;
    OC_TRUE(run, fl_attn_prefill_scratch_bytes(&args) == 128 * 2 * (192 + 128) * 4 + plan);
    args = good_args(); /* rows at 10, 11, 12 see 11, 12, 13 keys */
    double keys = 13 * (2 * 128 + 32) * 2, queries = 3 * 2 * 96 * 2, out = 3 * 2 * 64 * 2,
           state = 3 * 2 * 66 * 4;
    oc_cost(run, fl_attn_prefill_cost(&args), 2.0 * 36 * 2 * 160, keys + queries + out);
    args.last = false;
    oc_cost(run, fl_attn_prefill_cost(&args), 2.0 * 36 * 2 * 160, keys + queries + state);
    args.first = false;
    oc_cost(run, fl_attn_prefill_cost(&args), 2.0 * 36 * 2 * 160, keys + queries + 2 * state);
    args.last = true;
    args.n_keys = 12;
    args.key_pos = 4096;
    args.pos = 4095; /* one row sees nothing, the others 1 and 2 keys */
    oc_cost(run, fl_attn_prefill_cost(&args), 2.0 * 3 * 2 * 160,
            12 * (2 * 128 + 32) * 2 + queries + out + state);
    args.pos = 5000;
    oc_cost(run, fl_attn_prefill_cost(&args), 2.0 * 36 * 2 * 160,
            12 * (2 * 128 + 32) * 2 + queries + out + state);
}

static void check_refuses(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "attn_prefill refuses no rows")) return;
    fl_attn_prefill_args args = good_args();
    args.rows = 0;
    OC_REFUSED(run, run->be->op->attn_prefill(run->be, &args), "rows");
}

static void check_code_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "attn_prefill limits and cost of codes")) return;
    uint8_t code = 0;
    float scale = 0;
    fl_attn_prefill_args good = good_args();
    good.v_dim = 128;
    fl_cost act = fl_attn_prefill_cost(&good);
    good.out_codes = (fl_codes){.codes = &code, .scale = &scale, .scale_stride = 8};
    oc_cost(run, fl_attn_prefill_cost(&good), act.flops, act.bytes - 3 * 2 * 128 * 2 + 3 * 2 * (128 + 4));
    OC_ACCEPTED_WITH(run, attn_prefill, good, out_codes.scale_stride, 4);
    OC_REFUSED_WITH(run, attn_prefill, good, out_codes.scale_stride, 6,
                    "attn_prefill: scale_stride of codes");
    OC_REFUSED_WITH(run, attn_prefill, good, rows, 9, "attn_prefill: scale_stride of codes");
    OC_REFUSED_WITH(run, attn_prefill, good, v_dim, 64, "attn_prefill: v_dim of codes");
    OC_REFUSED_WITH(run, attn_prefill, good, v_dim, 256, "attn_prefill: v_dim of codes");
}

void fl_attn_prefill_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    for (size_t i = 0; i < sizeof shapes_of_codes / sizeof *shapes_of_codes; i++)
        for (int with_list = 0; with_list < 2; with_list++)
            if (!with_list || shapes_of_codes[i].pos % FL_ATTN_LIST_ROWS == 0)
                check_codes(run, &shapes_of_codes[i], with_list);
    check_code_limits(run);
    check_literal(run);
    check_limits(run);
    check_sizes(run);
    check_refuses(run);
    fl_attn_prefill_view_check(run);
}
