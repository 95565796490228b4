/* Streams and clients that behave badly, before a worker without a model: comments while a prompt is read, clients that
 * leave, do not read, or send nothing; a worker that dies; the end of the server. */
#include <fcntl.h>
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

#define FLIGHT "firstlight:http_requests_in_flight"

static void nap(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))}, NULL);
}

/* A chat of max_tokens; the socket, its answer not read. */
static int ask(int32_t port, int64_t max_tokens, bool stream) {
    char body[256], text[1024];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":%lld,\"stream\":%s}",
             (long long)max_tokens, stream ? "true" : "false");
    int n =
        snprintf(text, sizeof text,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
    int fd = http_connect(port);
    http_send(fd, text, (size_t)n);
    return fd;
}

/* Waits until the metric is at most (or, `above`, at least) the value; returns the seconds it took. */
static double wait_metric(int32_t port, const char *name, double value, bool above) {
    double begin_s = fl_now_s(), found = 0;
    for (;;) {
        found = http_metric(port, name);
        if (above ? found >= value : found <= value) return fl_now_s() - begin_s;
        if (fl_now_s() - begin_s > 30) fail_msg("%s stays at %g, expected %g", name, found, value);
        nap(0.005);
    }
}

/* The head at once, then a comment at least every comment_s, then the answer. */
static void a_silent_stream_says_how_far_it_is(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ttft", "2.5", NULL};
    fl_serve_options o;
    double last_s, longest_s = 0;
    int n = 0;
    (void)state;
    stub_options(&o, stub);
    o.comment_s = 0.5;
    fl_serve *server = stub_serve(&o);
    int fd = ask(fl_serve_port(server), 3, true);
    last_s = fl_now_s();
    for (;; n++) {
        char *text = http_read_until(fd, "\n\n", 30);
        double now_s = fl_now_s();
        if (now_s - last_s > longest_s) longest_s = now_s - last_s;
        last_s = now_s;
        if (n == 0 && !strstr(text, "HTTP/1.1 200 OK\r\n")) fail_msg("no head first: %s", text);
        bool comment = strstr(text, ": prefill ") != NULL;
        bool data = strstr(text, "data: ") != NULL;
        if (!comment && !data) fail_msg("neither comment nor data: %s", text);
        free(text);
        if (data) break;
    }
    assert_in_range(n, 3, 12);
    if (longest_s > 2) fail_msg("silent for %g s", longest_s);
    close(fd);
    fl_serve_close(server);
}

/* The tokens read are those of all prompts, as their sum is. */
static void comments_count_the_tokens_of_all_prompts(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ttft", "1.2", NULL};
    static const char ids[] = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25]";
    char text[1024], body[512];
    fl_serve_options o;
    int n_comments = 0;
    long percent = 0;
    (void)state;
    stub_options(&o, stub);
    o.comment_s = 0.2;
    fl_serve *server = stub_serve(&o);
    int n =
        snprintf(body, sizeof body, "{\"prompt\":[%s,%s,%s,%s],\"n\":2,\"stream\":true}", ids, ids, ids, ids);
    n = snprintf(text, sizeof text,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: %d\r\n\r\n%s",
                 n, body);
    int fd = http_connect(fl_serve_port(server));
    http_send(fd, text, (size_t)n);
    char *got = http_read_until(fd, "data: ", 30);
    for (const char *at = got; (at = strstr(at, ": prefill ")); at++, n_comments++) {
        char *end = NULL; /* ": prefill 12% 12/100 tokens" */
        percent = strtol(at + strlen(": prefill "), &end, 10);
        long done = strtol(end + strlen("% "), &end, 10), all = strtol(end + 1, NULL, 10);
        assert_int_equal(all, 100);
        if (labs(done - percent) > 8) /* four prompts, each rounded down */
            fail_msg("%ld%% are %ld of %ld tokens", percent, done, all);
    }
    assert_true(n_comments > 1 && percent > 30);
    free(got);
    close(fd);
    fl_serve_close(server);
}

