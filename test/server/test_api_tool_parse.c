/* Calls found in streamed answers: every form, and the same whatever pieces the text comes in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/api_tool_parse.h"

#define MARK(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define SP          "\xe2\x96\x81"
#define CALLS       MARK("tool" SP "calls" SP "begin")
#define CALLS_END   MARK("tool" SP "calls" SP "end")
#define CALL        MARK("tool" SP "call" SP "begin")
#define CALL_END    MARK("tool" SP "call" SP "end")
#define SEP         MARK("tool" SP "sep")

/* What a parser gave: "text", "[name|arguments]". */
typedef struct heard {
    fl_buffer log;
    bool in_call;
} heard;

static void close_call(heard *h) {
    if (h->in_call) fl_buffer_add_text(&h->log, "]");
    h->in_call = false;
}

static void hear_content(void *context, const char *text, size_t n) {
    heard *h = context;
    close_call(h);
    fl_buffer_add(&h->log, text, n);
}

static void hear_call(void *context, const char *name, size_t n) {
    heard *h = context;
    close_call(h);
    fl_buffer_add_text(&h->log, "[");
    fl_buffer_add(&h->log, name, n);
    fl_buffer_add_text(&h->log, "|");
    h->in_call = true;
}

static void hear_arguments(void *context, const char *text, size_t n) {
    heard *h = context;
    assert_true(h->in_call && n > 0);
    fl_buffer_add(&h->log, text, n);
}

static fl_api_request request_of(const char *choice) {
    fl_api_settings settings;
    fl_api_request r;
    fl_api_error error;
    char body[1024];
    int n =
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\","
                 "\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}],"
                 "\"tool_choice\":%s}",
                 choice);
    fl_api_settings_default(&settings);
    if (fl_api_request_parse(FL_API_CHAT, body, (size_t)n, &settings, &r, &error) != FL_ERR_OK)
        fail_msg("%s", error.message);
    return r;
}

/* Feeds the text in pieces of `piece` bytes. */
static void check(const fl_api_request *r, const char *text, size_t piece, const char *wanted) {
    heard h = {.in_call = false};
    fl_tool_parser p;
    fl_buffer_init(&h.log, 4 << 20);
    fl_tool_parser_init(&p, r, (fl_tool_sink){hear_content, hear_call, hear_arguments, &h});
    for (size_t at = 0, n = strlen(text); at < n; at += piece)
        assert_int_equal(fl_tool_parser_push(&p, text + at, piece < n - at ? piece : n - at), FL_ERR_OK);
    assert_int_equal(fl_tool_parser_finish(&p), FL_ERR_OK);
    close_call(&h);
    fl_buffer_add(&h.log, "", 1);
    assert_string_equal(h.log.bytes, wanted);
    fl_tool_parser_free(&p);
    fl_buffer_free(&h.log);
}

typedef struct answer_case {
    const char *text, *wanted;
} answer_case;

