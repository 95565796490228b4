#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/prefix.h"

enum { PAGES = 6, PAGE = FL_KV_PAGE_TOKENS };

typedef struct fixture {
    fl_kv_pool *pool;
    fl_prefix *prefix;
    void *memory;
    int32_t tokens[PAGES * PAGE];
} fixture;

static void open_costly(fixture *f, const fl_prefix_options *options) {
    const fl_kv_shape shape = {.n_layers = 2, .latent_dim = 4, .rope_dim = 2, .format = FL_KV_BF16};
    assert_int_equal(fl_kv_page_bytes(&shape), 2 * PAGE * 6 * 2);
    f->memory = calloc(PAGES, (size_t)fl_kv_page_bytes(&shape));
    assert_int_equal(fl_kv_pool_open(&shape, PAGES, f->memory, &f->pool), FL_ERR_OK);
    assert_int_equal(fl_prefix_open(f->pool, options, &f->prefix), FL_ERR_OK);
    for (int32_t i = 0; i < PAGES * PAGE; i++) f->tokens[i] = i * 31 % 1000;
    fl_kv_layer second = fl_kv_pool_layer(f->pool, 1);
    assert_ptr_equal(fl_kv_piece(&second, 3),
                     (uint8_t *)f->memory + 3 * fl_kv_page_bytes(&shape) + PAGE * 6 * 2);
}

static void open_fixture(fixture *f) {
    const fl_prefix_options alike = {.secret = NULL};
    open_costly(f, &alike);
}

static void close_fixture(fixture *f) {
    fl_prefix_close(f->prefix);
    assert_int_equal(fl_kv_pool_free_pages(f->pool), PAGES);
    fl_kv_pool_close(f->pool);
    free(f->memory);
}

/* A timeline of n pages, computed, entered, and let go by its session. */
static void add_timeline(fixture *f, int32_t n, int32_t *pages) {
    fl_prefix_key key = {{0}};
    for (int32_t i = 0; i < n; i++) {
        pages[i] = fl_kv_pool_take(f->pool);
        assert_true(pages[i] >= 0);
        fl_prefix_add(f->prefix, &key, f->tokens, i, pages[i]);
    }
    fl_prefix_touch(f->prefix, pages, n);
    for (int32_t i = 0; i < n; i++) fl_kv_pool_drop(f->pool, pages[i]);
}

static int32_t find(fixture *f, const int32_t *tokens, int32_t n_pages, int32_t *found, fl_prefix_key *key) {
    const fl_prefix_query query = {.tokens = tokens, .n_pages = n_pages};
    return fl_prefix_find(f->prefix, &query, found, key);
}

/* Policies that compute rows in tiles of two pages take pairs only; the odd page's reference is given back. Of a pair
 * in which a token differs neither is the same page: the first may hang on the second's tokens. */
static void pages_of_a_unit_belong_together(void **state) {
    (void)state;
    const fl_prefix_options pairs = {.unit_pages = 2};
    fixture f;
    int32_t pages[PAGES], others[PAGES], found[PAGES];
    fl_prefix_key key, at_two;
    open_costly(&f, &pairs);
    add_timeline(&f, 3, pages);
    assert_int_equal(find(&f, f.tokens, 3, found, &at_two), 2);
    for (int32_t i = 0; i < 2; i++) fl_kv_pool_drop(f.pool, found[i]);
    assert_int_equal(find(&f, f.tokens, 4, found, &key), 2);
    assert_memory_equal(&key, &at_two, sizeof key);
    assert_int_equal(fl_kv_pool_references(f.pool, pages[1]), 2);
    assert_int_equal(fl_kv_pool_references(f.pool, pages[2]), 1);
    for (int32_t i = 0; i < 2; i++) fl_kv_pool_drop(f.pool, found[i]);
    fl_prefix_evict(f.prefix, 4); /* the odd one */
    f.tokens[PAGE]++;
    add_timeline(&f, 2, others);
    assert_int_equal(find(&f, f.tokens, 2, found, &key), 2);
    assert_memory_equal(found, others, 2 * sizeof *found);
    for (int32_t i = 0; i < 2; i++) fl_kv_pool_drop(f.pool, found[i]);
    close_fixture(&f);
}

