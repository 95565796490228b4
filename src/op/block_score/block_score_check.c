#include "op/block_score/block_score.h"

#include <math.h>

#include "base/half.h"
#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t tiles, pos, heads, nope, rope, v, block_tokens, n_blocks;
    oc_fill fill; /* of q: how far a tile's rows differ */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 0, 1, 64, 32, 64, 128, 1, OC_NORMAL}, /* nothing lies before */
    {OC_CHECK, 1, 128, 2, 64, 32, 64, 128, 1, OC_NORMAL},
    {OC_CHECK, 3, 0, 2, 64, 32, 64, 64, 6, OC_NORMAL},
    {OC_CHECK, 2, 8064, 3, 64, 32, 64, 128, 65, OC_NORMAL},
    {OC_CHECK, 1, 16384, 2, 64, 32, 64, 128, 100, OC_SPIKE}, /* fewer blocks than lie before */
    {OC_CHECK, 3, 384, 1, 128, 64, 128, 192, 5, OC_NORMAL},
    {OC_CHECK, 2, 896, 2, 32, 16, 8, 1024, 3, OC_NORMAL},
    {OC_CHECK, 1, 4096, 2, 64, 32, 64, 64, 63, OC_EQUAL},
    {OC_CHECK, 1, 4224, 1, 256, 2, 1, 64, 67, OC_ZERO},
    {OC_CHECK, 2, 1280, 3, 6, 10, 3, 128, 12, OC_NORMAL},
    {OC_CHECK, 2, 1280, 3, 5, 4, 7, 128, 12, OC_NORMAL}, /* odd head shapes: refused or right */
    {OC_CHECK, 5, 24576, 3, 128, 64, 128, 64, 391, OC_NORMAL},
    {OC_CHECK, 37, 2048, 15, 64, 32, 64, 128, 34, OC_NORMAL}, /* more tasks than a GPU does at once */
    {OC_CHECK, 2, 4096, 2, 64, 32, 64, 64, 66, OC_SPIKE},     /* the dimensions of a tile far apart */
    {OC_CHECK, 4, 8192, 2, 128, 64, 128, 64, 131, OC_NORMAL},
    {OC_CHECK, 1, 1024, 2, 128, 32, 20, 64, 9, OC_NORMAL}, /* means that are not aligned */
    {OC_CHECK, 2, 1024, 1, 20, 12, 5, 64, 17, OC_TINY},
    {OC_CHECK, 4, 1024, 2, 64, 64, 64, 64, 20, OC_NORMAL}, /* other sizes of cuda's kernel: 128, 144 of 192 */
    {OC_CHECK, 2, 1024, 2, 128, 16, 24, 64, 18, OC_NORMAL},
    {OC_SLOW, 4, 65536, 4, 128, 64, 128, 128, 516, OC_NORMAL},
    {OC_BENCH, 32, 28672, 8, 64, 32, 64, 128, 256, OC_NORMAL},
    {OC_BENCH, 18, 49152, 16, 64, 32, 64, 128, 400, OC_NORMAL},
    {OC_BENCH, 8, 31744, 16, 128, 64, 128, 128, 256, OC_NORMAL},
};

typedef struct fixture {
    const shape *s;
    oc_pair q, kv, k_pe;
    oc_outs score;
    fl_backend ref; /* the reference, of codes where the backend is */
    bool by_codes;
    /* What the formula multiplies: as given, or values of codes times their scales. */
    float *q_values, *k_values; /* [tiles][heads][FL_ATTN_LIST_ROWS][dim], [n_blocks][heads][dim] */
} fixture;

