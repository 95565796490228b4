/* Each keyword by examples: answers that must be taken and ones that must not, schemas that are refused and why,
 * schemas made to cost much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "text/schema.h"

enum { EXAMPLES = 12 };

typedef struct example {
    const char *schema;
    const char *good[EXAMPLES], *bad[EXAMPLES];
} example;

#define OBJECT(properties, rest) "{\"type\":\"object\",\"properties\":{" properties "}" rest "}"
#define CLOSED                   ",\"additionalProperties\":false"
#define DEFS(name, schema)       ",\"$defs\":{\"" name "\":" schema "}}"

static const example TYPES[] = {
    {"true",
     {"null", "1", "\"a\"", "[1,{}]", "{\"a\":[]}"},
     {"", "nul", "nulll", "[1", "{\"a\"}", "[1,]", "{,}"}},
    {"{}",
     {"false", "-0.5e-07", "[[[]]]"},
     {"falsch", "+1", ".5", "1.", "01", "--1", "1e", "NaN", "Infinity"}},
    {"", {"{}", "{\"a\":1}"}, {"[]", "1", "\"{}\""}},
    {"{\"type\":\"null\"}", {"null"}, {"0", "\"null\""}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "1", "null"}},
    {"{\"type\":[\"string\",\"null\"]}", {"null", "\"\"", "\"null\""}, {"1", "nul"}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "123456789012345678", "7"},
     {"-0", "1.0", "1e3", "1234567890123456789", "007", "-", ""}},
    {"{\"type\":\"number\"}",
     {"0", "-0", "1.5", "1e10", "1E+10", "1.25e-99", "123456789012345678"},
     {"1e100", "1234567890123456789", "0.1234567890123456789", ".1", "1.e1", "0x1"}},
};

static const example NUMBERS[] = {
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":345}",
     {"-12", "-1", "0", "9", "99", "345", "200"},
     {"-13", "-20", "346", "350", "400", "1000", "-100", "3450"}},
    {"{\"type\":\"integer\",\"minimum\":17,\"maximum\":19}",
     {"17", "18", "19"},
     {"1", "16", "20", "170", "-18"}},
    {"{\"type\":\"integer\",\"minimum\":1.5}", {"2", "10", "123456789012345678"}, {"1", "0", "-2"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":5}", {"4"}, {"3", "5", "45"}},
    {"{\"type\":\"integer\",\"maximum\":-100}", {"-100", "-101", "-1000"}, {"-99", "0", "100", "-10"}},
    {"{\"type\":\"integer\",\"minimum\":1e30}", {NULL}, {NULL}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "1.0", "1.000", "0.999999", "0.0"},
     {"1.1", "1.001", "-0.1", "2", "10", "1e-3", "-0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
     {"0.5", "0.001", "0.99"},
     {"0", "1", "0.0", "1.0", "0.", "-0.5"}},
    {"{\"type\":\"number\",\"minimum\":-2.75,\"maximum\":-0.125}",
     {"-2.75", "-2.7", "-1", "-0.125", "-0.2", "-2.750", "-2"},
     {"-2.76", "-2.8", "-3", "-0.12", "-0.1", "0", "-0", "1", "-10"}},
    {"{\"type\":\"number\",\"minimum\":0.00001}", {"0.00001", "0.1", "3"}, {"0.000001", "0", "0.000009"}},
    {"{\"type\":\"number\",\"minimum\":1e20}", {NULL}, {"1", "1e21"}},
    {"{\"type\":\"number\",\"maximum\":1e20}", {"123456789012345", "-5"}, {"1e3", "1234567890123456"}},
    {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"type\":\"number\",\"maximum\":8},{\"minimum\":5}]}",
     {"5", "8"},
     {"4", "9", "5.5"}},
};

static const example STRINGS[] = {
    {"{\"type\":\"string\"}",
     {"\"\"", "\"a b\"", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
      "\"\\u00e9\\u20AC\"", "\"\\ud83d\\ude00\"", "\"\\u0001\""},
     {"\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\u0000\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xc0\x80\"",
      "\"\xed\xa0\x80\"", "\"\xff\"", "\"\\ud83d\\u0041\"", "\"\xf4\x90\x80\x80\""}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"abc\"", "\"\xe2\x82\xac\xe2\x82\xac\"", "\"\\ud83d\\ude00\\n\\u0041\"",
      "\"\xf0\x9f\x98\x80xy\""},
     {"\"\"", "\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "\"\xe2\x82\xac\""}},
    {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\"", "\"\\n\""}},
};

static const example PATTERNS[] = {
    {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d{3,4}$\"}",
     {"\"AB-123\"", "\"ZZ-0000\""},
     {"\"AB-12\"", "\"AB-12345\"", "\"ab-123\"", "\"AB_123\"", "\"xAB-123\""}},
    {"{\"type\":\"string\",\"pattern\":\"b+c\"}",
     {"\"bc\"", "\"xxbbbcyy\"",
      "\"\xe2\x82\xac"
      "bc\""},
     {"\"b\"", "\"cb\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(foo|ba[rz]){1,2}$\"}",
     {"\"foo\"", "\"barfoo\"", "\"bazbaz\""},
     {"\"\"", "\"fo\"", "\"foofoofoo\"", "\"bat\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a|z$\"}",
     {"\"abc\"", "\"xyz\"", "\"a\""},
     {"\"ba\"", "\"zb\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[^a-z]*$\"}",
     {"\"\"", "\"A1\xc3\xa9\"", "\"\\n\\\"\\u0007\"", "\"\xf0\x9f\x98\x80\""},
     {"\"a\"", "\"\\u0061\"", "\"A\\u0041\"", "\"\\/\"", "\"\\u000a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^.$\"}",
     {"\"a\"", "\"\xe2\x82\xac\"", "\"\\\\\"", "\"\\t\"", "\"\\\"\""},
     {"\"\"", "\"ab\"", "\"\\n\"", "\"\xe2\x80\xa8\""}},
    {"{\"type\":\"string\",\"pattern\":\"^\\\\w+\\\\s?\\\\D$\"}",
     {"\"ab c\"", "\"ab!\"", "\"a\\t.\""},
     {"\"ab 1\"", "\"1\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+$\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"ccc\""},
     {"\"a\"", "\"abca\"", "\"ad\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(ab)+$\",\"maxLength\":5}",
     {"\"ab\"", "\"abab\""},
     {"\"aba\"", "\"ababa", "\"ababab\""}},
    {"{\"type\":\"string\",\"pattern\":\"^\\\\u20ac[\\\\x41\\\\-\\\\]]$\"}",
     {"\"\xe2\x82\xac"
      "A\"",
      "\"\xe2\x82\xac-\"", "\"\xe2\x82\xac]\""},
     {"\"A\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(?:a*?)(?<n>b?"
     "?)c{0}d{2,}$\"}",
     {"\"dd\"", "\"aabddd\""},
     {"\"d\"", "\"cdd\"", "\"bbdd\""}},
    {"{\"type\":\"string\",\"pattern\":\"^$\"}", {"\"\""}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"\"}", {"\"\"", "\"any\""}, {"1"}},
};

static const example OBJECTS[] = {
    {OBJECT("\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}", CLOSED ",\"required\":[\"b\"]"),
     {"{\"a\":1,\"b\":\"\"}", "{\"b\":\"x\"}", "{ \"b\": \"x\" }", "{\n  \"a\": 1,\n\t\"b\": \"\"\n}"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"b\":1}", "{\"b\":\"x\",\"b\":\"x\"}",
      "{\"b\":\"x\",\"c\":1}", "{\"b\" :\"x\"}", "{\"b\":\"x\" ,\"c\":1}", "{\"b\":  \"x\"}",
      "{\"b\":\"x\"} ", " {\"b\":\"x\"}", "{\"\\u0062\":\"x\"}"}},
    {OBJECT("\"a\":{\"type\":\"integer\"}", ""),
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":[]}", "{\"ab\":null}", "{\"b\":1,\"c\":{}}", "{\"\":0}",
      "{\"\\\"\\n\":0}"},
     {"{\"a\":\"x\"}", "{\"b\":1,\"a\":1}", "{\"a\":1,\"a\":2}", "{\"\\u0061\":\"x\"}", "{\"\\/\":1}"}},
    {OBJECT("\"a\":true", ",\"additionalProperties\":{\"type\":\"boolean\"}"),
     {"{\"a\":1,\"b\":true}", "{\"b\":true}"},
     {"{\"b\":1}", "{\"a\":1,\"b\":null}"}},
    {"{\"type\":\"object\",\"required\":[\"x\",\"y\"]}",
     {"{\"x\":1,\"y\":2}", "{\"x\":1,\"y\":2,\"z\":3}"},
     {"{\"y\":2,\"x\":1}", "{\"x\":1}", "{\"z\":3,\"x\":1,\"y\":2}"}},
    {OBJECT("\"a\":false,\"b\":true", ""), {"{\"b\":1}", "{\"c\":1}"}, {"{\"a\":1}", "{\"c\":1,\"a\":1}"}},
    {OBJECT("\"t\\\"\\n\xc3\xa9\":true", CLOSED),
     {"{\"t\\\"\\n\xc3\xa9\":1}"},
     {"{\"t\\\"\\u000a\xc3\xa9\":1}", "{\"t\":1}"}},
    {OBJECT("\"ab\":{\"const\":1},\"abc\":{\"const\":2},\"b\":{\"const\":3}", CLOSED),
     {"{\"ab\":1}", "{\"abc\":2}", "{\"ab\":1,\"abc\":2,\"b\":3}", "{\"ab\":1,\"b\":3}"},
     {"{\"ab\":2}", "{\"abcd\":1}", "{\"a\":1}", "{\"abc\":2,\"ab\":1}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"q\":1}"},
     {"{\"q\":\"\"}"}},
};

static const example ARRAYS[] = {
    {"{\"type\":\"array\"}",
     {"[]", "[1]", "[ 1, 2 ]", "[\n    1,\n    2\n]"},
     {"[1,]", "[,1]", "[1 2]", "[1 , 2]", "[1,  2]", "[\n\n1]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}",
     {"[1]", "[1,2]", "[12]"},
     {"[]", "[1,2,3]", "[1,\"a\"]", "[1,2,"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false}",
     {"[]", "[\"a\"]", "[\"a\",1]"},
     {"[1]", "[\"a\",\"b\"]", "[\"a\",1,2]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":0}],\"items\":{\"const\":1},\"minItems\":2}",
     {"[0,1]", "[0,1,1]"},
     {"[0]", "[1,1]", "[0,0]"}},
    {"{\"type\":\"array\",\"items\":[{\"const\":0}],\"additionalItems\":{\"const\":1}}",
     {"[0,1]", "[]"},
     {"[1]", "[0,0]"}},
    {"{\"type\":\"array\",\"items\":false}", {"[]"}, {"[1]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"null\"}}}",
     {"[[],[null,null]]"},
     {"[null]"}},
};

static const example FIXED[] = {
    {"{\"enum\":[\"a\",\"ab\",1,12,null,true,1.5,[1,\"x\"],{\"k\":[]}]}",
     {"\"a\"", "\"ab\"", "1", "12", "null", "true", "1.5", "[1,\"x\"]", "{\"k\":[]}"},
     {"\"abc\"", "\"\"", "2", "123", "1.50", "[1]", "false", "{}", "[1, \"x\"]"}},
    {"{\"const\":\"\\u00e9\\n\"}", {"\"\xc3\xa9\\n\""}, {"\"\\u00e9\\n\"", "\"\xc3\xa9\""}},
    {"{\"const\":0.1}", {"0.1"}, {"0.10", "0.10000000000000001"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1,null]}", {"\"a\""}, {"1", "null"}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1,12,123]}}", {"[1,12,123]", "[12]"}, {"[1234]", "[2]"}},
    {"{\"enum\":[1,2.5,4,\"ab\",\"abc\",\"b\",null],\"minimum\":1.5,\"exclusiveMaximum\":4,\"minLength\":2,"
     "\"pattern\":\"b$\"}",
     {"2.5", "\"ab\"", "null"},
     {"1", "4", "\"abc\"", "\"b\""}},
    {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"type\":\"integer\"}", {"2", "3"}, {"1", "4"}},
};

static const example CHOICES[] = {
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1},{\"const\":\"long\"}]}",
     {"1", "\"x\"", "\"long\"", "\"l\""},
     {"\"lo\"", "null", "\"longer\""}},
    {"{\"oneOf\":[" OBJECT(
         "\"k\":{\"const\":\"a\"},\"v\":{\"type\":\"integer\"}", CLOSED
         ",\"required\":[\"k\",\"v\"]") "," OBJECT("\"k\":{\"const\":\"b\"},\"w\":{\"type\":\"string\"}",
                                                   CLOSED ",\"required\":[\"k\",\"w\"]") "]}",
     {"{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"w\":\"\"}", "{ \"k\": \"b\", \"w\": \"\" }"},
     {"{\"k\":\"a\",\"w\":\"\"}", "{\"k\":\"b\",\"v\":1}", "{\"k\":\"c\"", "{}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
     "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":1}"},
     {"{}"}},
    {"{\"allOf\":[" OBJECT("\"a\":{\"type\":\"number\"}", ",\"required\":[\"a\"]") "," OBJECT(
         "\"a\":{\"type\":\"integer\"},\"b\":{}", "") "]}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{\"a\":1.5}", "{}", "{\"b\":2,\"a\":1}"}},
    {"{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"integer\",\"minimum\":5}]}",
     {"1", "1.5", "55"},
     {"\"\""}},
    {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},{\"type\":\"array\",\"items\":{"
     "\"type\":\"string\"}}]}",
     {"[]", "[1,2]", "[\"a\",\"b\"]"},
     {"[1,\"a\"]", "[\"a\",1]"}},
};

static const example REFERENCES[] = {
    {"{\"$ref\":\"#/$defs/n\"" DEFS(
         "n", "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":["
              "{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]" CLOSED "}"),
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}", "{\"v\":1,\"next\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "{}"}},
    {"{\"$ref\":\"#/$defs/a~1b%25\",\"maximum\":5" DEFS("a/b%", "{\"type\":\"integer\"}"),
     {"5", "-7"},
     {"6", "\"\""}},
    {"{\"$ref\":\"#/$defs/a\"" DEFS("a", "{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}"),
     {"null"},
     {"1", ""}},
    {"{\"properties\":{\"a\":{\"$id\":\"t\",\"items\":{\"$ref\":\"#/$defs/"
     "x\"},\"$defs\":{\"x\":{\"const\":1}}},"
     "\"b\":{\"$ref\":\"#/$defs/x\"}},\"type\":\"object\",\"$defs\":{\"x\":{\"const\":2}}}",
     {"{\"a\":[1],\"b\":2}"},
     {"{\"a\":[2]}", "{\"b\":1}"}},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/x\"},{\"$ref\":\"#/$defs/x\"}]" DEFS("x", "{\"type\":\"null\"}"),
     {"null"},
     {"1"}},
};

static const example BLANKS[] = {
    {"true",
     {"[\n    1,\n  2\n]", "[\n\t1\n]", "{\n    \"a\": {\n        \"b\": [ 1 ]\n    }\n}",
      "[\n\t[\n\t\t1\n\t]\n]", "[\n]"},
     {"[\n     1]", "[\n\t\t1]", "[\n \t1]", "[\n\t 1]", "[\n1\n ]", "[\n\n1]", "[  1]", "{\"a\":\n1}",
      "{\"a\":  1}", "[\r\n1]", "[\t1]"}},
};

/* Whether the automaton takes all of the text, and holds it for whole at its end only. */
static bool takes(const fl_schema *schema, const char *text) {
    fl_schema_state state, next;
    fl_schema_start(schema, &state);
    for (const char *p = text; *p; p++) {
        if (!fl_schema_step(schema, &state, (uint8_t)*p, &next)) return false;
        state = next;
    }
    if (fl_schema_is_final(schema, &state)) {
        assert_true(fl_schema_is_complete(schema, &state));
        for (int byte = 0; byte < 256; byte++)
            assert_false(fl_schema_step(schema, &state, (uint8_t)byte, &next));
    }
    return fl_schema_is_complete(schema, &state);
}

