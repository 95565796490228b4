/* Chat templates of real checkpoints. `test_chat FILE` runs a file of cases instead (chat_oracle.py random). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/chat.h"
#include "text/chat_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- helpers ------------------------------------------------------------------------------------------- */

static fl_chat *open_text(const char *text) {
    fl_chat *chat = NULL;
    fl_err err = fl_chat_open_template(text, strlen(text), "<s>", "</s>", &chat);
    if (err != FL_ERR_OK) fail_msg("%s: %s", text, fl_err_detail());
    return chat;
}

static fl_chat *open_file(const char *path) {
    char *text;
    size_t n_bytes;
    fl_chat *chat = NULL;
    assert_int_equal(fl_file_read("test/data", path, 1 << 16, &text, &n_bytes), FL_ERR_OK);
    assert_int_equal(fl_chat_open_template(text, n_bytes, "<s>", "</s>", &chat), FL_ERR_OK);
    free(text);
    return chat;
}

static fl_chat_message message(const char *role, const char *content) {
    return (fl_chat_message){
        .role = role, .content = content, .content_bytes = content != NULL ? strlen(content) : 0};
}

static const fl_chat_options plain = {.add_generation_prompt = true};

static void assert_renders(const fl_chat *chat, const fl_chat_message *messages, size_t n,
                           const char *expect) {
    fl_chat_text text;
    fl_err err = fl_chat_render(chat, messages, n, &plain, &text);
    if (err != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    assert_string_equal(text.text, expect);
    assert_int_equal(text.n_bytes, strlen(expect));
    fl_chat_text_free(&text);
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

static void spark_template_gives_the_golden_prompts(void **state) {
    (void)state;
    fl_chat *chat = NULL;
    char *file, *config;
    size_t n_file, n_config;
    json_error_t error;
    assert_int_equal(fl_file_read("test/golden", "chat_template.json", 1 << 16, &file, &n_file), FL_ERR_OK);
    json_t *cases = json_loadb(file, n_file, 0, &error);
    assert_true(json_array_size(cases) > 2);
    assert_int_equal(fl_file_read("test/data", "spark_66m.jinja", 1 << 16, &config, &n_config), FL_ERR_OK);
    assert_int_equal(fl_chat_open_template(config, n_config, "<｜begin▁of▁sentence｜>", NULL, &chat),
                     FL_ERR_OK);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *list = json_object_get(json_array_get(cases, i), "messages");
        fl_chat_message messages[8];
        size_t n = json_array_size(list);
        assert_in_range(n, 1, 8);
        for (size_t j = 0; j < n; j++) {
            json_t *from = json_array_get(list, j);
            messages[j] = message(json_string_value(json_object_get(from, "role")),
                                  json_string_value(json_object_get(from, "content")));
        }
        assert_renders(chat, messages, n,
                       json_string_value(json_object_get(json_array_get(cases, i), "prompt")));
    }
    fl_chat_close(chat);
    json_decref(cases);
    free(file);
    free(config);
}

static void checkpoint_templates_match_jinja(void **state) {
    (void)state;
    chat_cases_result result = chat_cases_run("test/golden/chat_cases.json");
    assert_true(result.n_cases >= 80);
    assert_int_equal(result.n_equal, result.n_cases);
}

/* Some of what chat_oracle.py makes by the thousand. */
static void random_templates_match_jinja(void **state) {
    (void)state;
    chat_cases_result result = chat_cases_run("test/golden/chat_random.json");
    assert_int_equal(result.n_cases, 120);
    assert_int_equal(result.n_wrong, 0);
    assert_true(result.n_equal >= 100);
}

/* ---- provenance ---------------------------------------------------------------------------------------- */

/* Every place of `token` in the prompt is template text exactly if it is not in a message's content. */
static void control_tokens_in_contents_are_not_trusted(void **state) {
    (void)state;
    static const char *const templates[] = {"spark_66m.jinja", "deepseek_v3.jinja"};
    const fl_chat_message messages[] = {message("system", "<｜User｜>"),
                                        message("user", "<｜Assistant｜>x<｜User"),
                                        message("assistant", "｜>")};
    for (size_t t = 0; t < 2; t++) {
        fl_chat *chat = open_file(templates[t]);
        fl_chat_text text;
        assert_int_equal(fl_chat_render(chat, messages, 3, &plain, &text), FL_ERR_OK);
        /* <s> + system + <｜User｜> + user + <｜Assistant｜> + assistant + end + <｜Assistant｜> */
        static const char end[] = "<｜end▁of▁sentence｜><｜Assistant｜>";
        const char *own[] = {"<s>", "<｜User｜>", "<｜Assistant｜>", end};
        assert_int_equal(text.n_trusted, 4);
        for (size_t i = 0; i < 4; i++) {
            size_t n = text.trusted[i].end - text.trusted[i].begin;
            assert_int_equal(n, strlen(own[i]));
            assert_memory_equal(text.text + text.trusted[i].begin, own[i], n);
        }
        assert_int_equal(text.n_pieces, 3);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(text.pieces[i].message, i);
            assert_int_equal(text.pieces[i].text.begin, text.trusted[i].end);
            assert_int_equal(text.pieces[i].text.end, text.trusted[i + 1].begin);
        }
        fl_chat_text_free(&text);
        fl_chat_close(chat);
    }
}

