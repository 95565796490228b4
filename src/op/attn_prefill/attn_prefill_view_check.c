/* Views, lists, means, biases and lse: patterns of a few passes over one state, against the reference. What each
 * backend's rows see is checked token by token in test/op/test_attn_mask.c. */
#include "op/attn_prefill/attn_prefill_view_check.h"

#include <math.h>
#include <string.h>

#include "opcheck/opcheck_case.h"

enum {
    PASSES_MAX = 3,
    CALLS_MAX = 24,
    NOPE = 64,
    ROPE = 32,
    V = 64,
    TILE = FL_ATTN_LIST_ROWS,
    PAGE = FL_KV_PAGE_TOKENS
};

typedef struct pattern {
    oc_kind kind;
    int32_t rows, pos, heads;
    int32_t split; /* keys of a call */
    fl_attn_view view;
    int32_t far_step; /* a pass over far keys at this stride; 0 = none */
    int32_t percent;  /* of blocks listed beside the tile's own; 0 = no list */
    int32_t unit;     /* pages of a block of the list */
    bool means;       /* a pass over the means of blocks not listed */
    const char *name;
} pattern;

static const pattern patterns[] = {
    {OC_CHECK, 70, 37, 2, 64, {.window = 1}, 0, 0, 0, false, "own key only"},
    {OC_CHECK, 130, 5, 2, 128, {.window = 63}, 0, 0, 0, false, "window"},
    {OC_CHECK, 65, 300, 3, 4096, {.window = 64, .sinks = 4}, 0, 0, 0, false, "window, sinks"},
    {OC_CHECK, 100, 200, 1, 192, {.window = 65, .sinks = 130}, 0, 0, 0, false, "window, many sinks"},
    {OC_CHECK, 150, 100, 2, 64, {.window = 10, .segment = 70}, 0, 0, 0, false, "segments"},
    {OC_CHECK, 90, 500, 2, 128, {.window = 33, .sinks = 1}, 11, 0, 0, false, "window, anchors"},
    {OC_CHECK, 80, 400, 1, 4096, {.window = 50, .segment = 128}, 1, 0, 0, false, "segments, all far keys"},
    {OC_CHECK, 60, 250, 2, 64, {.distance_first = 3, .distance_end = 129}, 0, 0, 0, false, "distances"},
    {OC_CHECK, 300, 256, 3, 128, {0}, 0, 25, 1, false, "list"},
    {OC_CHECK, 129, 128, 2, 4096, {.window = 100}, 0, 60, 2, false, "list in a window"},
    {OC_CHECK, 200, 512, 3, 4096, {0}, 0, 20, 2, true, "list, means"},
    {OC_CHECK, 128, 640, 3, 64, {0}, 0, 35, 1, true, "list, means, small calls"},
    {OC_SLOW, 100, 4096, 2, 4096, {.window = 300, .sinks = 2}, 128, 0, 0, false, "window, anchors at 4K"},
    {OC_SLOW, 100, 4096, 3, 4096, {0}, 0, 10, 2, true, "list, means at 4K"},
    {OC_BENCH, 512, 3584, 8, 4096, {.window = 512}, 0, 0, 0, false, "window"},
    {OC_BENCH, 512, 3584, 8, 4096, {0}, 0, 6, 2, false, "list"},
};

/* Keys at positions 0, step, 2 step ..; cut into calls of `split`. */
typedef struct pass {
    int32_t n_keys, step;
    fl_attn_view view;
    bool means;
    oc_pair kv, k_pe;
    float *bias;
} pass;

typedef struct head_dims {
    int32_t nope, rope, v;
} head_dims;

/* A device has a kernel for each. */
static const head_dims small_head = {NOPE, ROPE, V}, large_head = {128, 64, 128};

typedef struct fixture {
    const pattern *p;
    head_dims head;
    pass passes[PASSES_MAX];
    int32_t n_passes;
    fl_attn_list list;
    oc_pair q;
    oc_outs out, lse;
} fixture;

static int32_t end_of(const pattern *p) {
    return p->pos + p->rows;
}

