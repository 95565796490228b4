#include "op/attn_merge/attn_merge.h"

#include <math.h>
#include <string.h>

#include "opcheck/opcheck_case.h"

typedef struct shape {
    oc_kind kind;
    int32_t parts, rows, heads, dim;
    double spread; /* of the lse, in powers of 2 */
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, 1, 1},     {OC_CHECK, 2, 17, 3, 64, 3},     {OC_CHECK, 3, 33, 2, 128, 20},
    {OC_CHECK, 8, 16, 1, 31, 0.1}, {OC_CHECK, 4, 5, 2, 1024, 1000}, {OC_BENCH, 2, 2048, 8, 64, 4},
};

typedef struct fixture {
    const shape *s;
    oc_pair part[FL_ATTN_MERGE_PARTS_MAX];
    oc_mat lse[FL_ATTN_MERGE_PARTS_MAX];
    oc_outs out, out_lse;
} fixture;

static bool sees(const fixture *f, int32_t part, int64_t line) {
    return oc_get(&f->lse[part], line, 0) > -INFINITY;
}

/* Some parts saw nothing in some lines: what lies in their out is then not a number. Line 1 saw nothing at all. */
static fixture make_fixture(oc_run *run, const shape *s) {
    fixture f = {.s = s};
    int64_t lines = (int64_t)s->rows * s->heads;
    for (int32_t i = 0; i < s->parts; i++) {
        f.part[i] = oc_act(run, lines, s->dim, s->dim, OC_NORMAL);
        f.lse[i] = oc_input(run, FL_DTYPE_F32, lines, 1, 1);
        for (int64_t line = 0; line < lines; line++) {
            bool nothing = line == 1 || (i > 0 && oc_below(run, 5) == 0);
            oc_set(&f.lse[i], line, 0, nothing ? -INFINITY : s->spread * oc_normal(run));
            for (int32_t j = 0; nothing && j < s->dim; j++) oc_set(&f.part[i].ref, line, j, NAN);
        }
        oc_act_sync(&f.part[i]);
    }
    f.out = oc_outs_make(run, run->be->act_dtype, lines, s->dim, s->dim);
    f.out_lse = oc_outs_make(run, FL_DTYPE_F32, lines, 1, 1);
    return f;
}

static fl_attn_merge_args args_of(const fixture *f, bool ref) {
    const shape *s = f->s;
    fl_attn_merge_args args = {.n_parts = s->parts, .rows = s->rows, .n_heads = s->heads, .dim = s->dim};
    for (int32_t i = 0; i < s->parts; i++) {
        args.part[i] = ref ? f->part[i].ref.data : f->part[i].be.data;
        args.part_lse[i] = f->lse[i].data;
    }
    return args;
}

/* The formula, and bounds: relative to the largest element of a part that counts. */
static void compare(oc_run *run, const fixture *f) {
    const shape *s = f->s;
    int64_t lines = f->out.ref.rows;
    bool f32 = run->be->act_dtype == FL_DTYPE_F32;
    double *bound = oc_memory(run, lines * s->dim * (int64_t)sizeof *bound);
    double *lse_bound = oc_memory(run, lines * (int64_t)sizeof *lse_bound);
    for (int64_t line = 0; line < lines; line++) {
        double sum = 0, largest = 0, lse;
        for (int32_t i = 0; i < s->parts; i++) sum += pow(2, oc_get(&f->lse[i], line, 0));
        lse = log(sum) / log(2);
        for (int32_t j = 0; j < s->dim; j++) {
            double want = 0;
            for (int32_t i = 0; i < s->parts; i++) {
                if (!sees(f, i, line)) continue;
                double value = oc_get(&f->part[i].ref, line, j);
                want += pow(2, oc_get(&f->lse[i], line, 0)) / sum * value;
                largest = fmax(largest, fabs(value));
            }
            if (s->spread < 100) /* 2^lse fits */
                OC_TRUE(run, fabs(oc_get(&f->out.ref, line, j) - want) <= 1e-6 * largest);
        }
        for (int32_t j = 0; j < s->dim; j++)
            bound[line * s->dim + j] = (f32 ? 1e-6 : 0x1p-8) * largest + 1e-30;
        if (line == 1) OC_TRUE(run, isinf(oc_get(&f->out_lse.ref, line, 0)));
        else if (s->spread < 100) OC_TRUE(run, fabs(oc_get(&f->out_lse.ref, line, 0) - lse) <= 1e-5);
        lse_bound[line] = 1e-6 * fmax(10, fabs(oc_get(&f->out_lse.ref, line, 0)));
        if (line != 1) continue;
        for (int32_t k = 0; k < 3; k++) { /* an infinity has no distance */
            const oc_mat *m = k == 0 ? &f->out_lse.be : k == 1 ? &f->out_lse.one : &f->out_lse.ref;
            OC_TRUE(run, isinf(oc_get(m, 1, 0)) && oc_get(m, 1, 0) < 0);
            oc_set(m, 1, 0, 0);
        }
    }
    oc_outs_near(run, &f->out, bound);
    oc_outs_near(run, &f->out_lse, lse_bound);
}