static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s, .ref = *run->ref};
    const fl_block_score_args heads = {.nope_dim = s->nope, .rope_dim = s->rope};
    f.ref.w8a8 = f.by_codes = fl_block_score_by_codes(run->be, &heads);
    int32_t q_dim = s->nope + s->rope, kv_dim = s->nope + s->v;
    int64_t lines = (int64_t)s->tiles * FL_ATTN_LIST_ROWS * s->heads;
    double sharpness = (s->fill == OC_SPIKE ? 0.3 : 3) / sqrt(q_dim);
    f.q = oc_act(run, lines, q_dim, q_dim, s->fill);
    f.kv = oc_act(run, (int64_t)s->n_blocks * s->heads, kv_dim, kv_dim, OC_NORMAL);
    f.k_pe = oc_act(run, s->n_blocks, s->rope, s->rope, OC_NORMAL);
    for (int64_t i = 0; i < lines; i++)
        for (int32_t j = 0; j < q_dim; j++) oc_set(&f.q.ref, i, j, sharpness * oc_get(&f.q.ref, i, j));
    oc_act_sync(&f.q);
    f.score = oc_outs_make(run, FL_DTYPE_F32, (int64_t)s->tiles * s->heads, s->n_blocks, s->n_blocks);
    return f;
}

/* x[n] become what their codes stand for. */
static void round_group(float *x, int32_t n) {
    float largest = 0x1p-100f;
    for (int32_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    float inverse = 448 / largest, scale = largest / 448;
    for (int32_t i = 0; i < n; i++) x[i] = fl_f32_of_e4m3(fl_e4m3_of_f32(x[i] * inverse)) * scale;
}

/* From the inputs as they are now. */
static void make_values(oc_run *run, fixture *f, bool by_codes) {
    const shape *s = f->s;
    int32_t dim = s->nope + s->rope;
    int64_t lists = (int64_t)s->tiles * s->heads, means = (int64_t)s->n_blocks * s->heads;
    f->q_values = oc_memory(run, lists * FL_ATTN_LIST_ROWS * dim * (int64_t)sizeof *f->q_values);
    f->k_values = oc_memory(run, means * dim * (int64_t)sizeof *f->k_values);
    for (int64_t i = 0; i < lists; i++) {
        float *q = f->q_values + i * FL_ATTN_LIST_ROWS * dim;
        for (int32_t r = 0; r < FL_ATTN_LIST_ROWS; r++) {
            int64_t line = (i / s->heads * FL_ATTN_LIST_ROWS + r) * s->heads + i % s->heads;
            for (int32_t j = 0; j < dim; j++) q[r * dim + j] = (float)oc_get(&f->q.ref, line, j);
        }
        if (by_codes) round_group(q, FL_ATTN_LIST_ROWS * dim);
    }
    for (int64_t i = 0; i < means; i++) {
        float *k = f->k_values + i * dim;
        for (int32_t j = 0; j < s->nope; j++) k[j] = (float)oc_get(&f->kv.ref, i, j);
        for (int32_t j = 0; j < s->rope; j++) k[s->nope + j] = (float)oc_get(&f->k_pe.ref, i / s->heads, j);
        if (by_codes) round_group(k, dim);
    }
}

/* `n` tiles from `first` of the shape, into the same rows of `out`. */
static fl_err score_tiles(oc_run *run, fl_backend *be, const fixture *f, const oc_mat *out, int32_t first,
                          int32_t n) {
    const shape *s = f->s;
    bool ref = be == &f->ref;
    fl_block_score_args args = {.rows = n * FL_ATTN_LIST_ROWS,
                                .pos = s->pos + first * FL_ATTN_LIST_ROWS,
                                .n_heads = s->heads,
                                .nope_dim = s->nope,
                                .rope_dim = s->rope,
                                .v_dim = s->v,
                                .block_tokens = s->block_tokens,
                                .n_blocks = s->n_blocks};
    args.q = oc_at(ref ? &f->q.ref : &f->q.be, (int64_t)first * FL_ATTN_LIST_ROWS * s->heads, 0);
    args.kv = ref ? f->kv.ref.data : f->kv.be.data;
    args.k_pe = ref ? f->k_pe.ref.data : f->k_pe.be.data;
    args.score = oc_at(out, (int64_t)first * s->heads, 0);
    oc_mat scratch = oc_block(run, fl_block_score_scratch_bytes(&args));
    args.scratch = scratch.data;
    FL_TRY(be->op->block_score(be, &args));
    oc_guards(run, &scratch);
    while (be == run->be && n == s->tiles && oc_timing(run, fl_block_score_cost(&args)))
        FL_TRY(be->op->block_score(be, &args));
    return FL_ERR_OK;
}

/* The formula for one score, and |q| |k| of the tile's longest row. */
static double expected_score(const fixture *f, int64_t tile, int32_t h, int32_t block, double *length) {
    const shape *s = f->s;
    int32_t dim = s->nope + s->rope;
    const float *q = f->q_values + (tile * s->heads + h) * FL_ATTN_LIST_ROWS * dim,
                *k = f->k_values + ((int64_t)block * s->heads + h) * dim;
    double score[FL_ATTN_LIST_ROWS], top = -INFINITY, sum = 0, longest = 0, k_squares = 0;
    *length = 0;
    if ((block + 1) * s->block_tokens > s->pos + tile * FL_ATTN_LIST_ROWS) return 0; /* hidden: cleared */
    for (int32_t j = 0; j < dim; j++) k_squares += (double)k[j] * (double)k[j];
    for (int32_t r = 0; r < FL_ATTN_LIST_ROWS; r++, q += dim) {
        double squares = score[r] = 0;
        for (int32_t j = 0; j < dim; j++) {
            score[r] += (double)q[j] * (double)k[j];
            squares += (double)q[j] * (double)q[j];
        }
        top = fmax(top, score[r]);
        longest = fmax(longest, squares);
    }
    for (int32_t r = 0; r < FL_ATTN_LIST_ROWS; r++) sum += pow(2, score[r] - top);
    *length = sqrt(longest * k_squares);
    return top + log2(sum);
}

/* Scores of blocks that do not lie before the tile must be -INFINITY everywhere, and become 0 for the comparison of the
 * others. */
static void clear_hidden(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    const oc_mat *const outs[] = {&f->score.be, &f->score.one, &f->score.ref};
    for (int32_t line = 0; line < s->tiles * s->heads; line++)
        for (int32_t j = 0; j < s->n_blocks; j++) {
            if ((j + 1) * s->block_tokens <= s->pos + line / s->heads * FL_ATTN_LIST_ROWS) continue;
            for (int32_t k = 0; k < 3; k++) {
                double got = oc_get(outs[k], line, j);
                OC_TRUE(run, isinf(got) && got < 0);
                oc_set(outs[k], line, j, 0);
            }
        }
}

static void compare(oc_run *run, const fixture *f) {
    const oc_mat *ref = &f->score.ref;
    int64_t n = ref->rows * ref->width;
    bool formula = f->s->kind != OC_BENCH || f->by_codes;
    oc_mat want = oc_output(run, FL_DTYPE_F32, ref->rows, ref->width, ref->width);
    double *bound = oc_memory(run, n * (int64_t)sizeof *bound),
           *exact = oc_memory(run, n * (int64_t)sizeof *exact), length;
    clear_hidden(run, f);
    for (int64_t i = 0; i < n; i++) bound[i] = run->be->act_dtype == FL_DTYPE_F32 ? 1e-4 : 2e-2;
    for (int64_t i = 0; i < n && formula; i++) {
        int64_t line = i / ref->width, column = i % ref->width;
        double score =
            expected_score(f, line / f->s->heads, (int32_t)(line % f->s->heads), (int32_t)column, &length);
        oc_set(&want, line, column, score);
        /* values of codes are rounded once more, by their scale */
        exact[i] = 1e-9 + 2 * oc_rounding(FL_DTYPE_F32, score) + (f->by_codes ? length * 0x1p-23 : 0);
        if (f->by_codes) bound[i] = length * 0x1p-10 + 1e-3;
    }
    oc_outs_near(run, &f->score, bound);
    if (formula) oc_near(run, ref, &want, exact);
}

/* Each tile alone gives the same bits. */
static void check_alone(oc_run *run, const fixture *f) {
    oc_mat alone = oc_output(run, FL_DTYPE_F32, f->score.be.rows, f->s->n_blocks, f->s->n_blocks);
    for (int32_t i = 0; i < f->s->tiles; i++) OC_OK(run, score_tiles(run, run->be, f, &alone, i, 1));
    oc_same(run, &alone, &f->score.be);
    oc_guards(run, &alone);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "block_score tiles=%d pos=%d heads=%d dims=%d+%d/%d tokens=%d blocks=%d %s",
                 s->tiles, s->pos, s->heads, s->nope, s->rope, s->v, s->block_tokens, s->n_blocks,
                 oc_fill_name(s->fill)))
        return;
    fixture f = make_fixture(run, s);
    if (s->kind != OC_BENCH || f.by_codes) make_values(run, &f, f.by_codes);
    fl_err err = score_tiles(run, run->be, &f, &f.score.be, 0, s->tiles);
    if (!oc_ran(run, err, s->nope % 2 == 0 && s->rope % 2 == 0)) return;
    OC_OK(run, score_tiles(run, run->one, &f, &f.score.one, 0, s->tiles));
    OC_OK(run, score_tiles(run, &f.ref, &f, &f.score.ref, 0, s->tiles));
    if (s->kind != OC_BENCH) check_alone(run, &f);
    compare(run, &f);
}
/* Scores far apart in a tile, far from 0, and between blocks: nothing may overflow or vanish. Row r scores 4 (r - 64)
 * for block 0, which the last row decides, -900 for block 1, and 900 for block 2. */
