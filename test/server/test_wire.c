/* Messages between front and worker: what is written is read back member by member, and what is cut, longer,
 * out of range or no message is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/wire.h"

typedef struct message {
    fl_wire_header header;
    uint8_t *body; /* owned, at an address that is a multiple of 8 */
} message;

/* The only message in `out`, in memory of exactly its size, so that a sanitizer sees what reads too far. */
static message take(fl_buffer *out) {
    message m;
    assert_true(out->n >= FL_WIRE_HEADER_BYTES);
    assert_int_equal(fl_wire_get_header((const uint8_t *)out->bytes, &m.header), FL_ERR_OK);
    assert_int_equal(out->n, FL_WIRE_HEADER_BYTES + m.header.body_bytes);
    m.body = malloc(m.header.body_bytes > 0 ? m.header.body_bytes : 1);
    assert_non_null(m.body);
    memcpy(m.body, out->bytes + FL_WIRE_HEADER_BYTES, m.header.body_bytes);
    fl_buffer_clear(out);
    return m;
}

static void a_request_is_read_back(void **state) {
    (void)state;
    const int32_t tokens[5] = {3, 1, 4, 1, 5}, ends[2] = {9, 2};
    const char *const stops[3] = {"stop", "", "\xe2\x82\xac"};
    const fl_logit_bias biases[2] = {{7, 1.5F}, {8, -100}};
    fl_request_params p;
    fl_wire_submit got;
    fl_buffer out;
    fl_buffer_init(&out, 1 << 20);
    fl_request_params_default(&p);
    p.tokens = tokens;
    p.n_tokens = 5;
    p.document_tokens = 3;
    p.max_tokens = INT64_MAX;
    p.sampling = (fl_sampling){.temperature = 0.7F,
                               .top_k = 5,
                               .top_p = 0.9F,
                               .min_p = 0.1F,
                               .repetition_penalty = 1.1F,
                               .presence_penalty = -1,
                               .frequency_penalty = 2,
                               .seed = UINT64_MAX};
    p.top_logprobs = 20;
    p.stops = stops;
    p.n_stops = 3;
    p.stop_tokens = ends;
    p.n_stop_tokens = 2;
    p.logit_biases = biases;
    p.n_logit_biases = 2;
    p.min_tokens = 4;
    p.json_schema = "{}";
    p.ignore_eos = true;
    assert_int_equal(fl_wire_put_submit(&out, 77, &p), FL_ERR_OK);
    message m = take(&out);
    assert_int_equal(m.header.type, FL_WIRE_SUBMIT);
    assert_int_equal(m.header.id, 77);
    assert_int_equal(fl_wire_get_submit(m.body, m.header.body_bytes, &got), FL_ERR_OK);
    const fl_request_params *q = &got.params;
    assert_int_equal(q->n_tokens, 5);
    assert_memory_equal(q->tokens, tokens, sizeof tokens);
    assert_int_equal(q->document_tokens, 3);
    assert_true(q->max_tokens == INT64_MAX);
    assert_memory_equal(&q->sampling.temperature, &p.sampling.temperature, 7 * sizeof(float));
    assert_true(q->sampling.seed == UINT64_MAX);
    assert_int_equal(q->top_logprobs, 20);
    assert_int_equal(q->n_stops, 3);
    for (int32_t i = 0; i < 3; i++) assert_string_equal(q->stops[i], stops[i]);
    assert_int_equal(q->n_stop_tokens, 2);
    assert_memory_equal(q->stop_tokens, ends, sizeof ends);
    assert_int_equal(q->n_logit_biases, 2);
    assert_memory_equal(q->logit_biases, biases, sizeof biases);
    assert_int_equal(q->min_tokens, 4);
    assert_string_equal(q->json_schema, "{}");
    assert_true(q->ignore_eos);
    free(m.body);
    fl_buffer_free(&out);
}

static fl_event any_event(void) {
    fl_event e = {.type = FL_EVENT_TOKEN,
                  .token = 12,
                  .text = "a\0b",
                  .text_bytes = 3,
                  .logprob = -INFINITY,
                  .n_top = 2,
                  .top = {{1, -0.5F}, {2, -1.5F}},
                  .prompt_tokens = 10,
                  .cached_tokens = 4,
                  .done_tokens = 10,
                  .done_fraction = 1,
                  .answer_tokens = 1,
                  .ttft_s = 0.25,
                  .elapsed_s = 0.5};
    return e;
}

