/* attn_prefill's views, lists, means and biases against an oracle that marks every key a row may see by walking over
 * the tokens, and takes a softmax over the marked ones in double. Then bits: row chunks change none, and what covers
 * everything gives those of full attention. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/half.h"
#include "op/act.h"
#include "op/attn_prefill/attn_prefill_spans.h"

enum {
    HEADS = 3,
    NOPE = 12,
    ROPE = 8,
    V = 16,
    QD = NOPE + ROPE,
    KD = NOPE + V,
    TILE = FL_ATTN_LIST_ROWS,
    PASSES = 3
};

static uint64_t seed;

static int32_t below(int32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((seed >> 33) % (uint64_t)n);
}

/* -1..1, exact in bf16. */
static float any_value(void) {
    return (float)(below(257) - 128) / 128;
}

static void *zeros(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memset(memory, 0, (size_t)bytes);
}

/* Keys at positions 0, step, 2 step ..: one walk over them, cut into calls. */
typedef struct pass {
    int32_t n_keys, step;
    fl_attn_view view;
    bool list, means;
    float bias[HEADS];
    float *kv, *k_pe; /* [n_keys][HEADS][KD], [n_keys][ROPE] */
    uint8_t *sees;    /* [rows][HEADS][n_keys], the oracle's */
} pass;

typedef struct scene {
    int32_t rows, pos, split; /* split: keys of a call */
    int32_t n_blocks, tiles;
    float *q;        /* [rows][HEADS][QD] */
    uint8_t *listed; /* [tiles][HEADS][n_blocks] */
    bool dense[HEADS];
    fl_attn_list list;
    pass passes[PASSES];
    int32_t n_passes;
} scene;

static int32_t end_of(const scene *s) {
    return s->pos + s->rows;
}

/* ---- making scenes ---- */

static void add_pass(scene *s, int32_t step, fl_attn_view view) {
    pass *p = &s->passes[s->n_passes++];
    *p = (pass){.n_keys = (end_of(s) + step - 1) / step, .step = step, .view = view};
    p->kv = zeros((int64_t)p->n_keys * HEADS * KD * (int64_t)sizeof(float));
    p->k_pe = zeros((int64_t)p->n_keys * ROPE * (int64_t)sizeof(float));
    for (int32_t i = 0; i < p->n_keys * HEADS * KD; i++) p->kv[i] = any_value();
    for (int32_t i = 0; i < p->n_keys * ROPE; i++) p->k_pe[i] = any_value();
    p->sees = zeros((int64_t)s->rows * HEADS * p->n_keys);
}

static scene open_scene(int32_t rows, int32_t pos, int32_t split) {
    scene s = {.rows = rows, .pos = pos, .split = split};
    s.q = zeros((int64_t)rows * HEADS * QD * (int64_t)sizeof(float));
    for (int32_t i = 0; i < rows * HEADS * QD; i++) s.q[i] = 2 * any_value();
    s.n_blocks = end_of(&s) / FL_KV_PAGE_TOKENS + 1;
    s.tiles = (rows + TILE - 1) / TILE;
    s.listed = zeros((int64_t)s.tiles * HEADS * s.n_blocks);
    s.list.capacity = s.n_blocks;
    s.list.ids = zeros((int64_t)s.tiles * HEADS * s.n_blocks * (int64_t)sizeof(uint16_t));
    s.list.n = zeros((int64_t)s.tiles * HEADS * (int64_t)sizeof(int32_t));
    return s;
}

static void close_scene(scene *s) {
    for (int32_t i = 0; i < s->n_passes; i++)
        free(s->passes[i].kv), free(s->passes[i].k_pe), free(s->passes[i].sees);
    free(s->q), free(s->listed), free(s->list.ids), free(s->list.n);
}

/* Lists each block with a chance of `percent`, in units of `unit` blocks; the tile's own blocks always, if `own`. */
static void fill_list(scene *s, int32_t percent, int32_t unit, bool own) {
    for (int32_t i = 0; i < s->tiles * HEADS; i++) {
        uint8_t *listed = s->listed + (int64_t)i * s->n_blocks;
        uint16_t *ids = s->list.ids + (int64_t)i * s->n_blocks;
        int32_t n = 0, own_from = (s->pos + i / HEADS * TILE) / (unit * FL_KV_PAGE_TOKENS) * unit;
        bool yes = false;
        for (int32_t b = 0; b < s->n_blocks; b++) {
            if (b % unit == 0) yes = below(100) < percent;
            listed[b] = yes || (own && b >= own_from && b < own_from + unit + TILE / FL_KV_PAGE_TOKENS);
            if (listed[b]) ids[n++] = (uint16_t)b;
        }
        s->list.n[i] = s->dense[i % HEADS] ? -1 : n;
    }
}

