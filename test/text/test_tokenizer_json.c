/* What tokenizer.json may say: a small good one in two spellings, and every way to refuse it with its name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "text/tokenizer.h"

#define SEEDS "test/fuzz/corpus/tokenizer_json"

#define ADDED(id, content, more)                                                                             \
    "{\"id\":" #id ",\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"   \
    "\"normalized\":false,\"special\":true" more "}"

static json_t *good(void) {
    json_t *root = json_load_file(SEEDS "/small.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static fl_err open_json(const json_t *root, fl_tokenizer **t) {
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    fl_err err = fl_tokenizer_open_memory(text, strlen(text), t);
    free(text);
    return err;
}

static size_t index_of(const char *name) {
    return (size_t)strtoul(name, NULL, 10);
}

/* Steps down "a.b.2.c" to the parent of the last part; *name is that part. */
static json_t *parent_of(json_t *root, const char *path, char name[64]) {
    json_t *at = root;
    for (;;) {
        size_t n = strcspn(path, ".");
        memcpy(name, path, n);
        name[n] = '\0';
        if (path[n] == '\0') return at;
        at = json_is_array(at) ? json_array_get(at, index_of(name)) : json_object_get(at, name);
        assert_non_null(at);
        path += n + 1;
    }
}

/* Puts `value` (JSON text; NULL removes) at the path of a good file. */
static json_t *changed(const char *path, const char *value) {
    json_t *root = good();
    char name[64];
    json_t *parent = parent_of(root, path, name);
    json_t *item = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (value) assert_non_null(item);
    if (json_is_array(parent) && strcmp(name, "+") == 0)
        assert_int_equal(json_array_append_new(parent, item), 0);
    else if (json_is_array(parent) && value)
        assert_int_equal(json_array_set_new(parent, index_of(name), item), 0);
    else if (json_is_array(parent)) assert_int_equal(json_array_remove(parent, index_of(name)), 0);
    else if (value) assert_int_equal(json_object_set_new(parent, name, item), 0);
    else assert_int_equal(json_object_del(parent, name), 0);
    return root;
}

static void check_ids(const fl_tokenizer *t, const char *text, bool trusted, const int32_t *want,
                      int64_t n_want) {
    const fl_text_span all = {0, strlen(text)};
    int32_t *ids;
    int64_t n_ids;
    assert_int_equal(fl_tokenizer_encode(t, text, all.end, &all, trusted, &ids, &n_ids), FL_ERR_OK);
    assert_int_equal(n_ids, n_want);
    assert_memory_equal(ids, want, (size_t)n_want * sizeof *want);
    free(ids);
}

static void two_spellings_make_the_same_tokenizer(void **state) {
    (void)state;
    static const char *const NAMES[] = {"small.json", "merge_pairs.json"};
    for (int i = 0; i < 2; i++) {
        char *json;
        size_t n_bytes;
        fl_tokenizer *t;
        assert_int_equal(fl_file_read(SEEDS, NAMES[i], 1 << 16, &json, &n_bytes), FL_ERR_OK);
        assert_int_equal(fl_tokenizer_open_memory(json, n_bytes, &t), FL_ERR_OK);
        free(json);
        int32_t the, space_the, think, both, user;
        assert_int_equal(fl_tokenizer_find(t, "the", &the), FL_ERR_OK);
        assert_int_equal(fl_tokenizer_find(t, " the", &space_the), FL_ERR_OK);
        assert_int_equal(fl_tokenizer_find(t, "<think>", &think), FL_ERR_OK);
        assert_int_equal(fl_tokenizer_find(t, "<\uff5cUser\uff5c>", &user), FL_ERR_OK);
        assert_int_equal(fl_tokenizer_find(t, "<\uff5cUser\uff5c><", &both), FL_ERR_OK);
        check_ids(t, "the the", false, (const int32_t[]){the, space_the}, 2);
        /* The set that is not normalized goes first, although the other has a longer token at the same place. */
        check_ids(t, "<\uff5cUser\uff5c><think>", true, (const int32_t[]){user, think}, 2);
        assert_int_equal(fl_tokenizer_n_vocab(t), both + 1);
        assert_false(fl_tokenizer_is_control(t, think));
        assert_true(fl_tokenizer_is_control(t, both));
        size_t n;
        assert_null(fl_tokenizer_token_bytes(t, think + 1, &n)); /* a hole between added ids */
        fl_tokenizer_close(t);
    }
}