static void an_event_and_its_end_are_read_back(void **state) {
    (void)state;
    static fl_wire_done done;
    const fl_mark marks[2] = {{"queue", 0, 1, 0}, {"prefill", 1, 2.5, 10}};
    fl_event e = any_event(), got;
    fl_buffer out;
    fl_buffer_init(&out, 1 << 20);
    assert_int_equal(fl_wire_put_event(&out, 5, &e), FL_ERR_OK);
    message m = take(&out);
    assert_int_equal(fl_wire_get_event(m.body, m.header.body_bytes, &got), FL_ERR_OK);
    assert_int_equal(got.text_bytes, 3);
    assert_memory_equal(got.text, "a\0b", 4);
    got.text = e.text;
    assert_memory_equal(&got, &e, sizeof e);
    assert_int_equal(fl_wire_get_done(m.body, m.header.body_bytes, &done), FL_ERR_DATA); /* not the end */
    free(m.body);
    e.type = FL_EVENT_DONE;
    e.finish = FL_FINISH_ERROR;
    e.err = FL_ERR_NUMERIC;
    e.err_detail = "NaN";
    assert_int_equal(fl_wire_put_done(&out, 5, &e, marks, 2), FL_ERR_OK);
    m = take(&out);
    assert_int_equal(m.header.type, FL_WIRE_DONE);
    assert_int_equal(fl_wire_get_done(m.body, m.header.body_bytes, &done), FL_ERR_OK);
    assert_int_equal(done.event.err, FL_ERR_NUMERIC);
    assert_string_equal(done.event.err_detail, "NaN");
    assert_int_equal(done.n_marks, 2);
    assert_string_equal(done.marks[1].name, "prefill");
    assert_true(done.marks[1].end_s == 2.5 && done.marks[1].tokens == 10);
    free(m.body);
    fl_buffer_free(&out);
}

static void settings_info_and_load_are_read_back(void **state) {
    (void)state;
    fl_settings s;
    fl_wire_hello hello;
    fl_wire_ready ready;
    fl_engine_load load;
    fl_meters meters;
    fl_buffer out;
    fl_buffer_init(&out, 1 << 20);
    fl_settings_default(&s);
    s.model_path = "/models/x";
    s.synthetic_seed = 3;
    s.rope_factor = 8;
    s.device = 2;
    s.deterministic = true;
    s.ctx_tokens = 1 << 19;
    s.requests_max = 99;
    assert_int_equal(fl_wire_put_hello(&out, &s), FL_ERR_OK);
    message m = take(&out);
    assert_int_equal(fl_wire_get_hello(m.body, m.header.body_bytes, &hello), FL_ERR_OK);
    assert_string_equal(hello.settings.model_path, s.model_path);
    assert_string_equal(hello.settings.policy, "full");
    assert_null(hello.settings.calibration);
    assert_true(hello.settings.rope_factor == 8 && hello.settings.deterministic && hello.settings.check_lock);
    assert_int_equal(hello.settings.ctx_tokens, 1 << 19);
    assert_int_equal(hello.settings.requests_max, 99);
    m.body[0]++; /* another version */
    assert_int_equal(fl_wire_get_hello(m.body, m.header.body_bytes, &hello), FL_ERR_DATA);
    assert_non_null(strstr(fl_err_detail(), "version 2"));
    free(m.body);
    const fl_engine_info info = {
        .model_type = "deepseek_v3", .n_vocab = 8192, .bos_token = -1, .kv_bytes = 1LL << 40};
    assert_int_equal(fl_wire_put_ready(&out, &info), FL_ERR_OK);
    m = take(&out);
    assert_int_equal(fl_wire_get_ready(m.body, m.header.body_bytes, &ready), FL_ERR_OK);
    assert_string_equal(ready.info.model_type, "deepseek_v3");
    assert_true(ready.info.kv_bytes == 1LL << 40 && ready.info.bos_token == -1);
    free(m.body);
    static const fl_engine_load told = {.kv_pages = 10,
                                        .kv_pages_free = 4,
                                        .answer_tokens = 1LL << 40,
                                        .n_costs = 2,
                                        .cost_tokens = {1024, 2048},
                                        .cost_s = {0.5, 1.5},
                                        .lost = true};
    const fl_meters metered = {
        .peak_bytes = 1LL << 40, .step_s = 2, .comm_s = 0.5, .comm_slowest = "all_sum"};
    assert_int_equal(fl_wire_put_load(&out, &told, &metered), FL_ERR_OK);
    m = take(&out);
    assert_int_equal(fl_wire_get_load(m.body, m.header.body_bytes, &load, &meters), FL_ERR_OK);
    assert_memory_equal(&load, &told, sizeof load);
    assert_string_equal(meters.comm_slowest, "all_sum");
    meters.comm_slowest = metered.comm_slowest;
    assert_memory_equal(&meters, &metered, sizeof meters);
    free(m.body);
    fl_buffer_free(&out);
}

