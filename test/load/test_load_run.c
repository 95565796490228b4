/* The load generator's clients against a server that says what the test wants: bytes on a socket. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "load/load_run.h"

/* Answers each connection in turn with the same bytes, sent a few at a time. */
typedef struct fake {
    int listener, port;
    int answers_each; /* requests of a connection, then it is closed */
    int n_connections, n_answers;
    const char *answer;
    int piece_bytes, pause_ms;
    pthread_t thread;
    char request[65536]; /* the last one's */
} fake;

/* false: nothing was asked. */
static bool answer_one(fake *f, int fd) {
    size_t n = 0;
    ssize_t some;
    f->request[0] = '\0';
    while ((some = recv(fd, f->request + n, sizeof f->request - 1 - n, 0)) > 0) {
        n += (size_t)some;
        f->request[n] = '\0';
        const char *body = strstr(f->request, "\r\n\r\n"), *length = strstr(f->request, "Content-Length: ");
        if (body && (!length || strlen(body + 4) >= strtoul(length + 16, NULL, 10))) break;
    }
    if (n == 0) return false;
    f->n_answers++;
    size_t all = strlen(f->answer), step = (size_t)f->piece_bytes;
    for (size_t i = 0; i < all; i += step) {
        struct timespec pause = {.tv_nsec = f->pause_ms * 1000000L};
        if (send(fd, f->answer + i, all - i < step ? all - i : step, MSG_NOSIGNAL) <= 0) break;
        if (f->pause_ms > 0) nanosleep(&pause, NULL);
    }
    return true;
}

static void *serve(void *context) {
    fake *f = context;
    for (int fd; (fd = accept(f->listener, NULL, NULL)) >= 0; close(fd)) {
        f->n_connections++;
        for (int i = 0; i < f->answers_each && answer_one(f, fd);) i++;
    }
    return NULL;
}

static void fake_open(fake *f, const char *answer, int piece_bytes, int pause_ms, fl_http_server *server) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    char url[64];
    *f = (fake){.answer = answer, .piece_bytes = piece_bytes, .pause_ms = pause_ms, .answers_each = 1};
    f->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&address, n), 0);
    assert_int_equal(listen(f->listener, 64), 0);
    getsockname(f->listener, (struct sockaddr *)&address, &n);
    f->port = ntohs(address.sin_port);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", f->port);
    assert_int_equal(fl_http_server_parse(url, "secret", server), FL_ERR_OK);
    assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
}

static void fake_close(fake *f) {
    shutdown(f->listener, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->listener);
}

/* One client that asks again and again for so long. */
static fl_load_options options_of(const fl_http_server *server, const fl_load_mix *mix, double duration_s) {
    static char text[] = "some text to be read, long enough for a question or two";
    static const fl_haystack haystack = {text, sizeof text - 1};
    return (fl_load_options){.server = server,
                             .mix = mix,
                             .text = &haystack,
                             .model = "m",
                             .bytes_per_token = 4,
                             .clients = 1,
                             .duration_s = duration_s,
                             .wait_s = 5};
}

/* One client, one request (the run is over before there is time for a second). */
static void run_one(fake *f, const fl_http_server *server, fl_load_result *result) {
    (void)f;
    fl_load_mix mix;
    assert_int_equal(fl_load_mix_read(NULL, &mix), FL_ERR_OK);
    const fl_load_options options = options_of(server, &mix, 1e-3);
    for (int run = 0;; run++) { /* on a busy machine it may be over before the first */
        assert_int_equal(fl_load_run(&options, result), FL_ERR_OK);
        if (result->n > 0) return;
        assert_true(run < 1000);
        fl_load_result_close(result);
    }
}

#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
static const char EVENTS[] =
    HEAD "\r\n"
         ": prefill 10%\n\n"
         "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
         "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n"
         "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}],\"usage\":null}\n\n"
         "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3,"
         "\"prompt_tokens_details\":{\"cached_tokens\":7}}}\n\n"
         "data: [DONE]\n\n";

