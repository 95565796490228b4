/* Who is let in, and how much: keys, bounds on bodies, requests, tokens and waiting; one connection for many
 * requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/http_client.h"
#include "server/serve_stub.h"

static const char *const plain_stub[] = {FL_STUB_WORKER, NULL};

static int status_of(int32_t port, const char *method, const char *path, const char *head, const char *body) {
    reply r = http_ask(port, method, path, head, body);
    int status = r.status;
    reply_free(&r);
    return status;
}

static void keys_are_asked_for_everywhere_but_health(void **state) {
    static const char *const keys[] = {"first-key", "second-key"};
    const struct {
        const char *method, *path, *body;
    } paths[] = {{"GET", "/v1/models", NULL},
                 {"GET", "/metrics", NULL},
                 {"GET", "/version", NULL},
                 {"GET", "/ready", NULL},
                 {"POST", "/tokenize", "{\"prompt\":\"x\"}"},
                 {"POST", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}"}};
    const struct {
        const char *head;
        bool in;
    } heads[] = {
        {"", false},
        {"Authorization: Bearer first-key\r\n", true},
        {"Authorization: bearer second-key\r\n", true},
        {"Authorization: Bearer file-key\r\n", true},
        {"Authorization: Bearer first-ke\r\n", false},
        {"Authorization: Bearer first-keyx\r\n", false},
        {"Authorization: Bearer FIRST-KEY\r\n", false},
        {"Authorization: Bearer \r\n", false},
        {"Authorization: Bearer # comment\r\n", false},
        {"Authorization: Basic first-key\r\n", false},
        {"Authorization: first-key\r\n", false},
        {"X-Api-Key: first-key\r\n", false},
    };
    char path[] = "/tmp/firstlight-keys-XXXXXX";
    fl_serve_options o;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "# comment\n\nfile-key\r\n", 21) == 21);
    close(fd);
    stub_options(&o, plain_stub);
    o.keys = keys;
    o.n_keys = 2;
    o.key_file = path;
    fl_serve *server = stub_serve(&o); /* asks /health without a key */
    int32_t port = fl_serve_port(server);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        for (size_t k = 0; k < sizeof heads / sizeof heads[0]; k++) {
            int status = status_of(port, paths[i].method, paths[i].path, heads[k].head, paths[i].body);
            if (status != (heads[k].in ? 200 : 401))
                fail_msg("%s with '%s': %d", paths[i].path, heads[k].head, status);
        }
    assert_int_equal(status_of(port, "GET", "/nothing", "", NULL),
                     401); /* what is there is not told either */
    reply r = http_get(port, "/v1/models");
    assert_string_equal(reply_field(&r, "WWW-Authenticate"), "Bearer");
    assert_non_null(strstr(r.body, "invalid_api_key"));
    reply_free(&r);
    fl_serve_close(server);
    unlink(path);
}

/* A page whose own name was pointed at 127.0.0.1 is not served; where keys are asked for, the name says nothing. */
static void names_of_others_are_refused(void **state) {
    static const char *const names[] = {"gpu-box"}, *const keys[] = {"k"};
    const struct {
        const char *host;
        bool in;
    } hosts[] = {{"localhost", true},
                 {"LOCALHOST:8000", true},
                 {"127.0.0.1:1", true},
                 {"[::1]:8000", true},
                 {"192.168.1.7", true},
                 {"gpu-box:8000", true},
                 {"evil.example", false},
                 {"localhost.evil.example", false},
                 {"127.0.0.1.evil.example", false},
                 {"gpu-box2", false},
                 {"[evil]", false},
                 {":8000", false}};
    fl_serve_options o;
    char text[256];
    (void)state;
    stub_options(&o, plain_stub);
    o.hosts = names;
    o.n_hosts = 1;
    for (int with_keys = 0; with_keys < 2; with_keys++) {
        o.keys = keys;
        o.n_keys = with_keys;
        fl_serve *server = stub_serve(&o);
        for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
            int n = snprintf(text, sizeof text,
                             "GET /version HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer k\r\n\r\n",
                             hosts[i].host);
            int fd = http_connect(fl_serve_port(server));
            http_send(fd, text, (size_t)n);
            reply r = http_read(fd, 30);
            if (r.status != (hosts[i].in || with_keys ? 200 : 403))
                fail_msg("Host %s: %s", hosts[i].host, r.text);
            reply_free(&r);
            close(fd);
        }
        fl_serve_close(server);
    }
}

