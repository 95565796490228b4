#include "server/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

int http_connect(int32_t port) {
    const int on = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) fail_msg("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* A server that closes early is not the test's failure: the answer tells. */
void http_send(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

static ssize_t read_some(int fd, char *to, size_t n, double until_s) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    double left_s = until_s - fl_now_s();
    if (left_s <= 0 || poll(&p, 1, (int)(1000 * left_s) + 1) <= 0) return -2;
    ssize_t got = recv(fd, to, n, 0);
    return got < 0 ? 0 : got; /* a reset is an end */
}

const char *reply_field(const reply *r, const char *name) {
    static char value[512];
    size_t n = strlen(name);
    for (const char *line = strstr(r->text, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') {
            const char *from = line + 3 + n + strspn(line + 3 + n, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(from, "\r\n"), from);
            return value;
        }
    return NULL;
}

/* Joins the chunks in place. false: not yet whole. */
static bool join_chunks(reply *r, char *at) {
    char *to = r->body;
    for (;;) {
        char *end = NULL;
        unsigned long n = strtoul(at, &end, 16);
        char *line_end = strstr(at, "\r\n");
        if (!line_end || end == at) return false;
        at = line_end + 2;
        if (n == 0) break;
        if ((size_t)(r->text + r->n - at) < n + 2) return false;
        memmove(to, at, n);
        to += n;
        at += n + 2;
    }
    *to = '\0';
    r->body_n = (size_t)(to - r->body);
    return true;
}

static bool is_whole(reply *r) {
    if (r->whole) return true;
    char *end = strstr(r->text, "\r\n\r\n");
    if (!end || strncmp(r->text, "HTTP/1.", 7) != 0) return false;
    int status = (int)strtol(r->text + 9, NULL, 10);
    const char *length = reply_field(r, "Content-Length"), *coding = NULL;
    r->status = status;
    r->body = end + 4;
    r->body_n = (size_t)(r->text + r->n - r->body);
    if (length) return r->whole = r->body_n >= strtoul(length, NULL, 10);
    coding = reply_field(r, "Transfer-Encoding");
    if (!coding || strcmp(coding, "chunked") != 0 || !strstr(r->body, "0\r\n\r\n")) return false;
    return r->whole = join_chunks(r, r->body);
}

reply http_read(int fd, double timeout_s) {
    size_t room = 1 << 16;
    reply r = {.text = malloc(room)};
    double begin_s = fl_now_s(), until_s = begin_s + timeout_s;
    assert_non_null(r.text);
    r.text[0] = '\0';
    for (;;) {
        if (room - r.n < 1 << 15) {
            room *= 2;
            r.text = realloc(r.text, room);
            assert_non_null(r.text);
        }
        ssize_t n = read_some(fd, r.text + r.n, room - r.n - 1, until_s);
        if (n == -2) fail_msg("no whole answer within %g s: '%.200s'", timeout_s, r.text);
        if (n <= 0) break;
        if (r.n == 0) r.first_byte_s = fl_now_s() - begin_s;
        r.n += (size_t)n;
        r.text[r.n] = '\0';
        if (is_whole(&r)) break;
    }
    r.end_s = fl_now_s() - begin_s;
    bool whole = is_whole(&r);
    const char *connection = r.n > 0 ? reply_field(&r, "Connection") : NULL;
    r.closed = !whole || (connection && strcasecmp(connection, "close") == 0);
    return r;
}

void reply_free(reply *r) {
    free(r->text);
    *r = (reply){0};
}

char *http_read_until(int fd, const char *text, double timeout_s) {
    size_t room = 1 << 16, n = 0;
    char *all = calloc(room, 1);
    double until_s = fl_now_s() + timeout_s;
    assert_non_null(all);
    while (!strstr(all, text)) {
        if (room - n < 4096) {
            all = realloc(all, room *= 2);
            assert_non_null(all);
        }
        ssize_t got = read_some(fd, all + n, room - n - 1, until_s);
        if (got <= 0) break;
        n += (size_t)got;
        all[n] = '\0';
    }
    return all;
}

reply http_ask(int32_t port, const char *method, const char *path, const char *more_head, const char *body) {
    size_t n = body ? strlen(body) : 0, room = n + 4096;
    char *text = malloc(room);
    assert_non_null(text);
    int head = snprintf(text, room, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, more_head);
    if (body)
        head += snprintf(text + head, room - (size_t)head,
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n", n);
    head += snprintf(text + head, room - (size_t)head, "\r\n%s", body ? body : "");
    int fd = http_connect(port);
    http_send(fd, text, (size_t)head);
    reply r = http_read(fd, 60);
    close(fd);
    free(text);
    return r;
}

reply http_get(int32_t port, const char *path) {
    return http_ask(port, "GET", path, "", NULL);
}

reply http_post(int32_t port, const char *path, const char *json) {
    return http_ask(port, "POST", path, "", json);
}

double http_metric(int32_t port, const char *line) {
    reply r = http_get(port, "/metrics");
    double value = -1;
    size_t n = strlen(line);
    for (const char *at = r.body; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, line, n) == 0) {
            const char *blank = strchr(at, '}');
            value = strtod(blank ? blank + 1 : at + n, NULL);
            break;
        }
    reply_free(&r);
    return value;
}