static void streams_are_read_however_they_are_cut(void **state) {
    (void)state;
    static const int pieces[] = {1, 7, 100000};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        fake f;
        fl_http_server server;
        fl_load_result r;
        fake_open(&f, EVENTS, pieces[i], 0, &server);
        run_one(&f, &server, &r);
        assert_int_equal(r.records[0].outcome, FL_LOAD_DONE);
        assert_true(r.records[0].prompt_tokens == 40 && r.records[0].answer_tokens == 3);
        assert_int_equal(r.records[0].cached_tokens, 7);
        assert_true(r.records[0].first_s > 0 && r.gaps[0].n >= 1);
        assert_non_null(strstr(f.request, "Authorization: Bearer secret\r\n"));
        assert_non_null(strstr(f.request, "\"stream\":true"));
        fl_load_result_close(&r);
        fake_close(&f);
    }
}

typedef struct outcome_case {
    const char *answer, *error; /* what the result says of the first failure; NULL = nothing */
    fl_load_outcome outcome;
} outcome_case;

static void outcomes_are_told_apart(void **state) {
    (void)state;
    static const outcome_case cases[] = {
        {HEAD
         "Transfer-Encoding: chunked\r\n\r\n2e\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\r\n"
         "5;x=y\r\n\ndata\r\n9\r\n: [DONE]\n\r\n0\r\n\r\n",
         NULL, FL_LOAD_DONE},
        {"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}", NULL,
         FL_LOAD_REFUSED},
        {"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n", NULL, FL_LOAD_REFUSED},
        {"HTTP/1.1 400 Bad Request\r\nContent-Length: 14\r\n\r\nno such model!", "no such model!",
         FL_LOAD_FAILED},
        {HEAD "\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", NULL,
         FL_LOAD_FAILED}, /* no [DONE] */
        {HEAD "\r\ndata: {\"error\":{\"message\":\"lost\"}}\n\n", "lost", FL_LOAD_FAILED},
        {HEAD "\r\ndata: {broken\n\n", "broken", FL_LOAD_FAILED},
        {HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk", FL_LOAD_FAILED},
        {"SMTP ready\r\n\r\n", "HTTP", FL_LOAD_FAILED},
        {"", "closed", FL_LOAD_FAILED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake f;
        fl_http_server server;
        fl_load_result r;
        fake_open(&f, cases[i].answer, 1000, 0, &server);
        run_one(&f, &server, &r);
        if (r.records[0].outcome != cases[i].outcome)
            fail_msg("case %zu: outcome %d, '%s'", i, (int)r.records[0].outcome, r.first_error);
        if (cases[i].error && !strstr(r.first_error, cases[i].error))
            fail_msg("case %zu: said '%s'", i, r.first_error);
        fl_load_result_close(&r);
        fake_close(&f);
    }
}

/* A server slower than the rate: requests come all the same, and are timed from when they were due. */
static void open_loop_does_not_wait_for_answers(void **state) {
    (void)state;
    fake f;
    fl_http_server server;
    fl_load_result r;
    fl_load_mix mix;
    fake_open(&f, EVENTS, 64, 2, &server); /* one at a time, about 20 ms each */
    assert_int_equal(fl_load_mix_read(NULL, &mix), FL_ERR_OK);
    fl_load_options options = options_of(&server, &mix, 0.3);
    options.rate = 200;
    options.clients = 1000;
    options.wait_s = 20;
    options.seed = 1;
    assert_int_equal(fl_load_run(&options, &r), FL_ERR_OK);
    assert_true(r.n > 30 && r.n < 100); /* 60 expected */
    for (int64_t i = 0; i < r.n; i++) assert_int_equal(r.records[i].outcome, FL_LOAD_DONE);
    for (int64_t i = 1; i < r.n; i++) assert_true(r.records[i].due_s >= r.records[i - 1].due_s);
    const fl_load_record *last = &r.records[r.n - 1];
    assert_true(last->due_s < 0.3 && last->first_s - last->due_s > 0.2); /* it stood behind the others */
    fl_load_result_close(&r);
    fake_close(&f);
}

/* One client asks again and again: on one connection as long as the server keeps it. A server that closes it without
 * having said so costs no request. */
static void connections_are_kept(void **state) {
    (void)state;
    static const int each[] = {1, 3, 1 << 30};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        fake f;
        fl_http_server server;
        fl_load_result r;
        fl_load_mix mix;
        fake_open(&f, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}", 1000, 0, &server);
        f.answers_each = each[i];
        assert_int_equal(fl_load_mix_read(NULL, &mix), FL_ERR_OK);
        const fl_load_options options = options_of(&server, &mix, 0.1);
        assert_int_equal(fl_load_run(&options, &r), FL_ERR_OK);
        fake_close(&f);
        assert_true(r.n > 10 && f.n_answers == r.n);
        for (int64_t k = 0; k < r.n; k++) assert_int_equal(r.records[k].outcome, FL_LOAD_REFUSED);
        int wanted = (int)((r.n + each[i] - 1) / each[i]);
        assert_in_range(f.n_connections, wanted, wanted + 1); /* the last one may not have been used */
        fl_load_result_close(&r);
    }
}

/* 40 requests of two classes, one a quarter of them: ten, whatever the seed, and not the same ones. */
static void shares_are_kept_exactly(void **state) {
    (void)state;
    static const char classes[] =
        "{\"classes\": [{\"name\": \"rare\", \"share\": 0.25, \"prompt_tokens\": 9, \"answer_tokens\": 1},"
        "{\"name\": \"usual\", \"share\": 0.75, \"prompt_tokens\": 3, \"answer_tokens\": 1}]}";
    fl_http_server server;
    fl_load_mix mix;
    uint64_t places[2] = {0};
    assert_int_equal(fl_http_server_parse("http://127.0.0.1:9", NULL, &server), FL_ERR_OK); /* nobody there */
    assert_int_equal(fl_load_mix_parse(classes, sizeof classes - 1, &mix), FL_ERR_OK);
    for (uint64_t seed = 0; seed < 2; seed++) {
        fl_load_result r;
        int n_rare = 0;
        fl_load_options options = options_of(&server, &mix, 0.05);
        options.bytes_per_token = 1;
        options.rate = 800;
        options.clients = 100;
        options.wait_s = 0;
        options.seed = seed;
        assert_int_equal(fl_load_run(&options, &r), FL_ERR_OK);
        assert_true(r.n > 15 && r.n < 64);
        for (int64_t i = 0; i < r.n && i < 40; i++) {
            if (r.records[i].class_index != 0) continue;
            places[seed] |= 1ULL << i;
            n_rare++;
        }
        assert_true(r.n < 40 ? n_rare <= 10 : n_rare == 10);
        fl_load_result_close(&r);
    }
    assert_true(places[0] != places[1]);
}

static void text_is_cut_at_whole_code_points(void **state) {
    (void)state;
    static char text[] = "a\xc3\xa9\xe2\x82\xac"; /* a, e with an accent, euro: beginnings at 0, 1, 3 */
    static const size_t cuts[] = {0, 1, 1, 3, 3, 3, 6, 6};
    const fl_haystack haystack = {text, sizeof text - 1};
    for (size_t at = 0; at < sizeof cuts / sizeof *cuts; at++)
        assert_int_equal(fl_haystack_cut(&haystack, at), cuts[at]);
}

static void urls_are_checked(void **state) {
    (void)state;
    static const char *const bad[] = {"https://a", "a:8000", "http://", "http:///x", "http://127.0.0.1/v1"};
    fl_http_server server;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(fl_http_server_parse(bad[i], NULL, &server), FL_ERR_INVALID);
    assert_int_equal(fl_http_server_parse("http://[::1]:8000/", NULL, &server), FL_ERR_OK);
    assert_int_equal(server.address.ss_family, AF_INET6);
    assert_string_equal(server.host, "[::1]:8000");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_read_however_they_are_cut),
        cmocka_unit_test(outcomes_are_told_apart),
        cmocka_unit_test(open_loop_does_not_wait_for_answers),
        cmocka_unit_test(shares_are_kept_exactly),
        cmocka_unit_test(connections_are_kept),
        cmocka_unit_test(text_is_cut_at_whole_code_points),
        cmocka_unit_test(urls_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