static void bad_keys_do_not_start(void **state) {
    static const char *const bad[] = {"", "with blank"};
    fl_serve_options o;
    fl_serve *server = NULL;
    (void)state;
    for (int i = 0; i < 2; i++) {
        stub_options(&o, plain_stub);
        o.keys = &bad[i];
        o.n_keys = 1;
        assert_int_equal(fl_serve_open(&o, &server), FL_ERR_INVALID);
    }
    stub_options(&o, plain_stub);
    o.key_file = "/nonexistent/keys";
    assert_int_not_equal(fl_serve_open(&o, &server), FL_ERR_OK);
}

/* A body of n bytes: a prompt of letters, in JSON. */
static char *long_prompt(size_t n) {
    static const char begin[] = "{\"prompt\":\"";
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, 'a', n);
    memcpy(text, begin, sizeof begin - 1);
    memcpy(text + n - 2, "\"}", 3);
    return text;
}

static int send_chunked(int32_t port, const char *body) {
    static const char head[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n";
    char size[32];
    size_t left = strlen(body);
    int fd = http_connect(port);
    http_send(fd, head, sizeof head - 1);
    for (const char *at = body; left > 0;) {
        size_t n = left < 1000 ? left : 1000;
        http_send(fd, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
        http_send(fd, at, n);
        http_send(fd, "\r\n", 2);
        at += n;
        left -= n;
    }
    http_send(fd, "0\r\n\r\n", 5);
    reply r = http_read(fd, 30);
    int status = r.status;
    reply_free(&r);
    close(fd);
    return status;
}

/* An exchange may end a moment after its answer was read. */
static void assert_no_bodies(int32_t port) {
    double until_s = fl_now_s() + 30;
    while (http_metric(port, "firstlight:http_body_bytes") != 0)
        if (fl_now_s() > until_s) fail_msg("bodies are still counted");
}

static void bodies_have_a_bound(void **state) {
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.body_bytes_max = 20000;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    const struct {
        size_t n;
        int status;
    } cases[] = {{100, 200}, {20000, 200}, {20001, 413}, {39000, 413}, {400000, 413}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *body = long_prompt(cases[i].n);
        int status = status_of(port, "POST", "/tokenize", "", body), chunked = send_chunked(port, body);
        /* A body that is much too long is cut off; its sender may see that before the answer. */
        bool right = status == cases[i].status || (status == 0 && cases[i].n > 40000);
        bool chunked_right = chunked == cases[i].status || (chunked == 0 && cases[i].n > 40000);
        if (!right || !chunked_right) fail_msg("%zu bytes: %d, in chunks %d", cases[i].n, status, chunked);
        free(body);
    }
    assert_no_bodies(port);
    fl_serve_close(server);
}

/* A client that looks for an answer behind its body finds it, and is not cut off before. */
static void a_sender_of_up_to_twice_the_bound_is_told(void **state) {
    enum { BOUND = 8 << 20 };
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.body_bytes_max = BOUND;
    fl_serve *server = stub_serve(&o);
    char head[256], *body = long_prompt(2 * BOUND);
    int fd = http_connect(fl_serve_port(server));
    int n = snprintf(head, sizeof head,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %d\r\n\r\n",
                     2 * BOUND);
    http_send(fd, head, (size_t)n);
    for (size_t sent = 0; sent < 2 * BOUND;) {
        ssize_t more = send(fd, body + sent, 2 * BOUND - sent, MSG_NOSIGNAL);
        if (more <= 0) fail_msg("cut off after %zu bytes", sent);
        sent += (size_t)more;
    }
    reply r = http_read(fd, 30);
    assert_int_equal(r.status, 413);
    assert_true(r.closed);
    assert_non_null(strstr(r.body, "\"code\":\"body_too_large\""));
    reply_free(&r);
    close(fd);
    free(body);
    fl_serve_close(server);
}

static double cpu_s(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* A /tokenize of n bytes, sent and not answered. */
static int ask_tokens(int32_t port, const char *body, size_t n) {
    char head[256];
    int fd = http_connect(port),
        head_n = snprintf(head, sizeof head,
                          "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n",
                          n);
    http_send(fd, head, (size_t)head_n);
    http_send(fd, body, n);
    return fd;
}

/* What waits for a request thread is not read once its client has left: who comes after it is not made to wait. */
static void nothing_is_read_for_who_has_left(void **state) {
    enum { LEAVE = 60, FIRST_BYTES = 4 << 20, BYTES = 400 << 10 };
    int fds[LEAVE];
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.n_threads = 1;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    char *first = long_prompt(FIRST_BYTES), *body = long_prompt(BYTES);
    double begin_s = cpu_s(), until_s = fl_now_s() + 5;
    assert_int_equal(status_of(port, "POST", "/tokenize", "", first), 200);
    double one_s = cpu_s() - begin_s;
    int busy = ask_tokens(port, first, FIRST_BYTES); /* the thread is at it while the others come and go */
    for (int i = 0; i < LEAVE; i++) fds[i] = ask_tokens(port, body, BYTES);
    while (http_metric(port, "firstlight:http_body_bytes") < FIRST_BYTES + LEAVE * BYTES &&
           fl_now_s() < until_s)
        continue;
    begin_s = cpu_s();
    for (int i = 0; i < LEAVE; i++) close(fds[i]);
    assert_int_equal(status_of(port, "POST", "/tokenize", "", "{\"prompt\":\"x\"}"), 200);
    double left_s = cpu_s() - begin_s;
    if (left_s > 3 * one_s) fail_msg("%g s of CPU after they left, %g s for the first", left_s, one_s);
    close(busy);
    free(first);
    free(body);
    fl_serve_close(server);
}

static void all_bodies_together_have_a_bound(void **state) {
    static const char head[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 50000\r\n\r\n";
    int fds[3];
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.http.body_bytes_all_max = 100000;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    char *body = long_prompt(50000);
    for (int i = 0; i < 3; i++) {
        fds[i] = http_connect(port);
        http_send(fds[i], head, sizeof head - 1);
        http_send(fds[i], body, 45000);
    }
    double until_s = fl_now_s() + 30;
    while (http_metric(port, "firstlight:http_body_bytes") < 90000 && fl_now_s() < until_s) continue;
    int n_in = 0, n_refused = 0;
    for (int i = 0; i < 3; i++) {
        http_send(fds[i], body + 45000, 5000);
        reply r = http_read(fds[i], 30);
        n_in += r.status == 200;
        n_refused += r.status == 503;
        reply_free(&r);
        close(fds[i]);
    }
    assert_int_equal(n_in, 2);
    assert_int_equal(n_refused, 1);
    assert_no_bodies(port);
    free(body);
    fl_serve_close(server);
}

static int ask_long(int32_t port) {
    static const char post[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 31\r\n\r\n{\"prompt\":\"x\",\"max_tokens\":500}";
    int fd = http_connect(port);
    http_send(fd, post, sizeof post - 1);
    return fd;
}

static void wait_running(int32_t port, int n) {
    double until_s = fl_now_s() + 30;
    while (http_metric(port, "firstlight:num_requests_running") < n)
        if (fl_now_s() > until_s) fail_msg("they do not run");
}

/* Beyond the bound: 429, when to come back, and that at once; afterwards all is as before. */
static void the_queue_has_a_bound(void **state) {
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.requests_max = 2;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    int a = ask_long(port), b = ask_long(port);
    wait_running(port, 2);
    char *no_json = long_prompt(200000);
    *no_json = 'x';
    for (int i = 0; i < 20; i++) {
        reply r = http_post(port, "/v1/completions", no_json); /* refused before it is read */
        assert_int_equal(r.status, 429);
        assert_non_null(reply_field(&r, "Retry-After"));
        assert_non_null(strstr(r.body, "\"error\""));
        reply_free(&r);
    }
    free(no_json);
    assert_true(
        http_metric(
            port, "firstlight:admission_rejections_total{model_name=\"spark-66m\",reason=\"queue_full\"}") ==
        20);
    /* n answers count n times. */
    close(a);
    double until_s = fl_now_s() + 30;
    while (http_metric(port, "firstlight:http_requests_in_flight") > 2) /* b, and who asks for the metrics */
        if (fl_now_s() > until_s) fail_msg("the place of one who left is not given back");
    assert_int_equal(
        status_of(port, "POST", "/v1/completions", "", "{\"prompt\":\"x\",\"max_tokens\":1,\"n\":2}"), 429);
    assert_int_equal(status_of(port, "POST", "/v1/completions", "", "{\"prompt\":\"x\",\"max_tokens\":1}"),
                     200);
    close(b);
    fl_serve_close(server);
}

/* Whoever has read an answer to its end, good or bad, finds its place free, even if it was the last. */
static void an_answer_read_is_a_place_given_back(void **state) {
    static const struct {
        const char *body;
        int status;
    } asked[] = {{"{\"prompt\":\"x\",\"max_tokens\":1}", 200},
                 {"{\"prompt\":\"x\",\"max_tokens\":1,\"stream\":true}", 200},
                 {"{\"prompt\":\"x\",\"max_tokens\":1,\"n\":2}", 429},
                 {"{\"prompt\":\"x\",\"max_tokens\":-1}", 400},
                 {"{\"prompt\":", 400}};
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.requests_max = 1;
    fl_serve *server = stub_serve(&o);
    for (int i = 0; i < 100; i++) {
        int status = status_of(fl_serve_port(server), "POST", "/v1/completions", "", asked[i % 5].body);
        if (status != asked[i % 5].status) fail_msg("request %d, %s: %d", i, asked[i % 5].body, status);
    }
    fl_serve_close(server);
}

static void waiting_tokens_have_a_bound(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ttft", "20", NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.tokens_max = 10000;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    int a = ask_long(port);
    wait_running(port, 1);
    char *body = long_prompt(80000);
    assert_int_equal(status_of(port, "POST", "/v1/completions", "", body), 429);
    assert_true(
        http_metric(
            port,
            "firstlight:admission_rejections_total{model_name=\"spark-66m\",reason=\"queue_tokens\"}") == 1);
    free(body);
    close(a);
    fl_serve_close(server);
}

/* An empty queue takes any request, also one of several prompts that is larger than the bound. */
static void one_request_may_be_larger_than_the_bound(void **state) {
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    o.tokens_max = 10;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    assert_int_equal(status_of(port, "POST", "/v1/completions", "",
                               "{\"prompt\":[[1,2,3,4,5,6,7,8],[1,2,3,4],[1]],\"max_tokens\":1,\"n\":2}"),
                     200);
    assert_int_equal(status_of(port, "POST", "/v1/completions", "",
                               "{\"prompt\":[1,2,3,4,5,6,7,8],\"max_tokens\":1,\"n\":2}"),
                     200);
    fl_serve_close(server);
}

/* The stub says that 1,024 tokens cost 100 s: one prompt ahead is a wait that a limit of 1 s does not allow. */
static void a_long_predicted_wait_is_refused(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ttft", "20", "--cost", "100", NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.wait_max_s = 1;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    char *body = long_prompt(8000), text[16384];
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    int fd = http_connect(port);
    http_send(fd, text, (size_t)n);
    wait_running(port, 1);
    reply r = http_post(port, "/v1/completions", body);
    assert_int_equal(r.status, 429);
    assert_true(strtol(reply_field(&r, "Retry-After"), NULL, 10) >= 10);
    reply_free(&r);
    assert_true(
        http_metric(
            port,
            "firstlight:admission_rejections_total{model_name=\"spark-66m\",reason=\"predicted_wait\"}") ==
        1);
    close(fd);
    free(body);
    fl_serve_close(server);
}

static void nothing_is_taken_while_loading(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--load", "1", NULL};
    fl_serve_options o;
    fl_serve *server = NULL;
    (void)state;
    stub_options(&o, stub);
    assert_int_equal(fl_serve_open(&o, &server), FL_ERR_OK);
    int32_t port = fl_serve_port(server);
    assert_int_equal(status_of(port, "GET", "/health", "", NULL), 503);
    assert_int_equal(status_of(port, "GET", "/ready", "", NULL), 503);
    assert_int_equal(status_of(port, "GET", "/version", "", NULL), 200);
    reply r = http_post(port, "/v1/completions", "{\"prompt\":\"x\"}");
    assert_int_equal(r.status, 503);
    assert_non_null(reply_field(&r, "Retry-After"));
    reply_free(&r);
    assert_int_equal(status_of(port, "POST", "/tokenize", "", "{\"prompt\":\"x\"}"), 200);
    stub_wait_ready(port);
    assert_int_equal(status_of(port, "GET", "/ready", "", NULL), 200);
    fl_serve_close(server);
}

static void a_prompt_beyond_the_context_is_refused(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ctx", "64", NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    char *body = long_prompt(4000);
    reply r = http_post(fl_serve_port(server), "/v1/completions", body);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "\"code\":\"context_length_exceeded\""));
    reply_free(&r);
    free(body);
    fl_serve_close(server);
}

/* Kept open, and sent ahead: answers come in order. A head's length is counted for each request anew. */
static void one_connection_serves_many(void **state) {
    static const char get[] =
        "GET /version HTTP/1.1\r\nHost: localhost\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n";
    static const char post[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}";
    fl_serve_options o;
    (void)state;
    stub_options(&o, plain_stub);
    fl_serve *server = stub_serve(&o);
    int fd = http_connect(fl_serve_port(server));
    int n_late = 0;
    for (int i = 0; i < 50; i++) {
        http_send(fd, i % 2 ? get : post, i % 2 ? sizeof get - 1 : sizeof post - 1);
        reply r = http_read(fd, 30);
        if (r.status != 200) fail_msg("request %d: %s", i, r.text);
        n_late += r.end_s > 0.035;
        reply_free(&r);
    }
    /* 40 ms is what a delayed acknowledgement takes, each time; a busy machine is late now and then. */
    if (n_late > 20) fail_msg("%d of 50 answers were late", n_late);
    for (int i = 0; i < 5; i++) http_send(fd, post, sizeof post - 1);
    for (int i = 0; i < 5; i++) {
        char *text = http_read_until(fd, "\"count\"", 30);
        bool more = strstr(text, "\"count\"") != NULL;
        int n = 0;
        for (const char *at = text; (at = strstr(at, "\"count\"")); at++) n++;
        free(text);
        if (!more) fail_msg("answer %d did not come", i);
        i += n - 1;
    }
    close(fd);
    fl_serve_close(server);
}

/* The log names a fault of the graphs once, however often the worker is asked. */
static void graphs_that_stop_are_logged_once(void **state) {
    static const char *const faulty[] = {FL_STUB_WORKER, "--rate", "500", "--graph-fault", "3", NULL};
    fl_serve_options o;
    char log[65536];
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    stub_options(&o, faulty);
    o.log_fd = ends[1];
    o.log_json = true;
    fl_serve *s = stub_serve(&o);
    reply r = http_post(fl_serve_port(s), "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":400}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    fl_serve_close(s);
    close(ends[1]);
    ssize_t n = 0, more;
    while ((more = read(ends[0], log + n, sizeof log - 1 - (size_t)n)) > 0) n += more;
    close(ends[0]);
    log[n] = 0;
    const char *warning = strstr(log, "\"graphs_stopped\""), *note = strstr(log, "\"graphs_outside\"");
    assert_true(warning && strstr(warning, "the stub was told to") && !strstr(warning + 2, "graphs_stopped"));
    assert_true(note && strstr(note, "a step of the stub") && !strstr(note + 2, "graphs_outside"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_that_stop_are_logged_once),
        cmocka_unit_test(keys_are_asked_for_everywhere_but_health),
        cmocka_unit_test(names_of_others_are_refused),
        cmocka_unit_test(bad_keys_do_not_start),
        cmocka_unit_test(bodies_have_a_bound),
        cmocka_unit_test(a_sender_of_up_to_twice_the_bound_is_told),
        cmocka_unit_test(nothing_is_read_for_who_has_left),
        cmocka_unit_test(all_bodies_together_have_a_bound),
        cmocka_unit_test(the_queue_has_a_bound),
        cmocka_unit_test(an_answer_read_is_a_place_given_back),
        cmocka_unit_test(waiting_tokens_have_a_bound),
        cmocka_unit_test(one_request_may_be_larger_than_the_bound),
        cmocka_unit_test(a_long_predicted_wait_is_refused),
        cmocka_unit_test(nothing_is_taken_while_loading),
        cmocka_unit_test(a_prompt_beyond_the_context_is_refused),
        cmocka_unit_test(one_connection_serves_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
