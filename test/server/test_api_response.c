/* Answers byte for byte: order of chunks, usage, log-probs, tool calls, errors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/api_response.h"

static fl_tokenizer *tokenizer; /* of the bundled model */

static int open_tokenizer(void **state) {
    (void)state;
    return fl_tokenizer_open("build/models/spark-66m", &tokenizer) == FL_ERR_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    fl_tokenizer_close(tokenizer);
    return 0;
}

static int32_t token_of(const char *text) {
    int32_t id = -1;
    assert_int_equal(fl_tokenizer_find(tokenizer, text, &id), FL_ERR_OK);
    return id;
}

/* An answer being made of a request's body. */
typedef struct making {
    fl_api_request request;
    fl_api_answer *answer;
    fl_buffer out;
    fl_api_error error;
} making;

static void begin(making *m, fl_api_kind kind, const char *body) {
    fl_api_settings settings;
    fl_api_identity identity = {.created_s = 1700000000, .model = "spark", .fingerprint = "fp_1"};
    for (size_t i = 0; i < sizeof identity.random; i++) identity.random[i] = (unsigned char)(i * 17);
    fl_api_settings_default(&settings);
    fl_buffer_init(&m->out, 1 << 20);
    if (fl_api_request_parse(kind, body, strlen(body), &settings, &m->request, &m->error) != FL_ERR_OK)
        fail_msg("%s", m->error.message);
    assert_int_equal(fl_api_answer_open(&m->request, &identity, tokenizer, &m->answer), FL_ERR_OK);
}

static void feed(making *m, int32_t choice, const fl_event *event) {
    assert_int_equal(fl_api_answer_event(m->answer, choice, event, &m->out), FL_ERR_OK);
}

static void say(making *m, int32_t choice, const char *text) {
    fl_event e = {.type = FL_EVENT_TOKEN, .token = 100, .text = text, .text_bytes = strlen(text)};
    e.prompt_tokens = 12;
    e.cached_tokens = 8;
    e.answer_tokens = 1;
    feed(m, choice, &e);
}

static void stop(making *m, int32_t choice, fl_finish finish, int64_t answer_tokens) {
    fl_event e = {.type = FL_EVENT_DONE, .token = -1, .text = "", .finish = finish};
    e.prompt_tokens = 12;
    e.cached_tokens = 8;
    e.answer_tokens = answer_tokens;
    feed(m, choice, &e);
}

/* Ends the answer, compares all its bytes, frees. */
static void expect(making *m, const char *bytes) {
    assert_true(fl_api_answer_done(m->answer));
    assert_int_equal(fl_api_answer_end(m->answer, &m->out, &m->error), FL_ERR_OK);
    fl_buffer_add(&m->out, "", 1);
    assert_string_equal(m->out.bytes, bytes);
    fl_api_answer_close(m->answer);
    fl_api_request_free(&m->request);
    fl_buffer_free(&m->out);
}

#define SAME     "\"created\":1700000000,\"model\":\"spark\",\"system_fingerprint\":\"fp_1\",\"choices\":["
#define ID       "\"id\":\"chatcmpl-00112233445566778899aabbccddeeff\","
#define CHUNK    "data: {" ID "\"object\":\"chat.completion.chunk\"," SAME
#define WHOLE    "{" ID "\"object\":\"chat.completion\"," SAME
#define TEXTID   "\"id\":\"cmpl-00112233445566778899aabbccddeeff\","
#define TEXT     TEXTID "\"object\":\"text_completion\"," SAME
#define DONE     "data: [DONE]\n\n"
#define HI       "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define OPEN     ",\"logprobs\":null,\"finish_reason\":null}]"
#define ROLE     CHUNK "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}" OPEN
#define END(why) CHUNK "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"" why "\"}]"
#define USAGE(p, c, t, k)                                                                                    \
    "\"usage\":{\"prompt_tokens\":" p ",\"completion_tokens\":" c ",\"total_tokens\":" t                     \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" k "}}}"

static void chunks_come_in_order_with_usage_last(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    fl_event progress = {.type = FL_EVENT_PROGRESS, .token = -1};
    feed(&m, 0, &progress);
    assert_int_equal(m.out.n, 0);
    say(&m, 0, "He said: \"a\\b\"\n\x01\xc3\xa9");
    say(&m, 0, "");
    say(&m, 0, ".");
    stop(&m, 0, FL_FINISH_STOP, 3);
    expect(&m, ROLE ",\"usage\":null}\n\n" CHUNK
                    "{\"index\":0,\"delta\":{\"content\":\"He said: \\\"a\\\\b\\\"\\n\\u0001\xc3\xa9\"}" OPEN
                    ",\"usage\":null}\n\n" CHUNK "{\"index\":0,\"delta\":{\"content\":\".\"}" OPEN
                    ",\"usage\":null}\n\n" END("stop") ",\"usage\":null}\n\n" CHUNK
                                                       "]," USAGE("12", "3", "15", "8") "\n\n" DONE);
}