static void check_examples(const example *examples, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const example *x = &examples[i];
        fl_schema *schema = NULL;
        fl_err err = fl_schema_compile(x->schema, &schema);
        if (!x->good[0]) { /* nothing is valid */
            assert_int_equal(err, FL_ERR_INVALID);
            continue;
        }
        if (err != FL_ERR_OK) fail_msg("%s: %s", x->schema, fl_err_detail());
        for (int k = 0; k < EXAMPLES && x->good[k]; k++)
            if (!takes(schema, x->good[k])) fail_msg("%s: refuses %s", x->schema, x->good[k]);
        for (int k = 0; k < EXAMPLES && x->bad[k]; k++)
            if (takes(schema, x->bad[k])) fail_msg("%s: takes %s", x->schema, x->bad[k]);
        fl_schema_close(schema);
    }
}

#define CHECK(name, examples)                                                                                \
    static void name(void **state) {                                                                         \
        (void)state;                                                                                         \
        check_examples(examples, sizeof(examples) / sizeof *(examples));                                     \
    }

CHECK(types, TYPES)
CHECK(numbers, NUMBERS)
CHECK(strings, STRINGS)
CHECK(patterns, PATTERNS)
CHECK(objects, OBJECTS)
CHECK(arrays, ARRAYS)
CHECK(fixed_values, FIXED)
CHECK(choices, CHOICES)
CHECK(references, REFERENCES)
CHECK(blanks, BLANKS)

