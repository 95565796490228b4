/* attn_prefill_tiles against fl_attn_prefill_sees, key by key: the walk of every row tile and head meets each key
 * that a row sees once and in order, its masks say exactly who sees it, and steps that have no mask are seen by
 * every row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "op/attn_prefill/attn_prefill.h"
#include "op/attn_prefill/attn_prefill_tiles.h"

enum { HEADS = 3, TILE = FL_ATTN_TILE_ROWS, BLOCKS_MAX = 256, TILES_MAX = 4 };

static uint64_t seed;

static int32_t below(int32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((seed >> 33) % (uint64_t)n);
}

typedef struct scene {
    fl_attn_prefill_args a;
    fl_attn_keys keys;
    fl_attn_list list;
    uint16_t ids[TILES_MAX * HEADS * BLOCKS_MAX];
    int32_t n[TILES_MAX * HEADS];
    int32_t tile_rows; /* TILE; without a list of any number */
} scene;

/* ---- scenes ---- */

static void fill_list(scene *s, int32_t percent, int32_t unit) {
    s->list = (fl_attn_list){.ids = s->ids, .n = s->n, .capacity = BLOCKS_MAX};
    bool dense = below(3) == 0;
    for (int32_t i = 0; i < TILES_MAX * HEADS; i++) {
        int32_t n = 0;
        bool yes = false;
        for (int32_t b = 0; b < BLOCKS_MAX; b++) {
            if (b % unit == 0) yes = below(100) < percent;
            if (yes) s->ids[i * BLOCKS_MAX + n++] = (uint16_t)b;
        }
        s->n[i] = dense && i % HEADS == 1 ? -1 : n;
    }
    s->a.list = &s->list;
}

static fl_attn_view random_view(void) {
    fl_attn_view v = {.window = below(4) == 0 ? 0 : 1 + below(below(2) ? 300 : 3000)};
    if (below(2)) v.sinks = below(200);
    if (below(3) == 0) v.segment = 1 + below(700);
    if (below(3) == 0) v.distance_first = below(300);
    if (below(3) == 0) v.distance_end = v.distance_first + 1 + below(900);
    v.far = below(4) == 0;
    return v;
}

static void random_scene(scene *s, bool list, bool means) {
    memset(s, 0, sizeof *s);
    fl_attn_prefill_args *a = &s->a;
    a->n_heads = HEADS;
    s->tile_rows = list || below(2) ? TILE : 192;
    a->rows = 1 + below(below(2) ? 100 : TILES_MAX * TILE);
    a->pos = below(2) ? below(300) : below(9000);
    if (list) a->pos = a->pos / TILE * TILE;
    a->key_step = means ? 64 * (1 + below(3)) : below(3) ? 1 : 1 + below(100);
    a->key_pos = below(2) ? 0 : a->key_step * 64 * below(1 + a->pos / (64 * a->key_step));
    a->n_keys = 1 + below(below(2) ? 300 : 5000);
    a->view = random_view();
    a->means = means;
    static const int32_t percents[] = {0, 3, 30, 80, 100};
    if (list) fill_list(s, percents[below(5)], means ? a->key_step / 64 : 1 + below(2));
    s->keys = (fl_attn_keys){.pos = a->pos,
                             .rows = a->rows,
                             .key_pos = a->key_pos,
                             .key_step = a->key_step,
                             .n_keys = a->n_keys,
                             .view = a->view};
}

/* ---- what the kernel does with a walk ---- */

static void mark_list(const scene *s, int32_t at, uint32_t *listed) {
    memset(listed, 0, FL_ATTN_LIST_BLOCKS_MAX / 8);
    for (int32_t i = 0; i < s->n[at]; i++) {
        uint16_t id = s->ids[at * BLOCKS_MAX + i];
        listed[id / 32] |= UINT32_C(1) << (id % 32);
    }
}

static fl_attn_walk walk_of(const scene *s, int32_t tile, int32_t head) {
    if (!s->a.list) return fl_attn_walk_rows(&s->keys, (int64_t)tile * s->tile_rows, s->tile_rows, false);
    int32_t at = tile * HEADS + head;
    if (s->a.means) return fl_attn_walk_means(&s->keys, tile, s->n[at] < 0);
    if (s->n[at] < 0) return fl_attn_walk_all(&s->keys, tile, true);
    return fl_attn_walk_listed(&s->keys, tile, s->ids + at * BLOCKS_MAX, s->n[at]);
}

static bool in_row_ranges(const scene *s, int32_t r, int32_t i) {
    fl_attn_ranges g = fl_attn_row_ranges(&s->keys, (int64_t)s->a.pos + r);
    return (g.first[0] <= i && i < g.end[0]) || (g.first[1] <= i && i < g.end[1]);
}

typedef struct visit {
    const scene *s;
    int32_t tile, head, rows_end;
    bool masked, marked;
    const uint32_t *listed;
    uint8_t *met; /* [n_keys] */
} visit;

