/* What good bodies become. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/api_fields.h"
#include "server/api_request.h"

static fl_api_request parse(fl_api_kind kind, const char *body) {
    fl_api_settings settings;
    fl_api_request r;
    fl_api_error error;
    fl_api_settings_default(&settings);
    if (fl_api_request_parse(kind, body, strlen(body), &settings, &r, &error) != FL_ERR_OK)
        fail_msg("%s", error.message);
    return r;
}

static void every_field_of_a_chat_arrives(void **state) {
    (void)state;
    fl_request_params p;
    fl_api_request r = parse(
        FL_API_CHAT,
        "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
        "\"content\":\"q\","
        "\"name\":\"u\"}],\"max_tokens\":5,\"max_completion_tokens\":7,\"min_tokens\":2,\"temperature\":0.5,"
        "\"top_p\":0.9,"
        "\"top_k\":-1,\"min_p\":0.25,\"presence_penalty\":1,\"frequency_penalty\":-0.5,\"repetition_"
        "penalty\":1.5,"
        "\"seed\":-3,\"n\":2,\"logprobs\":true,\"top_logprobs\":4,\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":"
        "[9,8],"
        "\"logit_bias\":{\"5\":-100,\"12\":1.5},\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false},\"user\":\"me\","
        "\"priority\":-4,"
        "\"deadline_s\":1.5,\"cache_salt\":\"salt\",\"chat_template_kwargs\":{\"enable_thinking\":false},"
        "\"metadata\":{\"a\":\"b\"},\"store\":false,\"reasoning_effort\":\"low\",\"service_tier\":\"auto\"}");
    assert_string_equal(r.model, "m");
    assert_string_equal(r.user, "me");
    assert_string_equal(r.cache_salt, "salt");
    assert_int_equal(r.n_messages, 2);
    assert_string_equal(r.messages[1].role, "user");
    assert_string_equal(r.messages[1].content, "q");
    assert_string_equal(json_string_value(json_object_get(r.messages[1].extra, "name")), "u");
    assert_true(json_is_false(json_object_get(r.template_kwargs, "enable_thinking")));
    assert_true(r.stream && r.include_usage && r.logprobs && r.seed_given);
    assert_int_equal(r.priority, -4);
    assert_true(r.deadline_s > 1.49 && r.deadline_s < 1.51);
    assert_int_equal(fl_api_request_choices(&r), 2);
    fl_api_request_params(&r, 1, 77, &p);
    assert_int_equal(p.max_tokens, 7);
    assert_int_equal(p.min_tokens, 2);
    assert_true(p.sampling.temperature == 0.5f && p.sampling.top_p == 0.9f && p.sampling.min_p == 0.25f);
    assert_true(p.sampling.presence_penalty == 1 && p.sampling.frequency_penalty == -0.5f);
    assert_true(p.sampling.repetition_penalty == 1.5f && p.sampling.top_k == 0);
    assert_true(p.sampling.seed == (uint64_t)-2); /* the second choice draws differently */
    assert_int_equal(p.top_logprobs, 4);
    assert_int_equal(p.n_stops, 2);
    assert_string_equal(p.stops[1], "bc");
    assert_int_equal(p.n_stop_tokens, 2);
    assert_int_equal(p.stop_tokens[0], 9);
    assert_int_equal(p.n_logit_biases, 2);
    assert_int_equal(p.priority, -4);
    assert_true(p.deadline_s == 1.5);
    assert_true(p.logit_biases[1].token == 12 && p.logit_biases[1].bias == 1.5f);
    assert_true(p.ignore_eos);
    assert_null(p.json_schema);
    fl_api_request_free(&r);
}

static void what_is_absent_has_its_default(void **state) {
    (void)state;
    fl_request_params p;
    fl_api_request r =
        parse(FL_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"stop\":null}");
    fl_api_request_params(&r, 0, 77, &p);
    assert_null(r.model);
    assert_false(r.stream || r.logprobs || r.seed_given || r.include_usage);
    assert_int_equal(p.max_tokens, INT32_MAX); /* the engine cuts it to the room there is */
    assert_true(p.sampling.temperature == 1 && p.sampling.top_p == 1 && p.sampling.seed == 77);
    assert_int_equal(p.n_stops, 0);
    fl_api_request_free(&r);
    r = parse(FL_API_COMPLETION, "{\"prompt\":\"a\"}");
    fl_api_request_params(&r, 0, 0, &p);
    assert_int_equal(p.max_tokens, 16);
    fl_api_request_free(&r);
}

