/* Block means, scores and lists: what the attention policy relies on, on every backend this CPU runs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "op/act.h"
#include "op/kv_format.h"

enum {
    TILE = FL_ATTN_LIST_ROWS,
    PAGE = FL_KV_PAGE_TOKENS,
    HEADS = 3,
    NOPE = 64,
    ROPE = 32,
    V = 64,
    ID_MAX = 512
};

static uint32_t random_state;

/* Roughly normal. */
static float random_float(void) {
    float sum = -2;
    for (int32_t i = 0; i < 4; i++) {
        random_state = random_state * 1664525u + 1013904223u;
        sum += (float)(random_state >> 8) * 0x1p-24f;
    }
    return sum;
}

static void *zeros(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memset(memory, 0, (size_t)bytes);
}

/* Calls `check` on every backend that computes. */
static void on_every_backend(void (*check)(fl_backend *be)) {
    int32_t n = 0;
    for (const char *const *name = fl_backend_names(); *name; name++) {
        fl_backend *be = NULL;
        if (!fl_backend_available(*name)) continue;
        assert_int_equal(fl_backend_open(*name, 2, &be), FL_ERR_OK);
        random_state = 1;
        if (be->pool) check(be), n++;
        fl_backend_close(be);
    }
    assert_true(n >= 1);
}

/* ---- lists ---------------------------------------------------------------------------------------------------- */

/* Scores of some tiles, and the lists made of them. */
typedef struct lists {
    int32_t tiles, pos, block_tokens, n_blocks;
    float *score;
    float log2_alpha[HEADS];
    bool dense[HEADS];
    int32_t sinks, window, capacity;
    uint64_t seed;
    uint16_t *ids;
    int32_t *n;
    int64_t overflow;
} lists;

/* Tiles at pos .. 4095 with random scores. */
static lists make_lists(int32_t block_tokens, int32_t pos, float log2_alpha) {
    lists l = {.pos = pos, .block_tokens = block_tokens, .sinks = 128, .window = 256, .capacity = 100};
    l.tiles = (4096 - pos) / TILE;
    l.n_blocks = 4096 / block_tokens;
    int64_t n = (int64_t)l.tiles * HEADS;
    l.score = zeros(n * l.n_blocks * (int64_t)sizeof *l.score);
    l.ids = zeros(n * ID_MAX * (int64_t)sizeof *l.ids);
    l.n = zeros(n * (int64_t)sizeof *l.n);
    for (int32_t h = 0; h < HEADS; h++) l.log2_alpha[h] = log2_alpha;
    for (int64_t i = 0; i < n * l.n_blocks; i++) {
        int64_t block = i % l.n_blocks, tile = i / l.n_blocks / HEADS;
        l.score[i] = (block + 1) * block_tokens <= pos + tile * TILE ? 4 * random_float() : -INFINITY;
    }
    return l;
}

static void free_lists(lists *l) {
    free(l->score), free(l->ids), free(l->n);
}

static fl_block_select_args select_args(lists *l) {
    return (fl_block_select_args){.rows = l->tiles * TILE,
                                  .pos = l->pos,
                                  .n_heads = HEADS,
                                  .block_tokens = l->block_tokens,
                                  .n_blocks = l->n_blocks,
                                  .score = l->score,
                                  .log2_alpha = l->log2_alpha,
                                  .dense = l->dense,
                                  .sink_tokens = l->sinks,
                                  .window_tokens = l->window,
                                  .random_seed = l->seed,
                                  .list = {.ids = l->ids, .n = l->n, .capacity = l->capacity},
                                  .overflow = &l->overflow};
}

static void select_lists(fl_backend *be, lists *l) {
    fl_block_select_args args = select_args(l);
    assert_int_equal(be->op->block_select(be, &args), FL_ERR_OK);
}

static const uint16_t *ids_of(const lists *l, int32_t tile, int32_t head) {
    return l->ids + ((int64_t)tile * HEADS + head) * l->capacity;
}

static bool has_id(const lists *l, int32_t tile, int32_t head, int32_t id) {
    for (int32_t i = 0; i < l->n[tile * HEADS + head]; i++)
        if (ids_of(l, tile, head)[i] == id) return true;
    return false;
}

static void no_threshold(fl_backend *be) {
    const int32_t blocks[] = {64, 128, 256, 1024};
    for (int32_t i = 0; i < 4; i++) {
        lists l = make_lists(blocks[i], 1920, -INFINITY);
        select_lists(be, &l);
        for (int32_t t = 0; t < l.tiles; t++)
            for (int32_t h = 0; h < HEADS; h++) {
                int32_t all = (l.pos + (t + 1) * TILE) / PAGE;
                assert_int_equal(l.n[t * HEADS + h], all);
                for (int32_t id = 0; id < all; id++) assert_int_equal(ids_of(&l, t, h)[id], id);
            }
        assert_int_equal(l.overflow, 0);
        free_lists(&l);
    }
}