static void clients_that_leave_are_seen_at_once(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ttft", "60", NULL};
    enum { N = 20 };
    int fds[N];
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    for (int i = 0; i < N; i++) fds[i] = ask(port, 100, i % 2 == 0);
    (void)wait_metric(port, "firstlight:num_requests_running", N, true);
    for (int i = 0; i < N; i++) {
        if (i % 4 < 2) close(fds[i]);
        else shutdown(fds[i], SHUT_WR);
    }
    double seconds = wait_metric(port, FLIGHT, 1, false);
    if (seconds > 10) fail_msg("seen after %g s", seconds);
    (void)wait_metric(port,
                      "firstlight:request_success_total{model_name=\"spark-66m\",finished_reason=\"abort\"}",
                      N, true);
    (void)wait_metric(port, "firstlight:num_requests_running", 0, false);
    for (int i = 0; i < N; i++)
        if (i % 4 >= 2) close(fds[i]);
    fl_serve_close(server);
}

/* A thousand clients that leave in the middle of everything. */
static void random_leaving_leaves_nothing_behind(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--ttft", "0.01", "--rate", "300", NULL};
    fl_serve_options o;
    unsigned random = 12345;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    for (int round = 0; round < 25; round++) {
        int fds[40];
        for (int i = 0; i < 40; i++) fds[i] = ask(port, 20, i % 3 != 0);
        for (int i = 0; i < 40; i++) {
            random = random * 1664525 + 1013904223;
            if (random >> 28 == 0) nap(0.01);
            close(fds[i]);
        }
    }
    (void)wait_metric(port, FLIGHT, 1, false);
    (void)wait_metric(port, "firstlight:num_requests_running", 0, false);
    assert_true(http_metric(port, "firstlight:slow_readers_total") == 0); /* they left, and were not slow */
    reply r = http_post(port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    fl_serve_close(server);
}

static void a_reader_that_stalls_is_cut_off_alone(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--rate", "900", NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.http.stream_bytes_max = 16 << 10;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    int stalled = ask(port, 100000, true), good = ask(port, 1500, true);
    char *text = http_read_until(good, "data: [DONE]", 20);
    if (!strstr(text, "data: [DONE]")) fail_msg("the good reader's stream broke: %.200s", text);
    free(text);
    (void)wait_metric(port, "firstlight:slow_readers_total", 1, true);
    (void)wait_metric(port, "firstlight:num_requests_running", 0, false);
    close(stalled);
    close(good);
    fl_serve_close(server);
}

/* The next token of each choice, counted from the stream; fails where one is lost, doubled or out of place. */
static void count_tokens(const char *body, int n_choices, int n_tokens) {
    static const char key[] = "\"delta\":{\"content\":\"";
    int next[16] = {0};
    for (const char *at = body; (at = strstr(at, "{\"index\":"));) {
        long choice = strtol(at + 9, NULL, 10);
        const char *event_end = strstr(at, "\n\n"), *content = strstr(at, key);
        if (choice < 0 || choice >= n_choices || !event_end) fail_msg("no event: %.200s", at);
        if (content && content < event_end && content[sizeof key - 1] != '"')
            assert_int_equal(strtol(content + sizeof key - 1, NULL, 10), next[choice]++);
        at = event_end;
    }
    for (int i = 0; i < n_choices; i++) assert_int_equal(next[i], n_tokens);
}

/* The socket fills, then has room again: nothing is lost on the way from one to the other. */
static void a_slow_reader_gets_all_in_order(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--rate", "900", NULL};
    enum { CHOICES = 8, TOKENS = 800 }; /* 1.6 MB, twice what the sockets take */
    const int room = 65536;
    char text[512], body[256];
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.http.stream_bytes_max = 8 << 20;
    fl_serve *server = stub_serve(&o);
    int fd = http_connect(fl_serve_port(server));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":%d,\"n\":%d,"
                     "\"stream\":true}",
                     TOKENS, CHOICES);
    n = snprintf(text, sizeof text,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: %d\r\n\r\n%s",
                 n, body);
    http_send(fd, text, (size_t)n);
    nap(1.5);
    reply r = http_read(fd, 20);
    assert_true(r.whole);
    assert_non_null(strstr(r.body, "data: [DONE]\n\n"));
    count_tokens(r.body, CHOICES, TOKENS);
    reply_free(&r);
    close(fd);
    fl_serve_close(server);
}