static void without_usage_chunks_do_not_speak_of_it(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI ",\"stream\":true}");
    stop(&m, 0, FL_FINISH_LENGTH, 0);
    expect(&m, ROLE "}\n\n" END("length") "}\n\n" DONE);
}

static void a_whole_answer_is_one_object(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI ",\"n\":2}");
    say(&m, 0, "one ");
    say(&m, 1, "two");
    say(&m, 0, "more");
    assert_int_equal(m.out.n, 0);
    stop(&m, 1, FL_FINISH_LENGTH, 1);
    assert_false(fl_api_answer_done(m.answer));
    stop(&m, 0, FL_FINISH_STOP, 2);
    expect(&m, WHOLE
           "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"one more\",\"refusal\":null},"
           "\"logprobs\":null,\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":\"assistant\","
           "\"content\":\"two\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE(
               "12", "3", "15", "8"));
}

static void completions_stream_text_and_count_every_prompt(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_COMPLETION,
          "{\"prompt\":[\"a\",\"b\"],\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    say(&m, 1, "x");
    stop(&m, 1, FL_FINISH_STOP, 1);
    stop(&m, 0, FL_FINISH_STOP, 0);
    expect(&m, "data: {" TEXT "{\"index\":1,\"text\":\"x\"" OPEN ",\"usage\":null}\n\n"
               "data: {" TEXT
               "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
               "data: {" TEXT
               "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
               "data: {" TEXT "]," USAGE("24", "1", "25", "16") "\n\n" DONE);
}

static void a_fault_in_mid_stream_is_an_error_object(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    say(&m, 0, "A");
    size_t before = m.out.n;
    const fl_event e = {.type = FL_EVENT_DONE,
                        .token = -1,
                        .text = "",
                        .finish = FL_FINISH_ERROR,
                        .err = FL_ERR_NUMERIC,
                        .err_detail = "the logit of token 7 is not a finite number"};
    feed(&m, 0, &e);
    assert_int_equal(m.out.n, before);
    fl_buffer_drop(&m.out, before);
    expect(&m, "data: {\"error\":{\"message\":\"the logit of token 7 is not a finite number\","
               "\"type\":\"server_error\",\"param\":null,\"code\":\"not_a_number\"}}\n\n" DONE);
    assert_int_equal(m.error.status, 500);
}

static void a_fault_of_a_whole_answer_is_a_status(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI "}");
    say(&m, 0, "A");
    const fl_event e = {.type = FL_EVENT_DONE,
                        .token = -1,
                        .text = "",
                        .finish = FL_FINISH_ERROR,
                        .err = FL_ERR_LIMIT,
                        .err_detail = "too long"};
    feed(&m, 0, &e);
    expect(&m, "");
    assert_int_equal(m.error.status, 400);
    assert_string_equal(m.error.message, "too long");
    assert_string_equal(m.error.code, "limit_exceeded");
}

/* A token of the bundled model with two alternatives, the second as good as impossible. */
static void say_scored(making *m, const char *text, int32_t token) {
    fl_event e = {.type = FL_EVENT_TOKEN, .token = token, .text = text, .text_bytes = strlen(text)};
    e.logprob = -0.5f;
    e.n_top = 2;
    e.top[0] = (fl_token_logprob){token, -0.5f};
    e.top[1] = (fl_token_logprob){token_of("\""), -INFINITY};
    feed(m, 0, &e);
}

#define SCORED(text, bytes)                                                                                  \
    "{\"token\":\"" text "\",\"logprob\":-0.5,\"bytes\":[" bytes "],\"top_logprobs\":[{\"token\":\"" text    \
    "\",\"logprob\":-0.5,\"bytes\":[" bytes "]},{\"token\":\"\\\"\",\"logprob\":-9999,\"bytes\":[34]}]}"

