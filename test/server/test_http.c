/* The HTTP layer alone, before handlers of the test's own: what is given back with an answer, what a write to a stream
 * says, and a request that comes while the server is being opened. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/http.h"
#include "server/http_client.h"

enum { HELD_MAX = 8 };

typedef struct front {
    fl_http *http;                            /* where fl_http_open puts it */
    bool stream;                              /* answers are begun as streams, which the test writes */
    bool unknown;                             /* a handler was called before `http` was there */
    fl_http_exchange *_Atomic held[HELD_MAX]; /* [n_held], until the test lets go of them */
    atomic_int n_held;
} front;

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static int64_t on_head(void *context, fl_http_exchange *exchange) {
    front *f = context;
    (void)exchange;
    if (!f->http) f->unknown = true;
    return 1 << 20;
}

static void on_body(void *context, fl_http_exchange *exchange) {
    front *f = context;
    const fl_http_answer answer = {.status = 200};
    fl_http_hold(exchange);
    f->held[f->n_held] = exchange;
    f->n_held++;
    if (f->stream) fl_http_stream_begin(exchange, "text/plain");
    else fl_http_answer_send(exchange, &answer);
}

static void on_refuse(void *context, fl_http_exchange *exchange, int status, const char *reason) {
    const fl_http_answer answer = {.status = status};
    (void)context;
    (void)reason;
    fl_http_answer_send(exchange, &answer);
}

static void on_gone(void *context, fl_http_exchange *exchange) {
    (void)context;
    (void)exchange;
}

static void on_ended(void *context, fl_http_exchange *exchange, bool complete) {
    (void)context;
    (void)exchange;
    (void)complete;
}

static void on_tick(void *context) {
    (void)context;
}

static void open_front(front *f, fl_http_options *o) {
    o->port = 0;
    o->handlers = (fl_http_handlers){f, on_head, on_body, on_gone, on_ended, on_gone, on_tick, on_refuse};
    if (fl_http_open(o, &f->http) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
}

static void close_front(front *f) {
    for (int i = 0; i < f->n_held; i++) fl_http_release(f->held[i]);
    fl_http_close(f->http);
}

/* Somebody may hold an exchange for a moment longer than its client: the next body has room all the same. */
static void an_answered_body_is_counted_no_more(void **state) {
    front f = {.http = NULL};
    fl_http_options o;
    char body[1001];
    (void)state;
    memset(body, 'a', 1000);
    body[1000] = '\0';
    fl_http_options_default(&o);
    o.body_bytes_all_max = 1500;
    open_front(&f, &o);
    for (int i = 0; i < 4; i++) {
        reply r = http_post(fl_http_port(f.http), "/", body);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    assert_int_equal(f.n_held, 4);
    close_front(&f);
}

/* A connection whose request is at the handlers. */
static int ask(front *f, fl_http_exchange **exchange) {
    static const char get[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int n = f->n_held, fd = http_connect(fl_http_port(f->http));
    http_send(fd, get, sizeof get - 1);
    while (f->n_held == n) nap();
    *exchange = f->held[n];
    return fd;
}

static void a_write_says_who_left_and_who_is_slow(void **state) {
    static const char block[4096];
    const struct linger reset = {.l_onoff = 1};
    front f = {.stream = true};
    fl_http_exchange *e = NULL;
    fl_http_options o;
    fl_http_written written = FL_HTTP_WRITTEN;
    (void)state;
    fl_http_options_default(&o);
    o.stream_bytes_max = 64 << 10;
    open_front(&f, &o);
    int fd = ask(&f, &e);
    assert_int_equal(fl_http_stream_write(e, "x", 1), FL_HTTP_WRITTEN);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    close(fd);
    while ((written = fl_http_stream_write(e, "x", 1)) == FL_HTTP_WRITTEN) nap();
    assert_int_equal(written, FL_HTTP_LEFT);
    fd = ask(&f, &e);
    while ((written = fl_http_stream_write(e, block, sizeof block)) == FL_HTTP_WRITTEN) continue;
    assert_int_equal(written, FL_HTTP_TOO_SLOW);
    assert_int_equal(fl_http_stream_write(e, "x", 1), FL_HTTP_LEFT);
    close(fd);
    close_front(&f);
}

static front *opened; /* while a test wants to hear of new threads */
static int n_threads, status;

/* Of the newest socket that listens. */
static int32_t port_listened_on(void) {
    int32_t port = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in name;
        socklen_t n_name = sizeof name, n_on = sizeof(int);
        int on = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n_on) != 0 || !on) continue;
        if (getsockname(fd, (struct sockaddr *)&name, &n_name) == 0) port = ntohs(name.sin_port);
    }
    return port;
}

/* Stands before the C library's, also for libmicrohttpd: asks as soon as there is a thread that answers, the second. */
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*main)(void *), void *context) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    void *found = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real, &found, sizeof real);
    int failed = real(thread, attributes, main, context);
    if (!opened || ++n_threads != 2) return failed;
    reply r = http_get(port_listened_on(), "/");
    status = r.status;
    reply_free(&r);
    return failed;
}

static void the_first_request_finds_the_server(void **state) {
    front f = {.http = NULL};
    fl_http_options o;
    (void)state;
    fl_http_options_default(&o);
    opened = &f;
    open_front(&f, &o);
    opened = NULL;
    assert_int_equal(status, 200);
    assert_false(f.unknown);
    close_front(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answered_body_is_counted_no_more),
        cmocka_unit_test(a_write_says_who_left_and_who_is_slow),
        cmocka_unit_test(the_first_request_finds_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