/* As deep as frames allow and no deeper; every prefix can be completed. */
static void depth_is_bounded(void **state) {
    (void)state;
    enum { DEEP = FL_SCHEMA_DEPTH_MAX };
    char text[2 * DEEP + 3] = {0};
    fl_schema *schema = NULL;
    assert_int_equal(
        fl_schema_compile("{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}",
                          &schema),
        FL_ERR_OK);
    memset(text, '[', DEEP);
    memset(text + DEEP, ']', DEEP);
    assert_true(takes(schema, text));
    memset(text, '[', DEEP + 1);
    memset(text + DEEP + 1, ']', DEEP + 1);
    assert_false(takes(schema, text));
    fl_schema_close(schema);
}

typedef struct refusal {
    const char *schema, *detail;
    fl_err err;
} refusal;

static const refusal REFUSALS[] = {
    {"{", "not JSON", FL_ERR_INVALID},
    {"{\"type\":\"object\",\"type\":\"array\"}", "not JSON", FL_ERR_INVALID},
    {"[]", "expected an object", FL_ERR_INVALID},
    {"3", "expected an object", FL_ERR_INVALID},
    {"false", "no value can be valid", FL_ERR_INVALID},
    {"{\"type\":\"date\"}", "#/type: ", FL_ERR_INVALID},
    {"{\"type\":7}", "#/type: ", FL_ERR_INVALID},
    {"{\"type\":[]}", "#/type: ", FL_ERR_INVALID},
    {"{\"properties\":[]}", "#/properties: ", FL_ERR_INVALID},
    {"{\"properties\":{\"a\":1}}", "#/properties: ", FL_ERR_INVALID},
    {"{\"properties\":{\"a/b\":{\"items\":{\"not\":{}}}}}", "#/properties/a~1b/items/not: not supported",
     FL_ERR_UNSUPPORTED},
    {"{\"anyOf\":[{},{\"if\":{}}]}", "#/anyOf/1/if: not supported", FL_ERR_UNSUPPORTED},
    {"{\"patternProperties\":{}}", "#/patternProperties", FL_ERR_UNSUPPORTED},
    {"{\"uniqueItems\":true}", "#/uniqueItems", FL_ERR_UNSUPPORTED},
    {"{\"multipleOf\":2}", "#/multipleOf", FL_ERR_UNSUPPORTED},
    {"{\"minProperties\":1}", "#/minProperties", FL_ERR_UNSUPPORTED},
    {"{\"anyOf\":[]}", "#/anyOf", FL_ERR_INVALID},
    {"{\"enum\":[]}", "#/enum", FL_ERR_INVALID},
    {"{\"minLength\":-1}", "#/minLength", FL_ERR_INVALID},
    {"{\"minLength\":1.5}", "#/minLength", FL_ERR_INVALID},
    {"{\"minimum\":\"3\"}", "#/minimum", FL_ERR_INVALID},
    {"{\"required\":[1]}", "#/required", FL_ERR_INVALID},
    {"{\"enum\":[[1]],\"minItems\":0}", "#/minItems: not supported beside", FL_ERR_UNSUPPORTED},
    {"{\"$ref\":\"http://x/y\"}", "#/$ref", FL_ERR_UNSUPPORTED},
    {"{\"$ref\":\"#/$defs/x\"}", "#/$ref: no schema at", FL_ERR_INVALID},
    {"{\"$ref\":\"#\"}", "leads back to itself", FL_ERR_INVALID},
    {"{\"minLength\":1,\"anyOf\":[{\"$ref\":\"#\"}]}", "no value can be valid", FL_ERR_INVALID},
    {"{\"anyOf\":[{\"$ref\":\"#\"}]}", "no value can be valid", FL_ERR_INVALID},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/r\"},{\"$ref\":\"#/$defs/"
     "a\"}],\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/r\"}]},"
     "\"r\":{\"$ref\":\"#/$defs/a\"}}}",
     "no value can be valid", FL_ERR_INVALID},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "no value can be valid", FL_ERR_INVALID},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "no value can be valid", FL_ERR_INVALID},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "no value", FL_ERR_INVALID},
    {"{\"type\":\"string\",\"pattern\":\"^aaaa$\",\"maxLength\":3}", "no value", FL_ERR_INVALID},
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no value", FL_ERR_INVALID},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":4}", "no value", FL_ERR_INVALID},
    {"{\"type\":\"array\",\"minItems\":2,\"maxItems\":1}", "no value", FL_ERR_INVALID},
    {"{\"pattern\":\"(a\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"a)\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"[a\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"[b-a]\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"*a\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"a{2,1}\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"a\\\\\"}", "#/pattern: ", FL_ERR_INVALID},
    {"{\"pattern\":\"(?=a)b\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"pattern\":\"(?<!a)b\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"pattern\":\"(a)\\\\1\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"pattern\":\"\\\\bx\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"pattern\":\"\\\\p{L}\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"pattern\":\"a^b\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"pattern\":\"(a$)b\"}", "#/pattern: ", FL_ERR_UNSUPPORTED},
    {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "pattern: two patterns", FL_ERR_UNSUPPORTED},
};