/* ---- the oracle ---- */

/* near[t] of the row at position p, one token at a time. */
static void mark_near(const fl_attn_view *v, int32_t p, uint8_t *near) {
    memset(near, v->window == 0, (size_t)p + 1);
    for (int32_t back = 0; back < v->window && back <= p; back++) near[p - back] = 1;
    for (int32_t t = 0; t < v->sinks && t <= p; t++) near[t] = 1;
    for (int32_t t = p; v->segment > 0 && t >= 0; t--) {
        near[t] = 1;
        if (t % v->segment == 0) break; /* the segment starts here */
    }
}

static void mark_pass(const scene *s, const pass *k) {
    uint8_t *near = zeros(end_of(s) + 1);
    for (int32_t line = 0; line < s->rows * HEADS; line++) {
        int32_t r = line / HEADS, h = line % HEADS, p = s->pos + r, tile_pos = s->pos + r / TILE * TILE;
        const uint8_t *listed = s->listed + (int64_t)(r / TILE * HEADS + h) * s->n_blocks;
        mark_near(&k->view, p, near);
        for (int32_t i = 0; i < k->n_keys; i++) {
            int32_t t = i * k->step;
            bool in_list = s->dense[h] || listed[t / FL_KV_PAGE_TOKENS], sees;
            if (k->means) sees = t + k->step - 1 < tile_pos && !in_list;
            else {
                sees = t <= p && (k->view.far ? !near[t] : near[t]) && t + k->view.distance_first <= p;
                if (k->view.distance_end > 0 && t + k->view.distance_end <= p) sees = false;
                if (k->list && !in_list) sees = false;
            }
            k->sees[(int64_t)line * k->n_keys + i] = sees;
        }
    }
    free(near);
}

static double score_of(const scene *s, const pass *k, int32_t line, int32_t i) {
    const float *q = s->q + (int64_t)line * QD, *key = k->kv + ((int64_t)i * HEADS + line % HEADS) * KD;
    double sum = (double)k->bias[line % HEADS];
    for (int32_t d = 0; d < NOPE; d++) sum += (double)q[d] * (double)key[d];
    for (int32_t d = 0; d < ROPE; d++) sum += (double)q[NOPE + d] * (double)k->k_pe[(int64_t)i * ROPE + d];
    return sum;
}

/* Softmax over everything marked in all passes. Returns the lse. */
static double expect_line(const scene *s, int32_t line, double out[V]) {
    double top = -INFINITY, sum = 0;
    for (int32_t n = 0; n < s->n_passes; n++)
        for (int32_t i = 0; i < s->passes[n].n_keys; i++)
            if (s->passes[n].sees[(int64_t)line * s->passes[n].n_keys + i])
                top = fmax(top, score_of(s, &s->passes[n], line, i));
    for (int32_t d = 0; d < V; d++) out[d] = 0;
    for (int32_t n = 0; n < s->n_passes; n++)
        for (int32_t i = 0; i < s->passes[n].n_keys; i++) {
            const pass *k = &s->passes[n];
            if (!k->sees[(int64_t)line * k->n_keys + i]) continue;
            double weight = pow(2, score_of(s, k, line, i) - top);
            const float *value = k->kv + ((int64_t)i * HEADS + line % HEADS) * KD + NOPE;
            sum += weight;
            for (int32_t d = 0; d < V; d++) out[d] += weight * (double)value[d];
        }
    for (int32_t d = 0; d < V && sum > 0; d++) out[d] /= sum;
    return sum > 0 ? top + log2(sum) : -INFINITY;
}

/* ---- the kernel ---- */

typedef struct result {
    uint8_t *out; /* [rows][HEADS][V] act */
    float *lse;   /* [rows][HEADS] */
} result;

static result make_result(const fl_backend *be, int32_t rows) {
    return (result){zeros((int64_t)rows * HEADS * V * (int64_t)fl_dtype_bytes(be->act_dtype)),
                    zeros((int64_t)rows * HEADS * (int64_t)sizeof(float))};
}