static void without_a_threshold_all_blocks_up_to_the_tile_are_listed(void **state) {
    (void)state;
    on_every_backend(no_threshold);
}

static void check_list(const lists *l, int32_t t, int32_t h) {
    int32_t pos = l->pos + t * TILE, end = (pos + TILE) / PAGE, n = l->n[t * HEADS + h];
    const uint16_t *ids = ids_of(l, t, h);
    assert_in_range(n, 1, l->capacity);
    for (int32_t i = 1; i < n; i++) assert_true(ids[i - 1] < ids[i]);
    assert_true(ids[n - 1] == end - 1);
    for (int32_t id = 0; id < end; id++)
        if (id * PAGE < l->sinks || (id + 1) * PAGE > pos + 1 - l->window) assert_true(has_id(l, t, h, id));
}

static void shape_of_lists(fl_backend *be) {
    const int32_t blocks[] = {64, 128, 192}, capacities[] = {14, 100};
    for (int32_t i = 0; i < 6; i++) {
        lists l = make_lists(blocks[i / 2], i / 2 == 0 ? 0 : 1024, -3);
        if (i == 5) l.seed = 9;
        l.capacity = capacities[i % 2];
        l.dense[1] = true;
        select_lists(be, &l);
        assert_true((l.overflow > 0) == (l.capacity == 14));
        for (int32_t t = 0; t < l.tiles; t++) {
            check_list(&l, t, 0);
            check_list(&l, t, 2);
            assert_int_equal(l.n[t * HEADS + 1], -1);
        }
        free_lists(&l);
    }
}

static void lists_ascend_and_hold_what_is_forced(void **state) {
    (void)state;
    on_every_backend(shape_of_lists);
}

static void counted(fl_backend *be) {
    lists all = make_lists(64, 1024, -4), few;
    random_state = 1;
    few = make_lists(64, 1024, -4);
    few.capacity = 12;
    few.overflow = 1000;
    select_lists(be, &all);
    select_lists(be, &few);
    int64_t left_out = 0;
    for (int32_t i = 0; i < all.tiles * HEADS; i++) {
        left_out += all.n[i] - few.n[i];
        for (int32_t j = 0; j < few.n[i]; j++)
            assert_true(has_id(&all, i / HEADS, i % HEADS, ids_of(&few, i / HEADS, i % HEADS)[j]));
    }
    assert_true(left_out > 0);
    assert_int_equal(few.overflow, 1000 + left_out);
    free_lists(&all), free_lists(&few);
}

static void overflow_counts_the_ids_left_out(void **state) {
    (void)state;
    on_every_backend(counted);
}

/* Lists of one kind differ in at least one id. */
static bool differ(const lists *a, const lists *b) {
    for (int32_t i = 0; i < a->tiles * HEADS; i++)
        for (int32_t j = 0; j < a->n[i]; j++)
            if (!has_id(b, i / HEADS, i % HEADS, ids_of(a, i / HEADS, i % HEADS)[j])) return true;
    return false;
}

static void random_lists(fl_backend *be) {
    lists l[4];
    const uint64_t seeds[] = {0, 5, 5, 6};
    for (int32_t i = 0; i < 4; i++) {
        random_state = 1;
        l[i] = make_lists(128, 1024, -3);
        l[i].seed = seeds[i];
        select_lists(be, &l[i]);
        assert_memory_equal(l[i].n, l[0].n, (size_t)(l[0].tiles * HEADS) * sizeof *l[0].n);
        assert_int_equal(l[i].overflow, l[0].overflow);
    }
    assert_true(differ(&l[0], &l[1]));
    assert_false(differ(&l[1], &l[2]));
    assert_true(differ(&l[1], &l[3]));
    /* Every block that is not forced comes up about as often as the others. */
    int32_t drawn[32] = {0}, last = l[0].tiles - 1;
    double sum = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        l[0].seed = seed;
        select_lists(be, &l[0]);
        for (int32_t id = 0; id < 64; id++) drawn[id / 2] += has_id(&l[0], last, 0, id);
    }
    for (int32_t j = 1; j < 29; j++) sum += drawn[j];
    assert_int_equal((int32_t)sum,
                     300 * (l[0].n[last * HEADS] - 8)); /* all but a sink, the window and the tile */
    for (int32_t j = 1; j < 29; j++) assert_true(fabs(drawn[j] - sum / 28) < 0.35 * sum / 28);
    for (int32_t i = 0; i < 4; i++) free_lists(&l[i]);
}

static void random_control_is_as_long_repeats_and_is_fair(void **state) {
    (void)state;
    on_every_backend(random_lists);
}

