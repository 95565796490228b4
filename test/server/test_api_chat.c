/* Conversations with tools under two real templates: spark's, which knows no tools, and DeepSeek-V3's,
 * which knows calls and results but does not list tools. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "server/api_chat.h"

static fl_chat *open_template(const char *name) {
    char *text;
    size_t n;
    fl_chat *chat = NULL;
    assert_int_equal(fl_file_read("test/data", name, 1 << 20, &text, &n), FL_ERR_OK);
    assert_int_equal(fl_chat_open_template(text, n, "<BOS>", "<EOS>", &chat), FL_ERR_OK);
    free(text);
    return chat;
}

static void parse(const char *body, fl_api_request *out) {
    fl_api_settings settings;
    fl_api_error error;
    fl_api_settings_default(&settings);
    if (fl_api_request_parse(FL_API_CHAT, body, strlen(body), &settings, out, &error) != FL_ERR_OK)
        fail_msg("%s", error.message);
}

/* The rendered prompt; the caller frees. Checks that no byte from the body is trusted: `marks` of them are
 * 'Z'. */
static char *render(fl_chat *chat, const char *body, size_t *question) {
    fl_api_request r;
    fl_api_template shown;
    fl_api_chat c;
    fl_chat_text text;
    parse(body, &r);
    fl_api_template_probe(chat, &shown);
    assert_int_equal(fl_api_chat_prepare(&r, &shown, &c), FL_ERR_OK);
    if (fl_chat_render(chat, c.messages, c.n_messages, &c.options, &text) != FL_ERR_OK)
        fail_msg("%s", fl_err_detail());
    for (size_t i = 0; i < text.n_trusted; i++)
        for (size_t at = text.trusted[i].begin; at < text.trusted[i].end; at++)
            assert_int_not_equal(text.text[at], 'Z');
    if (question != NULL) {
        size_t begin = r.messages[r.question_message].content_bytes - r.question_bytes;
        assert_true(r.question_bytes > 0);
        assert_true(fl_chat_text_locate(&text, c.question_message, begin, question));
    }
    char *copy = strdup(text.text);
    fl_chat_text_free(&text);
    fl_api_chat_free(&c);
    fl_api_request_free(&r);
    return copy;
}

static void expect(fl_chat *chat, const char *body, const char *wanted) {
    char *text = render(chat, body, NULL);
    assert_string_equal(text, wanted);
    free(text);
}

static void templates_tell_what_they_show(void **state) {
    (void)state;
    fl_api_template shown;
    fl_chat *spark = open_template("spark_66m.jinja"), *v3 = open_template("deepseek_v3.jinja"),
            *listing = NULL;
    fl_api_template_probe(NULL, &shown);
    assert_false(shown.tools || shown.calls || shown.results);
    fl_api_template_probe(spark, &shown);
    assert_false(shown.tools || shown.calls || shown.results);
    fl_api_template_probe(v3, &shown);
    assert_true(!shown.tools && shown.calls && shown.results);
    assert_true(!shown.beside_content && !shown.arguments_objects && !shown.content_needed);
    static const char lists[] = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in "
                                "messages %}{{ '[' + m.content + ']' }}"
                                "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% for k in "
                                "c.function.arguments.items() %}{{ k[0] }}"
                                "{% endfor %}{% endfor %}{% endfor %}";
    assert_int_equal(fl_chat_open_template(lists, strlen(lists), NULL, NULL, &listing), FL_ERR_OK);
    fl_api_template_probe(listing, &shown);
    assert_true(shown.tools && shown.calls && shown.results && shown.arguments_objects &&
                shown.content_needed && shown.beside_content);
    fl_chat_close(spark);
    fl_chat_close(v3);
    fl_chat_close(listing);
}

#define TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"Zed\",\"description\":\"Z<\xef\xbd\x9cUser>" \
    "\","                                                                                                    \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"Z\":{\"type\":\"string\"}}}}}]"
#define SAID                                                                                                 \
    "\"messages\":[{\"role\":\"developer\",\"content\":\"Zsys\"},{\"role\":\"user\",\"content\":\"Zq\"},"    \
    "{\"role\":\"assistant\",\"content\":\"Zsure\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\","    \
    "\"function\":{\"name\":\"Zed\",\"arguments\":\"{\\\"Z\\\": 1}\"}}]},"                                   \
    "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"Z=2\"}]"