static pass *add_pass(oc_run *run, fixture *f, int32_t step, fl_attn_view view) {
    int32_t heads = f->p->heads, n = (end_of(f->p) + step - 1) / step;
    pass *k = &f->passes[f->n_passes++];
    *k = (pass){.n_keys = n, .step = step, .view = view};
    int32_t width = f->head.nope + f->head.v;
    k->kv = oc_act(run, (int64_t)n * heads, width, width, OC_NORMAL);
    k->k_pe = oc_act(run, n, f->head.rope, f->head.rope, OC_NORMAL);
    return k;
}

/* Head 0 of the last tile is dense if there is another head; the plan is what was drawn. */
static void fill_list(oc_run *run, fixture *f) {
    const pattern *p = f->p;
    int32_t tiles = (p->rows + TILE - 1) / TILE, blocks = end_of(p) / PAGE + 2;
    uint16_t *ids = oc_memory(run, (int64_t)tiles * p->heads * blocks * (int64_t)sizeof *ids);
    f->list =
        (fl_attn_list){.ids = ids, .n = oc_memory(run, (int64_t)tiles * p->heads * 4), .capacity = blocks};
    double listed = 0;
    for (int32_t i = 0; i < tiles * p->heads; i++) {
        int32_t own = (p->pos + i / p->heads * TILE) / PAGE, n = 0;
        bool yes = false;
        for (int32_t b = 0; b < own + TILE / PAGE; b++) {
            if (b % p->unit == 0) yes = oc_below(run, 100) < p->percent;
            if (yes || b >= own) ids[(int64_t)i * blocks + n++] = (uint16_t)b;
        }
        listed += n;
        f->list.n[i] = p->kind != OC_BENCH && p->heads > 1 && i == (tiles - 1) * p->heads ? -1 : n;
    }
    f->list.planned_blocks = listed / (tiles * p->heads);
}

static fixture make_fixture(oc_run *run, const pattern *p, head_dims head) {
    fixture f = {.p = p, .head = head};
    fl_attn_view far = p->view;
    far.far = true;
    add_pass(run, &f, 1, p->view);
    if (p->far_step > 0) add_pass(run, &f, p->far_step, far);
    if (p->percent > 0) fill_list(run, &f);
    if (p->means) {
        pass *k = add_pass(run, &f, p->unit * PAGE, (fl_attn_view){0});
        k->means = true;
        k->bias = oc_memory(run, p->heads * (int64_t)sizeof *k->bias);
        for (int32_t h = 0; h < p->heads; h++) k->bias[h] = (float)(6 + oc_normal(run));
    }
    int32_t lines = p->rows * p->heads, q_dim = head.nope + head.rope;
    f.q = oc_act(run, lines, q_dim, q_dim, OC_NORMAL);
    for (int32_t i = 0; i < lines; i++)
        for (int32_t j = 0; j < q_dim; j++) oc_set(&f.q.ref, i, j, 0.15 * oc_get(&f.q.ref, i, j));
    oc_act_sync(&f.q);
    f.out = oc_outs_make(run, run->be->act_dtype, lines, head.v, head.v);
    f.lse = oc_outs_make(run, FL_DTYPE_F32, lines, 1, 1);
    return f;
}

/* The call for the keys of pass `k` from `key` on; state, scratch, out and lse are the caller's. */
static fl_attn_prefill_args call_of(const fixture *f, const pass *k, int32_t key, bool ref) {
    const pattern *p = f->p;
    fl_attn_prefill_args a = {.rows = p->rows, .pos = p->pos, .n_heads = p->heads};
    a.nope_dim = f->head.nope;
    a.rope_dim = f->head.rope;
    a.v_dim = f->head.v;
    a.q = ref ? f->q.ref.data : f->q.be.data;
    a.kv = oc_at(ref ? &k->kv.ref : &k->kv.be, (int64_t)key * p->heads, 0);
    a.k_pe = oc_at(ref ? &k->k_pe.ref : &k->k_pe.be, key, 0);
    a.key_pos = key * k->step;
    a.key_step = k->step;
    a.n_keys = k->n_keys - key < p->split ? k->n_keys - key : p->split;
    a.view = k->view;
    a.list = p->percent > 0 ? &f->list : NULL;
    a.means = k->means;
    a.key_bias = k->bias;
    a.first = k == f->passes && key == 0;
    a.last = k == &f->passes[f->n_passes - 1] && key + a.n_keys == k->n_keys;
    return a;
}

