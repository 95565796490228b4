/* Random schemas against a plain validator. Random walks under the masks end in JSON that it accepts; whatever it
 * accepts of changed answers is accepted by the automaton, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/json_validator.h"
#include "text/schema_mask.h"
#include "text/schema_random.h"

enum { SCHEMAS = 250, WALKS = 3, CHANGES = 12, BYTES_MAX = 2000, WALK_TOKENS = 40, SEED = 20260 };

typedef struct bench {
    fl_tokenizer *tokenizer;
    fl_schema_masks *masks;
    int32_t n_vocab, bracket, tilde;
    dice d;
    int n_schemas, n_compiled, n_ended, n_changed, n_valid;
} bench;

/* An answer being made. */
typedef struct walk {
    fl_schema *schema;
    fl_schema_state state;
    char text[BYTES_MAX + FL_TOKEN_BYTES_MAX];
    size_t n;
} walk;

/* What brings an answer to its end: tokens of one byte, best first; anything else comes last. Brackets may be
 * text. */
static int rank_of(const char *bytes, size_t n, bool in_text) {
    static const char ORDER[] = "}]\"bq,:-xyacnft0123456789";
    const char *at = n == 1 && bytes[0] ? strchr(ORDER, bytes[0]) : NULL;
    if (at && *at == '"' && in_text) return -1;
    return at ? (int)(at - ORDER) : 1000 + (n != 1) * 1000;
}

static bool may_come(const uint64_t *mask, int32_t id) {
    return mask[id / 64] >> (id % 64) & 1;
}

/* A random token of the mask, or, towards the end, the one that closes most. */
static int32_t choose(bench *b, const uint64_t *mask, bool closing) {
    int32_t n = 0, chosen = -1, best = 10000;
    bool in_text = may_come(mask, b->bracket) && may_come(mask, b->tilde);
    for (int32_t id = 0; id < b->n_vocab; id++) {
        if (!may_come(mask, id)) continue;
        size_t n_bytes;
        const char *bytes = fl_tokenizer_token_bytes(b->tokenizer, id, &n_bytes);
        int rank = rank_of(bytes, n_bytes, in_text);
        if (closing ? rank < best || (rank == best && roll(&b->d, 8) == 0)
                    : roll(&b->d, (uint32_t)++n) == 0) {
            chosen = id;
            best = rank;
        }
    }
    return chosen;
}

/* True: the answer came to its end. */
static bool take_walk(bench *b, walk *w) {
    fl_schema_start(w->schema, &w->state);
    w->n = 0;
    for (int i = 0; w->n < BYTES_MAX && !fl_schema_is_final(w->schema, &w->state); i++) {
        bool closing = i >= WALK_TOKENS || roll(&b->d, 4) == 0;
        if (i >= WALK_TOKENS && fl_schema_is_complete(w->schema, &w->state)) break;
        const uint64_t *mask = fl_schema_masks_get(b->masks, w->schema, &w->state);
        int32_t id = choose(b, mask, closing);
        if (id < 0 && fl_schema_is_complete(w->schema, &w->state))
            break; /* a number that has all its digits */
        if (id < 0) fail_msg("no token may come behind %.*s", (int)w->n, w->text);
        size_t n_bytes;
        const char *bytes = fl_tokenizer_token_bytes(b->tokenizer, id, &n_bytes);
        memcpy(w->text + w->n, bytes, n_bytes);
        w->n += n_bytes;
        if (!fl_schema_feed(w->schema, &w->state, bytes, n_bytes))
            fail_msg("token %d of the mask is refused", id);
    }
    return fl_schema_is_complete(w->schema, &w->state);
}

static bool takes(const fl_schema *schema, const char *text) {
    fl_schema_state state;
    fl_schema_start(schema, &state);
    return fl_schema_feed(schema, &state, text, strlen(text)) && fl_schema_is_complete(schema, &state);
}

