/* Answers under a JSON schema, from spark-66m: valid, the same every time, and nobody else's business. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <firstlight/firstlight.h>

#include "text/json_validator.h"

enum { TEXT_BYTES = 8192, TOKENS = 160, DRAWN = 4 };

static const char PROMPT[] =
    "The capital of France is Paris. Tell me about the city, its people and its river.";
static const char RECORD[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
    "\"population\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99999999},"
    "\"kind\":{\"enum\":[\"city\",\"village\"]},\"share\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z]{1,8}$\"},\"maxItems\":"
    "3}},"
    "\"required\":[\"name\",\"population\",\"kind\",\"share\",\"tags\"],\"additionalProperties\":false}";

typedef struct told {
    char text[TEXT_BYTES];
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
    int32_t n;
    fl_finish finish;
} told;

static fl_request_params params_of(const char *schema, const int32_t *ids, int64_t n) {
    fl_request_params p;
    fl_request_params_default(&p);
    p.tokens = ids;
    p.n_tokens = n;
    p.max_tokens = TOKENS;
    p.json_schema = schema;
    p.top_logprobs = 1;
    return p;
}

static void hear(fl_request *r, told *out) {
    fl_event e;
    memset(out, 0, sizeof *out);
    do {
        assert_int_equal(fl_poll(r, 500, &e), FL_ERR_OK);
        assert_int_not_equal(e.type, FL_EVENT_NONE);
        if (e.type == FL_EVENT_TOKEN) {
            assert_true(e.logprob <= e.top[0].logprob); /* the model's own distribution */
            out->tokens[out->n] = e.token;
            out->logprobs[out->n++] = e.logprob;
        }
        if (e.text) strncat(out->text, e.text, TEXT_BYTES - strlen(out->text) - 1);
    } while (e.type != FL_EVENT_DONE);
    out->finish = e.finish;
    fl_request_close(r);
}

/* Several requests in one batch, each in a session of its own. */
static void ask_together(fl_engine *e, const fl_request_params *params, int n, told *out) {
    fl_session *sessions[DRAWN] = {0};
    fl_request *requests[DRAWN] = {0};
    for (int i = 0; i < n; i++) {
        assert_int_equal(fl_session_open(e, &sessions[i]), FL_ERR_OK);
        if (fl_submit(sessions[i], &params[i], &requests[i]) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    }
    for (int i = 0; i < n; i++) {
        hear(requests[i], &out[i]);
        assert_int_equal(fl_session_close(sessions[i]), FL_ERR_OK);
    }
}

static void check_valid(const char *schema_text, const told *answer) {
    json_t *schema = json_loads(schema_text, 0, NULL);
    json_t *value = json_loads(answer->text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (answer->finish != FL_FINISH_STOP || !value || !json_is_valid(schema, schema, value))
        fail_msg("finish %d, %d tokens: %s", answer->finish, answer->n, answer->text);
    json_decref(schema);
    json_decref(value);
}

static int open_engine(void **state) {
    fl_settings settings;
    fl_engine *e = NULL;
    fl_settings_default(&settings);
    settings.deterministic = true; /* of a GPU; CPUs always are */
    settings.model_path = "build/models/spark-66m";
    settings.ctx_tokens = 1024;
    settings.kv_tokens = 8192;
    settings.n_threads = 2;
    if (fl_engine_open(&settings, &e) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    *state = e;
    return 0;
}

static int close_engine(void **state) {
    fl_engine_close(*state);
    return 0;
}

static void answers_are_valid_and_the_same_in_any_batch(void **state) {
    static told alone[3], together[3];
    fl_engine *e = *state;
    int32_t *ids;
    int64_t n;
    assert_int_equal(fl_tokenize(e, PROMPT, strlen(PROMPT), false, &ids, &n), FL_ERR_OK);
    fl_request_params params[3] = {params_of(RECORD, ids, n), params_of(NULL, ids, n),
                                   params_of(RECORD, ids, n - 7)};
    params[1].max_tokens = 40;
    for (int i = 0; i < 3; i++) ask_together(e, &params[i], 1, &alone[i]);
    ask_together(e, params, 3, together);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(alone[i].text, together[i].text);
        assert_int_equal(alone[i].n, together[i].n);
        assert_memory_equal(alone[i].logprobs, together[i].logprobs, sizeof alone[i].logprobs);
    }
    print_message("%s\n", alone[0].text);
    check_valid(RECORD, &alone[0]);
    check_valid(RECORD, &alone[2]);
    free(ids);
}

static void drawn_answers_are_valid_too(void **state) {
    static told answers[DRAWN];
    fl_engine *e = *state;
    int32_t *ids;
    int64_t n;
    fl_request_params params[DRAWN];
    assert_int_equal(fl_tokenize(e, PROMPT, strlen(PROMPT), false, &ids, &n), FL_ERR_OK);
    for (int i = 0; i < DRAWN; i++) {
        params[i] = params_of(RECORD, ids, n);
        params[i].sampling.temperature = i < DRAWN / 2 ? 1 : 10;
        params[i].sampling.seed = (uint64_t)i;
        params[i].min_tokens = 5;
    }
    ask_together(e, params, DRAWN, answers);
    for (int i = 0; i < DRAWN; i++) check_valid(RECORD, &answers[i]);
    free(ids);
}

/* A small value ends as soon as it is whole; a number ends with the end token or the room. */
static void answers_end_where_the_value_does(void **state) {
    static const char FIXED[] = "{\"const\":[1,\"two\",null]}",
                      SHORT[] = "{\"type\":\"integer\",\"maximum\":7,\"minimum\":7}";
    static told answer;
    fl_engine *e = *state;
    const int32_t ids[] = {5, 6, 7};
    fl_request_params p = params_of(FIXED, ids, 3);
    ask_together(e, &p, 1, &answer);
    assert_string_equal(answer.text, "[1,\"two\",null]");
    assert_int_equal(answer.finish, FL_FINISH_STOP);
    p = params_of(SHORT, ids, 3);
    ask_together(e, &p, 1, &answer);
    assert_string_equal(answer.text, "7");
    assert_int_equal(answer.finish, FL_FINISH_STOP);
    p = params_of("", ids, 3);
    p.max_tokens = 12;
    ask_together(e, &p, 1, &answer);
    assert_int_equal(answer.text[0], '{');
}

static void schemas_are_refused_by_name(void **state) {
    static const struct {
        const char *schema, *why;
        fl_err err;
    } CASES[] = {{"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}", "#/properties/a/not",
                  FL_ERR_UNSUPPORTED},
                 {"{\"type\":", "not JSON", FL_ERR_INVALID},
                 {"{\"type\":\"strnig\"}", "#/type", FL_ERR_INVALID}};
    fl_session *session = NULL;
    fl_request *request = NULL;
    const int32_t ids[] = {5, 6, 7};
    assert_int_equal(fl_session_open(*state, &session), FL_ERR_OK);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const fl_request_params p = params_of(CASES[i].schema, ids, 3);
        assert_int_equal(fl_submit(session, &p, &request), CASES[i].err);
        assert_non_null(strstr(fl_err_detail(), CASES[i].why));
    }
    fl_request_params p = params_of("", ids, 3);
    p.ignore_eos = true;
    assert_int_equal(fl_submit(session, &p, &request), FL_ERR_INVALID);
    assert_int_equal(fl_session_close(session), FL_ERR_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_valid_and_the_same_in_any_batch),
        cmocka_unit_test(drawn_answers_are_valid_too),
        cmocka_unit_test(answers_end_where_the_value_does),
        cmocka_unit_test(schemas_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