static void the_longest_added_token_is_found(void **state) {
    (void)state;
    json_t *root = changed("added_tokens.+", ADDED(5000, "<\uff5cbegin\uff5c>ning", ""));
    fl_tokenizer *t;
    assert_int_equal(open_json(root, &t), FL_ERR_OK);
    json_decref(root);
    check_ids(t, "<\uff5cbegin\uff5c>ning<\uff5cbegin\uff5c><\uff5cbegin\uff5c>ning", true,
              (const int32_t[]){5000, 0, 5000}, 3);
    const char cut[] = "<\uff5cbegin\uff5c>nin";
    int32_t *ids;
    int64_t n_ids;
    const fl_text_span all = {0, strlen(cut)};
    assert_int_equal(fl_tokenizer_encode(t, cut, strlen(cut), &all, 1, &ids, &n_ids), FL_ERR_OK);
    assert_int_equal(ids[0], 0);
    assert_true(n_ids > 1);
    free(ids);
    fl_tokenizer_close(t);
}

typedef struct refusal {
    const char *path, *value;
    fl_err err;
    const char *named; /* must be in the message */
} refusal;

static const refusal REFUSALS[] = {
    {"version", "\"2.0\"", FL_ERR_UNSUPPORTED, "version"},
    {"surprise", "1", FL_ERR_UNSUPPORTED, "surprise"},
    {"truncation", "{\"max_length\":512}", FL_ERR_UNSUPPORTED, "truncation"},
    {"padding", "{\"length\":512}", FL_ERR_UNSUPPORTED, "padding"},
    {"normalizer", "{\"type\":\"NFC\"}", FL_ERR_UNSUPPORTED, "NFC"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}", FL_ERR_UNSUPPORTED,
     "NFKC"},
    {"pre_tokenizer", NULL, FL_ERR_UNSUPPORTED, "pre_tokenizer"},
    {"pre_tokenizer", "null", FL_ERR_UNSUPPORTED, "pre_tokenizer"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\"}", FL_ERR_UNSUPPORTED, "Metaspace"},
    {"pre_tokenizer.more", "1", FL_ERR_UNSUPPORTED, "more"},
    {"pre_tokenizer.pretokenizers", "{}", FL_ERR_DATA, "pretokenizers"},
    {"pre_tokenizer.pretokenizers.1", NULL, FL_ERR_UNSUPPORTED, "3 steps"},
    {"pre_tokenizer.pretokenizers.0.type", "\"Digits\"", FL_ERR_UNSUPPORTED, "Digits"},
    {"pre_tokenizer.pretokenizers.0", "[]", FL_ERR_DATA, "pretokenizers[0]"},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[0-9]\"", FL_ERR_UNSUPPORTED, "[0-9]"},
    {"pre_tokenizer.pretokenizers.1.pattern", "{\"String\":\" \"}", FL_ERR_UNSUPPORTED, "String"},
    {"pre_tokenizer.pretokenizers.2.behavior", "\"Removed\"", FL_ERR_UNSUPPORTED, "Removed"},
    {"pre_tokenizer.pretokenizers.2.behavior", NULL, FL_ERR_DATA, "behavior"},
    {"pre_tokenizer.pretokenizers.2.invert", "true", FL_ERR_UNSUPPORTED, "invert"},
    {"pre_tokenizer.pretokenizers.3.add_prefix_space", "true", FL_ERR_UNSUPPORTED, "add_prefix_space"},
    {"pre_tokenizer.pretokenizers.3.add_prefix_space", NULL, FL_ERR_UNSUPPORTED, "add_prefix_space"},
    {"pre_tokenizer.pretokenizers.3.use_regex", NULL, FL_ERR_UNSUPPORTED, "use_regex"},
    {"pre_tokenizer.pretokenizers.3.use_regex", "true", FL_ERR_UNSUPPORTED, "use_regex"},
    {"post_processor.type", "\"BertProcessing\"", FL_ERR_UNSUPPORTED, "BertProcessing"},
    {"decoder", "null", FL_ERR_UNSUPPORTED, "decoder"},
    {"decoder.type", "\"WordPiece\"", FL_ERR_UNSUPPORTED, "WordPiece"},
    {"model", NULL, FL_ERR_DATA, "model"},
    {"model", "[]", FL_ERR_DATA, "model"},
    {"model.type", "\"Unigram\"", FL_ERR_UNSUPPORTED, "Unigram"},
    {"model.dropout", "0.1", FL_ERR_UNSUPPORTED, "dropout"},
    {"model.unk_token", "\"<unk>\"", FL_ERR_UNSUPPORTED, "unk_token"},
    {"model.end_of_word_suffix", "\"</w>\"", FL_ERR_UNSUPPORTED, "end_of_word_suffix"},
    {"model.byte_fallback", "true", FL_ERR_UNSUPPORTED, "byte_fallback"},
    {"model.ignore_merges", "true", FL_ERR_UNSUPPORTED, "ignore_merges"},
    {"model.vocab", "[]", FL_ERR_DATA, "model.vocab"},
    {"model.vocab", "{}", FL_ERR_UNSUPPORTED, "byte 0x00"},
    {"model.vocab.a", NULL, FL_ERR_UNSUPPORTED, "byte 0x61"},
    {"model.vocab.a", "-1", FL_ERR_DATA, "\"a\""},
    {"model.vocab.a", "2097152", FL_ERR_DATA, "\"a\""},
    {"model.vocab.a", "9223372036854775807", FL_ERR_DATA, "\"a\""},
    {"model.vocab.a", "1.5", FL_ERR_DATA, "\"a\""},
    {"model.vocab.a", "100", FL_ERR_DATA, "id 100 twice"},
    {"model.vocab.th", NULL, FL_ERR_DATA, "what it makes"},
    {"model.vocab.a b", "5000", FL_ERR_UNSUPPORTED, "a b"},
    {"model.vocab.\u4e2d", "5000", FL_ERR_UNSUPPORTED, "5000"},
    {"model.merges", "{}", FL_ERR_DATA, "model.merges"},
    {"model.merges.0", "\"th\"", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "\"t h e\"", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "\"t  h\"", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "\" h\"", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "[\"t\"]", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "[\"t\",7]", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "7", FL_ERR_DATA, "merges[0]"},
    {"model.merges.0", "\"tq h\"", FL_ERR_DATA, "left side"},
    {"model.merges.0", "\"t hq\"", FL_ERR_DATA, "right side"},
    {"model.merges.0", "\"t q\"", FL_ERR_DATA, "what it makes"},
    {"model.merges.1", "\"t h\"", FL_ERR_DATA, "repeats merge 0"},
    {"added_tokens", "{}", FL_ERR_DATA, "added_tokens"},
    {"added_tokens.0", "7", FL_ERR_DATA, "added_tokens[0]"},
    {"added_tokens.0.id", "\"0\"", FL_ERR_DATA, "added_tokens[0].id"},
    {"added_tokens.0.id", "-1", FL_ERR_DATA, "added_tokens[0].id"},
    {"added_tokens.0.id", "5000", FL_ERR_DATA, "has id 5000"},
    {"added_tokens.0.id", "1", FL_ERR_DATA, "has id 1"},
    {"added_tokens.0.content", "\"\"", FL_ERR_LIMIT, "0 bytes"},
    {"added_tokens.0.content", "7", FL_ERR_DATA, "content"},
    {"added_tokens.0.content", "\"other\"", FL_ERR_DATA, "another token"},
    {"added_tokens.0.lstrip", "true", FL_ERR_UNSUPPORTED, "lstrip"},
    {"added_tokens.1.rstrip", "true", FL_ERR_UNSUPPORTED, "rstrip"},
    {"added_tokens.1.single_word", "true", FL_ERR_UNSUPPORTED, "single_word"},
    {"added_tokens.1.special", "1", FL_ERR_UNSUPPORTED, "special"},
    {"added_tokens.1.normalized", NULL, FL_ERR_DATA, "normalized"},
    {"added_tokens.0", NULL, FL_ERR_UNSUPPORTED, "neither"}, /* its vocabulary entry stays behind */
    {"added_tokens.+", ADDED(5000, "x\u00e9", ",\"new\":1"), FL_ERR_UNSUPPORTED, "new"},
    {"added_tokens.+", ADDED(1, "<\uff5cUser\uff5c>", ""), FL_ERR_DATA, "repeats id 1"},
};