/* All calls of a pattern in their order. */
typedef struct calls {
    fl_attn_prefill_args of[CALLS_MAX];
    int32_t n;
} calls;

static calls calls_of(const fixture *f, bool ref, const oc_mat *out, const oc_mat *lse) {
    calls c = {.n = 0};
    for (int32_t n = 0; n < f->n_passes; n++)
        for (int32_t key = 0; key < f->passes[n].n_keys && c.n < CALLS_MAX; key += f->p->split) {
            c.of[c.n] = call_of(f, &f->passes[n], key, ref);
            c.of[c.n].out = out->data;
            c.of[c.n++].lse = lse->data;
        }
    return c;
}

/* One by one, or two and two from the last on. */
static void attend(oc_run *run, fl_backend *be, const fixture *f, const oc_mat *out, const oc_mat *lse,
                   bool paired) {
    int64_t state_bytes = fl_attn_prefill_state_bytes(f->p->rows, f->p->heads, f->head.v);
    oc_mat state = oc_block(run, state_bytes);
    memset(state.data, 0xff, (size_t)state_bytes); /* NaN: `first` must start every part of it */
    calls c = calls_of(f, be == run->ref, out, lse);
    for (int32_t i = 0; i < c.n; i++) c.of[i].state = state.data;
    for (int32_t i = 0, n; i < c.n; i += n) {
        fl_attn_prefill_args *a = &c.of[i], *then = a + 1;
        n = paired && (c.n - i) % 2 == 0 ? 2 : 1;
        if (n == 2) a->then = then;
        oc_mat scratch = oc_block(run, fl_attn_prefill_scratch_bytes(a));
        a->scratch = scratch.data;
        if (n == 2) then->scratch = scratch.data;
        OC_OK(run, be->op->attn_prefill(be, a));
        oc_guards(run, &scratch);
        if (i + n < c.n) oc_untouched(run, lse);
    }
    oc_guards(run, &state);
}

/* Two calls at once give the bits of two calls. */
static void check_pairs(oc_run *run, const fixture *f) {
    oc_mat out = oc_output(run, f->out.be.dtype, f->out.be.rows, f->head.v, f->head.v),
           lse = oc_output(run, FL_DTYPE_F32, f->lse.be.rows, 1, 1);
    attend(run, run->be, f, &out, &lse, true);
    oc_same(run, &out, &f->out.be);
    oc_same(run, &lse, &f->lse.be);
}

static void time_pattern(oc_run *run, const fixture *f) {
    fl_attn_prefill_args a = call_of(f, &f->passes[0], 0, false);
    a.state = oc_memory(run, fl_attn_prefill_state_bytes(a.rows, a.n_heads, f->head.v));
    a.scratch = oc_memory(run, fl_attn_prefill_scratch_bytes(&a));
    a.out = f->out.be.data;
    while (oc_timing(run, fl_attn_prefill_cost(&a))) OC_OK(run, run->be->op->attn_prefill(run->be, &a));
}