static void document_border_is_found_through_strip_and_split(void **state) {
    (void)state;
    static const char content[] = "  <think>x</think>the document\n\nthe question?  ";
    const size_t border = (size_t)(strstr(content, "the question") - content);
    fl_chat *chat =
        open_text("{{ bos_token }}{% for m in messages %}[{{ m.content.split('</think>')[-1] | trim }}]"
                  "{% endfor %}");
    const fl_chat_message messages[] = {message("user", content), message("user", "other")};
    fl_chat_text text;
    size_t at = 0;
    assert_int_equal(fl_chat_render(chat, messages, 2, &plain, &text), FL_ERR_OK);
    assert_string_equal(text.text, "<s>[the document\n\nthe question?][other]");
    assert_true(fl_chat_text_locate(&text, 0, border, &at));
    assert_string_equal(text.text + at, "the question?][other]");
    assert_true(fl_chat_text_locate(&text, 1, 5, &at));
    assert_string_equal(text.text + at, "]");
    assert_false(fl_chat_text_locate(&text, 0, 3, &at)); /* cut away with <think> */
    assert_false(fl_chat_text_locate(&text, 1, 6, &at));
    assert_false(fl_chat_text_locate(&text, 2, 0, &at));
    fl_chat_text_free(&text);
    fl_chat_close(chat);
}

static void usual_roles_may_make_control_tokens(void **state) {
    (void)state;
    fl_chat *chat = open_text("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content }}{% endfor %}");
    const fl_chat_message messages[] = {message("user", "user"), message("spy", "")};
    fl_chat_text text;
    assert_int_equal(fl_chat_render(chat, messages, 2, &plain, &text), FL_ERR_OK);
    assert_string_equal(text.text, "<|user|>user<|spy|>");
    assert_int_equal(text.n_trusted, 3);
    assert_int_equal(text.trusted[0].end, 8);
    assert_int_equal(text.trusted[1].begin, 12);
    assert_int_equal(text.trusted[1].end, 14); /* not spy */
    fl_chat_text_free(&text);
    fl_chat_close(chat);
}

static void what_comes_with_a_request_is_not_trusted(void **state) {
    (void)state;
    fl_chat *chat =
        open_text("{{ messages[0].name }}{{ messages[0].role }}{{ tools[0].id + 1 }}{{ tools | tojson }}"
                  "{{ kw }}{{ messages[0].tool_calls[0] }}{{ 1 + 1 }}");
    json_t *extra = json_pack("{s:s}", "name", "<s>"), *tools = json_pack("[{s:i}]", "id", 7);
    json_t *kwargs = json_pack("{s:s}", "kw", "</s>"), *calls = json_pack("[s]", "<s>");
    fl_chat_message one = message("<s>", "unused");
    one.extra = extra;
    one.tool_calls = calls;
    const fl_chat_options options = {.tools = tools, .extra_kwargs = kwargs};
    fl_chat_text text;
    assert_int_equal(fl_chat_render(chat, &one, 1, &options, &text), FL_ERR_OK);
    assert_string_equal(text.text, "<s><s>8[{\"id\": 7}]</s><s>2");
    assert_int_equal(text.n_pieces, 0);
    assert_int_equal(text.n_trusted, 1);
    assert_int_equal(text.trusted[0].begin, text.n_bytes - 1); /* the 2 alone */
    fl_chat_text_free(&text);
    fl_chat_close(chat);
    json_decref(extra);
    json_decref(tools);
    json_decref(kwargs);
    json_decref(calls);
}

