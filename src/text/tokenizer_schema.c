/* What a tokenizer.json may say besides its vocabulary. Anything else is refused by name: a tokenizer that ignores an
 * option gives wrong ids, and wrong ids look like a bad model. */
#include <string.h>

#include "text/tokenizer_impl.h"

/* What a field may hold. */
typedef enum rule {
    RULE_ANY, /* checked elsewhere, or without influence on ids and text */
    RULE_NULL,
    RULE_FALSE,
    RULE_BOOL,
    RULE_EMPTY,  /* null or "" */
    RULE_STRING, /* the text in `text` */
} rule;

typedef struct field {
    const char *name;
    rule rule;
    const char *text;
} field;

enum { SHOWN_BYTES = 96 };

static const char *const RULE_TEXT[] = {"anything", "null", "false", "true or false", "null or \"\"", ""};

/* The three expressions of pretok.h, as DeepSeek's files spell them. */
#define SPLIT_SIGNS  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
#define SPLIT_WORDS  "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
#define SPLIT_BLANKS "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
static const char *const SPLITS[] = {
    "\\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (SPLIT_SIGNS SPLIT_WORDS SPLIT_BLANKS),
};
enum { N_SPLITS = sizeof SPLITS / sizeof *SPLITS };

/* The beginning of a value as JSON, for messages. */
static const char *show(const json_t *value, char text[SHOWN_BYTES]) {
    memset(text, 0, SHOWN_BYTES);
    if (!value) return "missing";
    json_dumpb(value, text, SHOWN_BYTES - 1, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    return text;
}

static bool obeys(const json_t *value, const field *f) {
    switch (f->rule) {
    case RULE_ANY: return true;
    case RULE_NULL: return json_is_null(value);
    case RULE_FALSE: return json_is_false(value);
    case RULE_BOOL: return json_is_boolean(value);
    case RULE_EMPTY: return json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
    case RULE_STRING: return json_is_string(value) && strcmp(json_string_value(value), f->text) == 0;
    }
    return false;
}

/* Every field of the object is in the list and obeys its rule. Fields may be missing. */
static fl_err check_fields(const json_t *object, const char *where, const field *fields, size_t n_fields) {
    char shown[SHOWN_BYTES];
    if (!json_is_object(object))
        return FL_FAIL(FL_ERR_DATA, "tokenizer.json: %s is %s, expected an object", where,
                       show(object, shown));
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        size_t i = 0;
        while (i < n_fields && strcmp(fields[i].name, name) != 0) i++;
        if (i == n_fields)
            return FL_FAIL(FL_ERR_UNSUPPORTED, "tokenizer.json: %s.%.64s is not implemented", where, name);
        if (!obeys(value, &fields[i]))
            return FL_FAIL(FL_ERR_UNSUPPORTED, "tokenizer.json: %s.%s is %s, implemented is %s", where, name,
                           show(value, shown),
                           fields[i].rule == RULE_STRING ? fields[i].text : RULE_TEXT[fields[i].rule]);
    }
    return FL_ERR_OK;
}

#define CHECK_FIELDS(object, where, fields)                                                                  \
    FL_TRY(check_fields((object), (where), (fields), sizeof(fields) / sizeof *(fields)))

/* A field that must be there. */
static fl_err need(const json_t *object, const char *where, const char *name, json_type type,
                   const json_t **out) {
    char shown[SHOWN_BYTES];
    *out = json_object_get(object, name);
    if (!*out || json_typeof(*out) != type)
        return FL_FAIL(FL_ERR_DATA, "tokenizer.json: %s.%s is %s, expected %s", where, name,
                       show(*out, shown),
                       type == JSON_OBJECT   ? "an object"
                       : type == JSON_ARRAY  ? "an array"
                       : type == JSON_STRING ? "a string"
                                             : "an integer");
    return FL_ERR_OK;
}

static bool has_type(const json_t *object, const char *type) {
    const json_t *found = json_object_get(object, "type");
    return json_is_string(found) && strcmp(json_string_value(found), type) == 0;
}

static fl_err check_normalizer(const json_t *normalizer) {
    char shown[SHOWN_BYTES];
    if (!normalizer || json_is_null(normalizer)) return FL_ERR_OK;
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (has_type(normalizer, "Sequence") && json_is_array(list) && json_array_size(list) == 0)
        return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "tokenizer.json: normalizer is %s, implemented is none",
                   show(normalizer, shown));
}

static fl_err check_split(const json_t *split, size_t index) {
    char where[64], shown[SHOWN_BYTES];
    snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu]", index);
    static const field FIELDS[] = {{"type", RULE_STRING, "Split"},
                                   {"pattern", RULE_ANY, NULL},
                                   {"behavior", RULE_STRING, "Isolated"},
                                   {"invert", RULE_FALSE, NULL}};
    CHECK_FIELDS(split, where, FIELDS);
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (!json_object_get(split, FIELDS[i].name))
            return FL_FAIL(FL_ERR_DATA, "tokenizer.json: %s.%s is missing", where, FIELDS[i].name);
    const json_t *pattern = json_object_get(split, "pattern"), *regex = json_object_get(pattern, "Regex");
    if (!json_is_string(regex) || strcmp(json_string_value(regex), SPLITS[index]) != 0)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "tokenizer.json: %s.pattern is %s, implemented is DeepSeek-V3's %s", where,
                       show(pattern, shown), SPLITS[index]);
    return FL_ERR_OK;
}

