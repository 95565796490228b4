/* Every field of every endpoint with every kind of bad value: each is answered by 4xx that names the field,
 * or is one of the values that the row of the field lists as good. Nothing crashes or leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "server/api_fields.h"

/* A value by its letter; `repeat` > 0: head, that many times body, tail. */
typedef struct bad_value {
    char letter;
    const char *head, *body, *tail;
    int32_t repeat;
} bad_value;

static const bad_value values[] = {
    {'a', NULL, NULL, NULL, 0}, /* absent */
    {'n', "null", "", "", 0},
    {'t', "true", "", "", 0},
    {'f', "false", "", "", 0},
    {'s', "\"x\"", "", "", 0},
    {'e', "\"\"", "", "", 0},
    {'l', "[]", "", "", 0},
    {'o', "{}", "", "", 0},
    {'h', "[null]", "", "", 0},
    {'j', "[[[\"x\"]]]", "", "", 0},
    {'N', "NaN", "", "", 0},
    {'P', "Infinity", "", "", 0},
    {'M', "-Infinity", "", "", 0},
    {'-', "-1", "", "", 0},
    {'0', "0", "", "", 0},
    {'1', "1", "", "", 0},
    {'r', "0.5", "", "", 0},
    {'R', "-0.5e-3", "", "", 0},
    {'E', "1e999", "", "", 0},
    {'A', "2147483648", "", "", 0},
    {'B', "9007199254740993", "", "", 0},
    {'C', "9223372036854775808", "", "", 0},
    {'D', "18446744073709551616", "", "", 0},
    {'b', "\"\xc3\x28\"", "", "", 0},               /* not UTF-8 */
    {'u', "\"\\ud800\"", "", "", 0},                /* half a surrogate pair */
    {'x', "\"a\\u0000b\"", "", "", 0},              /* NUL inside */
    {'z', "01", "", "", 0},                         /* not JSON */
    {'S', "\"", "0123456789abcdef", "\"", 1 << 16}, /* 1 MiB */
    {'L', "[0", ",0", "]", 100000},
    {'d', "", "[", "", 10000},
    {'O', "", "{\"a\":", "", 10000},
};
enum { N_VALUES = sizeof values / sizeof values[0] };

static const char CHAT_BASE[] = "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],";
static const char PROMPT_BASE[] = "\"prompt\":\"p\",";

typedef struct field_row {
    const char *name;
    const char *good; /* letters of values that are taken */
    const char *base; /* what else must be there, before the endpoint's own base */
    bool needed;      /* the base of the endpoint is left out: this field takes its place */
    unsigned only;    /* 0 = every endpoint that has the field; else bits of those meant */
} field_row;