static void check_pattern(oc_run *run, const pattern *p, head_dims head) {
    if (!oc_case(run, p->kind, "attn_prefill %s rows=%d pos=%d heads=%d split=%d%s", p->name, p->rows, p->pos,
                 p->heads, p->split, head.v == V ? "" : " dims=192/128"))
        return;
    const double largest_v = 3; /* nearly: means of many values are far below it */
    bool f32 = run->be->act_dtype == FL_DTYPE_F32;
    fixture f = make_fixture(run, p, head);
    attend(run, run->be, &f, &f.out.be, &f.lse.be, false);
    attend(run, run->one, &f, &f.out.one, &f.lse.one, false);
    attend(run, run->ref, &f, &f.out.ref, &f.lse.ref, false);
    int64_t lines = f.out.ref.rows;
    double *bound = oc_memory(run, lines * head.v * (int64_t)sizeof *bound);
    for (int64_t i = 0; i < lines * head.v; i++) bound[i] = (f32 ? 1e-5 : 2e-2) * largest_v;
    oc_outs_near(run, &f.out, bound);
    for (int64_t i = 0; i < lines; i++) bound[i] = f32 ? 1e-4 : 1e-2;
    oc_outs_near(run, &f.lse, bound);
    if (p->kind == OC_BENCH) time_pattern(run, &f);
    else check_pairs(run, &f);
}

/* ---- limits and cost ------------------------------------------------------------------------------------------ */

static fl_attn_prefill_args good_args(void) {
    fl_attn_prefill_args a = {.rows = 3, .pos = 128, .n_heads = 2, .n_keys = 100};
    a.nope_dim = NOPE;
    a.rope_dim = ROPE;
    a.v_dim = V;
    return a;
}

static void check_limits(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "attn_prefill limits of views and lists")) return;
    fl_attn_list list = {.capacity = 1}, narrow = {.capacity = 0}, wide = {.capacity = 65536},
                 too_wide = {.capacity = 65537}, odd = {.capacity = 1, .planned_blocks = -1};
    fl_attn_prefill_args good = good_args();
    OC_OK(run, fl_attn_prefill_validate(&good));
    OC_REFUSED_WITH(run, attn_prefill, good, view.window, -1, "view.window");
    OC_REFUSED_WITH(run, attn_prefill, good, view.segment, -1, "view.segment");
    OC_REFUSED_WITH(run, attn_prefill, good, view.sinks, -1, "view.sinks");
    OC_REFUSED_WITH(run, attn_prefill, good, view.distance_first, -1, "view.distance_first");
    OC_REFUSED_WITH(run, attn_prefill, good, view.distance_end, -1, "view.distance_end");
    OC_REFUSED_WITH(run, attn_prefill, good, key_step, -1, "key_step");
    OC_REFUSED_WITH(run, attn_prefill, good, means, true, "means");
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_step, INT32_MAX / 100);
    OC_REFUSED_WITH(run, attn_prefill, good, key_step, INT32_MAX / 100 + 1, "key_step");
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_pos, 64);
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, 65, "key_pos");
    good.key_step = 2;
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_pos, 65);
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_pos, INT32_MAX - 200);
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, INT32_MAX - 199, "key_pos");
    good.key_step = 64;
    good.list = &list;
    OC_OK(run, fl_attn_prefill_validate(&good));
    OC_ACCEPTED_WITH(run, attn_prefill, good, list, &wide);
    OC_REFUSED_WITH(run, attn_prefill, good, list, &narrow, "list.capacity");
    OC_REFUSED_WITH(run, attn_prefill, good, list, &too_wide, "list.capacity");
    OC_REFUSED_WITH(run, attn_prefill, good, list, &odd, "list.planned_blocks");
    OC_REFUSED_WITH(run, attn_prefill, good, pos, 64, "pos with a list");
    good.means = true;
    OC_ACCEPTED_WITH(run, attn_prefill, good, key_pos, 128);
    OC_REFUSED_WITH(run, attn_prefill, good, key_pos, 32, "key_pos of means");
    OC_REFUSED_WITH(run, attn_prefill, good, key_step, 0, "key_step of means");
    OC_REFUSED_WITH(run, attn_prefill, good, key_step, 96, "key_step of means");
}