static void check_range(oc_run *run) {
    static const shape s = {OC_CHECK, 1, 384, 1, 64, 32, 64, 128, 3, OC_ZERO};
    if (!oc_case(run, OC_CHECK, "block_score by hand")) return;
    fixture f = make_fixture(run, &s);
    for (int32_t j = 0; j < 3; j++) {
        for (int32_t d = 0; d < 128; d++) oc_set(&f.kv.ref, j, d, 0);
        for (int32_t d = 0; d < 32; d++) oc_set(&f.k_pe.ref, j, d, 0);
    }
    oc_set(&f.kv.ref, 0, 63, 4);
    oc_set(&f.k_pe.ref, 1, 31, -1);
    oc_set(&f.k_pe.ref, 2, 31, 1);
    for (int32_t r = 0; r < FL_ATTN_LIST_ROWS; r++) {
        oc_set(&f.q.ref, r, 63, r - 64);
        oc_set(&f.q.ref, r, 95, 900);
    }
    oc_act_sync(&f.q);
    oc_act_sync(&f.kv);
    oc_act_sync(&f.k_pe);
    OC_OK(run, score_tiles(run, run->be, &f, &f.score.be, 0, 1));
    double want[] = {4 * 63 + log2(16.0 / 15), -900 + 7, 900 + 7}, length;
    make_values(run, &f, f.by_codes);
    /* beside 900 codes of 63 and its neighbours are not exact */
    if (f.by_codes) want[0] = expected_score(&f, 0, 0, 0, &length);
    for (int32_t j = 0; j < 3; j++) OC_TRUE(run, fabs(oc_get(&f.score.be, 0, j) - want[j]) < 1e-3);
}