static const field_row rows[] = {
    {.name = "model", .good = "ans"},
    {.name = "user", .good = "anse"},
    {.name = "cache_salt", .good = "ans"},
    {.name = "tools", .good = "anl"},
    {.name = "tool_choice", .good = "an"},
    {.name = "parallel_tool_calls", .good = "antf"},
    {.name = "functions", .good = "anfel"},
    {.name = "function_call", .good = "anfel"},
    {.name = "messages", .good = "", .needed = true},
    {.name = "chat_template_kwargs", .good = "ano"},
    {.name = "add_generation_prompt", .good = "antf"},
    {.name = "prompt", .good = "sxSL", .needed = true},
    {.name = "content", .good = "sxSL", .needed = true},
    {.name = "add_special_tokens", .good = "antf"},
    {.name = "add_special", .good = "antf"},
    {.name = "parse_special", .good = "antf"},
    {.name = "tokens", .good = "lL", .needed = true},
    {.name = "max_tokens", .good = "an1"},
    {.name = "max_completion_tokens", .good = "an1"},
    {.name = "min_tokens", .good = "an01"},
    {.name = "temperature", .good = "an01r"},
    {.name = "top_p", .good = "an1r"},
    {.name = "top_k", .good = "an-01"},
    {.name = "min_p", .good = "an0r"},
    {.name = "presence_penalty", .good = "an-01rR"},
    {.name = "frequency_penalty", .good = "an-01rR"},
    {.name = "repetition_penalty", .good = "an1r"},
    {.name = "seed", .good = "an-01AB"},
    {.name = "n", .good = "an1"},
    {.name = "best_of", .good = "an1"},
    {.name = "logprobs", .good = "antf", .only = 1u << FL_API_CHAT},
    {.name = "logprobs", .good = "an01", .only = 1u << FL_API_COMPLETION},
    {.name = "top_logprobs", .good = "an01", .base = "\"logprobs\":true,"},
    {.name = "stop", .good = "ansl"},
    {.name = "stop_token_ids", .good = "anl"},
    {.name = "logit_bias", .good = "ano"},
    {.name = "ignore_eos", .good = "antf"},
    {.name = "response_format", .good = "an"},
    {.name = "stream", .good = "antf"},
    {.name = "stream_options", .good = "ano", .base = "\"stream\":true,"},
    {.name = "timeline", .good = "antf"},
    {.name = "priority", .good = "an-01"},
    {.name = "deadline_s", .good = "an01r"},
    {.name = "echo", .good = "anfel"},
    {.name = "suffix", .good = "anfel"},
    {.name = "prompt_logprobs", .good = "anfel"},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void add_value(fl_buffer *body, const bad_value *value) {
    fl_buffer_add_text(body, value->head);
    for (int32_t i = 0; i < value->repeat; i++) fl_buffer_add_text(body, value->body);
    fl_buffer_add_text(body, value->tail);
}

/* The body of one case; `times` 2: the field comes twice. */
static void make_body(fl_buffer *body, const field_row *row, fl_api_kind kind, const bad_value *value,
                      int times) {
    fl_buffer_clear(body);
    fl_buffer_add_text(body, "{");
    if (row->base != NULL) fl_buffer_add_text(body, row->base);
    if (!row->needed && kind == FL_API_CHAT) fl_buffer_add_text(body, CHAT_BASE);
    if (!row->needed && (kind == FL_API_COMPLETION || kind == FL_API_TOKENIZE))
        fl_buffer_add_text(body, PROMPT_BASE);
    if (!row->needed && kind == FL_API_DETOKENIZE) fl_buffer_add_text(body, "\"tokens\":[1],");
    for (int i = 0; i < times && value->letter != 'a'; i++) {
        fl_buffer_add_text(body, "\"");
        fl_buffer_add_text(body, row->name);
        fl_buffer_add_text(body, "\":");
        add_value(body, value);
        fl_buffer_add_text(body, ",");
    }
    fl_buffer_add_text(body, "\"unknown_field\":{\"a\":[1,2,3]}}");
    assert_int_equal(fl_buffer_check(body), FL_ERR_OK);
}

static bool blames(const char *param, const char *name) {
    size_t n = strlen(name);
    return strncmp(param, name, n) == 0 && (param[n] == '\0' || param[n] == '.' || param[n] == '[');
}

static void check(const fl_buffer *body, const field_row *row, fl_api_kind kind, char letter, bool good) {
    fl_api_settings settings;
    fl_api_request r;
    fl_api_error error;
    fl_api_settings_default(&settings);
    fl_err err = fl_api_request_parse(kind, body->bytes, body->n, &settings, &r, &error);
    if ((err == FL_ERR_OK) != good)
        fail_msg("endpoint %d, %s, value '%c': %s %s", (int)kind, row->name, letter,
                 good ? "should be taken:" : "was taken", error.message);
    if (err == FL_ERR_OK) {
        fl_request_params params;
        fl_api_request_params(&r, 0, 7, &params);
        assert_int_equal(error.status, 0);
        fl_api_request_free(&r);
        return;
    }
    bool absent = letter == 'a' || letter == 'n';
    if (error.status != 400 || error.message[0] == '\0' || (!absent && !blames(error.param, row->name)))
        fail_msg("endpoint %d, %s, value '%c': %d, param \"%s\": %s", (int)kind, row->name, letter,
                 error.status, error.param, error.message);
    assert_true(error.param[0] != '\0');
    assert_null(r.root);
}

static int32_t sweep_row(fl_buffer *body, const field_row *row, const fl_api_field *field) {
    int32_t n = 0;
    for (int kind = FL_API_CHAT; kind <= FL_API_DETOKENIZE; kind++) {
        if ((field->endpoints & 1u << kind) == 0 || (row->only != 0 && (row->only & 1u << kind) == 0))
            continue;
        for (size_t v = 0; v < N_VALUES; v++, n++) {
            make_body(body, row, (fl_api_kind)kind, &values[v], 1);
            check(body, row, (fl_api_kind)kind, values[v].letter,
                  strchr(row->good, values[v].letter) != NULL);
        }
        make_body(body, row, (fl_api_kind)kind, &values[1], 2);
        check(body, row, (fl_api_kind)kind, '2', false);
        n++;
    }
    return n;
}

static void every_field_with_every_value(void **state) {
    (void)state;
    fl_buffer body;
    int32_t n = 0;
    fl_buffer_init(&body, 8 << 20);
    for (const fl_api_field *f = fl_api_fields; f->name != NULL; f++) {
        int32_t before = n;
        for (size_t i = 0; i < N_ROWS; i++)
            if (strcmp(rows[i].name, f->name) == 0) n += sweep_row(&body, &rows[i], f);
        if (n == before) fail_msg("the field %s has no row in this test", f->name);
    }
    print_message("%d cases\n", n);
    assert_true(n >= 2000);
    fl_buffer_free(&body);
}

/* docs/API.md speaks of every field, in backquotes. */
static void the_manual_lists_every_field(void **state) {
    (void)state;
    char *text, quoted[80];
    size_t n;
    assert_int_equal(fl_file_read("docs", "API.md", 1 << 20, &text, &n), FL_ERR_OK);
    for (const fl_api_field *f = fl_api_fields; f->name != NULL; f++) {
        snprintf(quoted, sizeof quoted, "`%s`", f->name);
        if (strstr(text, quoted) == NULL) fail_msg("docs/API.md does not speak of %s", quoted);
    }
    free(text);
}

/* ---- bodies -------------------------------------------------------------------------------------------- */

static const char *const not_objects[] = {
    "",
    " ",
    "null",
    "true",
    "1",
    "\"x\"",
    "[]",
    "[{}]",
    "{",
    "}",
    "{]",
    "{\"messages\"",
    "{\"messages\":",
    "{\"messages\":[",
    "{\"messages\":[{",
    "{\"messages\":[{}]",
    "{}{}",
    "{},",
    "{}x",
    "\xef\xbb\xbf{}",
    "{'messages':1}",
    "{messages:1}",
    "{\"a\":1,}",
    "{,}",
    "{\"a\" 1}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":[1,]}",
    "{\"a\":[1 2]}",
    "{\"a\":+1}",
    "{\"a\":.5}",
    "{\"a\":1.}",
    "{\"a\":1e}",
    "{\"a\":0x10}",
    "{\"a\":--1}",
    "{\"a\":tru}",
    "{\"a\":nul}",
    "{\"a\":undefined}",
    "{\"a\":/**/1}",
    "{\"a\":1}//",
    "{\"a\":\"\n\"}",
    "{\"a\":\"\\x\"}",
    "{\"a\":\"\\u12\"}",
    "{\"a\":\"\\ud800\\u0041\"}",
    "{\"a\":\"\\udc00\"}",
    "{\"a\":\"\xff\"}",
    "{\"a\":\"\xc0\xaf\"}",
    "{\"a\":\"\xed\xa0\x80\"}",
    "{\"a\":\"\xf4\x90\x80\x80\"}",
    "{\"a\":\"\xe2\x82\"}",
    "{\"a\xff\":1}",
    "{\"a\\u0000\":1}",
    "{\"a\":\"unended}",
    "{\"a\":1,\"a\":1}",
    "{\"b\":{\"a\":1,\"a\":1}}",
};