/* HTTP/1.0 knows no chunks: the connection's end is the stream's. A client of 1.1 that asks for the end gets both. */
static void old_clients_are_served_without_chunks(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--rate", "500", NULL};
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":20,\"stream\":true}";
    static const char *const lines[] = {"HTTP/1.0\r\n", "HTTP/1.1\r\nConnection: close\r\n"};
    char text[512];
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    for (int i = 0; i < 2; i++) {
        int fd = http_connect(fl_serve_port(server));
        int n = snprintf(text, sizeof text,
                         "POST /v1/chat/completions %sHost: localhost\r\nContent-Type: application/json\r\n"
                         "Content-Length: %zu\r\n\r\n%s",
                         lines[i], strlen(body), body);
        http_send(fd, text, (size_t)n);
        reply r = http_read(fd, 30);
        assert_int_equal(r.status, 200);
        assert_true(r.closed);
        assert_int_equal(reply_field(&r, "Transfer-Encoding") != NULL, i == 1);
        assert_memory_equal(r.body, "data: {", 7);
        assert_string_equal(r.body + r.body_n - 14, "data: [DONE]\n\n");
        count_tokens(r.body, 1, 20);
        reply_free(&r);
        close(fd);
    }
    fl_serve_close(server);
}

/* Leaving in the middle of a head or a body is seen as well, long before the deadlines for sending those. */
static void clients_that_leave_half_way_are_seen(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, NULL};
    static const char text[] =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 500\r\n\r\n{\"messages\":";
    enum { N = 200 };
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    for (size_t i = 0; i < N; i++) {
        int fd = http_connect(port);
        http_send(fd, text, 1 + i * (sizeof text - 2) / (N - 1));
        close(fd);
    }
    double seconds =
        wait_metric(port, FLIGHT, 1, false) + wait_metric(port, "firstlight:http_connections", 2, false);
    if (seconds > 10) fail_msg("seen after %g s", seconds);
    assert_true(http_metric(port, "firstlight:http_body_bytes") == 0);
    /* Who has asked in full may stop sending: the answer comes. */
    int fd = http_connect(port);
    http_send(fd, "GET /version HTTP/1.0\r\n\r\n", 25);
    shutdown(fd, SHUT_WR);
    reply r = http_read(fd, 30);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    fl_serve_close(server);
}