static void check_then(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "attn_prefill two calls at once")) return;
    int state = 0;
    fl_attn_prefill_args next = good_args(), good = good_args();
    good.then = &next;
    OC_OK(run, fl_attn_prefill_validate(&good));
    OC_REFUSED_WITH(run, attn_prefill, good, rows, 4, "other rows");
    OC_REFUSED_WITH(run, attn_prefill, good, pos, 256, "other rows");
    OC_REFUSED_WITH(run, attn_prefill, good, n_heads, 1, "other rows, heads");
    OC_REFUSED_WITH(run, attn_prefill, good, v_dim, 32, "other rows, heads");
    OC_REFUSED_WITH(run, attn_prefill, good, state, &state, "or state");
    OC_REFUSED_WITH(run, attn_prefill, good, last, true, "next call");
    fl_cost alone = fl_attn_prefill_cost(&next), both = fl_attn_prefill_cost(&good);
    double state_bytes = 3.0 * 2 * (V + 2) * sizeof(float);
    oc_cost(run, both, 2 * alone.flops, 2 * alone.bytes - 2 * state_bytes);
    OC_TRUE(run, fl_attn_prefill_scratch_bytes(&good) == fl_attn_prefill_scratch_bytes(&next));
    next.n_keys = 1000;
    OC_TRUE(run, fl_attn_prefill_scratch_bytes(&good) == fl_attn_prefill_scratch_bytes(&next));
    next.first = true;
    OC_REFUSED(run, fl_attn_prefill_validate(&good), "next call");
    next.first = false;
    next.then = &good;
    OC_REFUSED(run, fl_attn_prefill_validate(&good), "next call");
    next.then = NULL;
    next.n_keys = 0;
    OC_REFUSED(run, fl_attn_prefill_validate(&good), "n_keys");
}

/* Multiply-adds of one head and key, times 2, times heads. */
static double pairs_of(const fl_attn_prefill_args *a) {
    return fl_attn_prefill_cost(a).flops / (2.0 * 2 * (NOPE + ROPE + V));
}

static bool equal(double a, double b) {
    return fabs(a - b) < 1e-9;
}

/* Three rows at 128, 129, 130, keys 0 .. 99 or every 64th. */
static void check_cost(oc_run *run) {
    if (!oc_case(run, OC_CHECK, "attn_prefill cost of views and lists")) return;
    fl_attn_list list = {.capacity = 4, .planned_blocks = 1};
    fl_attn_prefill_args a = good_args();
    a.view.window = 40; /* from 89, 90, 91 on */
    OC_TRUE(run, equal(pairs_of(&a), 11 + 10 + 9));
    a.view.sinks = 5;
    OC_TRUE(run, equal(pairs_of(&a), 11 + 10 + 9 + 15));
    a.view.far = true;
    OC_TRUE(run, equal(pairs_of(&a), 300 - 45));
    a.key_step = 3; /* 0, 3, .. 297: from 6 to 87, 87, 90 */
    OC_TRUE(run, equal(pairs_of(&a), 28 + 28 + 29));
    a = good_args();
    a.view = (fl_attn_view){.window = 1, .segment = 130};
    OC_TRUE(run, equal(pairs_of(&a), 100 + 100));
    a.view = (fl_attn_view){.distance_first = 50, .distance_end = 60}; /* 69 .. 78 and on */
    OC_TRUE(run, equal(pairs_of(&a), 30));
    a.view = (fl_attn_view){0};
    a.list = &list; /* 64 keys of 129, 130, 131, in the share of the call */
    OC_TRUE(run, equal(pairs_of(&a), 6400 * (1 / 129.0 + 1 / 130.0 + 1 / 131.0)));
    list.planned_blocks = 10;
    OC_TRUE(run, equal(pairs_of(&a), 300));
    a.means = true;
    a.key_step = 64; /* two blocks lie before the tile */
    list.planned_blocks = 0.5;
    OC_TRUE(run, equal(pairs_of(&a), 3 * 1.5));
    list.planned_blocks = 10;
    OC_TRUE(run, equal(pairs_of(&a), 0));
}

void fl_attn_prefill_view_check(oc_run *run) {
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        check_pattern(run, &patterns[i], small_head);
        if (patterns[i].kind == OC_CHECK) check_pattern(run, &patterns[i], large_head);
    }
    if (!run->is_reference) return;
    check_limits(run);
    check_then(run);
    check_cost(run);
}