/* The result over part 0, without an lse: the same bits. */
static void check_in_place(oc_run *run, const fixture *f) {
    fl_attn_merge_args args = args_of(f, false);
    oc_mat place = oc_output(run, f->out.be.dtype, f->out.be.rows, f->s->dim, f->s->dim);
    oc_copy(&place, &f->part[0].be);
    args.part[0] = args.out = place.data;
    OC_OK(run, run->be->op->attn_merge(run->be, &args));
    oc_guards(run, &place);
    oc_same(run, &place, &f->out.be);
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "attn_merge parts=%d rows=%d heads=%d dim=%d spread=%g", s->parts, s->rows,
                 s->heads, s->dim, s->spread))
        return;
    fixture f = make_fixture(run, s);
    fl_backend *const backends[] = {run->one, run->ref, run->be};
    const oc_mat *const outs[] = {&f.out.one, &f.out.ref, &f.out.be};
    const oc_mat *const lses[] = {&f.out_lse.one, &f.out_lse.ref, &f.out_lse.be};
    fl_attn_merge_args args;
    for (int32_t i = 0; i < 3; i++) {
        args = args_of(&f, backends[i] == run->ref);
        args.out = outs[i]->data;
        args.lse = lses[i]->data;
        OC_OK(run, backends[i]->op->attn_merge(backends[i], &args));
    }
    while (oc_timing(run, fl_attn_merge_cost(&args))) OC_OK(run, run->be->op->attn_merge(run->be, &args));
    compare(run, &f);
    check_in_place(run, &f);
}

static void check_limits(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "attn_merge limits and cost")) return;
    float lse;
    fl_attn_merge_args good = {.n_parts = 3, .rows = 5, .n_heads = 2, .dim = 64};
    OC_OK(run, fl_attn_merge_validate(&good));
    OC_ACCEPTED_WITH(run, attn_merge, good, n_parts, 1);
    OC_ACCEPTED_WITH(run, attn_merge, good, n_parts, 8);
    OC_REFUSED_WITH(run, attn_merge, good, n_parts, 0, "attn_merge: n_parts");
    OC_REFUSED_WITH(run, attn_merge, good, n_parts, 9, "attn_merge: n_parts");
    OC_ACCEPTED_WITH(run, attn_merge, good, rows, 1);
    OC_REFUSED_WITH(run, attn_merge, good, rows, 0, "attn_merge: rows");
    OC_ACCEPTED_WITH(run, attn_merge, good, n_heads, 4096);
    OC_REFUSED_WITH(run, attn_merge, good, n_heads, 0, "attn_merge: n_heads");
    OC_REFUSED_WITH(run, attn_merge, good, n_heads, 4097, "attn_merge: n_heads");
    OC_ACCEPTED_WITH(run, attn_merge, good, dim, 1024);
    OC_REFUSED_WITH(run, attn_merge, good, dim, 0, "attn_merge: dim");
    OC_REFUSED_WITH(run, attn_merge, good, dim, 1025, "attn_merge: dim");
    oc_cost(run, fl_attn_merge_cost(&good), 2.0 * 3 * 10 * 64, 10 * (3 * (64 * 2 + 4) + 64 * 2));
    good.lse = &lse;
    oc_cost(run, fl_attn_merge_cost(&good), 2.0 * 3 * 10 * 64, 10 * 4 * (64 * 2 + 4));
    good.rows = 0;
    OC_REFUSED(run, run->be->op->attn_merge(run->be, &good), "attn_merge: rows");
}

void fl_attn_merge_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    check_limits(run);
}