static void refusals_name_keyword_and_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        const refusal *r = &REFUSALS[i];
        fl_err err = fl_schema_check(r->schema);
        if (err != r->err || !strstr(fl_err_detail(), r->detail))
            fail_msg("%s: %s: %s", r->schema, fl_err_name(err), err == FL_ERR_OK ? "" : fl_err_detail());
    }
}

/* What says nothing is taken as that. */
static void descriptions_say_nothing(void **state) {
    (void)state;
    assert_int_equal(
        fl_schema_check(
            "{\"title\":\"t\",\"description\":3,\"default\":{},\"format\":\"date\",\"$schema\":\"x\",\"$id\":"
            "\"y\",\"examples\":[],\"x-mine\":{\"not\":1},\"uniqueItems\":false,\"minProperties\":0,"
            "\"$defs\":{\"unused\":{\"not\":{}}}}"),
        FL_ERR_OK);
}

/* --- schemas made to cost much ---------------------------------------------------------------------------------- */

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* `begin`, `item` n times, `middle`, `close` n times, `end`. */
typedef struct pattern_of {
    const char *begin, *item, *middle, *close, *end;
    int n;
} pattern_of;

static char *text_of(pattern_of x) {
    size_t room = strlen(x.begin) + strlen(x.middle) + strlen(x.end) + 1;
    char *text = malloc(room + (strlen(x.item) + strlen(x.close)) * (size_t)x.n), *p = text;
    assert_non_null(text);
    p = stpcpy(p, x.begin);
    for (int i = 0; i < x.n; i++) p = stpcpy(p, x.item);
    p = stpcpy(p, x.middle);
    for (int i = 0; i < x.n; i++) p = stpcpy(p, x.close);
    stpcpy(p, x.end);
    return text;
}

