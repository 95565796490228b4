#include "load/http_call.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hex.h"

enum { FETCH_BYTES_MAX = 16 << 20, READ_BYTES = 65536 };

/* Parts of a chunked body. */
enum {
    CHUNK_SIZE,
    CHUNK_SIZE_END,
    CHUNK_BYTES,
    CHUNK_END_CR,
    CHUNK_END_LF,
    CHUNK_TRAILER,
    CHUNK_TRAILER_LINE
};

fl_err fl_http_server_parse(const char *url, const char *key, fl_http_server *out) {
    char host[256], port[8] = "80";
    *out = (fl_http_server){0};
    if (strncmp(url, "http://", 7) != 0)
        return FL_FAIL(FL_ERR_INVALID, "url: expected http://HOST[:PORT], found '%s'", url);
    const char *begin = url + 7;
    size_t n = strcspn(begin, "/"),
           host_bytes = begin[0] == '[' ? strcspn(begin, "]") + 1 : strcspn(begin, ":/");
    const char *rest = begin + host_bytes;
    if (n == 0 || n >= sizeof out->host || host_bytes > n || (begin[n] == '/' && begin[n + 1] != '\0'))
        return FL_FAIL(FL_ERR_INVALID, "url: expected http://HOST[:PORT] without a path, found '%s'", url);
    snprintf(out->host, sizeof out->host, "%.*s", (int)n, begin);
    bool bracket = begin[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)host_bytes - 2 * bracket, begin + bracket);
    if (*rest == ':') snprintf(port, sizeof port, "%.*s", (int)(n - host_bytes - 1), rest + 1);
    if (key && strlen(key) >= sizeof out->key)
        return FL_FAIL(FL_ERR_INVALID, "api-key: longer than 255 bytes");
    if (key) snprintf(out->key, sizeof out->key, "%s", key);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0) return FL_FAIL(FL_ERR_IO, "%s: %s", url, gai_strerror(code));
    memcpy(&out->address, found->ai_addr, found->ai_addrlen);
    out->address_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return FL_ERR_OK;
}

static fl_err make_request(const fl_http_server *s, const char *path, const char *body, size_t body_bytes,
                           fl_http_call *c) {
    char head[1024];
    int n =
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: %s\r\n", body ? "POST" : "GET", path, s->host);
    if (s->key[0]) n += snprintf(head + n, sizeof head - (size_t)n, "Authorization: Bearer %s\r\n", s->key);
    if (body)
        n += snprintf(head + n, sizeof head - (size_t)n,
                      "Content-Type: application/json\r\nContent-Length: %zu\r\n", body_bytes);
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    c->out_bytes = (size_t)n + body_bytes;
    c->out = malloc(c->out_bytes);
    if (!c->out) return FL_FAIL(FL_ERR_NOMEM, "request of %zu bytes", c->out_bytes);
    memcpy(c->out, head, (size_t)n);
    if (body_bytes > 0) memcpy(c->out + n, body, body_bytes);
    return FL_ERR_OK;
}

static fl_err connect_to(const fl_http_server *server, fl_http_call *c) {
    const int one = 1;
    c->reused = false;
    c->state = FL_HTTP_CONNECT;
    c->out_sent = 0;
    c->fd = socket(server->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd >= 0) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->fd >= 0 &&
        (connect(c->fd, (const struct sockaddr *)&server->address, server->address_bytes) == 0 ||
         errno == EINPROGRESS))
        return FL_ERR_OK;
    fl_err err = FL_FAIL(FL_ERR_IO, "%s: %s", server->host, strerror(errno));
    fl_http_call_close(c);
    return err;
}

fl_err fl_http_call_open(const fl_http_server *server, const char *path, const char *body, size_t body_bytes,
                         fl_http_call *c) {
    c->out = NULL;
    c->head[0] = '\0';
    c->head_bytes = c->out_sent = 0;
    c->status = c->chunk_part = 0;
    c->retry_after_s = 0;
    c->chunked = c->keep = false;
    c->left = 0;
    FL_TRY(make_request(server, path, body, body_bytes, c));
    if (c->fd < 0) return connect_to(server, c);
    c->reused = true;
    c->state = FL_HTTP_SEND;
    return FL_ERR_OK;
}

bool fl_http_call_is_stale(const fl_http_call *c) {
    return c->reused && c->head_bytes == 0 && c->state < FL_HTTP_BODY;
}

