/* The server from outside, before a worker without a model: endpoints, streams, keys, models, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/http_client.h"
#include "server/serve_stub.h"

#define CHAT(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":5" more "}"

static const char *const stub[] = {FL_STUB_WORKER, "--rate", "500", "--ttft", "0.02", NULL};
static fl_serve *server;
static int32_t port;

static int open_server(void **state) {
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    server = stub_serve(&o);
    port = fl_serve_port(server);
    return 0;
}

static int close_server(void **state) {
    (void)state;
    fl_serve_close(server);
    return 0;
}

static json_t *json_of(const reply *r) {
    json_error_t error;
    json_t *root = json_loadb(r->body, r->body_n, 0, &error);
    if (!root) fail_msg("no JSON: %s in '%s'", error.text, r->body);
    return root;
}

static void answers_whole(void **state) {
    (void)state;
    reply r = http_post(port, "/v1/chat/completions", CHAT(""));
    assert_int_equal(r.status, 200);
    json_t *root = json_of(&r);
    assert_string_equal(json_string_value(json_object_get(root, "object")), "chat.completion");
    json_t *usage = json_object_get(root, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 5);
    const char *id = reply_field(&r, "X-Request-Id");
    assert_string_equal(json_string_value(json_object_get(root, "id")), id);
    json_decref(root);
    reply_free(&r);
}

/* Role, five tokens, finish, usage, [DONE], in this order; one id. */
static void streams_in_order(void **state) {
    (void)state;
    reply r = http_post(port, "/v1/chat/completions",
                        CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_field(&r, "Content-Type"), "text/event-stream; charset=utf-8");
    const char *wanted[] = {"\"role\":\"assistant\"",
                            "\"content\":\"0:",
                            "\"content\":\"1:",
                            "\"content\":\"2:",
                            "\"content\":\"3:",
                            "\"content\":\"4:",
                            "\"finish_reason\":\"length\"",
                            "\"choices\":[],\"usage\":{",
                            "data: [DONE]\n\n"};
    const char *at = r.body;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        at = strstr(at, wanted[i]);
        if (!at) fail_msg("no %s in its place in %s", wanted[i], r.body);
    }
    reply_free(&r);
}

static void completions_take_text_and_ids(void **state) {
    (void)state;
    const char *bodies[] = {"{\"prompt\":\"Hello\",\"max_tokens\":2}",
                            "{\"prompt\":[5,6,7],\"max_tokens\":2}",
                            "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":2,\"n\":2}"};
    const int choices[] = {1, 1, 4};
    for (int i = 0; i < 3; i++) {
        reply r = http_post(port, "/v1/completions", bodies[i]);
        if (r.status != 200) fail_msg("%s: %s", bodies[i], r.text);
        json_t *root = json_of(&r);
        assert_int_equal(json_array_size(json_object_get(root, "choices")), choices[i]);
        json_decref(root);
        reply_free(&r);
    }
}

static void small_endpoints_answer(void **state) {
    (void)state;
    const struct {
        const char *method, *path, *body, *wanted;
    } cases[] = {
        {"GET", "/health", NULL, "{\"status\":\"ok\"}"},
        {"GET", "/ready", NULL, "{\"status\":\"ok\"}"},
        {"GET", "/version", NULL, "{\"version\":\"" FL_VERSION "\"}"},
        {"GET", "/v1/models", NULL, "\"id\":\"spark-66m\""},
        {"GET", "/v1/models/spark-66m", NULL, "\"max_model_len\":131072"},
        {"GET", "/metrics", NULL,
         "firstlight:time_to_first_token_seconds_bucket{model_name=\"spark-66m\",le=\"2560\"}"},
        {"POST", "/tokenize", "{\"prompt\":\"Hello world\",\"add_special_tokens\":false}", "\"count\":"},
        {"POST", "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", "\"tokens\":["},
        {"POST", "/detokenize", "{\"tokens\":[5,6,7]}", "{\"prompt\":\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply r = http_ask(port, cases[i].method, cases[i].path, "", cases[i].body);
        if (r.status != 200 || !strstr(r.body, cases[i].wanted)) fail_msg("%s: %s", cases[i].path, r.text);
        reply_free(&r);
    }
}

/* Names of models have slashes and more: clients write those bytes in their own way. */
static void a_model_is_found_by_its_name(void **state) {
    static const char *const names[] = {"short", "org/a model é"};
    const struct {
        const char *path;
        int status;
    } cases[] = {{"/v1/models/short", 200},
                 {"/v1/models/%73hor%74", 200},
                 {"/v1/models/org/a%20model%20%C3%A9", 200},
                 {"/v1/models/org%2fa%20model%20%c3%a9", 200},
                 {"/v1/models/short%00", 404},
                 {"/v1/models/short%", 404},
                 {"/v1/models/shor%7", 404},
                 {"/v1/models/shor%7g", 404},
                 {"/v1/models/", 404},
                 {"/v1/models/shor", 404}};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.names = names;
    o.n_names = 2;
    fl_serve *other = stub_serve(&o);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply r = http_get(fl_serve_port(other), cases[i].path);
        if (r.status != cases[i].status) fail_msg("%s: %s", cases[i].path, r.text);
        if (strstr(cases[i].path, "org")) assert_non_null(strstr(r.body, "\"id\":\"org/a model é\""));
        reply_free(&r);
    }
    fl_serve_close(other);
}