/* Refused or compiled, but within a bound on time that leaves room for slow machines and sanitizers. */
static void check_cost(const char *name, char *schema, bool refused) {
    fl_schema *out = NULL;
    double begin_s = cpu_s();
    fl_err err = fl_schema_compile(schema, &out);
    double took_s = cpu_s() - begin_s;
    print_message("%-24s %7zu bytes: %-40s %6.1f ms\n", name, strlen(schema), fl_err_name(err), took_s * 1e3);
    if ((err != FL_ERR_OK) != refused) fail_msg("%s", err == FL_ERR_OK ? "compiled" : fl_err_detail());
    assert_true(took_s < 20);
    fl_schema_close(out);
    free(schema);
}

/* A chain of definitions, each an anyOf of the next twice in different ways. */
static char *forking(int n) {
    char *text = calloc((size_t)n + 2, 160), *p = text;
    assert_non_null(text);
    p += sprintf(p, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < n; i++)
        p += sprintf(
            p, "\"d%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"title\":\"t\",\"$ref\":\"#/$defs/d%d\"}]},",
            i, i + 1, i + 1);
    sprintf(p, "\"d%d\":{\"type\":\"null\"}}}", n);
    return text;
}

static char *many_patterns(int n) {
    char *text = calloc((size_t)n + 2, 80), *p = text;
    assert_non_null(text);
    p += sprintf(p, "{\"prefixItems\":[true");
    for (int i = 0; i < n; i++) p += sprintf(p, ",{\"pattern\":\"^(a|b)*a(a|b){9}c{%d}$\"}", i);
    sprintf(p, "]}");
    return text;
}