/* Connections that never say what they want end at their deadline, and cost the others nothing. */
static void half_open_connections_end_in_time(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, NULL};
    enum { N = 300 };
    static const char post[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n{\"pro";
    static const char *const begun[] = {"", "G", "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ", post};
    int fds[N];
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.http.head_s = o.http.body_s = 3;
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    for (int i = 0; i < N; i++) {
        fds[i] = http_connect(port);
        http_send(fds[i], begun[i % 4], strlen(begun[i % 4]));
    }
    reply r = http_get(port, "/health");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    if (http_metric(port, "firstlight:http_connections") < N)
        fail_msg("an honest request waited for their end");
    for (int i = 0; i < N; i++) {
        char *rest = http_read_until(fds[i], "\r\n\r\n", 20);
        free(rest);
    }
    (void)wait_metric(port, "firstlight:http_connections", 1, false);
    for (int i = 0; i < N; i++) close(fds[i]);
    fl_serve_close(server);
}

/* One byte at a time does not move the deadline. */
static void a_dripping_head_ends_in_time(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, NULL};
    static const char head[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    fl_serve_options o;
    char byte;
    size_t n = 0;
    (void)state;
    stub_options(&o, stub);
    o.http.head_s = 0.6;
    fl_serve *server = stub_serve(&o);
    int fd = http_connect(fl_serve_port(server));
    for (; n < sizeof head - 1; n++) {
        http_send(fd, head + n, 1);
        nap(0.05);
        if (recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (n > 30 && send(fd, "", 0, MSG_NOSIGNAL) < 0)) break;
    }
    assert_true(n < 40);
    close(fd);
    fl_serve_close(server);
}

static void a_dead_worker_ends_streams_with_words(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--rate", "100", "--crash", "30", NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    int stream = ask(port, 1000, true), whole = ask(port, 1000, false);
    char *text = http_read_until(stream, "data: [DONE]", 20);
    if (!strstr(text, "data: {\"error\":{\"message\":\"")) fail_msg("no error in the stream: %s", text);
    reply r = http_read(whole, 20);
    assert_true(r.status == 500 || r.status == 503);
    assert_non_null(strstr(r.body, "\"error\""));
    reply_free(&r);
    free(text);
    close(stream);
    close(whole);
    stub_wait_ready(port);
    assert_true(http_metric(port, "firstlight:worker_restarts_total") >= 1);
    r = http_post(port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    fl_serve_close(server);
}

/* A worker that ends while a body still comes: the request was let in, and is told that there is none now. */
static void a_worker_gone_before_the_body_is_no_full_queue(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--crash", "2", "--load", "0.7", NULL};
    static const char post[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 28\r\n\r\n{\"prompt\":\"x\",\"stream\":true}";
    fl_serve_options o;
    int status = 200;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    int late = http_connect(port);
    http_send(late, post, sizeof post - 11);
    (void)wait_metric(port, FLIGHT, 2, true); /* it, and who asks */
    int other = ask(port, 100, false);
    while (status == 200) {
        reply r = http_get(port, "/health");
        status = r.status;
        reply_free(&r);
    }
    http_send(late, post + sizeof post - 11, 10);
    reply r = http_read(late, 20);
    if (r.status != 503) fail_msg("%s", r.text);
    assert_non_null(reply_field(&r, "Retry-After"));
    assert_true(
        http_metric(
            port, "firstlight:admission_rejections_total{model_name=\"spark-66m\",reason=\"loading\"}") == 1);
    reply_free(&r);
    close(late);
    close(other);
    fl_serve_close(server);
}

static void a_drained_server_finishes_what_runs(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--rate", "100", NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    int32_t port = fl_serve_port(server);
    int kept = http_connect(port), stream = ask(port, 50, true);
    char *text = http_read_until(stream, "\"content\":\"3:", 30);
    free(text);
    fl_serve_drain(server);
    /* A connection from before is told to go; a new one is not taken. */
    static const char post[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 28\r\n\r\n{\"prompt\":\"x\",\"stream\":true}";
    http_send(kept, post, sizeof post - 1);
    reply r = http_read(kept, 30);
    assert_int_equal(r.status, 503);
    assert_true(r.closed);
    reply_free(&r);
    text = http_read_until(stream, "data: [DONE]", 30);
    if (!strstr(text, "data: [DONE]")) fail_msg("the stream did not end: %s", text);
    free(text);
    double until_s = fl_now_s() + 30;
    while (fl_serve_busy(server) > 0 && fl_now_s() < until_s) nap(0.01);
    assert_int_equal(fl_serve_busy(server), 0);
    close(kept);
    close(stream);
    fl_serve_close(server);
}

/* Closing in the middle of everything neither hangs nor leaks. */
static void a_server_closes_under_load(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, "--rate", "200", "--ttft", "0.3", NULL};
    enum { N = 60 };
    int fds[N];
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    fl_serve *server = stub_serve(&o);
    for (int i = 0; i < N; i++) {
        fds[i] = ask(fl_serve_port(server), 100000, i % 2 == 0);
        if (i % 5 == 0) http_send(fds[i], "GET /health HTTP/1.1\r\n", 22);
    }
    nap(0.5);
    double begin_s = fl_now_s();
    fl_serve_close(server);
    if (fl_now_s() - begin_s > 20) fail_msg("closing took %g s", fl_now_s() - begin_s);
    for (int i = 0; i < N; i++) close(fds[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_stream_says_how_far_it_is),
        cmocka_unit_test(comments_count_the_tokens_of_all_prompts),
        cmocka_unit_test(clients_that_leave_are_seen_at_once),
        cmocka_unit_test(random_leaving_leaves_nothing_behind),
        cmocka_unit_test(a_reader_that_stalls_is_cut_off_alone),
        cmocka_unit_test(a_slow_reader_gets_all_in_order),
        cmocka_unit_test(old_clients_are_served_without_chunks),
        cmocka_unit_test(clients_that_leave_half_way_are_seen),
        cmocka_unit_test(half_open_connections_end_in_time),
        cmocka_unit_test(a_dripping_head_ends_in_time),
        cmocka_unit_test(a_dead_worker_ends_streams_with_words),
        cmocka_unit_test(a_worker_gone_before_the_body_is_no_full_queue),
        cmocka_unit_test(a_drained_server_finishes_what_runs),
        cmocka_unit_test(a_server_closes_under_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