static void prompts_come_in_four_shapes(void **state) {
    (void)state;
    fl_api_request r = parse(FL_API_COMPLETION, "{\"prompt\":\"text\",\"logprobs\":0}");
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompts[0].text, "text");
    assert_true(r.logprobs && r.top_logprobs == 0);
    fl_api_request_free(&r);
    r = parse(FL_API_COMPLETION, "{\"prompt\":[\"a\",\"bc\"],\"n\":3,\"best_of\":3}");
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(fl_api_request_choices(&r), 6);
    assert_int_equal(r.prompts[1].text_bytes, 2);
    fl_api_request_free(&r);
    r = parse(FL_API_COMPLETION, "{\"prompt\":[5,6,7]}");
    assert_int_equal(r.n_prompts, 1);
    assert_null(r.prompts[0].text);
    assert_int_equal(r.prompts[0].n_tokens, 3);
    assert_int_equal(r.prompts[0].tokens[2], 7);
    fl_api_request_free(&r);
    r = parse(FL_API_COMPLETION, "{\"prompt\":[[5],[6,7]]}");
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(r.prompts[1].n_tokens, 2);
    fl_api_request_free(&r);
}

static void text_endpoints_take_both_spellings(void **state) {
    (void)state;
    fl_api_request r =
        parse(FL_API_TOKENIZE, "{\"content\":\"a\",\"add_special\":false,\"parse_special\":true}");
    assert_false(r.add_special_tokens);
    assert_true(r.parse_special);
    fl_api_request_free(&r);
    r = parse(FL_API_TOKENIZE,
              "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"add_generation_prompt\":false}");
    assert_int_equal(r.n_messages, 1);
    assert_false(r.add_generation_prompt);
    fl_api_request_free(&r);
    r = parse(FL_API_DETOKENIZE, "{\"tokens\":[1,2]}");
    assert_int_equal(r.prompts[0].n_tokens, 2);
    fl_api_request_free(&r);
}

static void parts_are_joined_by_line_breaks(void **state) {
    (void)state;
    fl_api_request r = parse(
        FL_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"},"
                     "{\"type\":\"text\",\"text\":\"\"},{\"type\":\"text\",\"text\":\"c\\u0000d\"}]}]}");
    assert_int_equal(r.messages[0].content_bytes, 7);
    assert_memory_equal(r.messages[0].content, "ab\n\nc\0d", 7);
    assert_int_equal(r.question_bytes, 3);
    fl_api_request_free(&r);
}

typedef struct question_case {
    const char *content; /* JSON */
    size_t bytes;
} question_case;

static void questions_follow_the_last_blank_line(void **state) {
    (void)state;
    static const question_case cases[] = {
        {"\"no blank line\"", 0},
        {"\"one\\nline break\"", 0},
        {"\"doc\\n\\nask?\"", 4},
        {"\"doc\\r\\n\\r\\nask?\"", 4},
        {"\"doc\\n \\t\\nask?\"", 4},
        {"\"doc\\n\\nmore\\n\\nask\\nmore\"", 8},
        {"\"doc\\n\\nask?\\n\\n\"", 6},
        {"\"\\n\\nask?\"", 4},
        {"\"\\n\\n\"", 0},
        {"\" \"", 0},
        {"[{\"type\":\"text\",\"text\":\"doc\\n\\nask?\"}]", 4},
        {"[{\"type\":\"text\",\"text\":\"doc\\n\\nask?\"},{\"type\":\"text\",\"text\":\"a\\n\\nlast\"}]", 7},
    };
    char body[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":%s},{\"role\":\"tool\",\"content\":"
                 "\"x\\n\\ny\"}]}",
                 cases[i].content);
        fl_api_request r = parse(FL_API_CHAT, body);
        assert_int_equal(r.question_message, 0);
        if (r.question_bytes != cases[i].bytes)
            fail_msg("%s: expected %zu bytes, found %zu", cases[i].content, cases[i].bytes, r.question_bytes);
        fl_api_request_free(&r);
    }
}

/* What follows the blank line is a question up to a size; beyond it is more of the document. */
static void a_long_rest_is_no_question(void **state) {
    (void)state;
    for (size_t n = FL_API_QUESTION_BYTES_MAX; n <= FL_API_QUESTION_BYTES_MAX + 1; n++) {
        char *body = malloc(n + 100);
        int at = snprintf(body, 100, "{\"messages\":[{\"role\":\"user\",\"content\":\"doc\\n\\n");
        memset(body + at, 'q', n);
        memcpy(body + at + n, "\"}]}", 5);
        fl_api_request r = parse(FL_API_CHAT, body);
        assert_int_equal(r.question_bytes, n <= FL_API_QUESTION_BYTES_MAX ? n : 0);
        fl_api_request_free(&r);
        free(body);
    }
}