static void free_result(result *r) {
    free(r->out), free(r->lse);
}

static void *to_act(const fl_backend *be, const float *values, int64_t n) {
    void *act = zeros(n * (int64_t)fl_dtype_bytes(be->act_dtype));
    for (int64_t i = 0; i < n; i++) fl_act_store(act, be->act_dtype, i, values[i]);
    return act;
}

/* One call for keys [key, key + n) of a pass. A call in which no row sees anything must leave the state alone. */
static void one_call(fl_backend *be, const scene *s, const pass *k, int32_t key, fl_attn_prefill_args *a) {
    int64_t state_bytes = fl_attn_prefill_state_bytes(a->rows, HEADS, V);
    int32_t seen = 0;
    a->key_pos = key * k->step;
    a->key_step = k->step;
    a->n_keys = k->n_keys - key < s->split ? k->n_keys - key : s->split;
    a->view = k->view;
    a->means = k->means;
    a->key_bias = k->bias;
    void *kv = to_act(be, k->kv + (int64_t)key * HEADS * KD, (int64_t)a->n_keys * HEADS * KD);
    void *k_pe = to_act(be, k->k_pe + (int64_t)key * ROPE, (int64_t)a->n_keys * ROPE);
    a->kv = kv, a->k_pe = k_pe, a->scratch = zeros(fl_attn_prefill_scratch_bytes(a));
    for (int32_t line = (a->pos - s->pos) * HEADS; line < (a->pos - s->pos + a->rows) * HEADS; line++)
        for (int32_t i = 0; i < a->n_keys; i++) seen += k->sees[(int64_t)line * k->n_keys + key + i];
    void *before = zeros(state_bytes);
    memcpy(before, a->state, (size_t)state_bytes);
    assert_int_equal(be->op->attn_prefill(be, a), FL_ERR_OK);
    if (seen == 0 && !a->first) assert_memory_equal(before, a->state, (size_t)state_bytes);
    free(kv), free(k_pe), free(a->scratch), free(before);
}

/* Rows [row, row + rows) of the scene, all passes, into their place in `out`. */
static void attend(fl_backend *be, const scene *s, int32_t row, int32_t rows, const result *out) {
    int64_t element = (int64_t)fl_dtype_bytes(be->act_dtype),
            state = fl_attn_prefill_state_bytes(rows, HEADS, V);
    fl_attn_prefill_args a = {
        .rows = rows, .pos = s->pos + row, .n_heads = HEADS, .nope_dim = NOPE, .rope_dim = ROPE};
    fl_attn_list list = s->list;
    list.ids += (int64_t)row / TILE * HEADS * s->n_blocks;
    list.n += (int64_t)row / TILE * HEADS;
    void *q = to_act(be, s->q + (int64_t)row * HEADS * QD, (int64_t)rows * HEADS * QD);
    a.v_dim = V, a.q = q, a.state = memset(zeros(state), 0xff, (size_t)state);
    a.out = out->out + (int64_t)row * HEADS * V * element;
    a.lse = out->lse + (int64_t)row * HEADS;
    for (int32_t n = 0; n < s->n_passes; n++) {
        const pass *k = &s->passes[n];
        a.list = k->list || k->means ? &list : NULL;
        for (int32_t key = 0; key < k->n_keys; key += s->split) {
            a.first = n == 0 && key == 0;
            a.last = n + 1 == s->n_passes && key + s->split >= k->n_keys;
            one_call(be, s, k, key, &a);
        }
    }
    free(q), free(a.state);
}

static void check_near(const fl_backend *be, const scene *s, const result *r) {
    bool f32 = be->act_dtype == FL_DTYPE_F32;
    double tolerance = f32 ? 1e-5 : 2e-2, lse_tolerance = f32 ? 1e-4 : 1e-2, want[V];
    for (int32_t line = 0; line < s->rows * HEADS; line++) {
        double lse = expect_line(s, line, want), found = (double)r->lse[line];
        if (lse > -INFINITY) assert_true(fabs(found - lse) <= lse_tolerance);
        else assert_true(isinf(found) && found < 0);
        for (int32_t d = 0; d < V; d++)
            assert_true(fabs((double)fl_act_load(r->out, be->act_dtype, (int64_t)line * V + d) - want[d]) <=
                        tolerance);
    }
}