/* Rows of a tile whose sizes differ by up to 2^23, which have one scale if they are codes: the small ones' scores are
 * near 0 whatever is left of them, and the tile's scores stay where they are. */
static void check_far_rows(oc_run *run) {
    static const shape s = {OC_CHECK, 1, 4096, 2, 128, 64, 128, 64, 64, OC_NORMAL};
    if (!oc_case(run, OC_CHECK, "block_score rows far apart")) return;
    fixture f = make_fixture(run, &s);
    double furthest = 0, length;
    for (int32_t i = 0; i < FL_ATTN_LIST_ROWS * s.heads; i++)
        for (int32_t j = 0; j < s.nope + s.rope; j++)
            oc_set(&f.q.ref, i, j, ldexp(oc_get(&f.q.ref, i, j), -(i / s.heads % 24)));
    oc_act_sync(&f.q);
    make_values(run, &f, false);
    OC_OK(run, score_tiles(run, run->be, &f, &f.score.be, 0, 1));
    for (int32_t i = 0; i < s.heads * s.n_blocks; i++) {
        int32_t h = i / s.n_blocks, block = i % s.n_blocks;
        furthest =
            fmax(furthest, fabs(oc_get(&f.score.be, h, block) - expected_score(&f, 0, h, block, &length)));
    }
    OC_TRUE(run, furthest < (f.by_codes ? 0.25 : 2e-2));
}