/* Every length but the right one is refused, wherever the message is cut. */
static void what_is_cut_or_longer_is_refused(void **state) {
    (void)state;
    static fl_wire_done done;
    const fl_mark mark = {"queue", 0, 1, 0};
    fl_event e = any_event();
    fl_buffer out;
    fl_buffer_init(&out, 1 << 20);
    e.type = FL_EVENT_DONE;
    e.err_detail = "";
    assert_int_equal(fl_wire_put_done(&out, 5, &e, &mark, 1), FL_ERR_OK);
    message m = take(&out);
    for (uint32_t n = 0; n < m.header.body_bytes; n++) {
        uint8_t *part = malloc(n > 0 ? n : 1);
        assert_non_null(part);
        memcpy(part, m.body, n);
        assert_int_equal(fl_wire_get_done(part, n, &done), FL_ERR_DATA);
        free(part);
    }
    uint8_t *longer = calloc(1, m.header.body_bytes + 8);
    assert_non_null(longer);
    memcpy(longer, m.body, m.header.body_bytes);
    assert_int_equal(fl_wire_get_done(longer, m.header.body_bytes + 8, &done), FL_ERR_DATA);
    free(longer);
    free(m.body);
    fl_buffer_free(&out);
}

/* Sets one 8-byte word of a good EVENT and wants it refused with these words. */
static void refused_event(size_t word, uint64_t value, const char *words) {
    fl_event e = any_event(), got;
    fl_buffer out;
    fl_buffer_init(&out, 1 << 20);
    assert_int_equal(fl_wire_put_event(&out, 5, &e), FL_ERR_OK);
    message m = take(&out);
    memcpy(m.body + 8 * word, &value, sizeof value);
    assert_int_equal(fl_wire_get_event(m.body, m.header.body_bytes, &got), FL_ERR_DATA);
    if (!strstr(fl_err_detail(), words)) fail_msg("expected '%s' in '%s'", words, fl_err_detail());
    free(m.body);
    fl_buffer_free(&out);
}

static void members_out_of_range_are_refused(void **state) {
    (void)state;
    double nan = NAN;
    uint64_t bits;
    memcpy(&bits, &nan, sizeof bits);
    refused_event(0, FL_EVENT_NONE, "type");
    refused_event(0, 4, "type");
    refused_event(0, FL_EVENT_DONE, "type");
    refused_event(1, (uint64_t)-2, "token");
    refused_event(1, 1ULL << 31, "token");
    refused_event(2, 1ULL << 60, "text"); /* length of the text */
    refused_event(2, UINT64_MAX - 1, "text");
    refused_event(3, UINT64_MAX, "text"); /* its bytes: no NUL behind them */
    refused_event(4, bits, "logprob");
    refused_event(5, 21, "top");
    refused_event(5, UINT64_MAX, "top");
    refused_event(8, 4, "finish");
    refused_event(9, 1, "err");
    refused_event(9, (uint64_t)-13, "err");
    refused_event(11, UINT64_MAX, "prompt_tokens");
}

static void headers_are_checked(void **state) {
    (void)state;
    fl_buffer out;
    fl_wire_header h;
    fl_buffer_init(&out, 1 << 20);
    assert_int_equal(fl_wire_put_cancel(&out, 9), FL_ERR_OK);
    uint8_t *b = (uint8_t *)out.bytes;
    assert_int_equal(fl_wire_get_header(b, &h), FL_ERR_OK);
    assert_int_equal(h.type, FL_WIRE_CANCEL);
    static const size_t places[] = {0, 3, 4, 7, 16, 19, 20}; /* magic, type, length, zero */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        b[places[i]] ^= 0x50;
        assert_int_equal(fl_wire_get_header(b, &h), FL_ERR_DATA);
        b[places[i]] ^= 0x50;
    }
    assert_int_equal(fl_wire_get_header(b, &h), FL_ERR_OK);
    fl_buffer_free(&out);
}

static void a_message_that_does_not_fit_leaves_nothing(void **state) {
    (void)state;
    static int32_t tokens[1000];
    const char *stops[FL_STOPS_MAX + 1];
    fl_request_params p;
    fl_buffer out;
    fl_buffer_init(&out, 1000);
    fl_request_params_default(&p);
    p.tokens = tokens;
    p.n_tokens = 1000;
    assert_int_equal(fl_wire_put_cancel(&out, 9), FL_ERR_OK);
    assert_int_equal(fl_wire_put_submit(&out, 5, &p), FL_ERR_LIMIT);
    assert_int_equal(out.n, FL_WIRE_HEADER_BYTES);
    p.n_tokens = 10;
    for (int32_t i = 0; i <= FL_STOPS_MAX; i++) stops[i] = "x";
    p.stops = stops;
    p.n_stops = FL_STOPS_MAX + 1;
    assert_int_equal(fl_wire_put_submit(&out, 5, &p), FL_ERR_INVALID);
    p.n_stops = 1;
    assert_int_equal(fl_wire_put_submit(&out, 5, &p), FL_ERR_OK);
    fl_buffer_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_read_back),
        cmocka_unit_test(an_event_and_its_end_are_read_back),
        cmocka_unit_test(settings_info_and_load_are_read_back),
        cmocka_unit_test(what_is_cut_or_longer_is_refused),
        cmocka_unit_test(members_out_of_range_are_refused),
        cmocka_unit_test(headers_are_checked),
        cmocka_unit_test(a_message_that_does_not_fit_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