static void everything_else_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        const refusal *r = &REFUSALS[i];
        json_t *root = changed(r->path, r->value);
        fl_tokenizer *t;
        fl_err err = open_json(root, &t);
        if (err != r->err || !strstr(fl_err_detail(), r->named))
            print_error("%s = %s: %d %s\n", r->path, r->value ? r->value : "removed", err, fl_err_detail());
        assert_int_equal(err, r->err);
        assert_non_null(strstr(fl_err_detail(), r->named));
        assert_null(t);
        json_decref(root);
    }
}

static void what_does_not_matter_is_accepted(void **state) {
    (void)state;
    static const char *const CHANGES[][2] = {
        {"version", NULL},          {"truncation", NULL},
        {"normalizer", NULL},       {"post_processor", "null"},
        {"model.fuse_unk", "true"}, {"model.continuing_subword_prefix", "\"\""},
        {"model.dropout", NULL},    {"pre_tokenizer.pretokenizers.3.trim_offsets", NULL},
        {"model.merges", "[]"},     {"added_tokens.+", ADDED(5000, "x\u00e9", "")},
    };
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        json_t *root = changed(CHANGES[i][0], CHANGES[i][1]);
        fl_tokenizer *t;
        fl_err err = open_json(root, &t);
        if (err != FL_ERR_OK) print_error("%s: %s\n", CHANGES[i][0], fl_err_detail());
        assert_int_equal(err, FL_ERR_OK);
        fl_tokenizer_close(t);
        json_decref(root);
    }
}