static fl_block_score_args good_args(void) {
    return (fl_block_score_args){.rows = 256,
                                 .pos = 384,
                                 .n_heads = 2,
                                 .nope_dim = 8,
                                 .rope_dim = 4,
                                 .v_dim = 6,
                                 .block_tokens = 128,
                                 .n_blocks = 5};
}

static void check_limits(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "block_score limits")) return;
    fl_block_score_args good = good_args();
    OC_OK(run, fl_block_score_validate(&good));
    OC_ACCEPTED_WITH(run, block_score, good, rows, 128);
    OC_REFUSED_WITH(run, block_score, good, rows, 0, "block_score: rows");
    OC_REFUSED_WITH(run, block_score, good, rows, 192, "block_score: rows");
    OC_ACCEPTED_WITH(run, block_score, good, pos, 0);
    OC_REFUSED_WITH(run, block_score, good, pos, -128, "block_score: pos");
    OC_REFUSED_WITH(run, block_score, good, pos, 64, "block_score: pos");
    OC_ACCEPTED_WITH(run, block_score, good, pos, FL_ATTN_LIST_TOKENS_MAX - 256);
    OC_REFUSED_WITH(run, block_score, good, pos, FL_ATTN_LIST_TOKENS_MAX - 128, "block_score: pos");
    OC_ACCEPTED_WITH(run, block_score, good, n_heads, 1);
    OC_REFUSED_WITH(run, block_score, good, n_heads, 0, "block_score: n_heads");
    OC_REFUSED_WITH(run, block_score, good, n_heads, 4097, "block_score: n_heads");
    OC_ACCEPTED_WITH(run, block_score, good, nope_dim, 1024);
    OC_REFUSED_WITH(run, block_score, good, nope_dim, 0, "block_score: nope_dim");
    OC_REFUSED_WITH(run, block_score, good, nope_dim, 1025, "block_score: nope_dim");
    OC_REFUSED_WITH(run, block_score, good, rope_dim, 0, "block_score: rope_dim");
    OC_REFUSED_WITH(run, block_score, good, v_dim, 0, "block_score: v_dim");
    OC_REFUSED_WITH(run, block_score, good, block_tokens, 100, "block_score: block_tokens");
    OC_REFUSED_WITH(run, block_score, good, block_tokens, 2048, "block_score: block_tokens");
    OC_ACCEPTED_WITH(run, block_score, good, n_blocks, 1);
    OC_REFUSED_WITH(run, block_score, good, n_blocks, 0, "block_score: n_blocks");
    OC_ACCEPTED_WITH(run, block_score, good, n_blocks, FL_ATTN_LIST_TOKENS_MAX / 128);
    OC_REFUSED_WITH(run, block_score, good, n_blocks, FL_ATTN_LIST_TOKENS_MAX / 128 + 1,
                    "block_score: n_blocks");
    good.rows = 0;
    OC_REFUSED(run, run->be->op->block_score(run->be, &good), "block_score: rows");
}

static void check_sizes(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "block_score sizes and cost")) return;
    fl_block_score_args args = good_args();
    OC_TRUE(run, fl_block_score_scratch_bytes(&args) == 64 * 2 * 12 * 4);
    OC_TRUE(run, fl_block_score_visible(&args, 0) == 3 && fl_block_score_visible(&args, 1) == 4);
    double bytes = (256 * 2 * 12 + 5 * (2 * 8 + 4)) * 2 + 2 * 2 * 5 * 4;
    oc_cost(run, fl_block_score_cost(&args), 2.0 * 128 * (3 + 4) * 2 * 12, bytes);
    args.n_blocks = 3;
    oc_cost(run, fl_block_score_cost(&args), 2.0 * 128 * (3 + 3) * 2 * 12,
            (256 * 2 * 12 + 3 * (2 * 8 + 4)) * 2 + 2 * 2 * 3 * 4);
    args.n_blocks = 65;
    OC_TRUE(run, fl_block_score_scratch_bytes(&args) == 128 * 2 * 12 * 4);
}

void fl_block_score_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_range(run);
    check_far_rows(run);
    check_limits(run);
    check_sizes(run);
}