static char *multiplied(int n) {
    char *text = calloc((size_t)n + 2, 80), *p = text;
    assert_non_null(text);
    p += sprintf(p, "{\"allOf\":[");
    for (int i = 0; i < n; i++)
        p +=
            sprintf(p, "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d}]}", i > 0 ? "," : "", i, i + 100);
    sprintf(p, "]}");
    return text;
}

static char *one(const char *text) {
    return text_of((pattern_of){text, "", "", "", "", 0});
}

static void nested_schemas_are_bounded(void **state) {
    (void)state;
    check_cost("arrays, 10,000 deep", text_of((pattern_of){"", "{\"items\":", "{}", "}", "", 10000}), true);
    check_cost("arrays, 500 deep", text_of((pattern_of){"", "{\"items\":", "{}", "}", "", 500}), false);
    check_cost("allOf, 500 deep", text_of((pattern_of){"", "{\"allOf\":[", "{}", "]}", "", 500}), true);
    check_cost("not, 10,000 deep", text_of((pattern_of){"", "{\"not\":", "{}", "}", "", 10000}), true);
    check_cost("brackets", text_of((pattern_of){"", "[", "", "]", "", 10000}), true);
    check_cost("forks, 1000 deep", forking(1000), false);
    check_cost("product of anyOf", multiplied(20), true);
    check_cost("anyOf of 300", text_of((pattern_of){"{\"anyOf\":[{}", ",{}", "", "", "]}", 300}), true);
    check_cost("200 patterns, all alike",
               text_of((pattern_of){"", "{\"items\":{\"pattern\":\"^(a|b)*a(a|b){9}$\"},\"prefixItems\":[",
                                    "{}", "]}", "", 200}),
               false);
    check_cost("100 patterns", many_patterns(100), true);
}

