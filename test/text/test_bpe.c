/* The ways to merge agree: tokens known to come out whole, the word cache, the short and the long way, all against the
 * definition done step by step. On small tables made at random, where every odd case comes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/bpe.h"

enum { N_BYTES = 256, N_MERGES_MAX = 40, TOKEN_MAX = 64, TEXT_MAX = 160 };

typedef struct merge {
    int32_t left, right, id;
} merge;

/* Tokens over a few letters: ids 0 .. 255 are the bytes, then what the merges make. */
typedef struct table {
    fl_bpe bpe;
    merge merges[N_MERGES_MAX];
    int n_merges, n_ids;
    char text[N_BYTES + N_MERGES_MAX][TOKEN_MAX];
    size_t n_text[N_BYTES + N_MERGES_MAX];
} table;

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int find(const table *t, const char *text, size_t n) {
    for (int id = 0; id < t->n_ids; id++)
        if (t->n_text[id] == n && memcmp(t->text[id], text, n) == 0) return id;
    return -1;
}

/* Random merges of what is there. `ordered`: in the order they were thought of, each token made once; else shuffled and
 * with tokens made in two ways. */
static void table_make(table *t, uint64_t *random, bool ordered) {
    memset(t, 0, sizeof *t);
    int32_t byte_ids[N_BYTES];
    for (int i = 0; i < N_BYTES; i++) {
        byte_ids[i] = i;
        t->text[i][0] = (char)i;
        t->n_text[i] = 1;
    }
    t->n_ids = N_BYTES;
    int n_letters = 1 + (int)(next_random(random) % 3);
    for (int tries = 0; tries < 200 && t->n_merges < N_MERGES_MAX; tries++) {
        int32_t sides[2];
        for (int i = 0; i < 2; i++) {
            int pick = (int)(next_random(random) % (uint64_t)(n_letters + t->n_ids - N_BYTES));
            sides[i] = pick < n_letters ? 'a' + pick : N_BYTES + pick - n_letters;
        }
        size_t n0 = t->n_text[sides[0]], n1 = t->n_text[sides[1]];
        if (n0 + n1 > 20) continue;
        char *text = t->text[t->n_ids];
        memcpy(text, t->text[sides[0]], n0);
        memcpy(text + n0, t->text[sides[1]], n1);
        int id = find(t, text, n0 + n1);
        bool twice = false;
        for (int i = 0; i < t->n_merges; i++)
            twice |= t->merges[i].left == sides[0] && t->merges[i].right == sides[1];
        if (twice || (id >= 0 && ordered)) continue;
        if (id < 0) {
            id = t->n_ids;
            t->n_text[t->n_ids++] = n0 + n1;
        }
        t->merges[t->n_merges++] = (merge){sides[0], sides[1], id};
    }
    for (int i = t->n_merges - 1; i > 0 && !ordered; i--) {
        int j = (int)(next_random(random) % (uint64_t)(i + 1));
        merge kept = t->merges[i];
        t->merges[i] = t->merges[j];
        t->merges[j] = kept;
    }
    assert_int_equal(fl_bpe_init(&t->bpe, byte_ids, (uint32_t)t->n_merges), FL_ERR_OK);
    for (int i = 0; i < t->n_merges; i++)
        assert_int_equal(fl_bpe_add(&t->bpe, t->merges[i].left, t->merges[i].right, t->merges[i].id),
                         FL_ERR_OK);
    assert_int_equal(fl_bpe_finish(&t->bpe, (size_t)t->n_ids), FL_ERR_OK);
}

/* The definition: the lowest rank that applies anywhere, at its leftmost place, until none does. */
static size_t merge_by_definition(const table *t, const char *text, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++) ids[i] = (uint8_t)text[i];
    for (int rank = 0; rank < t->n_merges; rank++) {
        const merge *m = &t->merges[rank];
        for (size_t i = 0; i + 1 < n; i++) {
            if (ids[i] != m->left || ids[i + 1] != m->right) continue;
            ids[i] = m->id;
            memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
            n--;
            rank = -1; /* what it made may have a lower rank */
            break;
        }
    }
    return n;
}

static void check_text(const table *t, fl_bpe_scratch *s, const char *text, size_t n) {
    int32_t got[TEXT_MAX], want[TEXT_MAX];
    size_t n_got, n_want = merge_by_definition(t, text, n, want);
    assert_int_equal(fl_bpe_encode(&t->bpe, s, (fl_bpe_piece){(const uint8_t *)text, n, n}, got, &n_got),
                     FL_ERR_OK);
    assert_int_equal(n_got, n_want);
    assert_memory_equal(got, want, n_want * sizeof *want);
}

static void check_table(table *t, uint64_t *random, bool ordered) {
    bool *whole;
    assert_int_equal(fl_bpe_whole(&t->bpe, (size_t)t->n_ids, &whole), FL_ERR_OK);
    for (int id = 0; id < t->n_ids; id++) {
        int32_t ids[TOKEN_MAX];
        bool comes_out = merge_by_definition(t, t->text[id], t->n_text[id], ids) == 1;
        if (ordered || whole[id]) assert_int_equal(whole[id], comes_out);
        if (whole[id]) fl_bpe_know(&t->bpe, (const uint8_t *)t->text[id], t->n_text[id], id);
    }
    free(whole);
    fl_bpe_scratch s;
    assert_int_equal(fl_bpe_scratch_init(&s, 1000), FL_ERR_OK);
    for (int round = 0; round < 60; round++) {
        char text[TEXT_MAX];
        size_t n = 1 + next_random(random) % (round % 3 == 0 ? TEXT_MAX : 16);
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + next_random(random) % 3);
        check_text(t, &s, text, n);
        check_text(t, &s, text, n); /* now from the cache */
    }
    fl_bpe_scratch_close(&s);
    fl_bpe_close(&t->bpe);
}

static void all_ways_agree_on_ordered_merges(void **state) {
    (void)state;
    uint64_t random = 0xb9e0001;
    static table t;
    for (int i = 0; i < 400; i++) {
        table_make(&t, &random, true);
        check_table(&t, &random, true);
    }
}

static void all_ways_agree_on_shuffled_merges(void **state) {
    (void)state;
    uint64_t random = 0xb9e0002;
    static table t;
    for (int i = 0; i < 400; i++) {
        table_make(&t, &random, false);
        check_table(&t, &random, false);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_agree_on_ordered_merges),
        cmocka_unit_test(all_ways_agree_on_shuffled_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
