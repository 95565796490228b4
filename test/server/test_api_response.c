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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_come_in_order_with_usage_last),
        cmocka_unit_test(without_usage_chunks_do_not_speak_of_it),
        cmocka_unit_test(a_whole_answer_is_one_object),
        cmocka_unit_test(completions_stream_text_and_count_every_prompt),
        cmocka_unit_test(a_fault_in_mid_stream_is_an_error_object),
        cmocka_unit_test(a_fault_of_a_whole_answer_is_a_status),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