static void check_same(const fl_backend *be, const scene *s, const result *a, const result *b) {
    assert_memory_equal(a->out, b->out, (size_t)(s->rows * HEADS * V) * fl_dtype_bytes(be->act_dtype));
    assert_memory_equal(a->lse, b->lse, (size_t)(s->rows * HEADS) * sizeof(float));
}

/* The oracle's numbers; the same bits when the rows come in chunks. */
static void check_scene(fl_backend *be, const scene *s) {
    result all = make_result(be, s->rows), parts = make_result(be, s->rows);
    int32_t unit = s->passes[0].list || s->passes[s->n_passes - 1].means ? TILE : 1;
    attend(be, s, 0, s->rows, &all);
    check_near(be, s, &all);
    for (int32_t row = 0, n; row < s->rows; row += n) {
        n = (1 + below(200)) * unit;
        if (n > s->rows - row) n = s->rows - row;
        attend(be, s, row, n, &parts);
    }
    check_same(be, s, &all, &parts);
    free_result(&all), free_result(&parts);
}

static void on_every_backend(void (*check)(fl_backend *be)) {
    int32_t n = 0;
    for (const char *const *name = fl_backend_names(); *name; name++) {
        fl_backend *be = NULL;
        if (!fl_backend_available(*name)) continue;
        assert_int_equal(fl_backend_open(*name, 2, &be), FL_ERR_OK);
        seed = 20;
        if (be->pool) check(be), n++; /* the counting backend computes nothing */
        fl_backend_close(be);
    }
    assert_true(n >= 1);
}

/* ---- the oracle's tests ---- */

/* Short timelines in many calls; now and then one over the end of a call of the largest size. */
static scene random_scene(bool aligned) {
    bool lengthy = below(8) == 0;
    int32_t rows = 1 + below(lengthy ? 40 : 290), pos = lengthy ? 4050 + below(100) : below(500);
    if (aligned) pos = pos / TILE * TILE;
    return open_scene(rows, pos, lengthy ? FL_ATTN_SPLIT_TOKENS : 64 * (1 + below(6)));
}

static fl_attn_view random_view(void) {
    fl_attn_view v = {.window = below(5) == 0 ? 0 : 1 + below(300)};
    if (below(2)) v.sinks = below(100);
    if (below(2)) v.segment = 1 + below(400);
    return v;
}

/* Ranges, with the far keys at a stride in a second pass. */
static void views(fl_backend *be) {
    for (int32_t i = 0; i < 18; i++) {
        scene s = random_scene(false);
        fl_attn_view v = random_view(), far = v;
        if (below(4) == 0) v.distance_end = far.distance_end = 1 + below(500);
        if (below(4) == 0) v.distance_first = below(40); /* some rows may see nothing at all */
        add_pass(&s, 1, v);
        far.far = true;
        if (below(2)) add_pass(&s, 1 + below(90), far);
        for (int32_t n = 0; n < s.n_passes; n++) mark_pass(&s, &s.passes[n]);
        check_scene(be, &s);
        close_scene(&s);
    }
}

/* Two passes over all keys, cut at a distance: their k_pe differ as two rotations do. */
static void distances(fl_backend *be) {
    for (int32_t i = 0; i < 8; i++) {
        scene s = random_scene(false);
        int32_t edge = 1 + below(400);
        add_pass(&s, 1, (fl_attn_view){.distance_first = edge});
        add_pass(&s, 1, (fl_attn_view){.distance_end = edge});
        for (int32_t n = 0; n < 2; n++) mark_pass(&s, &s.passes[n]);
        for (int32_t h = 0; h < HEADS; h++) s.passes[1].bias[h] = any_value();
        check_scene(be, &s);
        close_scene(&s);
    }
}

/* Lists of keys, and means with a bias for the rest; some heads dense. */
static void lists(fl_backend *be) {
    static const int32_t percents[] = {0, 100, 10, 40, 70};
    for (int32_t i = 0; i < 15; i++) {
        scene s = random_scene(true);
        int32_t unit = 1 + below(2);
        s.dense[0] = below(3) == 0;
        fill_list(&s, percents[i % 5], unit, i % 7 != 0);
        add_pass(&s, 1, below(3) == 0 ? random_view() : (fl_attn_view){0});
        s.passes[0].list = true;
        if (below(3) == 0) { /* listed anchors */
            add_pass(&s, 1 + below(50), (fl_attn_view){.window = 70, .far = true});
            s.passes[1].list = true;
        }
        if (below(3)) {
            add_pass(&s, unit * FL_KV_PAGE_TOKENS, (fl_attn_view){0});
            pass *means = &s.passes[s.n_passes - 1];
            means->means = true;
            for (int32_t h = 0; h < HEADS; h++) means->bias[h] = 6 + any_value();
        }
        for (int32_t n = 0; n < s.n_passes; n++) mark_pass(&s, &s.passes[n]);
        check_scene(be, &s);
        close_scene(&s);
    }
}

