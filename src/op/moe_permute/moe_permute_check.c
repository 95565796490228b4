#include "op/moe_permute/moe_permute.h"

#include <string.h>

#include "opcheck/opcheck_case.h"

/* How experts are drawn: all alike, all the same one, some never. */
typedef enum draw { ALIKE, ALL_LAST, SOME_EMPTY } draw;

typedef struct shape {
    oc_kind kind;
    int32_t rows, top_k, experts, dim;
    draw draw;
} shape;

static const shape shapes[] = {
    {OC_CHECK, 1, 1, 1, 1, ALIKE},         {OC_CHECK, 1, 4, 16, 32, ALIKE},
    {OC_CHECK, 65, 4, 16, 33, ALIKE},      {OC_CHECK, 10, 2, 7, 64, ALL_LAST},
    {OC_CHECK, 63, 3, 256, 17, ALIKE},     {OC_CHECK, 40, 6, 64, 96, SOME_EMPTY},
    {OC_CHECK, 200, 8, 13, 5, SOME_EMPTY}, {OC_CHECK, 700, 4, 40, 8, ALIKE},
    {OC_SLOW, 1031, 8, 16, 24, ALIKE},     {OC_SLOW, 8300, 4, 1024, 5, ALIKE}, /* many counts on cuda */
    {OC_BENCH, 2048, 4, 16, 512, ALIKE},
};

typedef struct results {
    int32_t *group_rows, *place;
    oc_mat y;
} results;

static results make_results(oc_run *run, const shape *s, fl_dtype dtype) {
    results out;
    int64_t slots = (int64_t)s->rows * s->top_k;
    out.group_rows = oc_block(run, (s->experts + 1) * (int64_t)sizeof(int32_t)).data;
    out.place = oc_block(run, slots * (int64_t)sizeof(int32_t)).data;
    out.y = oc_output(run, dtype, slots, s->dim, s->dim);
    return out;
}

/* By counting, for every slot, who comes before it. */
static void expect(const shape *s, const int32_t *ids, const oc_mat *x, const results *want) {
    int32_t slots = s->rows * s->top_k;
    for (int32_t e = 0; e <= s->experts; e++) {
        want->group_rows[e] = 0;
        for (int32_t i = 0; i < slots; i++) want->group_rows[e] += ids[i] < e;
    }
    for (int32_t i = 0; i < slots; i++) {
        int32_t before = 0;
        for (int32_t k = 0; k < slots; k++) before += ids[k] < ids[i] || (ids[k] == ids[i] && k < i);
        want->place[i] = before;
        for (int32_t j = 0; j < s->dim; j++) oc_set(&want->y, before, j, oc_get(x, i / s->top_k, j));
    }
}

static void check_shape(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "moe_permute rows=%d top=%d experts=%d dim=%d draw=%d", s->rows, s->top_k,
                 s->experts, s->dim, (int)s->draw))
        return;
    int32_t slots = s->rows * s->top_k;
    int32_t *ids = oc_memory(run, slots * (int64_t)sizeof *ids);
    for (int32_t i = 0; i < slots; i++) {
        ids[i] = s->draw == ALL_LAST ? s->experts - 1 : oc_below(run, s->experts);
        if (s->draw == SOME_EMPTY) ids[i] = ids[i] / 3 * 3;
    }
    int32_t padding = s->rows % 2 ? 3 : 8; /* strides of whole vectors, and others */
    oc_pair x = oc_act(run, s->rows, s->dim, s->dim + padding, OC_NORMAL);
    fl_backend *const backends[] = {run->be, run->one, run->ref};
    for (int32_t i = 0; i < 3; i++) {
        const oc_mat *input = i == 2 ? &x.ref : &x.be;
        results got = make_results(run, s, backends[i]->act_dtype),
                want = make_results(run, s, backends[i]->act_dtype);
        if (s->kind != OC_BENCH || i == 0) expect(s, ids, input, &want);
        fl_moe_permute_args args = {.ids = ids, .rows = s->rows, .top_k = s->top_k, .n_experts = s->experts};
        args.dim = s->dim;
        args.x = input->data;
        args.x_stride = input->stride;
        args.group_rows = got.group_rows;
        args.place = got.place;
        args.y = got.y.data;
        OC_OK(run, backends[i]->op->moe_permute(backends[i], &args));
        while (i == 0 && oc_timing(run, fl_moe_permute_cost(&args)))
            OC_OK(run, run->be->op->moe_permute(run->be, &args));
        if (s->kind == OC_BENCH && i > 0) continue;
        /* blocks lie between guards of 0xAA: compare one element more on both sides */
        OC_TRUE(run, memcmp(got.group_rows - 1, want.group_rows - 1, (size_t)(s->experts + 3) * 4) == 0);
        OC_TRUE(run, memcmp(got.place - 1, want.place - 1, (size_t)(slots + 2) * 4) == 0);
        oc_guards(run, &got.y);
        oc_same(run, &got.y, &want.y);
    }
}