fl_err fl_http_call_again(const fl_http_server *server, fl_http_call *c) {
    close(c->fd);
    return connect_to(server, c);
}

void fl_http_call_end(fl_http_call *c) {
    free(c->out);
    c->out = NULL;
    if (c->fd >= 0 && !(c->state == FL_HTTP_DONE && c->keep)) {
        close(c->fd);
        c->fd = -1;
    }
}

void fl_http_call_close(fl_http_call *c) {
    if (c->fd >= 0) close(c->fd);
    free(c->out);
    c->fd = -1;
    c->out = NULL;
}

uint32_t fl_http_call_events(const fl_http_call *c) {
    return c->state <= FL_HTTP_SEND ? EPOLLOUT : EPOLLIN;
}

static fl_err connected(fl_http_call *c) {
    int error = 0;
    socklen_t n = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
    if (error != 0) return FL_FAIL(FL_ERR_IO, "cannot connect: %s", strerror(error));
    c->state = FL_HTTP_SEND;
    return FL_ERR_OK;
}

static fl_err send_some(fl_http_call *c) {
    while (c->out_sent < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_bytes - c->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return FL_ERR_OK;
        /* A server may answer and close before it has read all: the answer is what counts. */
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) break;
        if (n < 0) return FL_FAIL(FL_ERR_IO, "sending: %s", strerror(errno));
        c->out_sent += (size_t)n;
    }
    c->state = FL_HTTP_HEAD;
    return FL_ERR_OK;
}

/* The value of a header, or NULL. The head is NUL-terminated. */
static const char *header_of(const fl_http_call *c, const char *name) {
    size_t n = strlen(name);
    for (const char *line = strstr(c->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, n) == 0 && at[n] == ':') return at + n + 1 + strspn(at + n + 1, " \t");
    }
    return NULL;
}

static fl_err read_head(fl_http_call *c) {
    bool http = strncmp(c->head, "HTTP/1.", 7) == 0 && c->head_bytes > 12 && c->head[8] == ' ';
    long status = http ? strtol(c->head + 9, NULL, 10) : 0;
    if (status < 100 || status > 999)
        return FL_FAIL(FL_ERR_DATA, "expected an HTTP answer, found '%.40s'", c->head);
    c->status = (int32_t)status;
    const char *length = header_of(c, "content-length"), *coding = header_of(c, "transfer-encoding"),
               *retry = header_of(c, "retry-after"), *connection = header_of(c, "connection");
    bool closes = connection && strncasecmp(connection, "close", 5) == 0;
    c->keep = c->head[7] == '1' && !closes && (length || coding);
    if (retry) c->retry_after_s = strtod(retry, NULL);
    c->chunked = coding && strncasecmp(coding, "chunked", 7) == 0;
    c->left = c->chunked ? 0 : -1;
    if (length && !c->chunked) c->left = strtoll(length, NULL, 10);
    c->state = FL_HTTP_BODY;
    if (c->left == 0 && !c->chunked) c->state = FL_HTTP_DONE;
    return FL_ERR_OK;
}

/* One byte of a chunked body that is none of the content. */
static fl_err chunk_byte(fl_http_call *c, char byte) {
    int digit = fl_hex_digit(byte);
    switch (c->chunk_part) {
    case CHUNK_SIZE:
        if (digit >= 0 && c->left < 1 << 30) c->left = c->left * 16 + digit;
        else if (byte == ';' || byte == '\r') c->chunk_part = CHUNK_SIZE_END;
        else return FL_FAIL(FL_ERR_DATA, "a chunk's size has the byte 0x%02x", (unsigned char)byte);
        break;
    case CHUNK_SIZE_END:
        if (byte == '\n') c->chunk_part = c->left > 0 ? CHUNK_BYTES : CHUNK_TRAILER;
        break;
    case CHUNK_END_CR: c->chunk_part = CHUNK_END_LF; break;
    case CHUNK_END_LF: c->chunk_part = CHUNK_SIZE; break;
    case CHUNK_TRAILER:
        if (byte == '\n') c->state = FL_HTTP_DONE;
        else if (byte != '\r') c->chunk_part = CHUNK_TRAILER_LINE;
        break;
    default:
        if (byte == '\n') c->chunk_part = CHUNK_TRAILER;
    }
    return FL_ERR_OK;
}

