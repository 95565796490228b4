/* Requests that no honest client sends, byte for byte on a raw socket. Each is refused with its status or cut off, the
 * connection ends where two programs in a row could disagree about what follows, and the server goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/http_client.h"
#include "server/serve_stub.h"

enum { CLOSED = 1 }; /* wanted status: the connection ends without an answer, or with any 4xx */

typedef struct hostile {
    const char *name, *bytes;
    size_t n;
    int wanted;
} hostile;

#define RAW(name, wanted, text)                                                                              \
    { name, text, sizeof(text) - 1, wanted }
#define H    "Host: localhost\r\n"
#define J    "Content-Type: application/json\r\n"
#define POST "POST /tokenize HTTP/1.1\r\n" H J
#define GET  "GET /version HTTP/1.1\r\n" H
#define BODY "{\"prompt\":\"x\"}"

static const hostile cases[] = {
    /* framing */
    RAW("length and chunks", 400, POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    RAW("chunks and length", 400, POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    RAW("two lengths, different", 400, POST "Content-Length: 14\r\nContent-Length: 3\r\n\r\n" BODY),
    RAW("two lengths, equal", 400, POST "Content-Length: 14\r\nContent-Length: 14\r\n\r\n" BODY),
    RAW("two lengths, other case", 400, POST "Content-Length: 14\r\ncontent-length: 14\r\n\r\n" BODY),
    RAW("a list of lengths", 400, POST "Content-Length: 14, 14\r\n\r\n" BODY),
    RAW("length with plus", 400, POST "Content-Length: +14\r\n\r\n" BODY),
    RAW("length below zero", 400, POST "Content-Length: -1\r\n\r\n" BODY),
    RAW("length in hex", 400, POST "Content-Length: 0xe\r\n\r\n" BODY),
    RAW("length with a fraction", 400, POST "Content-Length: 14.0\r\n\r\n" BODY),
    RAW("length with letters", 400, POST "Content-Length: 14abc\r\n\r\n" BODY),
    RAW("length empty", 400, POST "Content-Length:\r\n\r\n" BODY),
    RAW("length with a blank inside", 400, POST "Content-Length: 1 4\r\n\r\n" BODY),
    RAW("length 2^63", 413, POST "Content-Length: 9223372036854775808\r\n\r\n"),
    RAW("length 2^64", 413, POST "Content-Length: 18446744073709551616\r\n\r\n"),
    RAW("length of forty digits", 413,
        POST "Content-Length: 1111111111222222222233333333334444444444\r\n\r\n"),
    RAW("length beyond the bound", 413, POST "Content-Length: 999999999999\r\n\r\n"),
    RAW("length with blank before colon", 400, POST "Content-Length : 14\r\n\r\n" BODY),
    RAW("chunked twice", 400,
        POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    RAW("chunked, identity", 400, POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    RAW("gzip, chunked", 400, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    RAW("an unknown coding", 400, POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    RAW("chunked in quotes", 400, POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    RAW("coding with a tab", 400,
        POST "Transfer-Encoding:\x0b"
             "chunked\r\n\r\n0\r\n\r\n"),
    RAW("coding with blank before colon", 400, POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    RAW("chunks in 1.0", 400, "POST /tokenize HTTP/1.0\r\n" J "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    RAW("chunk size of letters", CLOSED, POST "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n"),
    RAW("chunk size below zero", CLOSED, POST "Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n"),
    RAW("chunk size 2^64", CLOSED,
        POST "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nabc\r\n0\r\n\r\n"),
    RAW("chunk size with 0x", CLOSED, POST "Transfer-Encoding: chunked\r\n\r\n0xe\r\n" BODY "\r\n0\r\n\r\n"),
    RAW("chunk longer than said", CLOSED, POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n"),
    /* request line */
    RAW("no version", CLOSED, "GET /version\r\n" H "\r\n"),
    RAW("version 0.9", CLOSED, "GET /version HTTP/0.9\r\n" H "\r\n"),
    RAW("version 1.2", 505, "GET /version HTTP/1.2\r\n" H "\r\n"),
    RAW("version 2.0", CLOSED, "GET /version HTTP/2.0\r\n" H "\r\n"),
    RAW("version of letters", CLOSED, "GET /version HTTP/x.y\r\n" H "\r\n"),
    RAW("version in small letters", CLOSED, "GET /version http/1.1\r\n" H "\r\n"),
    RAW("another protocol", CLOSED, "GET /version RTSP/1.0\r\n" H "\r\n"),
    RAW("preface of HTTP/2", CLOSED, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    RAW("a TLS greeting", CLOSED, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n"),
    RAW("method with a control byte", CLOSED, "GE\x01T /version HTTP/1.1\r\n" H "\r\n"),
    RAW("method with a bracket", 400, "GE(T /version HTTP/1.1\r\n" H "\r\n"),
    RAW("method too long", 400, "GETGETGETGETGETGETGETGET /version HTTP/1.1\r\n" H "\r\n"),
    RAW("an empty method", CLOSED, " /version HTTP/1.1\r\n" H "\r\n"),
    RAW("target without slash", 400, "GET version HTTP/1.1\r\n" H "\r\n"),
    RAW("target with a control byte", 400, "GET /ver\x01sion HTTP/1.1\r\n" H "\r\n"),
    RAW("target with DEL", 400, "GET /ver\x7fsion HTTP/1.1\r\n" H "\r\n"),
    RAW("target with raw UTF-8", 400, "GET /ver\xc3\xbcsion HTTP/1.1\r\n" H "\r\n"),
    RAW("target with a tab", 400, "GET /version\tx HTTP/1.1\r\n" H "\r\n"),
    RAW("target with a fragment", 400, "GET /version#x HTTP/1.1\r\n" H "\r\n"),
    RAW("target with a NUL", 404, "GET /version%00 HTTP/1.1\r\n" H "\r\n"),
    RAW("target with dots", 404, "GET /../../etc/passwd HTTP/1.1\r\n" H "\r\n"),
    RAW("target encoded", 404, "GET /%76ersion HTTP/1.1\r\n" H "\r\n"),
    RAW("target of another server", 400, "GET http://example.com/version HTTP/1.1\r\n" H "\r\n"),
    RAW("target with a port of another", 400, "GET http://localhost:1/version HTTP/1.1\r\n" H "\r\n"),
    RAW("target with user", 400, "GET http://u@localhost/version HTTP/1.1\r\n" H "\r\n"),
    RAW("target with another scheme", 400, "GET file:///etc/passwd HTTP/1.1\r\n" H "\r\n"),
    RAW("authority form", 400, "CONNECT localhost:80 HTTP/1.1\r\n" H "\r\n"),
    RAW("asterisk form", 400, "OPTIONS * HTTP/1.1\r\n" H "\r\n"),
    /* fields */
    RAW("no Host", 400, "GET /version HTTP/1.1\r\n\r\n"),
    RAW("two Hosts", 400, GET "Host: other\r\n\r\n"),
    RAW("Host empty", 400, "GET /version HTTP/1.1\r\nHost:\r\n\r\n"),
    RAW("Host with a path", 400, "GET /version HTTP/1.1\r\nHost: localhost/x\r\n\r\n"),
    RAW("Host with a comma", 400, "GET /version HTTP/1.1\r\nHost: a,b\r\n\r\n"),
    RAW("a NUL in a value", 400, GET "X-A: a\0b\r\n\r\n"),
    RAW("a NUL in a name", 400, GET "X-\0A: b\r\n\r\n"),
    RAW("a control byte in a value", 400,
        GET "X-A: a\x01"
            "b\r\n\r\n"),
    RAW("an escape in a value", 400, GET "X-A: a\x1b[31mb\r\n\r\n"),
    RAW("DEL in a value", 400,
        GET "X-A: a\x7f"
            "b\r\n\r\n"),
    RAW("a bare CR in a value", 400, GET "X-A: a\rb\r\n\r\n"),
    RAW("a blank in a name", 400, GET "X A: b\r\n\r\n"),
    RAW("a blank before the colon", 400, GET "X-A : b\r\n\r\n"),
    RAW("an empty name", 400, GET ": b\r\n\r\n"),
    RAW("no colon", 400, GET "X-A b\r\n\r\n"),
    RAW("a bracket in a name", 400, GET "X(A): b\r\n\r\n"),
    RAW("high bytes in a name", 400, GET "X-\xff: b\r\n\r\n"),
    RAW("two keys", 400, GET "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"),
    RAW("two content types", 400, POST "Content-Type: text/plain\r\nContent-Length: 14\r\n\r\n" BODY),
    RAW("Expect of something else", 400, POST "Expect: 200-ok\r\nContent-Length: 14\r\n\r\n"),
    RAW("Expect twice", 400,
        POST "Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"),
    RAW("Expect in 1.0", 400,
        "POST /tokenize HTTP/1.0\r\n" J "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n"),
    RAW("a compressed body", 415, POST "Content-Encoding: gzip\r\nContent-Length: 14\r\n\r\n" BODY),
    /* what other sites' pages can send without asking */
    RAW("a form", 415,
        "POST /tokenize HTTP/1.1\r\n" H
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\na=b"),
    RAW("plain text", 415,
        "POST /tokenize HTTP/1.1\r\n" H "Content-Type: text/plain\r\nContent-Length: 14\r\n\r\n" BODY),
    RAW("no type", 415, "POST /tokenize HTTP/1.1\r\n" H "Content-Length: 14\r\n\r\n" BODY),
    RAW("multipart", 415,
        "POST /tokenize HTTP/1.1\r\n" H
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 3\r\n\r\n--x"),
    RAW("a type that begins alike", 415,
        "POST /tokenize HTTP/1.1\r\n" H "Content-Type: application/jsonp\r\nContent-Length: 14\r\n\r\n" BODY),
    RAW("preflight of another site", 405,
        "OPTIONS /v1/chat/completions HTTP/1.1\r\n" H "Origin: http://evil.example\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n"),
    RAW("TRACE", 405, "TRACE /version HTTP/1.1\r\n" H "\r\n"),
    RAW("PUT", 405, "PUT /version HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\nx"),
};

static fl_serve *server;
static int32_t port;

static int open_server(void **state) {
    static const char *const stub[] = {FL_STUB_WORKER, NULL};
    fl_serve_options o;
    (void)state;
    stub_options(&o, stub);
    o.http.head_s = 1;
    o.http.body_s = 1.5;
    server = stub_serve(&o);
    port = fl_serve_port(server);
    return 0;
}

static int close_server(void **state) {
    (void)state;
    fl_serve_close(server);
    return 0;
}

static void assert_serves(const char *after) {
    reply r = http_get(port, "/health");
    if (r.status != 200) fail_msg("after '%s': %s", after, r.text);
    reply_free(&r);
}

static void each_is_refused(void **state) {
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const hostile *c = &cases[i];
        int fd = http_connect(port);
        http_send(fd, c->bytes, c->n);
        shutdown(fd, SHUT_WR);
        reply r = http_read(fd, 30);
        close(fd);
        bool right = c->wanted == CLOSED ? r.status == 0 || (r.status >= 400 && r.status < 600)
                                         : r.status == c->wanted;
        if (!right) {
            print_error("%s: expected %d, found %d: %.300s\n", c->name, c->wanted, r.status, r.text);
            n_wrong++;
        }
        reply_free(&r);
        assert_serves(c->name);
    }
    assert_int_equal(n_wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_refused),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
