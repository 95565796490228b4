/* A client of raw sockets, for tests: what is sent is what the test says, byte for byte. All functions fail the running
 * cmocka test when something goes wrong that is not the server's answer. */
#ifndef TEST_HTTP_CLIENT_H
#define TEST_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What came back. `whole`: all that its head promised; `closed`: the server ends the connection with it. */
typedef struct reply {
    int status; /* 0 = nothing that begins like a response */
    bool whole, closed;
    char *text; /* [n] all bytes, head included, NUL-terminated; owned */
    size_t n;
    char *body; /* within text; chunks are joined */
    size_t body_n;
    double first_byte_s, end_s; /* since the request was sent */
} reply;

int http_connect(int32_t port);
void http_send(int fd, const char *bytes, size_t n);

/* Reads one response; a body of Content-Length or chunks ends it, else the connection's end. Fails after timeout_s. */
reply http_read(int fd, double timeout_s);
void reply_free(reply *r);

/* Reads until `text` was seen or the time is over or the connection ends; returns what came, owned. */
char *http_read_until(int fd, const char *text, double timeout_s);

/* One request on a connection of its own; more_head is whole lines with their ends, body NULL = GET. */
reply http_ask(int32_t port, const char *method, const char *path, const char *more_head, const char *body);
reply http_get(int32_t port, const char *path);
reply http_post(int32_t port, const char *path, const char *json);

/* The value of a header field, NULL = none; valid until the next call. */
const char *reply_field(const reply *r, const char *name);

/* The number behind a line of /metrics that begins with `line`; -1 = there is none. */
double http_metric(int32_t port, const char *line);

#endif