static void patterns_are_bounded(void **state) {
    (void)state;
    check_cost("pattern of 1 MB", text_of((pattern_of){"{\"pattern\":\"", "a", "", "", "\"}", 1000000}),
               true);
    check_cost("pattern of 3 KB", text_of((pattern_of){"{\"pattern\":\"", "a", "", "", "\"}", 3000}), true);
    check_cost("pattern of 2 KB", text_of((pattern_of){"{\"pattern\":\"^", "a", "", "", "\"}", 2000}), false);
    check_cost("groups, 100 deep", text_of((pattern_of){"{\"pattern\":\"", "(", "a", ")", "\"}", 100}), true);
    check_cost("groups, 60 deep", text_of((pattern_of){"{\"pattern\":\"", "(", "a", ")*", "\"}", 60}), false);
    check_cost("x{1000}{1000}", one("{\"pattern\":\"^((x{1000}){1000}){1000}$\"}"), true);
    check_cost("2^20 states", one("{\"pattern\":\"^(a|b)*a(a|b){20}$\"}"), true);
    check_cost("2^10 states", one("{\"pattern\":\"^(a|b)*a(a|b){9}$\"}"), false);
    check_cost(".{200}", one("{\"pattern\":\"^.{1,200}$\"}"), false);
    check_cost(".{900}", one("{\"pattern\":\"^.{900}$\"}"), true);
    check_cost("pattern with a length", one("{\"pattern\":\"a.*b\",\"maxLength\":100000}"), true);
    check_cost("(a*)*", one("{\"pattern\":\"^((a*)*(b*)*)*c$\"}"), false);
    check_cost("(a?){500}", one("{\"pattern\":\"^(a?){500}a{500}$\"}"), true);
}