/* The first key, whose score starts the exponents, is far above or below the rest and mostly hidden. */
static void loud_first_key(fl_backend *be) {
    for (int32_t i = 0; i < 6; i++) {
        scene s = open_scene(70 + below(100), 30 + below(300), 64 * (1 + below(6)));
        add_pass(&s, 1, (fl_attn_view){.window = 1 + below(150)});
        for (int32_t line = 0; line < s.rows * HEADS; line++) s.q[(int64_t)line * QD + NOPE] = 1;
        s.passes[0].k_pe[0] = i % 2 ? -256 : 256;
        mark_pass(&s, &s.passes[0]);
        check_scene(be, &s);
        close_scene(&s);
    }
}

/* ---- the bits of full attention ---- */

typedef void cover_fn(scene *s);

static void wide_window(scene *s) {
    s->passes[0].view.window = end_of(s);
}

static void all_sinks(scene *s) {
    s->passes[0].view = (fl_attn_view){.window = 1, .sinks = end_of(s)};
}

static void far_enough(scene *s) {
    s->passes[0].view.distance_end = end_of(s);
}

static void one_segment_and_no_anchors(scene *s) {
    fl_attn_view v = {.window = 1, .segment = end_of(s)};
    s->passes[0].view = v;
    v.far = true;
    add_pass(s, 7, v);
}

static void everything_listed(scene *s) {
    fill_list(s, 100, 1, true);
    s->passes[0].list = true;
}

static void all_heads_dense(scene *s) {
    for (int32_t h = 0; h < HEADS; h++) s->dense[h] = true;
    fill_list(s, 0, 1, false);
    s->passes[0].list = true;
}

static void nothing_pruned(scene *s) {
    everything_listed(s);
    add_pass(s, FL_KV_PAGE_TOKENS, (fl_attn_view){0});
    s->passes[1].means = true;
    s->passes[1].bias[0] = 6;
}

static void cover(fl_backend *be) {
    static cover_fn *const covers[] = {
        wide_window,       all_sinks,       far_enough,    one_segment_and_no_anchors,
        everything_listed, all_heads_dense, nothing_pruned};
    for (size_t i = 0; i < sizeof covers / sizeof *covers; i++) {
        scene s = random_scene(true);
        add_pass(&s, 1, (fl_attn_view){0});
        mark_pass(&s, &s.passes[0]);
        result full = make_result(be, s.rows), covered = make_result(be, s.rows);
        attend(be, &s, 0, s.rows, &full);
        check_near(be, &s, &full);
        covers[i](&s);
        attend(be, &s, 0, s.rows, &covered);
        check_same(be, &s, &full, &covered);
        free_result(&full), free_result(&covered);
        close_scene(&s);
    }
}

/* Calls of other sizes that add nothing in between: keys that no row sees, as calls of their own. */
static void empty_calls(fl_backend *be) {
    scene s = open_scene(100, 200, 64);
    add_pass(&s, 1, (fl_attn_view){0});
    mark_pass(&s, &s.passes[0]);
    result full = make_result(be, s.rows), more = make_result(be, s.rows);
    attend(be, &s, 0, s.rows, &full);
    for (int32_t n = 1; n < PASSES; n++) {
        add_pass(&s, n, (fl_attn_view){.far = true});
        mark_pass(&s, &s.passes[n]);
    }
    attend(be, &s, 0, s.rows, &more);
    check_same(be, &s, &full, &more);
    free_result(&full), free_result(&more);
    close_scene(&s);
}

/* ---- the plan ---- */

/* One row tile and head: visited are the tiles of keys of which a row sees a key; whole are those of which all rows see
 * every key; spans and bits together say who sees what. Returns the tiles visited. */