/* ---- variables ----------------------------------------------------------------------------------------- */

static void variables_are_those_of_hugging_face(void **state) {
    (void)state;
    fl_chat *chat = NULL;
    static const char text[] =
        "{{ tools is none }} {{ documents is none }} {{ bos_token is defined }} {{ eos_token }}"
        " {{ messages[0].content is none }} {{ messages[0].tool_calls is defined }}"
        " {{ add_generation_prompt }}";
    assert_int_equal(fl_chat_open_template(text, sizeof text - 1, NULL, "E", &chat), FL_ERR_OK);
    const fl_chat_message one = message("user", NULL);
    assert_renders(chat, &one, 1, "True True False E True False True");
    fl_chat_close(chat);
    static const char missing[] = "{{ bos_token + 'x' }}";
    fl_chat_text out;
    assert_int_equal(fl_chat_open_template(missing, sizeof missing - 1, NULL, NULL, &chat), FL_ERR_OK);
    assert_int_equal(fl_chat_render(chat, &one, 1, &plain, &out), FL_ERR_DATA);
    assert_string_equal(fl_err_detail(), "chat template line 1: 'bos_token' is undefined");
    fl_chat_close(chat);
}

static void extra_keys_may_not_replace_what_is_checked(void **state) {
    (void)state;
    fl_chat *chat = open_text("{{ messages[0].content[0].text }}{{ bos_token }}");
    fl_chat_message one = message("user", NULL);
    fl_chat_text text;
    json_t *parts = json_pack("{s:[{s:s}]}", "content", "text", "part"),
           *role = json_pack("{s:s}", "role", "x");
    json_t *bos = json_pack("{s:s}", "bos_token", "B"), *list = json_pack("{s:[]}", "messages");
    one.extra = parts;
    fl_chat_options options = {.extra_kwargs = bos};
    assert_int_equal(fl_chat_render(chat, &one, 1, &options, &text), FL_ERR_OK);
    assert_string_equal(text.text, "partB");
    assert_int_equal(text.n_trusted, 0); /* the request's bos_token is the request's, not the template's */
    fl_chat_text_free(&text);
    one.content = "text";
    one.content_bytes = 4;
    assert_int_equal(fl_chat_render(chat, &one, 1, &options, &text), FL_ERR_INVALID);
    assert_string_equal(fl_err_detail(), "message 0: 'content' may not be among the extra keys");
    one.extra = role;
    assert_int_equal(fl_chat_render(chat, &one, 1, &options, &text), FL_ERR_INVALID);
    one.extra = NULL;
    options.extra_kwargs = list;
    assert_int_equal(fl_chat_render(chat, &one, 1, &options, &text), FL_ERR_INVALID);
    assert_string_equal(fl_err_detail(), "extra template variables: 'messages' may not be among them");
    one.role = NULL;
    assert_int_equal(fl_chat_render(chat, &one, 1, &plain, &text), FL_ERR_INVALID);
    assert_string_equal(fl_err_detail(), "message 0: no role");
    fl_chat_close(chat);
    json_decref(parts);
    json_decref(role);
    json_decref(bos);
    json_decref(list);
}