static void finds_the_longest_equal_prefix(void **state) {
    (void)state;
    fixture f;
    int32_t pages[PAGES], found[PAGES];
    fl_prefix_key key;
    open_fixture(&f);
    add_timeline(&f, 4, pages);
    assert_int_equal(fl_kv_pool_free_pages(f.pool), PAGES - 4);
    assert_int_equal(find(&f, f.tokens, 6, found, &key), 4);
    assert_memory_equal(found, pages, 4 * sizeof *found);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(fl_kv_pool_references(f.pool, found[i]), 2);
        fl_kv_pool_drop(f.pool, found[i]);
    }
    f.tokens[2 * PAGE + 63]++; /* the last token of the third page */
    assert_int_equal(find(&f, f.tokens, 4, found, &key), 2);
    for (int32_t i = 0; i < 2; i++) fl_kv_pool_drop(f.pool, found[i]);
    assert_int_equal(find(&f, f.tokens + PAGE, 1, found, &key), 0); /* same page, other place */
    close_fixture(&f);
}

static void an_equal_page_is_entered_once(void **state) {
    (void)state;
    fixture f;
    int32_t first[PAGES], second[PAGES];
    open_fixture(&f);
    add_timeline(&f, 2, first);
    add_timeline(&f, 2, second); /* the copies are free again at once */
    assert_int_equal(fl_kv_pool_free_pages(f.pool), PAGES - 2);
    assert_int_equal(fl_prefix_evictable(f.prefix), 2);
    close_fixture(&f);
}

static void eviction_takes_old_ends_first_and_spares_what_is_held(void **state) {
    (void)state;
    fixture f;
    int32_t old[PAGES], found[PAGES];
    fl_prefix_key key;
    open_fixture(&f);
    add_timeline(&f, 3, old);
    f.tokens[0]++;
    add_timeline(&f, 3, found); /* newer: another timeline */
    f.tokens[0]--;
    assert_int_equal(fl_kv_pool_free_pages(f.pool), 0);
    fl_prefix_evict(f.prefix, 2);
    assert_int_equal(fl_kv_pool_free_pages(f.pool), 2);
    assert_int_equal(find(&f, f.tokens, 3, found, &key), 1); /* its beginning is still there */
    fl_prefix_evict(f.prefix, PAGES);
    assert_int_equal(fl_kv_pool_free_pages(f.pool), PAGES - 1); /* the held page stays */
    assert_int_equal(fl_kv_pool_references(f.pool, found[0]), 2);
    fl_kv_pool_drop(f.pool, found[0]);
    close_fixture(&f);
}

/* The newer of two timelines is short and cheap, the older long: its end costs 1 + 3 * 10 to compute again, the short
 * one's 11. Cost outweighs one use; what was evicted last counts as age, so that it does not for ever. */
static void what_costs_more_stays_longer(void **state) {
    (void)state;
    fixture f;
    int32_t long_one[PAGES], short_one[PAGES], found[PAGES];
    fl_prefix_key key;
    const fl_prefix_options costs = {.page_cost = 1, .index_cost = 10};
    open_costly(&f, &costs);
    add_timeline(&f, 4, long_one);
    f.tokens[0]++;
    add_timeline(&f, 2, short_one);
    fl_prefix_evict(f.prefix, 1); /* the short one's end, worth 11 */
    assert_int_equal(find(&f, f.tokens, 2, found, &key), 1);
    fl_kv_pool_drop(f.pool, found[0]);
    f.tokens[0]--;
    assert_int_equal(find(&f, f.tokens, 4, found, &key), 4);
    for (int32_t i = 0; i < 4; i++) fl_kv_pool_drop(f.pool, found[i]);
    for (int32_t i = 0; i < 6; i++) { /* the short one comes again and again: 11, 22, 33, .. */
        fl_prefix_evict(f.prefix, 2);
        f.tokens[0]++;
        add_timeline(&f, 2, short_one);
        f.tokens[0]--;
    }
    int32_t n = find(&f, f.tokens, 4, found, &key);
    assert_true(n < 4); /* at last the long one's end went */
    for (int32_t i = 0; i < n; i++) fl_kv_pool_drop(f.pool, found[i]);
    close_fixture(&f);
}

static void salts_part_tenants(void **state) {
    (void)state;
    fixture f;
    int32_t page, found[PAGES];
    fl_prefix_key key, root;
    open_fixture(&f);
    root = key = fl_prefix_root(f.prefix, "tenant a");
    page = fl_kv_pool_take(f.pool);
    fl_prefix_add(f.prefix, &key, f.tokens, 0, page);
    fl_kv_pool_drop(f.pool, page);
    fl_prefix_query query = {.tokens = f.tokens, .n_pages = 1};
    assert_int_equal(fl_prefix_find(f.prefix, &query, found, &key), 0);
    query.root = fl_prefix_root(f.prefix, "tenant b");
    assert_int_equal(fl_prefix_find(f.prefix, &query, found, &key), 0);
    assert_memory_equal(&key, &query.root, sizeof key);
    query.root = fl_prefix_root(f.prefix, "tenant a");
    assert_memory_equal(&root, &query.root, sizeof root);
    assert_int_equal(fl_prefix_find(f.prefix, &query, found, &key), 1);
    fl_kv_pool_drop(f.pool, found[0]);
    const fl_prefix_key none = fl_prefix_root(f.prefix, "");
    for (size_t i = 0; i < sizeof none.bytes; i++) assert_int_equal(none.bytes[i], 0);
    close_fixture(&f);
}