static void a_wide_enum_works(void **state) {
    (void)state;
    enum { VALUES = 10000 };
    char *text = calloc(VALUES + 2, 16), *p = text;
    fl_schema *schema = NULL;
    assert_non_null(text);
    p += sprintf(p, "{\"enum\":[");
    for (int i = 0; i < VALUES; i++) p += sprintf(p, "%s\"v%d\"", i > 0 ? "," : "", i * 7);
    sprintf(p, "]}");
    assert_int_equal(fl_schema_compile(text, &schema), FL_ERR_OK);
    assert_true(takes(schema, "\"v7\""));
    assert_true(takes(schema, "\"v69993\""));
    assert_false(takes(schema, "\"v8\""));
    fl_schema_close(schema);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(numbers),
        cmocka_unit_test(strings),
        cmocka_unit_test(patterns),
        cmocka_unit_test(objects),
        cmocka_unit_test(arrays),
        cmocka_unit_test(fixed_values),
        cmocka_unit_test(choices),
        cmocka_unit_test(references),
        cmocka_unit_test(blanks),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(refusals_name_keyword_and_place),
        cmocka_unit_test(descriptions_say_nothing),
        cmocka_unit_test(nested_schemas_are_bounded),
        cmocka_unit_test(patterns_are_bounded),
        cmocka_unit_test(a_wide_enum_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