static void one_by_one(fl_backend *be) {
    for (uint64_t seed = 0; seed < 2; seed++) {
        lists whole = make_lists(128, 512, -3), part;
        whole.seed = seed;
        whole.capacity = 16;
        select_lists(be, &whole);
        part = whole;
        part.tiles = 1;
        part.overflow = 0;
        part.ids = zeros(HEADS * ID_MAX * (int64_t)sizeof *part.ids);
        part.n = zeros(HEADS * (int64_t)sizeof *part.n);
        for (int32_t t = 0; t < whole.tiles; t++) {
            part.pos = whole.pos + t * TILE;
            part.score = whole.score + (int64_t)t * HEADS * whole.n_blocks;
            select_lists(be, &part);
            assert_memory_equal(part.n, whole.n + t * HEADS, HEADS * sizeof *part.n);
            for (int32_t h = 0; h < HEADS; h++)
                assert_memory_equal(ids_of(&part, 0, h), ids_of(&whole, t, h),
                                    (size_t)part.n[h] * sizeof *part.ids);
        }
        assert_int_equal(part.overflow, whole.overflow);
        free(part.ids), free(part.n);
        free_lists(&whole);
    }
}

static void a_tiles_lists_do_not_depend_on_other_tiles(void **state) {
    (void)state;
    on_every_backend(one_by_one);
}

/* ---- scores --------------------------------------------------------------------------------------------------- */

typedef struct scores {
    int32_t tiles, pos, n_blocks;
    uint8_t *q, *kv, *k_pe; /* act */
    float *score;
} scores;

static scores make_scores(fl_backend *be, int32_t tiles, int32_t pos, int32_t n_blocks) {
    scores s = {.tiles = tiles, .pos = pos, .n_blocks = n_blocks};
    int64_t element = (int64_t)fl_dtype_bytes(be->act_dtype);
    s.q = zeros((int64_t)tiles * TILE * HEADS * (NOPE + ROPE) * element);
    s.kv = zeros((int64_t)n_blocks * HEADS * (NOPE + V) * element);
    s.k_pe = zeros((int64_t)n_blocks * ROPE * element);
    s.score = zeros((int64_t)tiles * HEADS * n_blocks * (int64_t)sizeof *s.score);
    return s;
}

static void free_scores(scores *s) {
    free(s->q), free(s->kv), free(s->k_pe), free(s->score);
}

/* Scores of `n` tiles from `first` on, into their place. */
static void score_tiles(fl_backend *be, const scores *s, int32_t first, int32_t n) {
    int64_t element = (int64_t)fl_dtype_bytes(be->act_dtype);
    fl_block_score_args a = {.rows = n * TILE,
                             .pos = s->pos + first * TILE,
                             .n_heads = HEADS,
                             .nope_dim = NOPE,
                             .rope_dim = ROPE,
                             .v_dim = V,
                             .q = s->q + (int64_t)first * TILE * HEADS * (NOPE + ROPE) * element,
                             .kv = s->kv,
                             .k_pe = s->k_pe,
                             .block_tokens = 128,
                             .n_blocks = s->n_blocks,
                             .score = s->score + (int64_t)first * HEADS * s->n_blocks};
    a.scratch = zeros(fl_block_score_scratch_bytes(&a));
    assert_int_equal(be->op->block_score(be, &a), FL_ERR_OK);
    free(a.scratch);
}

static void random_scores(fl_backend *be) {
    scores s = make_scores(be, 5, 8192, 68);
    for (int32_t i = 0; i < s.tiles * TILE * HEADS * (NOPE + ROPE); i++)
        fl_act_store(s.q, be->act_dtype, i, random_float());
    for (int32_t i = 0; i < s.n_blocks * HEADS * (NOPE + V); i++)
        fl_act_store(s.kv, be->act_dtype, i, random_float());
    for (int32_t i = 0; i < s.n_blocks * ROPE; i++) fl_act_store(s.k_pe, be->act_dtype, i, random_float());
    score_tiles(be, &s, 0, s.tiles);
    size_t bytes = (size_t)(s.tiles * HEADS * s.n_blocks) * sizeof *s.score;
    float *whole = zeros((int64_t)bytes);
    memcpy(whole, s.score, bytes);
    memset(s.score, 0, bytes);
    score_tiles(be, &s, 0, 2);
    score_tiles(be, &s, 2, 1);
    score_tiles(be, &s, 3, 2);
    assert_memory_equal(s.score, whole, bytes);
    free(whole);
    free_scores(&s);
}

static void a_tiles_scores_do_not_depend_on_other_tiles(void **state) {
    (void)state;
    on_every_backend(random_scores);
}