static fl_err check_pre_tokenizer(const json_t *pre) {
    char shown[SHOWN_BYTES];
    static const field FIELDS[] = {{"type", RULE_STRING, "Sequence"}, {"pretokenizers", RULE_ANY, NULL}};
    static const field BYTE_LEVEL[] = {{"type", RULE_STRING, "ByteLevel"},
                                       {"add_prefix_space", RULE_FALSE, NULL},
                                       {"trim_offsets", RULE_BOOL, NULL},
                                       {"use_regex", RULE_FALSE, NULL}};
    if (!has_type(pre, "Sequence"))
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "tokenizer.json: pre_tokenizer is %s, implemented is DeepSeek-V3's Sequence",
                       show(pre, shown));
    CHECK_FIELDS(pre, "pre_tokenizer", FIELDS);
    const json_t *list;
    FL_TRY(need(pre, "pre_tokenizer", "pretokenizers", JSON_ARRAY, &list));
    if (json_array_size(list) != N_SPLITS + 1)
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "tokenizer.json: pre_tokenizer has %zu steps, implemented are DeepSeek-V3's %d",
                       json_array_size(list), N_SPLITS + 1);
    for (size_t i = 0; i < N_SPLITS; i++) FL_TRY(check_split(json_array_get(list, i), i));
    const json_t *bytes = json_array_get(list, N_SPLITS);
    CHECK_FIELDS(bytes, "pre_tokenizer.pretokenizers[3]", BYTE_LEVEL);
    /* Both are true when missing, so they must be there. */
    if (!has_type(bytes, "ByteLevel") || !json_object_get(bytes, "add_prefix_space") ||
        !json_object_get(bytes, "use_regex"))
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "tokenizer.json: pre_tokenizer.pretokenizers[3] is %s, implemented is "
                       "ByteLevel with add_prefix_space and use_regex false",
                       show(bytes, shown));
    return FL_ERR_OK;
}

/* Post-processors add special tokens around a text, which encoding never asks for, or change offsets, which nobody
 * reads; so the known ones are accepted as they are. */
static fl_err check_post_processor(const json_t *post) {
    char shown[SHOWN_BYTES];
    if (!post || json_is_null(post) || has_type(post, "ByteLevel") || has_type(post, "TemplateProcessing"))
        return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED,
                   "tokenizer.json: post_processor is %s, implemented are ByteLevel and "
                   "TemplateProcessing",
                   show(post, shown));
}

static fl_err check_model(const json_t *model, fl_tokenizer_parts *parts) {
    static const field FIELDS[] = {
        {"type", RULE_STRING, "BPE"},
        {"dropout", RULE_NULL, NULL},
        {"unk_token", RULE_NULL, NULL},
        {"continuing_subword_prefix", RULE_EMPTY, NULL},
        {"end_of_word_suffix", RULE_EMPTY, NULL},
        {"fuse_unk", RULE_BOOL, NULL},
        {"byte_fallback", RULE_FALSE, NULL},
        {"ignore_merges", RULE_FALSE, NULL},
        {"vocab", RULE_ANY, NULL},
        {"merges", RULE_ANY, NULL},
    };
    CHECK_FIELDS(model, "model", FIELDS);
    FL_TRY(need(model, "model", "vocab", JSON_OBJECT, &parts->vocab));
    FL_TRY(need(model, "model", "merges", JSON_ARRAY, &parts->merges));
    return FL_ERR_OK;
}

fl_err fl_tokenizer_check(const json_t *root, fl_tokenizer_parts *parts) {
    char shown[SHOWN_BYTES];
    static const field FIELDS[] = {
        {"version", RULE_STRING, "1.0"},    {"truncation", RULE_NULL, NULL},
        {"padding", RULE_NULL, NULL},       {"added_tokens", RULE_ANY, NULL},
        {"normalizer", RULE_ANY, NULL},     {"pre_tokenizer", RULE_ANY, NULL},
        {"post_processor", RULE_ANY, NULL}, {"decoder", RULE_ANY, NULL},
        {"model", RULE_ANY, NULL},
    };
    CHECK_FIELDS(root, "file", FIELDS);
    FL_TRY(check_normalizer(json_object_get(root, "normalizer")));
    FL_TRY(check_pre_tokenizer(json_object_get(root, "pre_tokenizer")));
    FL_TRY(check_post_processor(json_object_get(root, "post_processor")));
    const json_t *decoder = json_object_get(root, "decoder");
    if (!has_type(decoder, "ByteLevel"))
        return FL_FAIL(FL_ERR_UNSUPPORTED, "tokenizer.json: decoder is %s, implemented is ByteLevel",
                       show(decoder, shown));
    FL_TRY(check_model(json_object_get(root, "model"), parts));
    parts->added = json_object_get(root, "added_tokens");
    if (parts->added && !json_is_array(parts->added))
        return FL_FAIL(FL_ERR_DATA, "tokenizer.json: added_tokens is %s, expected an array",
                       show(parts->added, shown));
    return FL_ERR_OK;
}

fl_err fl_tokenizer_check_added(const json_t *entry, size_t index) {
    char where[64];
    snprintf(where, sizeof where, "added_tokens[%zu]", index);
    static const field FIELDS[] = {
        {"id", RULE_ANY, NULL},       {"content", RULE_ANY, NULL},  {"single_word", RULE_FALSE, NULL},
        {"lstrip", RULE_FALSE, NULL}, {"rstrip", RULE_FALSE, NULL}, {"normalized", RULE_BOOL, NULL},
        {"special", RULE_BOOL, NULL},
    };
    CHECK_FIELDS(entry, where, FIELDS);
    const json_t *found;
    FL_TRY(need(entry, where, "id", JSON_INTEGER, &found));
    FL_TRY(need(entry, where, "content", JSON_STRING, &found));
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (!json_object_get(entry, FIELDS[i].name))
            return FL_FAIL(FL_ERR_DATA, "tokenizer.json: %s.%s is missing", where, FIELDS[i].name);
    return FL_ERR_OK;
}