static void check_ids(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "moe_permute ids")) return;
    oc_pair x = oc_act(run, 3, 4, 4, OC_NORMAL);
    const int32_t good_ids[6] = {0, 1, 2, 0, 1, 0};
    int32_t *ids = oc_given(run, good_ids, sizeof good_ids);
    int32_t *group_rows = oc_memory(run, 4 * sizeof *group_rows), *place = oc_memory(run, 6 * sizeof *place);
    oc_mat y = oc_output(run, run->be->act_dtype, 6, 4, 4);
    fl_moe_permute_args args = {.ids = ids, .rows = 3, .top_k = 2, .n_experts = 3, .dim = 4, .x = x.be.data};
    args.x_stride = 4;
    args.group_rows = group_rows;
    args.place = place;
    args.y = y.data;
    ids[5] = 3;
    OC_REFUSED(run, run->be->op->moe_permute(run->be, &args), "moe_permute: ids[]");
    ids[5] = -1;
    OC_REFUSED(run, run->be->op->moe_permute(run->be, &args), "moe_permute: ids[]");
    args.rows = 0;
    OC_REFUSED(run, run->be->op->moe_permute(run->be, &args), "moe_permute: rows");
    if (!run->be->device) oc_untouched(run, &y); /* a device finds out while it writes */
    args.rows = 3;
    ids[5] = 0;
    OC_OK(run, run->be->op->moe_permute(run->be, &args));
    const int32_t want_place[6] = {0, 3, 5, 1, 4, 2}, want_rows[4] = {0, 3, 5, 6};
    OC_TRUE(run, memcmp(place, want_place, sizeof want_place) == 0);
    OC_TRUE(run, memcmp(group_rows, want_rows, sizeof want_rows) == 0);
}

/* Codes and scales go where rows of act would. */
static void check_codes(oc_run *run, const shape *s) {
    if (!oc_case(run, s->kind, "moe_permute codes rows=%d top=%d experts=%d dim=%d", s->rows, s->top_k,
                 s->experts, s->dim))
        return;
    int32_t slots = s->rows * s->top_k;
    int32_t *ids = oc_memory(run, slots * (int64_t)sizeof *ids);
    for (int32_t i = 0; i < slots; i++) ids[i] = oc_below(run, s->experts);
    oc_pair x = oc_act(run, s->rows, s->dim, s->dim, OC_NORMAL);
    results got = make_results(run, s, FL_DTYPE_F32), rows = make_results(run, s, FL_DTYPE_F32);
    const oc_codes from = oc_codes_of(run, &x.ref, 1), to = oc_codes_make(run, slots, s->dim, 2);
    expect(s, ids, &x.ref, &rows);
    const oc_codes want = oc_codes_of(run, &rows.y, 0);
    fl_moe_permute_args args = {.ids = ids, .rows = s->rows, .top_k = s->top_k, .n_experts = s->experts};
    args.dim = s->dim;
    args.group_rows = got.group_rows;
    args.place = got.place;
    args.x_codes = from.at;
    args.y_codes = to.at;
    if (!run->be->w8a8 && !run->is_reference) {
        OC_REFUSED(run, run->be->op->moe_permute(run->be, &args), "moe_permute: backend");
        return;
    }
    OC_OK(run, run->be->op->moe_permute(run->be, &args));
    OC_TRUE(run, memcmp(got.group_rows - 1, rows.group_rows - 1, (size_t)(s->experts + 3) * 4) == 0);
    OC_TRUE(run, memcmp(got.place - 1, rows.place - 1, (size_t)(slots + 2) * 4) == 0);
    oc_codes_same(run, &to, &want);
    while (oc_timing(run, fl_moe_permute_cost(&args))) OC_OK(run, run->be->op->moe_permute(run->be, &args));
}