static void expect_refusal(fl_api_kind kind, const char *body, size_t n, const char *param) {
    fl_api_settings settings;
    fl_api_request r;
    fl_api_error error;
    fl_api_settings_default(&settings);
    if (fl_api_request_parse(kind, body, n, &settings, &r, &error) == FL_ERR_OK)
        fail_msg("was taken: %.200s", body);
    assert_int_equal(error.status, 400);
    if (param != NULL && strcmp(error.param, param) != 0)
        fail_msg("%.200s: expected the param %s, found \"%s\": %s", body, param, error.param, error.message);
    assert_string_equal(error.type, "invalid_request_error");
}

static void what_is_no_object_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof not_objects / sizeof not_objects[0]; i++)
        for (int kind = FL_API_CHAT; kind <= FL_API_DETOKENIZE; kind++)
            expect_refusal((fl_api_kind)kind, not_objects[i], strlen(not_objects[i]), NULL);
    expect_refusal(FL_API_CHAT, "{\"a\":\0}", 7, "a");
    expect_refusal(FL_API_COMPLETION, "{\"prompt\":\"a\",\"n\":1\0}", 19, "n");
    expect_refusal(FL_API_CHAT, NULL, 0, NULL);
}

/* Shapes inside of fields: {body without its braces, the param to blame}. */
static const char *const shapes[][2] = {
    {"\"messages\":[{}]", "messages[0].role"},
    {"\"messages\":[1]", "messages[0]"},
    {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"user\",\"content\":1}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"user\",\"content\":{}}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[]}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[1]}]", "messages[0].content[0].type"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]",
     "messages[0].content[0].text"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_"
     "url\","
     "\"image_url\":{\"url\":\"http://x\"}}]}]",
     "messages[0].content[1].type"},
    {"\"messages\":[{\"role\":\"root\",\"content\":\"a\"}]", "messages[0].role"},
    {"\"messages\":[{\"role\":\"User\",\"content\":\"a\"}]", "messages[0].role"},
    {"\"messages\":[{\"role\":[],\"content\":\"a\"}]", "messages[0].role"},
    {"\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"a\"}]", "messages[0].role"},
    {"\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":1}]", "messages[0].name"},
    {"\"messages\":[{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":{}}]", "messages[0].tool_call_id"},
    {"\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":[{}]}]", "messages[0].tool_calls"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls[0].id"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"x\"}]}]",
     "messages[0].tool_calls[0].type"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"}]}]",
     "messages[0].tool_calls[0].function.name"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"\"}}]}]",
     "messages[0].tool_calls[0].function.name"},
    {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\","
     "\"arguments\":{}}}]}]",
     "messages[0].tool_calls[0].function.arguments"},
    {"QUESTION,\"tools\":[1]", "tools[0].type"},
    {"QUESTION,\"tools\":[{\"type\":\"retrieval\"}]", "tools[0].type"},
    {"QUESTION,\"tools\":[{\"type\":\"function\"}]", "tools[0].function"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":[]}]", "tools[0].function"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]",
     "tools[0].function.name"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\\u0000\"}}]",
     "tools[0].function.name"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
     "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}]",
     "tools[0].function.name"},
    {"QUESTION,\"tools\":[FUNCTION,FUNCTION]", "tools[1].function.name"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":1}}]",
     "tools[0].function.description"},
    {"QUESTION,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]",
     "tools[0].function.parameters"},
    {"QUESTION,\"tool_choice\":\"required\"", "tool_choice"},
    {"QUESTION,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "tool_choice"},
    {"QUESTION,\"tools\":[FUNCTION],\"tool_choice\":\"any\"", "tool_choice"},
    {"QUESTION,\"tools\":[FUNCTION],\"tool_choice\":[]", "tool_choice"},
    {"QUESTION,\"tools\":[FUNCTION],\"tool_choice\":{}", "tool_choice.function.name"},
    {"QUESTION,\"tools\":[FUNCTION],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
     "tool_choice.function.name"},
    {"QUESTION,\"tools\":[FUNCTION],\"response_format\":{\"type\":\"json_object\"}", "response_format"},
    {"QUESTION,\"functions\":[{\"name\":\"f\"}]", "functions"},
    {"QUESTION,\"function_call\":\"auto\"", "function_call"},
    {"QUESTION,\"stop\":[\"a\",\"\"]", "stop[1]"},
    {"QUESTION,\"stop\":[\"a\",1]", "stop[1]"},
    {"QUESTION,\"stop\":[[\"a\"]]", "stop[0]"},
    {"QUESTION,\"stop\":\"a\\u0000\"", "stop"},
    {"QUESTION,\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\","
     "\"14\","
     "\"15\",\"16\",\"17\"]",
     "stop"},
    {"QUESTION,\"stop_token_ids\":[1.5]", "stop_token_ids[0]"},
    {"QUESTION,\"stop_token_ids\":[1,-1]", "stop_token_ids[1]"},
    {"QUESTION,\"stop_token_ids\":[2147483648]", "stop_token_ids[0]"},
    {"QUESTION,\"logit_bias\":{\"a\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"-1\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"+1\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\" 1\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"1e3\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"2147483648\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias"},
    {"QUESTION,\"logit_bias\":{\"1\":101}", "logit_bias.1"},
    {"QUESTION,\"logit_bias\":{\"1\":-100.5}", "logit_bias.1"},
    {"QUESTION,\"logit_bias\":{\"1\":\"5\"}", "logit_bias.1"},
    {"QUESTION,\"logit_bias\":{\"1\":null}", "logit_bias.1"},
    {"QUESTION,\"response_format\":{\"type\":\"xml\"}", "response_format.type"},
    {"QUESTION,\"response_format\":{\"type\":1}", "response_format.type"},
    {"QUESTION,\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema"},
    {"QUESTION,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}",
     "response_format.json_schema.schema"},
    {"QUESTION,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":\"{}\"}}",
     "response_format.json_schema.schema"},
    {"QUESTION,\"stream_options\":{\"include_usage\":true}", "stream_options"},
    {"QUESTION,\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"},
    {"QUESTION,\"top_logprobs\":3", "top_logprobs"},
    {"QUESTION,\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
    {"QUESTION,\"max_tokens\":3,\"min_tokens\":4", "min_tokens"},
    {"QUESTION,\"n\":17", "n"},
    {"QUESTION,\"temperature\":2.0001", "temperature"},
    {"QUESTION,\"temperature\":-1e-9", "temperature"},
    {"QUESTION,\"temperature\":\"1\"", "temperature"},
    {"QUESTION,\"top_p\":1.0000001", "top_p"},
    {"QUESTION,\"seed\":1.0", "seed"},
    {"QUESTION,\"top_k\":-2", "top_k"},
};

/* `text` with QUESTION and FUNCTION written out. */
static void write_out(fl_buffer *out, const char *text) {
    fl_buffer_clear(out);
    fl_buffer_add_text(out, "{");
    for (const char *at = text; *at != '\0';) {
        if (strncmp(at, "QUESTION", 8) == 0) {
            fl_buffer_add(out, CHAT_BASE, sizeof CHAT_BASE - 2);
            at += 8;
        } else if (strncmp(at, "FUNCTION", 8) == 0) {
            fl_buffer_add_text(out, "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}");
            at += 8;
        } else fl_buffer_add(out, at++, 1);
    }
    fl_buffer_add_text(out, "}");
}

static void shapes_inside_of_fields_are_named(void **state) {
    (void)state;
    fl_buffer body;
    fl_buffer_init(&body, 1 << 20);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        write_out(&body, shapes[i][0]);
        expect_refusal(FL_API_CHAT, body.bytes, body.n, shapes[i][1]);
    }
    fl_buffer_free(&body);
}