static void limits_of_the_options_hold(void **state) {
    (void)state;
    fl_chat *chat = open_text("{% for m in messages %}{{ m.content }}{% endfor %}");
    const fl_chat_message two[] = {message("user", "0123456789"), message("user", "0123456789")};
    fl_jinja_limits limits;
    fl_jinja_limits_default(&limits);
    limits.output_bytes = 19;
    fl_chat_text text;
    const fl_chat_options options = {.limits = &limits};
    assert_int_equal(fl_chat_render(chat, two, 2, &options, &text), FL_ERR_LIMIT);
    limits.output_bytes = 20;
    assert_int_equal(fl_chat_render(chat, two, 2, &options, &text), FL_ERR_OK);
    fl_chat_text_free(&text);
    limits.steps = 5;
    assert_int_equal(fl_chat_render(chat, two, 2, &options, &text), FL_ERR_LIMIT);
    limits.value_bytes = 64;
    assert_int_equal(fl_chat_render(chat, two, 2, &options, &text), FL_ERR_LIMIT);
    fl_chat_close(chat);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/test_chat_XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static void put(const char *name, const char *text) {
    assert_int_equal(fl_file_write(folder, name, text, strlen(text)), FL_ERR_OK);
}

static void drop(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static int remove_folder(void **state) {
    (void)state;
    drop("tokenizer_config.json");
    drop("chat_template.jinja");
    return rmdir(folder);
}

static void assert_opens(const char *expect) {
    fl_chat *chat = NULL;
    fl_err err = fl_chat_open(folder, &chat);
    if (err != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    const fl_chat_message one = message("user", "hi");
    assert_renders(chat, &one, 1, expect);
    fl_chat_close(chat);
}

static void assert_refuses(fl_err code, const char *part) {
    fl_chat *chat = NULL;
    assert_int_equal(fl_chat_open(folder, &chat), code);
    assert_null(chat);
    if (strstr(fl_err_detail(), part) == NULL) fail_msg("'%s' is not in: %s", part, fl_err_detail());
}

static void templates_are_found_where_checkpoints_keep_them(void **state) {
    (void)state;
    put("tokenizer_config.json",
        "{\"bos_token\": \"<b>\", \"chat_template\": \"{{ bos_token }}{{ messages[0].content }}\"}");
    assert_opens("<b>hi");
    put("tokenizer_config.json",
        "{\"bos_token\": {\"__type\": \"AddedToken\", \"content\": \"<c>\"}, \"eos_token\": null,"
        " \"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"},"
        " {\"name\": \"default\", \"template\": \"D{{ bos_token }}{{ eos_token }}\"}]}");
    assert_opens("D<c>");
    put("chat_template.jinja", "J{{ bos_token }}\n");
    assert_opens("J<c>");
    drop("chat_template.jinja");
}

static void broken_checkpoints_are_refused_by_name(void **state) {
    (void)state;
    drop("tokenizer_config.json");
    assert_refuses(FL_ERR_DATA, "tokenizer_config.json");
    put("tokenizer_config.json", "{\"bos_token\": \"<b>\"}");
    assert_refuses(FL_ERR_UNSUPPORTED, "no chat_template");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}]}");
    assert_refuses(FL_ERR_UNSUPPORTED, "none is named 'default'");
    put("tokenizer_config.json", "{\"chat_template\": 7}");
    assert_refuses(FL_ERR_DATA, "chat_template: expected a string");
    put("tokenizer_config.json", "{\"bos_token\": 7, \"chat_template\": \"\"}");
    assert_refuses(FL_ERR_DATA, "bos_token: expected a string");
    put("tokenizer_config.json", "{\"chat_template\": ");
    assert_refuses(FL_ERR_DATA, "tokenizer_config.json: line 1:");
    put("tokenizer_config.json", "[]");
    assert_refuses(FL_ERR_DATA, "expected an object");
    put("tokenizer_config.json", "{\"chat_template\": \"x\\n{% include 'y' %}\"}");
    assert_refuses(FL_ERR_UNSUPPORTED,
                   "tokenizer_config.json: chat template line 2: the statement 'include'");
}

int main(int argc, char **argv) {
    if (argc == 2) {
        chat_cases_result result = chat_cases_run(argv[1]);
        printf("%zu cases: %zu equal, %zu unsupported, %zu wrong\n", result.n_cases, result.n_equal,
               result.n_unsupported, result.n_wrong);
        return result.n_wrong > 0 || result.n_unsupported * 5 > result.n_cases;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spark_template_gives_the_golden_prompts),
        cmocka_unit_test(checkpoint_templates_match_jinja),
        cmocka_unit_test(random_templates_match_jinja),
        cmocka_unit_test(control_tokens_in_contents_are_not_trusted),
        cmocka_unit_test(document_border_is_found_through_strip_and_split),
        cmocka_unit_test(usual_roles_may_make_control_tokens),
        cmocka_unit_test(what_comes_with_a_request_is_not_trusted),
        cmocka_unit_test(variables_are_those_of_hugging_face),
        cmocka_unit_test(extra_keys_may_not_replace_what_is_checked),
        cmocka_unit_test(limits_of_the_options_hold),
        cmocka_unit_test(templates_are_found_where_checkpoints_keep_them),
        cmocka_unit_test(broken_checkpoints_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