static void tokens_come_back_as_text(void **state) {
    char body[512];
    (void)state;
    reply r = http_post(port, "/tokenize",
                        "{\"prompt\":\"A longer text, with ünïcode.\",\"add_special_tokens\":false}");
    json_t *root = json_of(&r);
    char *ids = json_dumps(json_object_get(root, "tokens"), JSON_COMPACT);
    snprintf(body, sizeof body, "{\"tokens\":%s}", ids);
    reply back = http_post(port, "/detokenize", body);
    assert_string_equal(back.body, "{\"prompt\":\"A longer text, with ünïcode.\"}");
    free(ids);
    json_decref(root);
    reply_free(&r);
    reply_free(&back);
}

static void errors_have_the_api_s_form(void **state) {
    (void)state;
    const struct {
        const char *method, *path, *head, *body;
        int status;
        const char *wanted;
    } cases[] = {
        {"GET", "/nothing", "", NULL, 404, "\"error\""},
        {"GET", "/v1/chat/completions", "", NULL, 405, "\"error\""},
        {"DELETE", "/v1/models", "", NULL, 405, "\"error\""},
        {"POST", "/v1/chat/completions", "", "{", 400, "\"error\""},
        {"POST", "/v1/chat/completions", "",
         "{\"model\":\"gpt-4\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 404,
         "\"code\":\"model_not_found\""},
        {"POST", "/v1/completions", "", "{\"prompt\":[8192]}", 400, "\"param\":\"prompt[0]\""},
        {"POST", "/v1/completions", "", "{\"prompt\":[]}", 400, "\"error\""},
        {"GET", "/v1/models/other", "", NULL, 404, "\"error\""},
        {"GET", "/etc/passwd", "", NULL, 404, "\"error\""},
        {"GET", "/v1/models/../../etc/passwd", "", NULL, 404, "\"error\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply r = http_ask(port, cases[i].method, cases[i].path, cases[i].head, cases[i].body);
        if (r.status != cases[i].status || !strstr(r.body, cases[i].wanted))
            fail_msg("%s %s: %s", cases[i].method, cases[i].path, r.text);
        assert_string_equal(reply_field(&r, "Content-Type"), "application/json");
        reply_free(&r);
    }
}

static void metrics_count_what_happened(void **state) {
    (void)state;
    static const char stop[] =
        "firstlight:request_success_total{model_name=\"spark-66m\",finished_reason=\"length\"}";
    static const char posts[] =
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"}";
    double before = http_metric(port, stop), posts_before = http_metric(port, posts);
    double tokens = http_metric(port, "firstlight:request_generation_tokens_sum");
    for (int i = 0; i < 3; i++) {
        reply r = http_post(port, "/v1/completions", "{\"prompt\":\"Hello\",\"max_tokens\":7}");
        reply_free(&r);
    }
    assert_true(http_metric(port, stop) == before + 3);
    assert_true(http_metric(port, posts) >= posts_before + 2); /* the last one may not be over yet */
    assert_true(http_metric(port, "firstlight:request_generation_tokens_sum") == tokens + 21);
}

/* The dashboard asks for nothing that is not there. */
static void the_dashboard_s_metrics_exist(void **state) {
    static char text[1 << 16];
    (void)state;
    FILE *file = fopen("share/grafana/firstlight.json", "r");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text - 1, file), n_names = 0;
    fclose(file);
    text[n] = '\0';
    reply r = http_get(port, "/metrics");
    for (char *at = text; (at = strstr(at, "firstlight:")); n_names++) {
        char name[96] = "\n";
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_:");
        snprintf(name + 1, sizeof name - 1, "%.*s{", (int)length, at);
        if (!strstr(r.body, name)) fail_msg("/metrics has no %s", name + 1);
        at += length;
    }
    assert_true(n_names > 20);
    reply_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_whole),
        cmocka_unit_test(streams_in_order),
        cmocka_unit_test(completions_take_text_and_ids),
        cmocka_unit_test(small_endpoints_answer),
        cmocka_unit_test(a_model_is_found_by_its_name),
        cmocka_unit_test(tokens_come_back_as_text),
        cmocka_unit_test(errors_have_the_api_s_form),
        cmocka_unit_test(metrics_count_what_happened),
        cmocka_unit_test(the_dashboard_s_metrics_exist),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
