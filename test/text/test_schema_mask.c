/* Masks against brute force: each token's bytes are given to the automaton. On spark-66m's vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/schema_mask.h"
#include "text/schema_random.h"
#include "tools/tokenpack.h"

enum { VOCAB_MORE = 37, SCHEMAS = 40, TOKENS = 12, SEED = 7 };

typedef struct bench {
    fl_tokenizer *tokenizer;
    fl_schema_masks *masks;
    int32_t n_tokens, n_vocab, end;
} bench;

static bool may_come(const uint64_t *mask, int32_t id) {
    return mask[id / 64] >> (id % 64) & 1;
}

/* How many tokens may come. */
static int32_t compare(bench *b, const fl_schema *schema, const fl_schema_state *state) {
    const uint64_t *mask = fl_schema_masks_get(b->masks, schema, state);
    int32_t n = 0;
    for (int32_t id = 0; id < b->n_vocab; id++) {
        size_t n_bytes;
        const char *bytes = fl_tokenizer_token_bytes(b->tokenizer, id, &n_bytes);
        fl_schema_state copy = *state;
        bool allowed = bytes && !fl_tokenizer_is_added(b->tokenizer, id) &&
                       fl_schema_feed(schema, &copy, bytes, n_bytes);
        if (id == b->end) allowed = fl_schema_is_complete(schema, state);
        if (allowed != may_come(mask, id)) fail_msg("token %d: allowed %d", id, allowed);
        n += allowed;
    }
    return n;
}

static void masks_equal_brute_force(void **state) {
    bench *b = *state;
    dice d = {.state = SEED};
    for (int i = 0; i < SCHEMAS; i++) {
        json_t *root = schema_random(&d);
        char *text = json_dumps(root, JSON_COMPACT);
        fl_schema *schema = NULL;
        fl_schema_state at;
        if (fl_schema_compile(text, &schema) == FL_ERR_OK) fl_schema_start(schema, &at);
        for (int k = 0; schema && k < TOKENS && !fl_schema_is_final(schema, &at); k++) {
            int32_t n = compare(b, schema, &at), chosen = n > 0 ? (int32_t)roll(&d, (uint32_t)n) : -1,
                    id = -1;
            const uint64_t *mask = fl_schema_masks_get(b->masks, schema, &at);
            while (chosen >= 0) chosen -= may_come(mask, ++id);
            size_t n_bytes;
            const char *bytes = fl_tokenizer_token_bytes(b->tokenizer, id, &n_bytes);
            if (n == 0 || id == b->end) break;
            assert_true(fl_schema_feed(schema, &at, bytes, n_bytes));
        }
        fl_schema_close(schema);
        free(text);
        json_decref(root);
    }
}