/* A changed answer: validator and automaton must agree. */
static void compare(bench *b, const json_t *root, const fl_schema *schema, const json_t *value) {
    if (!value_is_canonical(value, 0)) return;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    bool valid = json_is_valid(root, root, value), taken = takes(schema, text);
    b->n_changed++;
    b->n_valid += valid;
    if (valid != taken) {
        char *written = json_dumps(root, JSON_COMPACT);
        fprintf(stderr, "%s\n%s\n", written, text);
        fail_msg("valid %d, taken %d", valid, taken);
    }
    free(text);
}

static void check_walk(bench *b, const json_t *root, walk *w) {
    if (!take_walk(b, w)) return;
    json_error_t error;
    json_t *value = json_loadb(w->text, w->n, JSON_DECODE_ANY, &error);
    b->n_ended++;
    if (!value || !json_is_valid(root, root, value)) {
        char *written = json_dumps(root, JSON_COMPACT);
        fprintf(stderr, "%s\n%.*s\n", written, (int)w->n, w->text);
        fail_msg("%s", value ? "not valid" : error.text);
    }
    compare(b, root, w->schema, value);
    for (int i = 0; i < CHANGES; i++) {
        json_t *changed = value_mutated(&b->d, value);
        compare(b, root, w->schema, changed);
        if (roll(&b->d, 2)) { /* changes add up */
            json_t *swap = value;
            value = changed;
            changed = swap;
        }
        json_decref(changed);
    }
    json_decref(value);
}

static void walks_end_in_valid_json(void **state) {
    static walk w;
    bench *b = *state;
    for (int i = 0; i < b->n_schemas; i++) {
        b->d.state = SEED + (uint64_t)i;
        json_t *root = schema_random(&b->d);
        char *text = json_dumps(root, JSON_COMPACT);
        fl_err err = fl_schema_compile(text, &w.schema);
        /* without any value, or two patterns meet */
        if (err != FL_ERR_OK && !strstr(fl_err_detail(), "no value") &&
            !strstr(fl_err_detail(), "back to itself"))
            fail_msg("schema %d: %s: %s", i, text, fl_err_detail());
        for (int k = 0; err == FL_ERR_OK && k < WALKS; k++) check_walk(b, root, &w);
        b->n_compiled += err == FL_ERR_OK;
        fl_schema_close(w.schema);
        w.schema = NULL;
        free(text);
        json_decref(root);
    }
    print_message(
        "seeds from %d: %d schemas of %d have values, %d walks of %d ended, %d changed values, %d valid\n",
        SEED, b->n_compiled, b->n_schemas, b->n_ended, WALKS * b->n_compiled, b->n_changed, b->n_valid);
    assert_true(b->n_compiled > b->n_schemas * 8 / 10);
    assert_true(b->n_ended > WALKS * b->n_compiled * 95 / 100);
    assert_true(b->n_valid > b->n_changed / 10 && b->n_valid < b->n_changed * 9 / 10);
}

static int n_schemas = SCHEMAS;

static int open_bench(void **state) {
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->n_schemas = n_schemas;
    if (fl_tokenizer_open("build/models/spark-66m", &b->tokenizer) != FL_ERR_OK)
        fail_msg("%s", fl_err_detail());
    b->n_vocab = fl_tokenizer_n_vocab(b->tokenizer);
    assert_int_equal(fl_tokenizer_find(b->tokenizer, "}", &b->bracket), FL_ERR_OK);
    assert_int_equal(fl_tokenizer_find(b->tokenizer, "~", &b->tilde), FL_ERR_OK);
    const fl_schema_vocabulary v = {.tokenizer = b->tokenizer, .n_vocab = b->n_vocab};
    assert_int_equal(fl_schema_masks_open(&v, &b->masks), FL_ERR_OK);
    *state = b;
    return 0;
}

static int close_bench(void **state) {
    bench *b = *state;
    fl_schema_masks_close(b->masks);
    fl_tokenizer_close(b->tokenizer);
    free(b);
    return 0;
}

/* An argument is how many schemas there are, for longer runs. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_end_in_valid_json),
    };
    if (argc > 1) n_schemas = (int)strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