static fl_err take_body(fl_http_call *c, const char *bytes, size_t n) {
    for (size_t i = 0; i < n && c->state == FL_HTTP_BODY;) {
        if (c->chunked && c->chunk_part != CHUNK_BYTES) {
            FL_TRY(chunk_byte(c, bytes[i++]));
            continue;
        }
        size_t some = n - i;
        if (c->left >= 0 && (uint64_t)c->left < some) some = (size_t)c->left;
        FL_TRY(c->on_body(c->context, bytes + i, some));
        i += some;
        if (c->left < 0) continue;
        c->left -= (int64_t)some;
        if (c->left == 0 && c->chunked) c->chunk_part = CHUNK_END_CR;
        else if (c->left == 0) c->state = FL_HTTP_DONE;
    }
    return FL_ERR_OK;
}

static fl_err take(fl_http_call *c, const char *bytes, size_t n) {
    if (c->state == FL_HTTP_BODY) return take_body(c, bytes, n);
    size_t room = sizeof c->head - 1 - c->head_bytes, before = c->head_bytes, some = n < room ? n : room;
    memcpy(c->head + c->head_bytes, bytes, some);
    c->head_bytes += some;
    c->head[c->head_bytes] = '\0';
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end && some < n)
        return FL_FAIL(FL_ERR_DATA, "the answer's head is over %d bytes", FL_HTTP_HEAD_BYTES);
    if (!end) return FL_ERR_OK;
    size_t used = (size_t)(end - c->head) + 4 - before;
    end[2] = '\0';
    FL_TRY(read_head(c));
    return take_body(c, bytes + used, n - used);
}

static fl_err receive_some(fl_http_call *c) {
    char bytes[READ_BYTES];
    while (c->state != FL_HTTP_DONE) {
        ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return FL_ERR_OK;
        if (n < 0) return FL_FAIL(FL_ERR_IO, "receiving: %s", strerror(errno));
        if (n == 0 && c->state == FL_HTTP_BODY && c->left < 0) c->state = FL_HTTP_DONE;
        else if (n == 0)
            return FL_FAIL(FL_ERR_IO, "the server closed the connection before the answer's end");
        FL_TRY(take(c, bytes, (size_t)n));
        if (n > 0 && (size_t)n < sizeof bytes) return FL_ERR_OK; /* all that was there */
    }
    return FL_ERR_OK;
}

fl_err fl_http_call_step(fl_http_call *c) {
    if (c->state == FL_HTTP_CONNECT) FL_TRY(connected(c));
    if (c->state == FL_HTTP_SEND) FL_TRY(send_some(c));
    return c->state >= FL_HTTP_HEAD ? receive_some(c) : FL_ERR_OK;
}

typedef struct text {
    char *bytes;
    size_t n;
} text;

static fl_err keep(void *context, const char *bytes, size_t n) {
    text *t = context;
    if (t->n + n > FETCH_BYTES_MAX) return FL_FAIL(FL_ERR_LIMIT, "an answer over %d bytes", FETCH_BYTES_MAX);
    char *grown = realloc(t->bytes, t->n + n + 1);
    if (!grown) return FL_FAIL(FL_ERR_NOMEM, "an answer of %zu bytes", t->n + n);
    t->bytes = grown;
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    t->bytes[t->n] = '\0';
    return FL_ERR_OK;
}

fl_err fl_http_fetch(const fl_http_server *server, const char *path, const char *body, double timeout_s,
                     int32_t *status, char **out) {
    fl_http_call call;
    text answer = {0};
    double end_s = fl_now_s() + timeout_s;
    call.fd = -1;
    call.on_body = keep;
    call.context = &answer;
    FL_TRY(fl_http_call_open(server, path, body, body ? strlen(body) : 0, &call));
    fl_err err = keep(&answer, "", 0);
    while (err == FL_ERR_OK && call.state != FL_HTTP_DONE) {
        double left_s = end_s - fl_now_s();
        struct pollfd wait = {.fd = call.fd, .events = call.state <= FL_HTTP_SEND ? POLLOUT : POLLIN};
        if (left_s <= 0)
            err = FL_FAIL(FL_ERR_IO, "%s%s: no answer within %g s", server->host, path, timeout_s);
        else if (poll(&wait, 1, (int)(left_s * 1e3) + 1) > 0) err = fl_http_call_step(&call);
    }
    *status = call.status;
    fl_http_call_close(&call);
    if (err == FL_ERR_OK) *out = answer.bytes;
    else free(answer.bytes);
    return err;
}