static void schemas_are_kept_as_text(void **state) {
    (void)state;
    fl_request_params p;
    fl_api_request r = parse(
        FL_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"response_format\":{\"type\":"
                     "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":"
                     "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{\"enum\":[1.5]}}}}}}");
    fl_api_request_params(&r, 0, 0, &p);
    assert_string_equal(p.json_schema,
                        "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{\"enum\":[1.5]}}}");
    fl_api_request_free(&r);
    r = parse(FL_API_COMPLETION, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}");
    assert_string_equal(r.json_schema, "");
    fl_api_request_free(&r);
    r = parse(FL_API_COMPLETION, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"text\"}}");
    assert_null(r.json_schema);
    fl_api_request_free(&r);
}

/* The refusal of a body that parses, against a vocabulary of 100. */
static void expect_bad_id(const char *body, const char *param) {
    fl_api_error error;
    fl_api_request r = parse(FL_API_COMPLETION, body);
    fl_err err = fl_api_request_check_ids(&r, 100, &error);
    if (param == NULL) assert_int_equal(err, FL_ERR_OK);
    else {
        assert_int_equal(err, FL_ERR_INVALID);
        assert_string_equal(error.param, param);
    }
    fl_api_request_free(&r);
}

static void ids_are_checked_against_the_vocabulary(void **state) {
    (void)state;
    expect_bad_id("{\"prompt\":[0,99],\"stop_token_ids\":[99],\"logit_bias\":{\"99\":1}}", NULL);
    expect_bad_id("{\"prompt\":[0,100]}", "prompt[1]");
    expect_bad_id("{\"prompt\":[[0],[1,2147483647]]}", "prompt[1][1]");
    expect_bad_id("{\"prompt\":\"a\",\"stop_token_ids\":[1,100]}", "stop_token_ids[1]");
    expect_bad_id("{\"prompt\":\"a\",\"logit_bias\":{\"100\":1}}", "logit_bias.100");
}

static void schemas_are_refused_before_anything_is_queued(void **state) {
    (void)state;
    static const char *const bodies[][2] = {
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
         "response_format"},
        {"\"response_format\":{\"type\":\"json_object\"},\"ignore_eos\":true", "ignore_eos"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"not\":{}}}}],"
         "\"tool_choice\":\"required\"",
         "tools"},
    };
    char body[1024];
    fl_api_settings settings;
    fl_api_request r;
    fl_api_error error;
    fl_api_settings_default(&settings);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        int n = snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],%s}",
                         bodies[i][0]);
        assert_int_equal(fl_api_request_parse(FL_API_CHAT, body, (size_t)n, &settings, &r, &error),
                         FL_ERR_INVALID);
        assert_int_equal(error.status, 400);
        assert_string_equal(error.param, bodies[i][1]);
    }
}

static void messages_say_what_was_expected_and_found(void **state) {
    (void)state;
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"top_p\":\"high\"}";
    fl_api_settings settings;
    fl_api_request r;
    fl_api_error error;
    fl_buffer out;
    fl_api_settings_default(&settings);
    fl_buffer_init(&out, 4096);
    assert_int_equal(fl_api_request_parse(FL_API_CHAT, body, strlen(body), &settings, &r, &error),
                     FL_ERR_INVALID);
    fl_api_error_write(&error, &out);
    fl_buffer_add(&out, "", 1);
    assert_string_equal(
        out.bytes,
        "{\"error\":{\"message\":\"top_p: expected a number above 0 and at most 1, found \\\"high\\\"\","
        "\"type\":\"invalid_request_error\",\"param\":\"top_p\",\"code\":null}}");
    fl_buffer_free(&out);
}

static void numbers_are_told_as_they_were_written(void **state) {
    static const char *const written[] = {"2.0", "2.1", "0.3", "-1.5", "1e20"};
    (void)state;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        json_t *value = json_loads(written[i], JSON_DECODE_ANY, NULL);
        assert_string_equal(fl_api_found_of(value).text, written[i]);
        json_decref(value);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_of_a_chat_arrives),
        cmocka_unit_test(what_is_absent_has_its_default),
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(text_endpoints_take_both_spellings),
        cmocka_unit_test(parts_are_joined_by_line_breaks),
        cmocka_unit_test(questions_follow_the_last_blank_line),
        cmocka_unit_test(a_long_rest_is_no_question),
        cmocka_unit_test(schemas_are_kept_as_text),
        cmocka_unit_test(ids_are_checked_against_the_vocabulary),
        cmocka_unit_test(schemas_are_refused_before_anything_is_queued),
        cmocka_unit_test(messages_say_what_was_expected_and_found),
        cmocka_unit_test(numbers_are_told_as_they_were_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