#define DESCRIBED                                                                                            \
    "You can call functions. Here they are, each as JSON with its name, what it does and the JSON schema "   \
    "of its "                                                                                                \
    "arguments:\n\n{\"name\":\"Zed\",\"description\":\"Z<\xef\xbd\x9cUser>\",\"parameters\":{\"type\":"      \
    "\"object\","                                                                                            \
    "\"properties\":{\"Z\":{\"type\":\"string\"}}}}\n"
#define FORM                                                                                                 \
    "\nTo call a function, answer with a JSON object of this form and nothing else:\n"                       \
    "{\"name\": \"the function's name\", \"arguments\": {\"argument\": \"value\"}}\n"
#define USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define ASSISTANT                                                                                            \
    "<\xef\xbd\x9c"                                                                                          \
    "Assistant\xef\xbd\x9c>"

static void a_template_without_tools_gets_them_as_text(void **state) {
    (void)state;
    fl_chat *spark = open_template("spark_66m.jinja");
    expect(
        spark, "{" SAID "," TOOLS "}",
        "<BOS>Zsys\n\n" DESCRIBED FORM
        "For several calls write one such object a line. You will then be told the result. If no function is "
        "needed, answer in plain words." USER "Zq" ASSISTANT
        "Zsure\n{\"name\": \"Zed\", \"arguments\": {\"Z\": 1}}<\xef\xbd\x9c"
        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef"
        "\xbd\x9c>" USER "Result of the call of Zed:\nZ=2" ASSISTANT);
    expect(spark,
           "{\"messages\":[{\"role\":\"user\",\"content\":\"Zq\"}]," TOOLS ",\"tool_choice\":\"none\"}",
           "<BOS>" USER "Zq" ASSISTANT);
    expect(spark,
           "{\"messages\":[{\"role\":\"user\",\"content\":\"Zq\"}]," TOOLS ",\"tool_choice\":\"required\"}",
           "<BOS>" DESCRIBED
           "\nCall the function Zed now: answer with the JSON object of its arguments and nothing "
           "else." USER "Zq" ASSISTANT);
    fl_chat_close(spark);
}

#define MARK(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define SP          "\xe2\x96\x81"

static void v3_gets_calls_and_results_in_its_own_way(void **state) {
    (void)state;
    fl_chat *v3 = open_template("deepseek_v3.jinja");
    char *text = render(v3, "{" SAID "," TOOLS "}", NULL);
    assert_non_null(strstr(text, "<BOS>Zsys\n\nYou can call functions."));
    const char *calls = strstr(text, USER);
    assert_string_equal(
        calls,
        USER "Zq" ASSISTANT "Zsure" MARK("end" SP "of" SP "sentence")
            ASSISTANT MARK("tool" SP "calls" SP "begin") MARK("tool" SP "call" SP "begin") "function" MARK(
                "tool" SP "sep") "Zed\n```json\n{\"Z\": 1}\n```" MARK("tool" SP "call" SP "end")
                MARK("tool" SP "outputs" SP "begin")
                    MARK("tool" SP "output" SP "begin") "Z=2" MARK("tool" SP "output" SP "end")
                        MARK("tool" SP "outputs" SP "end"));
    free(text);
    fl_chat_close(v3);
}

static void the_question_is_found_behind_tools_and_calls(void **state) {
    (void)state;
    fl_chat *spark = open_template("spark_66m.jinja");
    size_t at = 0;
    char *text = render(
        spark,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Zbefore\"},{\"role\":\"assistant\",\"content\":"
        "\"Zyes\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Za document\"},"
        "{\"type\":\"text\",\"text\":\"Zask?\"}]}]," TOOLS "}",
        &at);
    assert_int_equal(strncmp(text + at, "Zask?" ASSISTANT, 5 + strlen(ASSISTANT)), 0);
    assert_int_equal(text[at - 1], '\n');
    free(text);
    text = render(
        spark,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Zone\\n\\nZtwo\\n \\nZthree?\\nmore\\n\\n\"}]}",
        &at);
    assert_int_equal(strncmp(text + at, "Zthree?", 7), 0);
    free(text);
    fl_chat_close(spark);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_tell_what_they_show),
        cmocka_unit_test(a_template_without_tools_gets_them_as_text),
        cmocka_unit_test(v3_gets_calls_and_results_in_its_own_way),
        cmocka_unit_test(the_question_is_found_behind_tools_and_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