/* Prefixes and single changed bytes: refused or accepted, never a crash; memory checkers watch. */
static void damaged_files_never_crash(void **state) {
    (void)state;
    char *json;
    size_t n_bytes;
    assert_int_equal(fl_file_read(SEEDS, "small.json", 1 << 16, &json, &n_bytes), FL_ERR_OK);
    size_t n_refused = 0;
    fl_tokenizer *t;
    for (size_t i = 0; i < n_bytes; i += 7) {
        assert_int_equal(fl_tokenizer_open_memory(json, i, &t), FL_ERR_DATA);
        assert_null(t);
        char kept = json[i];
        json[i] = (char)(kept ^ 1 << i % 8);
        n_refused += fl_tokenizer_open_memory(json, n_bytes, &t) != FL_ERR_OK;
        json[i] = kept;
        fl_tokenizer_close(t);
    }
    assert_true(n_refused > n_bytes / 7 / 4);
    free(json);
}

/* Repeats `unit` n times between two texts. */
static char *repeated(const char *before, const char *unit, size_t n, const char *after) {
    char *text = malloc(strlen(before) + n * strlen(unit) + strlen(after) + 1), *to = text;
    assert_non_null(text);
    to += sprintf(to, "%s", before);
    for (size_t i = 0; i < n; i++) to += sprintf(to, "%s", unit);
    strcpy(to, after);
    return text;
}

static void huge_parts_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *before, *unit, *after;
        size_t n;
        fl_err err;
    } CASES[] = {
        {"", "[", "", 1000000, FL_ERR_DATA},             /* deep */
        {"{\"a\":", "{\"a\":", "", 100000, FL_ERR_DATA}, /* deep */
        {"{\"a\":1,\"a\":1}", "", "", 0, FL_ERR_DATA},   /* a key twice */
        {"{\"x\":\"\xff\"}", "", "", 0, FL_ERR_DATA},    /* not UTF-8 */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char *json = repeated(CASES[i].before, CASES[i].unit, CASES[i].n, CASES[i].after);
        fl_tokenizer *refused;
        assert_int_equal(fl_tokenizer_open_memory(json, strlen(json), &refused), CASES[i].err);
        assert_null(refused);
        free(json);
    }
    fl_tokenizer *t;
    assert_int_equal(fl_tokenizer_open_memory("", (size_t)FL_TOKENIZER_FILE_BYTES_MAX + 1, &t), FL_ERR_LIMIT);
    char *value = repeated("\"", "x", FL_TOKEN_BYTES_MAX + 1, "\"");
    json_t *root = changed("added_tokens.2.content", value);
    assert_int_equal(open_json(root, &t), FL_ERR_LIMIT);
    json_decref(root);
    free(value);
    assert_int_equal(fl_tokenizer_open("test/no-such-folder", &t), FL_ERR_DATA);
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_spellings_make_the_same_tokenizer),
        cmocka_unit_test(the_longest_added_token_is_found),
        cmocka_unit_test(everything_else_is_refused_by_name),
        cmocka_unit_test(what_does_not_matter_is_accepted),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(huge_parts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