static void check_limits(oc_run *run) {
    if (!run->is_reference || !oc_case(run, OC_CHECK, "moe_permute limits and cost")) return;
    fl_moe_permute_args good = {.rows = 3, .top_k = 2, .n_experts = 8, .dim = 5, .x_stride = 5};
    OC_OK(run, fl_moe_permute_validate(&good));
    OC_ACCEPTED_WITH(run, moe_permute, good, rows, 1);
    OC_REFUSED_WITH(run, moe_permute, good, rows, 0, "moe_permute: rows");
    OC_ACCEPTED_WITH(run, moe_permute, good, top_k, 1);
    OC_REFUSED_WITH(run, moe_permute, good, top_k, 0, "moe_permute: top_k");
    OC_ACCEPTED_WITH(run, moe_permute, good, top_k, INT32_MAX / 3);
    OC_REFUSED_WITH(run, moe_permute, good, top_k, INT32_MAX / 3 + 1, "moe_permute: top_k");
    OC_ACCEPTED_WITH(run, moe_permute, good, n_experts, 1);
    OC_REFUSED_WITH(run, moe_permute, good, n_experts, 0, "moe_permute: n_experts");
    OC_ACCEPTED_WITH(run, moe_permute, good, n_experts, 1024);
    OC_REFUSED_WITH(run, moe_permute, good, n_experts, 1025, "moe_permute: n_experts");
    OC_ACCEPTED_WITH(run, moe_permute, good, dim, 1);
    OC_REFUSED_WITH(run, moe_permute, good, dim, 0, "moe_permute: dim");
    OC_REFUSED_WITH(run, moe_permute, good, x_stride, 4, "moe_permute: x_stride");
    oc_cost(run, fl_moe_permute_cost(&good), 0, 3 * (10 + 2 * (10 + 8)) + 9 * 4);
    uint8_t code = 0;
    good.dim = 256;
    good.x_stride = 0;
    good.x_codes = (fl_codes){.codes = &code, .scale_stride = 4};
    good.y_codes = (fl_codes){.codes = &code, .scale_stride = 8};
    OC_OK(run, fl_moe_permute_validate(&good));
    OC_REFUSED_WITH(run, moe_permute, good, dim, 192, "moe_permute: inputs of codes");
    OC_REFUSED_WITH(run, moe_permute, good, x_codes.scale_stride, 2, "moe_permute: scale_stride of codes");
    OC_REFUSED_WITH(run, moe_permute, good, y_codes.scale_stride, 4, "moe_permute: scale_stride of codes");
    oc_cost(run, fl_moe_permute_cost(&good), 0, 3 * (264 + 2 * (264 + 8)) + 9 * 4);
}

void fl_moe_permute_check(oc_run *run) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(run, &shapes[i]);
    static const shape with_codes[] = {
        {OC_CHECK, 1, 1, 1, 128, ALIKE},     {OC_CHECK, 67, 4, 16, 256, ALIKE},
        {OC_CHECK, 130, 6, 64, 2048, ALIKE}, {OC_CHECK, 9, 8, 16, 4480, ALIKE},
        {OC_SLOW, 1031, 8, 16, 384, ALIKE},  {OC_SLOW, 8300, 4, 1024, 128, ALIKE},
        {OC_BENCH, 2048, 4, 16, 512, ALIKE}};
    for (size_t i = 0; i < sizeof with_codes / sizeof *with_codes; i++) check_codes(run, &with_codes[i]);
    check_ids(run);
    check_limits(run);
}