static const answer_case cases[] = {
    {"", ""},
    {"plain words", "plain words"},
    {" \n ", " \n "},
    {"a < b, and <\xef\xbd\x9ctool is no mark", "a < b, and <\xef\xbd\x9ctool is no mark"},
    /* V3's form, one and two calls, words before and behind */
    {CALLS CALL "function" SEP "f\n```json\n{\"a\": 1}\n```" CALL_END CALLS_END, "[f|{\"a\": 1}]"},
    {"Let me see." CALLS CALL "function" SEP "f\n```json\n{}\n```" CALL_END "\n" CALL "function" SEP
     "g\n```json\n{\"b\":\"```\\n\"}\n```" CALL_END CALLS_END "bye",
     "Let me see.[f|{}][g|{\"b\":\"```\\n\"}]bye"},
    /* V3.1's */
    {CALLS CALL "f" SEP "{\"a\":[1,2]}" CALL_END CALL "g" SEP "{}" CALL_END CALLS_END,
     "[f|{\"a\":[1,2]}][g|{}]"},
    /* without a fence, cut short, without an end */
    {CALLS CALL "function" SEP "f\n{\"a\":1}" CALL_END CALLS_END, "[f|{\"a\":1}]"},
    {CALLS CALL "f" SEP "{\"a\":", "[f|{\"a\":]"},
    {CALLS CALL "f" SEP "{}" CALL_END, "[f|{}]"},
    {"x" CALLS "y", "xy"},
    /* the JSON form */
    {"{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"}\": \"\\\"{\"}]}}",
     "[f|{\"a\": [1, {\"}\": \"\\\"{\"}]}]"},
    {"\n{ \"name\" : \"f\", \"parameters\": {} }\n{\"name\":\"g\",\"arguments\":{}}\n", "[f|{}][g|{}]"},
    {"{\"name\":\"f\",\"arguments\":{}} and more", "[f|{}] and more"},
    /* JSON that is no call */
    {"{\"name\": \"h\", \"arguments\": {}}", "{\"name\": \"h\", \"arguments\": {}}"},
    {"{\"name\": \"f\"}", "{\"name\": \"f\"}"},
    {"{\"name\": \"f\", \"arguments\": 1}", "{\"name\": \"f\", \"arguments\": 1}"},
    {"{\"name\": \"f\", \"arguments\"", "{\"name\": \"f\", \"arguments\""},
    {"{\"name\": \"f", "{\"name\": \"f"},
    /* once it is a call, it stays one */
    {"{\"name\": \"f\", \"arguments\": {", "[f|{]"},
    {"{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": {\"b\": \"}\"}}  "
     "{\"name\":\"g\",\"parameters\":{}}",
     "[f|{\"a\": 1}][g|{}]"},
    {"{\"name\": \"f\", \"arguments\": {}", "[f|{}]"},
    /* in another order it is held until it is whole */
    {"{\"name\": \"f\", \"id\": 1, \"arguments\": {\"a\": 1}}", "[f|{\"a\":1}]"},
    {"{\"name\": \"f\", \"id\": 1, \"arguments\": {]}}", "{\"name\": \"f\", \"id\": 1, \"arguments\": {]}}"},
    {"{\"color\": \"red\"}", "{\"color\": \"red\"}"},
};

static void calls_are_found_in_any_pieces(void **state) {
    (void)state;
    fl_api_request r = request_of("\"auto\"");
    static const size_t pieces[] = {1, 2, 3, 5, 7, 1000};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
            check(&r, cases[i].text, pieces[k], cases[i].wanted);
    fl_api_request_free(&r);
}

static void a_forced_call_is_all_arguments(void **state) {
    (void)state;
    fl_api_request r = request_of("{\"type\":\"function\",\"function\":{\"name\":\"g\"}}");
    assert_string_equal(r.json_schema, "{\"type\":\"object\"}");
    check(&r, "{\"a\": 1}", 3, "[g|{\"a\": 1}]");
    fl_api_request_free(&r);
    r = request_of("\"required\"");
    assert_string_equal(r.json_schema,
                        "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"f\"]},"
                        "\"arguments\":{\"type\":\"object\",\"$id\":\"f\"}},"
                        "\"required\":[\"name\",\"arguments\"],\"additionalProperties\":false},"
                        "{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"g\"]},\"arguments\":{"
                        "\"type\":\"object\",\"$id\":\"g\"}},"
                        "\"required\":[\"name\",\"arguments\"],\"additionalProperties\":false}]}");
    check(&r, "{\"name\":\"g\",\"arguments\":{}}", 4, "[g|{}]");
    fl_api_request_free(&r);
}

static void an_object_without_end_is_given_up(void **state) {
    (void)state;
    fl_api_request r = request_of("\"auto\"");
    size_t n = 3 * FL_TOOL_HELD_BYTES_MAX / 2;
    char *text = malloc(n + 1);
    memset(text, 'x', n);
    memcpy(text, "{\"name\":\"", 9);
    text[n] = '\0';
    check(&r, text, 1000, text);
    memset(text, ' ', n);
    check(&r, text, 100, text);
    free(text);
    fl_api_request_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_found_in_any_pieces),
        cmocka_unit_test(a_forced_call_is_all_arguments),
        cmocka_unit_test(an_object_without_end_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