static const char *const prompts[][2] = {
    {"{\"prompt\":[\"a\",1]}", "prompt[1]"},
    {"{\"prompt\":[[1],[]]}", "prompt[1]"},
    {"{\"prompt\":[[1],[\"a\"]]}", "prompt[1][0]"},
    {"{\"prompt\":[1,-1]}", "prompt[1]"},
    {"{\"prompt\":[1,2147483648]}", "prompt[1]"},
    {"{\"prompt\":[1,2.0]}", "prompt[1]"},
    {"{\"prompt\":[{}]}", "prompt[0]"},
    {"{\"prompt\":\"a\",\"best_of\":2}", "best_of"},
    {"{\"prompt\":[\"1\",\"2\",\"3\",\"4\",\"5\"],\"n\":16}", "n"},
    {"{\"prompt\":\"a\",\"echo\":true}", "echo"},
    {"{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix"},
    {"{\"prompt\":\"a\",\"logprobs\":21}", "logprobs"},
    {"{\"prompt\":\"a\",\"logprobs\":true}", "logprobs"},
};

static void prompts_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
        expect_refusal(FL_API_COMPLETION, prompts[i][0], strlen(prompts[i][0]), prompts[i][1]);
    expect_refusal(FL_API_TOKENIZE, "{\"prompt\":\"a\",\"content\":\"b\"}", 28, "content");
    expect_refusal(FL_API_TOKENIZE, "{\"prompt\":[\"a\",\"b\"]}", 20, "prompt");
}