/* 64 keys of a step: each as the oracle says for each row. Returns whether some row sees one. */
static bool check_half(const visit *v, int32_t key) {
    const scene *s = v->s;
    const fl_attn_prefill_args *a = &s->a;
    int32_t means_end = fl_attn_means_end(&s->keys, (int64_t)a->pos + v->tile * s->tile_rows);
    bool some = false;
    assert_true(key >= 0 && key % 64 == 0);
    for (int32_t i = key; i < key + 64; i++) {
        bool counts = !v->marked || fl_attn_marked(&s->keys, a->means, means_end, v->listed, i);
        if (i >= a->n_keys) {
            assert_true(v->masked || !counts); /* every row sees a step without mask */
            if (v->masked)
                for (int32_t r = v->tile * s->tile_rows; r < v->rows_end; r++)
                    assert_false(in_row_ranges(s, r, i));
            continue;
        }
        assert_int_equal(v->met[i]++, 0);
        for (int32_t r = v->tile * s->tile_rows; r < v->rows_end; r++) {
            bool sees = counts && (!v->masked || in_row_ranges(s, r, i));
            assert_int_equal(sees, fl_attn_prefill_sees(a, r, v->head, i));
            some |= sees;
        }
    }
    return some;
}

/* Returns steps in which no row sees anything. */
static int32_t check_tile(const scene *s, int32_t tile, int32_t head, int32_t *steps) {
    static uint32_t listed[FL_ATTN_LIST_BLOCKS_MAX / 32];
    static uint8_t met[8192];
    const fl_attn_prefill_args *a = &s->a;
    fl_attn_walk walk = walk_of(s, tile, head);
    visit v = {.s = s, .tile = tile, .head = head, .listed = listed, .met = met};
    v.rows_end = (tile + 1) * s->tile_rows < a->rows ? (tile + 1) * s->tile_rows : a->rows;
    v.marked = walk.kind == FL_ATTN_WALK_MARKED;
    if (v.marked && s->n[tile * HEADS + head] >= 0) mark_list(s, tile * HEADS + head, listed);
    memset(met, 0, sizeof met);
    int32_t empty = 0, before = -1;
    for (fl_attn_step step; fl_attn_walk_next(&walk, a->n_keys, &step); ++*steps) {
        v.masked = step.masked && !a->means;
        assert_true(step.key[0] > before && step.key[1] > step.key[0]);
        before = step.key[0];
        bool some = check_half(&v, step.key[0]);
        if (step.key[1] < a->n_keys) some |= check_half(&v, step.key[1]);
        else assert_true(v.masked || v.marked);
        empty += !some;
    }
    for (int32_t i = 0; i < a->n_keys; i++)
        for (int32_t r = tile * s->tile_rows; r < v.rows_end && !met[i]; r++)
            assert_false(fl_attn_prefill_sees(a, r, head, i));
    return empty;
}

static int32_t check_scene(const scene *s, int32_t *steps) {
    int32_t empty = 0;
    for (int32_t tile = 0; tile * s->tile_rows < s->a.rows; tile++)
        for (int32_t head = 0; head < HEADS; head++) empty += check_tile(s, tile, head, steps);
    return empty;
}

/* ---- tests ---- */

static void walks_meet_what_is_seen(void **state) {
    (void)state;
    static scene s;
    seed = 7;
    int32_t steps = 0;
    for (int32_t i = 0; i < 300; i++) {
        random_scene(&s, i % 3 > 0, i % 3 == 2);
        check_scene(&s, &steps);
    }
    assert_true(steps > 1000);
}

/* Plain windows, causal rows and whole lists visit no step in vain. */
static void nothing_is_visited_in_vain(void **state) {
    (void)state;
    static scene s;
    seed = 11;
    int32_t steps = 0, empty = 0;
    for (int32_t i = 0; i < 90; i++) {
        random_scene(&s, i % 2, false);
        s.a.key_step = s.keys.key_step = 1;
        s.a.view = (fl_attn_view){.window = s.a.view.window, .sinks = s.a.view.sinks};
        s.keys.view = s.a.view;
        if (i % 2) s.a.rows = s.keys.rows = (s.a.rows + TILE - 1) / TILE * TILE;
        empty += check_scene(&s, &steps);
    }
    assert_true(steps > 500);
    assert_int_equal(empty, 0);
}

/* A list of everything groups keys as no list does: the same bits. */
static void all_listed_is_the_walk_without_list(void **state) {
    (void)state;
    static scene s;
    seed = 13;
    for (int32_t i = 0; i < 50; i++) {
        random_scene(&s, true, false);
        s.a.key_step = s.keys.key_step = 1;
        s.keys.view = s.a.view = (fl_attn_view){0};
        fill_list(&s, 100, 1);
        fl_attn_walk listed = fl_attn_walk_listed(&s.keys, 0, s.ids, BLOCKS_MAX);
        fl_attn_walk all = fl_attn_walk_all(&s.keys, 0, true);
        fl_attn_step one, other;
        while (fl_attn_walk_next(&all, s.a.n_keys, &one)) {
            assert_true(fl_attn_walk_next(&listed, s.a.n_keys, &other));
            assert_int_equal(one.key[0], other.key[0]);
            if (one.key[1] < s.a.n_keys && other.key[1] < s.a.n_keys)
                assert_int_equal(one.key[1], other.key[1]);
        }
        assert_false(fl_attn_walk_next(&listed, s.a.n_keys, &other));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_meet_what_is_seen),
        cmocka_unit_test(nothing_is_visited_in_vain),
        cmocka_unit_test(all_listed_is_the_walk_without_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