static void log_probs_of_a_chat(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":2}");
    say_scored(&m, "a", token_of("a"));
    say_scored(&m, "", token_of("b")); /* its text is held back by a stop string */
    stop(&m, 0, FL_FINISH_STOP, 2);
    expect(
        &m, WHOLE
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\",\"refusal\":null},\"logprobs\":"
        "{\"content\":[" SCORED("a", "97") "," SCORED("b", "98") "],\"refusal\":null},"
                                                                 "\"finish_reason\":\"stop\"}]," USAGE(
                                                                     "12", "2", "14", "8"));
    begin(&m, FL_API_CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":2,\"stream\":true}");
    say_scored(&m, "a", token_of("a"));
    say_scored(&m, "", token_of("b"));
    stop(&m, 0, FL_FINISH_STOP, 2);
#define DELTA(text, entry)                                                                                   \
    CHUNK "{\"index\":0,\"delta\":{\"content\":\"" text "\"},\"logprobs\":{\"content\":[" entry              \
          "],\"refusal\":null},\"finish_reason\":null}]}\n\n"
    expect(&m,
           ROLE "}\n\n" DELTA("a", SCORED("a", "97")) DELTA("", SCORED("b", "98")) END("stop") "}\n\n" DONE);
}

static void log_probs_of_a_completion(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_COMPLETION, "{\"prompt\":\"p\",\"logprobs\":2}");
    say_scored(&m, "a", token_of("a"));
    say_scored(&m, "b", token_of("b"));
    stop(&m, 0, FL_FINISH_LENGTH, 2);
    expect(
        &m,
        "{" TEXT
        "{\"index\":0,\"text\":\"ab\",\"logprobs\":{\"tokens\":[\"a\",\"b\"],\"token_logprobs\":[-0.5,-0.5],"
        "\"top_logprobs\":[{\"a\":-0.5,\"\\\"\":-9999},{\"b\":-0.5,\"\\\"\":-9999}],\"text_offset\":[0,1]},"
        "\"finish_reason\":\"length\"}]," USAGE("12", "2", "14", "8"));
}

#define TOOLS                                                                                                \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":" \
    "{\"name\":\"g\"}}]"
#define CALL_ID(n) "call_00112233445566770000000" n

static void calls_of_a_whole_answer(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT, "{" HI TOOLS "}");
    say(&m, 0, "{\"name\":\"f\",\"arguments\":{\"a\":\"\\\"\"}}\n{\"na");
    say(&m, 0, "me\":\"g\",\"arguments\":{}}");
    stop(&m, 0, FL_FINISH_STOP, 2);
    expect(
        &m, WHOLE
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"tool_calls\":["
        "{\"id\":\"" CALL_ID("0") "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                                  "\"{\\\"a\\\":\\\"\\\\\\\"\\\"}\"}},{\"id\":\"" CALL_ID(
                                      "1") "\",\"type\":\"function\","
                                           "\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},"
                                           "\"logprobs\":null,\"finish_reason\":"
                                           "\"tool_calls\"}]," USAGE("12", "2", "14", "8"));
}

static void calls_of_a_stream(void **state) {
    (void)state;
    making m;
    begin(&m, FL_API_CHAT,
          "{" HI TOOLS ",\"stream\":true,\"tool_choice\":{\"type\":\"function\",\"function\":"
          "{\"name\":\"g\"}}}");
    say(&m, 0, "{\"a\":");
    say(&m, 0, "1}");
    stop(&m, 0, FL_FINISH_STOP, 2);
#define PIECE(text)                                                                                          \
    CHUNK "{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"" text         \
          "\"}}]}" OPEN "}\n\n"
    expect(&m, ROLE "}\n\n" CHUNK "{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"" CALL_ID(
                   "0") "\","
                        "\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]}" OPEN
                        "}\n\n" PIECE("{\\\"a\\\":") PIECE("1}") END("tool_calls") "}\n\n" DONE);
}

static void an_answer_that_never_ended_is_a_fault(void **state) {
    (void)state;
    making m;
    fl_api_error error;
    begin(&m, FL_API_CHAT, "{" HI "}");
    say(&m, 0, "A");
    fl_api_error_set(&error, 503, NULL, "worker_lost", "the worker is gone");
    fl_api_answer_fail(m.answer, &error);
    say(&m, 0, "B"); /* too late */
    expect(&m, "");
    assert_int_equal(m.error.status, 503);
    assert_string_equal(m.error.code, "worker_lost");
}