/* Every row of head h scores h + 3 for block 0 (2 of it from k_pe), one row alone 20 for block 1, others 0. */
static void written_down(fl_backend *be) {
    scores s = make_scores(be, 2, 128, 3);
    for (int32_t r = 0; r < s.tiles * TILE; r++)
        for (int32_t h = 0; h < HEADS; h++) {
            int64_t q = ((int64_t)r * HEADS + h) * (NOPE + ROPE);
            fl_act_store(s.q, be->act_dtype, q + 5, (float)(h + 1));
            fl_act_store(s.q, be->act_dtype, q + 6, r == TILE + 77 ? 20 : 0);
            fl_act_store(s.q, be->act_dtype, q + NOPE + 7, 4);
        }
    for (int32_t h = 0; h < HEADS; h++) {
        fl_act_store(s.kv, be->act_dtype, h * (NOPE + V) + 5, 1);
        fl_act_store(s.kv, be->act_dtype, (HEADS + h) * (NOPE + V) + 6, 1);
        fl_act_store(s.kv, be->act_dtype, h * (NOPE + V) + NOPE, 99); /* a value: not read */
    }
    fl_act_store(s.k_pe, be->act_dtype, 7, 0.5f);
    score_tiles(be, &s, 0, 2);
    for (int32_t h = 0; h < HEADS; h++) {
        const float *first = s.score + h * 3, *second = s.score + (HEADS + h) * 3;
        const float off = be->w8a8 ? (float)(h + 3) / 16 : 1e-3f; /* codes keep four bits */
        assert_float_equal(first[0], h + 3 + 7, off);             /* 128 rows are 7 more */
        assert_true(isinf(first[1]) && first[1] < 0 && isinf(first[2]) && first[2] < 0);
        assert_float_equal(second[0], h + 3 + 7, off);
        assert_float_equal(second[1], log2(127 + 0x1p20), 1e-3);
        assert_true(isinf(second[2]) && second[2] < 0);
    }
    free_scores(&s);
}

static void scores_by_hand(void **state) {
    (void)state;
    on_every_backend(written_down);
}

/* ---- means ---------------------------------------------------------------------------------------------------- */

/* Token t of block b stores t + 32 b in its latent, and the negative in k_pe: the means are 63.5 + 32 b. */
static void mean_of_steps(fl_backend *be) {
    enum { LATENT = 16, PAGES = 6 };
    const int32_t pages[PAGES] = {5, 0, 3, 1, 4, 2};
    fl_kv_layer kv = {.latent_dim = LATENT, .rope_dim = 4, .format = FL_KV_BF16};
    kv.page_stride_bytes = fl_kv_piece_bytes(&kv);
    kv.base = zeros(PAGES * kv.page_stride_bytes);
    for (int32_t t = 0; t < PAGES * PAGE; t++)
        for (int32_t j = 0; j < LATENT + 4; j++) {
            int32_t at = j < LATENT ? t % PAGE * LATENT + j : PAGE * LATENT + t % PAGE * 4 + j - LATENT;
            int32_t value = t % 128 + t / 128 * 32;
            fl_act_store(fl_kv_piece(&kv, pages[t / PAGE]), FL_DTYPE_BF16, at,
                         (float)(j < LATENT ? value : -value));
        }
    uint8_t *latent = zeros(2 * LATENT * 4), *k_pe = zeros(2 * 4 * 4);
    fl_block_mean_args a = {.kv = kv, .pages = pages, .block_tokens = 128, .block = 1, .n_blocks = 2};
    a.latent = latent;
    a.k_pe = k_pe;
    assert_int_equal(be->op->block_mean(be, &a), FL_ERR_OK);
    for (int32_t b = 0; b < 2; b++) {
        for (int32_t j = 0; j < LATENT; j++)
            assert_true(fl_act_load(latent, be->act_dtype, b * LATENT + j) == 95.5f + (float)b * 32);
        for (int32_t j = 0; j < 4; j++)
            assert_true(fl_act_load(k_pe, be->act_dtype, b * 4 + j) == -95.5f - (float)b * 32);
    }
    free(kv.base), free(latent), free(k_pe);
}

static void means_by_hand(void **state) {
    (void)state;
    on_every_backend(mean_of_steps);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_threshold_all_blocks_up_to_the_tile_are_listed),
        cmocka_unit_test(lists_ascend_and_hold_what_is_forced),
        cmocka_unit_test(overflow_counts_the_ids_left_out),
        cmocka_unit_test(random_control_is_as_long_repeats_and_is_fair),
        cmocka_unit_test(a_tiles_lists_do_not_depend_on_other_tiles),
        cmocka_unit_test(a_tiles_scores_do_not_depend_on_other_tiles),
        cmocka_unit_test(scores_by_hand),
        cmocka_unit_test(means_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