static fl_schema *compiled(const char *text) {
    fl_schema *schema = NULL;
    if (fl_schema_compile(text, &schema) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    return schema;
}

static void start_with(const fl_schema *schema, const char *text, fl_schema_state *out) {
    fl_schema_start(schema, out);
    assert_true(fl_schema_feed(schema, out, text, strlen(text)));
}

/* Inside strings the text tokens come from a list made beforehand; near the longest length from their sizes. */
static void strings_of_a_length(void **state) {
    bench *b = *state;
    fl_schema *schema = compiled("{\"type\":\"string\",\"maxLength\":30}");
    fl_schema_state at;
    char text[40] = "\"";
    int32_t last = INT32_MAX;
    for (int n = 0; n <= 30; n++) {
        start_with(schema, text, &at);
        int32_t count = compare(b, schema, &at);
        assert_true(count <= last);
        last = count;
        strcat(text, "x");
    }
    fl_schema_close(schema);
    schema = compiled("{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"enum\":[\"a longer text\"]},"
                      "{\"type\":\"string\",\"pattern\":\"^[a-z ]+$\"}]}");
    start_with(schema, "\"a ", &at);
    compare(b, schema, &at);
    fl_schema_close(schema);
}

/* The end token comes where the value is whole, others never inside. */
static void end_and_control_tokens(void **state) {
    bench *b = *state;
    fl_schema *schema = compiled("{\"type\":\"integer\"}");
    fl_schema_state at;
    start_with(schema, "-", &at);
    assert_false(may_come(fl_schema_masks_get(b->masks, schema, &at), b->end));
    start_with(schema, "-4", &at);
    assert_true(may_come(fl_schema_masks_get(b->masks, schema, &at), b->end));
    fl_schema_close(schema);
    schema = compiled("{\"type\":\"string\"}");
    start_with(schema, "\"<", &at);
    const uint64_t *mask = fl_schema_masks_get(b->masks, schema, &at);
    int32_t n_added = 0;
    for (int32_t id = 0; id < b->n_vocab; id++) {
        bool known = id < b->n_tokens && !fl_tokenizer_is_added(b->tokenizer, id);
        n_added += id < b->n_tokens && !known;
        if (!known) assert_false(may_come(mask, id));
    }
    assert_true(n_added > 2);
    fl_schema_close(schema);
}

static void open_masks(bench *b) {
    b->n_tokens = fl_tokenizer_n_vocab(b->tokenizer);
    b->n_vocab = b->n_tokens + VOCAB_MORE; /* a model may have more rows */
    b->end = 1;
    const fl_schema_vocabulary v = {
        .tokenizer = b->tokenizer, .n_vocab = b->n_vocab, .ends = &b->end, .n_ends = 1};
    assert_int_equal(fl_schema_masks_open(&v, &b->masks), FL_ERR_OK);
}

static void open_deepseek(bench *b) {
    char *packed, *json;
    size_t packed_bytes, json_bytes;
    assert_int_equal(
        fl_file_read("test/data", "deepseek-v3.tokenpack", (size_t)1 << 24, &packed, &packed_bytes),
        FL_ERR_OK);
    assert_int_equal(fl_tokenpack_decode(packed, packed_bytes, &json, &json_bytes), FL_ERR_OK);
    assert_int_equal(fl_tokenizer_open_memory(json, json_bytes, &b->tokenizer), FL_ERR_OK);
    free(packed);
    free(json);
    open_masks(b);
}

/* An enum of tokens, as many as a schema has room for. */
static char *enum_of_tokens(const bench *b) {
    json_t *root = json_object(), *values = json_array();
    size_t room = FL_SCHEMA_BYTES_MAX - 1000;
    for (int32_t id = 1000; id < b->n_tokens; id++) {
        size_t n;
        const char *bytes = fl_tokenizer_token_bytes(b->tokenizer, id, &n);
        json_t *value = bytes && n >= 4 ? json_stringn(bytes, n) : NULL; /* NULL: not UTF-8 */
        if (!value) continue;
        if (room < 2 * n + 3) {
            json_decref(value);
            break;
        }
        room -= 2 * n + 3;
        json_array_append_new(values, value);
    }
    json_object_set_new(root, "enum", values);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

/* A walk with more states than there is room for, in DeepSeek-V3's vocabulary. */
static void more_states_than_room(void **state) {
    (void)state;
    bench b = {0};
    fl_schema_state at;
    open_deepseek(&b);
    char *text = enum_of_tokens(&b);
    fl_schema *schema = compiled(text);
    start_with(schema, "\"", &at);
    print_message("%d tokens may come, in %zu bytes of enum\n", compare(&b, schema, &at), strlen(text));
    fl_schema_close(schema);
    fl_schema_masks_close(b.masks);
    fl_tokenizer_close(b.tokenizer);
    free(text);
}

static int open_bench(void **state) {
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    if (fl_tokenizer_open("build/models/spark-66m", &b->tokenizer) != FL_ERR_OK)
        fail_msg("%s", fl_err_detail());
    open_masks(b);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_equal_brute_force),
        cmocka_unit_test(strings_of_a_length),
        cmocka_unit_test(end_and_control_tokens),
        cmocka_unit_test(more_states_than_room),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