static void small_bodies(void **state) {
    (void)state;
    fl_buffer out;
    const int32_t tokens[] = {3, 1, 2};
    fl_buffer_init(&out, 4096);
    fl_api_model_write("a\"b", 5, 4096, &out);
    fl_api_model_write("m", 5, 0, &out);
    fl_api_tokens_write(tokens, 3, 4096, &out);
    fl_api_tokens_write(tokens, 0, 4096, &out);
    fl_api_text_write("\xff\x7f", 2, &out);
    fl_buffer_add(&out, "", 1);
    assert_string_equal(
        out.bytes,
        "{\"id\":\"a\\\"b\",\"object\":\"model\",\"created\":5,"
        "\"owned_by\":\"firstlight\",\"max_model_len\":4096}"
        "{\"id\":\"m\",\"object\":\"model\",\"created\":5,\"owned_by\":\"firstlight\",\"max_model_len\":null}"
        "{\"count\":3,\"max_model_len\":4096,\"tokens\":[3,1,2]}"
        "{\"count\":0,\"max_model_len\":4096,\"tokens\":[]}"
        "{\"prompt\":\"\xef\xbf\xbd\\u007f\"}");
    fl_buffer_free(&out);
}

typedef struct status_case {
    fl_err err;
    int32_t status;
    const char *type, *code;
} status_case;

static void engine_errors_have_a_status(void **state) {
    (void)state;
    static const status_case cases[] = {
        {FL_ERR_INVALID, 400, "invalid_request_error", NULL},
        {FL_ERR_LIMIT, 400, "invalid_request_error", "limit_exceeded"},
        {FL_ERR_AGAIN, 429, "rate_limit_error", "queue_full"},
        {FL_ERR_CANCELLED, 499, "cancelled", "cancelled"},
        {FL_ERR_UNSUPPORTED, 501, "server_error", "unsupported"},
        {FL_ERR_DEVICE, 503, "server_error", "engine_lost"},
        {FL_ERR_NOMEM, 503, "server_error", "out_of_memory"},
        {FL_ERR_INTERNAL, 500, "server_error", "internal_error"},
    };
    fl_api_error e;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fl_api_error_from(&e, cases[i].err, NULL);
        assert_int_equal(e.status, cases[i].status);
        assert_string_equal(e.type, cases[i].type);
        assert_string_equal(e.message, fl_err_name(cases[i].err));
        if (cases[i].code != NULL) assert_string_equal(e.code, cases[i].code);
        else assert_null(e.code);
    }
    fl_api_error_from(&e, FL_ERR_INVALID, "stop_tokens[3]: expected 0..99, found 100");
    assert_string_equal(e.param, "stop_token_ids");
    fl_api_error_from(&e, FL_ERR_UNSUPPORTED, "json_schema: \"not\" is not supported");
    assert_string_equal(e.param, "response_format");
    assert_int_equal(e.status, 400);
    fl_api_error_from(&e, FL_ERR_LIMIT, "deadline_s: no first token within 1 s");
    assert_string_equal(e.code, "deadline_exceeded"); /* 400: clients that retry on 5xx should not */
    assert_int_equal(e.status, 400);
    fl_api_error_from(&e, FL_ERR_INVALID, "tokensX: x");
    assert_string_equal(e.param, "");
    fl_api_error_set(&e, 401, NULL, NULL, "a\nb");
    assert_string_equal(e.type, "authentication_error");
    assert_string_equal(e.message, "a?b");
    fl_api_error_set(&e, 404, NULL, NULL, "x");
    assert_string_equal(e.type, "not_found_error");
    fl_api_error_set(&e, 405, NULL, NULL, "x");
    assert_string_equal(e.type, "invalid_request_error");
    fl_api_error_set(&e, 413, NULL, NULL, "x");
    assert_string_equal(e.type, "invalid_request_error");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_come_in_order_with_usage_last),
        cmocka_unit_test(without_usage_chunks_do_not_speak_of_it),
        cmocka_unit_test(a_whole_answer_is_one_object),
        cmocka_unit_test(completions_stream_text_and_count_every_prompt),
        cmocka_unit_test(a_fault_in_mid_stream_is_an_error_object),
        cmocka_unit_test(a_fault_of_a_whole_answer_is_a_status),
        cmocka_unit_test(log_probs_of_a_chat),
        cmocka_unit_test(log_probs_of_a_completion),
        cmocka_unit_test(calls_of_a_whole_answer),
        cmocka_unit_test(calls_of_a_stream),
        cmocka_unit_test(an_answer_that_never_ended_is_a_fault),
        cmocka_unit_test(small_bodies),
        cmocka_unit_test(engine_errors_have_a_status),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