/* A body is measured before memory is spent on it. */
static void bodies_that_would_cost_too_much_are_refused(void **state) {
    (void)state;
    static const bad_value costly[] = {
        {0, "{\"x\":[{}", ",{}", "]}", 200000},
        {0, "{\"x\":[0", ",0", "]}", 5000000},
        {0, "{\"x\":[", "[[[[[[[[[[]]]]]]]]]],", "0]}", 20000},
        {0, "", "[", "", 2000000},
        {0, "", "{\"a\":", "", 1000000},
    };
    fl_buffer body;
    fl_api_settings small;
    fl_api_request r;
    fl_api_error error;
    fl_buffer_init(&body, 32 << 20);
    for (size_t i = 0; i < sizeof costly / sizeof costly[0]; i++) {
        fl_buffer_clear(&body);
        add_value(&body, &costly[i]);
        assert_int_equal(fl_buffer_check(&body), FL_ERR_OK);
        expect_refusal(FL_API_CHAT, body.bytes, body.n, NULL);
    }
    fl_api_settings_default(&small);
    small.body_bytes_max = 100;
    assert_int_equal(fl_api_request_parse(FL_API_CHAT, body.bytes, 101, &small, &r, &error), FL_ERR_INVALID);
    assert_int_equal(error.status, 413);
    fl_buffer_free(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_with_every_value),
        cmocka_unit_test(the_manual_lists_every_field),
        cmocka_unit_test(what_is_no_object_is_refused),
        cmocka_unit_test(shapes_inside_of_fields_are_named),
        cmocka_unit_test(prompts_are_named),
        cmocka_unit_test(bodies_that_would_cost_too_much_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