static uint64_t check_visit(const fl_attn_plan *plan, fl_span rows, int32_t tile, int32_t head) {
    const fl_attn_prefill_args *a = plan->a;
    uint64_t some = 0, whole = 0;
    fl_attn_visit visit;
    fl_attn_plan_visit(plan, tile, head, &visit);
    for (int32_t t = 0; t < plan->key_tiles; t++) {
        int32_t seen = 0;
        for (int32_t i = t * 64; i < (t + 1) * 64 && i < a->n_keys; i++)
            for (int32_t r = rows.first; r < rows.end; r++) {
                bool sees = fl_attn_prefill_sees(a, r, head, i), marked = false;
                for (int32_t n = 0; n < FL_ATTN_SPANS; n++)
                    marked |= plan->first[n][r] <= i && i < plan->end[n][r];
                seen += sees;
                if (visit.some >> t & 1) assert_int_equal(sees, marked && (visit.keys[t] >> (i % 64) & 1));
            }
        if (seen > 0) some |= UINT64_C(1) << t;
        if (seen > 0 && seen == 64 * (rows.end - rows.first)) whole |= UINT64_C(1) << t;
    }
    assert_int_equal(some & ~visit.some, 0);
    if (a->key_step <= 1)
        assert_int_equal(visit.some, some); /* else a tile may have keys both listed and hidden */
    assert_int_equal(visit.whole & visit.some, whole);
    return visit.some;
}

static void check_plan(fl_pool *pool, const fl_attn_prefill_args *a, int32_t tile_rows) {
    fl_attn_plan plan;
    void *memory = zeros(fl_attn_plan_bytes(a->rows, a->n_heads));
    fl_attn_plan_make(pool, a, tile_rows, memory, &plan);
    for (int32_t head = 0; head < a->n_heads; head++) {
        uint64_t visited = a->first ? 1 : 0;
        int32_t row = 0;
        for (int32_t tile = 0; tile < plan.row_tiles; tile++) {
            fl_span rows = fl_attn_plan_rows(&plan, tile);
            assert_int_equal(rows.first, row); /* every row in one tile */
            assert_true(rows.end - rows.first <= tile_rows);
            if (a->list && rows.end > rows.first) assert_int_equal(rows.first / TILE, (rows.end - 1) / TILE);
            if (rows.end > rows.first) visited |= check_visit(&plan, rows, tile, head);
            row = rows.end;
        }
        assert_int_equal(row, a->rows);
        assert_int_equal(plan.packed[head], visited);
    }
    free(memory);
}

static void plans_visit_what_is_seen(void **state) {
    (void)state;
    fl_pool *pool = NULL;
    assert_int_equal(fl_pool_open(2, &pool), FL_ERR_OK);
    seed = 3;
    for (int32_t i = 0; i < 60; i++) {
        scene s = open_scene(1 + below(200), below(2) ? 8192 : below(8) * TILE, 64);
        bool means = i % 3 == 0;
        s.dense[1] = below(3) == 0;
        fill_list(&s, below(3) == 0 ? 97 : below(60), 1, false);
        fl_attn_prefill_args a = {.rows = s.rows, .pos = s.pos, .n_heads = HEADS, .view = random_view()};
        a.key_step = means ? 64 * (1 + below(2)) : 1 + below(2) * below(20);
        a.key_pos = a.key_step * 64 * below(3);
        a.n_keys = 1 + below(300);
        a.view.far = below(3) == 0;
        if (below(3) == 0)
            a.view.distance_first = below(200), a.view.distance_end = below(2) * (200 + below(9000));
        a.list = means || below(2) ? &s.list : NULL;
        a.means = means;
        a.first = a.key_pos == 0;
        check_plan(pool, &a, below(2) ? 64 : 24);
        close_scene(&s);
    }
    fl_pool_close(pool);
}

#define TEST(name)                                                                                           \
    static void test_##name(void **state) {                                                                  \
        (void)state;                                                                                         \
        on_every_backend(name);                                                                              \
    }
TEST(views)
TEST(distances)
TEST(lists)
TEST(loud_first_key)
TEST(cover)
TEST(empty_calls)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_visit_what_is_seen), cmocka_unit_test(test_views),
        cmocka_unit_test(test_distances),           cmocka_unit_test(test_lists),
        cmocka_unit_test(test_loud_first_key),      cmocka_unit_test(test_cover),
        cmocka_unit_test(test_empty_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