static void pages_wait_to_be_stored_in_order(void **state) {
    (void)state;
    fixture f;
    int32_t pages[PAGES];
    fl_prefix_entry entry;
    fl_prefix_key key;
    open_fixture(&f);
    add_timeline(&f, 3, pages);
    assert_int_equal(fl_prefix_unstored(f.prefix, &entry), pages[0]);
    assert_int_equal(entry.index, 0);
    assert_memory_equal(entry.tokens, f.tokens, sizeof entry.tokens);
    assert_true(fl_prefix_key_of(f.prefix, &entry.parent, f.tokens, 0, &key));
    assert_memory_equal(&key, &entry.key, sizeof key);
    assert_int_equal(fl_prefix_page_of(f.prefix, &key), pages[0]);
    fl_prefix_set_stored(f.prefix, pages[1]); /* out of the middle */
    fl_prefix_set_stored(f.prefix, pages[0]);
    assert_int_equal(fl_prefix_unstored(f.prefix, &entry), pages[2]);
    assert_int_equal(entry.index, 2);
    fl_prefix_evict(f.prefix, PAGES - 2); /* it waits no more when it is gone */
    assert_int_equal(fl_prefix_unstored(f.prefix, &entry), -1);
    add_timeline(&f, 3, pages);
    assert_int_equal(fl_prefix_unstored(f.prefix, &entry), fl_prefix_page_of(f.prefix, &entry.key));
    close_fixture(&f);
}

/* What a lower tier has goes before what it has not, whatever it is worth, and only what no page follows that it has
 * not can go without losing one. */
static void stored_pages_go_first(void **state) {
    (void)state;
    fixture f;
    int32_t old[PAGES], pages[PAGES], found[PAGES];
    fl_prefix_key key;
    open_fixture(&f);
    add_timeline(&f, 2, old);
    assert_int_equal(fl_prefix_spare(f.prefix), 0);
    f.tokens[0]++; /* another timeline */
    add_timeline(&f, 2, pages);
    fl_prefix_set_stored(f.prefix, pages[0]);
    assert_int_equal(fl_prefix_spare(f.prefix), 0); /* its follower is not stored */
    fl_prefix_set_stored(f.prefix, pages[1]);
    assert_int_equal(fl_prefix_spare(f.prefix), 2);
    fl_prefix_evict(f.prefix, PAGES - 2);
    assert_int_equal(fl_prefix_n_lost(f.prefix), 0);
    assert_int_equal(find(&f, f.tokens, 2, found, &key), 0);
    f.tokens[0]--;
    assert_int_equal(find(&f, f.tokens, 2, found, &key), 2); /* older, and still there */
    assert_int_equal(fl_prefix_spare(f.prefix), 0);
    for (int i = 0; i < 2; i++) fl_kv_pool_drop(f.pool, found[i]);
    fl_prefix_evict(f.prefix, PAGES);
    assert_int_equal(fl_prefix_n_lost(f.prefix), 2);
    close_fixture(&f);
}

static void pool_runs_out_cleanly(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    int32_t pages[PAGES];
    for (int32_t i = 0; i < PAGES; i++) pages[i] = fl_kv_pool_take(f.pool);
    assert_int_equal(fl_kv_pool_take(f.pool), -1);
    fl_kv_pool_hold(f.pool, pages[0]);
    fl_kv_pool_drop(f.pool, pages[0]);
    assert_int_equal(fl_kv_pool_free_pages(f.pool), 0);
    for (int32_t i = 0; i < PAGES; i++) fl_kv_pool_drop(f.pool, pages[i]);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_longest_equal_prefix),
        cmocka_unit_test(pages_of_a_unit_belong_together),
        cmocka_unit_test(an_equal_page_is_entered_once),
        cmocka_unit_test(eviction_takes_old_ends_first_and_spares_what_is_held),
        cmocka_unit_test(what_costs_more_stays_longer),
        cmocka_unit_test(salts_part_tenants),
        cmocka_unit_test(pages_wait_to_be_stored_in_order),
        cmocka_unit_test(stored_pages_go_first),
        cmocka_unit_test(pool_runs_out_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
