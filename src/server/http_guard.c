#include "server/http_guard.h"

#include <string.h>
#include <strings.h>

enum { METHOD_BYTES_MAX = 16, LENGTH_DIGITS_MAX = 15 };

static bool is_token_byte(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static bool is_token(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_token_byte((unsigned char)text[i])) return false;
    return n > 0;
}

static bool is_value(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

static bool is_host(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!letter && (c == '\0' || !strchr(".-_:[]", c))) return false;
    }
    return n > 0;
}

static bool equals(const char *text, size_t n, const char *word) {
    return strlen(word) == n && strncasecmp(text, word, n) == 0;
}

static bool named(const fl_http_field *f, const char *name) {
    return equals(f->name, f->name_bytes, name);
}

static bool refuse(fl_http_verdict *out, int status, const char *reason) {
    out->status = status;
    out->reason = reason;
    return false;
}

/* Digits only: no sign, no blank, no list. */
static bool read_length(const fl_http_field *f, fl_http_verdict *out) {
    int64_t value = 0;
    if (f->value_bytes < 1) return refuse(out, 400, "Content-Length: expected a number of bytes");
    for (size_t i = 0; i < f->value_bytes; i++)
        if (f->value[i] < '0' || f->value[i] > '9')
            return refuse(out, 400, "Content-Length: expected digits only");
    if (f->value_bytes > LENGTH_DIGITS_MAX)
        return refuse(out, 413, "the body is longer than this server takes");
    for (size_t i = 0; i < f->value_bytes; i++) value = 10 * value + (f->value[i] - '0');
    out->content_length = value;
    return true;
}

/* The fields that may come once, and where they were seen. */
typedef struct seen {
    const fl_http_field *length, *coding, *host, *expect, *authorization, *content_type;
} seen;

static bool sort_fields(const fl_http_raw_head *raw, seen *s, fl_http_verdict *out) {
    const struct {
        const char *name;
        const fl_http_field **at;
    } once[] = {{"content-length", &s->length},
                {"transfer-encoding", &s->coding},
                {"host", &s->host},
                {"expect", &s->expect},
                {"authorization", &s->authorization},
                {"content-type", &s->content_type}};
    for (size_t i = 0; i < raw->n_fields; i++) {
        const fl_http_field *f = &raw->fields[i];
        if (!is_token(f->name, f->name_bytes))
            return refuse(out, 400, "a header field's name has a byte that no name may have");
        if (!is_value(f->value, f->value_bytes))
            return refuse(out, 400, "a header field has a control byte in its value");
        if (named(f, "content-encoding") && !equals(f->value, f->value_bytes, "identity"))
            return refuse(out, 415, "Content-Encoding: send the body as it is");
        for (size_t k = 0; k < sizeof once / sizeof once[0]; k++) {
            if (!named(f, once[k].name)) continue;
            if (*once[k].at) return refuse(out, 400, "a header field that may come once came twice");
            *once[k].at = f;
        }
    }
    return true;
}

static bool check_framing(const seen *s, bool version_1_1, fl_http_verdict *out) {
    if (s->coding) {
        if (s->length) return refuse(out, 400, "Content-Length and Transfer-Encoding exclude each other");
        if (!version_1_1) return refuse(out, 400, "Transfer-Encoding: HTTP/1.0 has none");
        if (!equals(s->coding->value, s->coding->value_bytes, "chunked"))
            return refuse(out, 400, "Transfer-Encoding: expected chunked");
        out->content_length = -1;
    } else if (s->length && !read_length(s->length, out)) return false;
    if (s->expect) {
        if (!version_1_1 || !equals(s->expect->value, s->expect->value_bytes, "100-continue"))
            return refuse(out, 400, "Expect: only 100-continue is known");
        out->expects_continue = true;
    }
    return true;
}

/* A path, or http://AUTHORITY/path with the Host's own authority. */
static bool check_target(const fl_http_raw_head *raw, const seen *s, fl_http_verdict *out) {
    static const char scheme[] = "http://";
    const char *target = raw->target, *path = target;
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f || *c == '#')
            return refuse(out, 400, "the request target has a byte that none may have");
    if (*target != '/') {
        if (strncasecmp(target, scheme, sizeof scheme - 1) != 0)
            return refuse(out, 400, "the request target is no path");
        const char *authority = target + sizeof scheme - 1;
        size_t n = strcspn(authority, "/?");
        if (!s->host || s->host->value_bytes != n || strncasecmp(authority, s->host->value, n) != 0)
            return refuse(out, 400, "the request target and Host name different servers");
        path = authority + n;
        if (*path != '/') return refuse(out, 400, "the request target has no path");
    }
    out->path = path;
    out->path_bytes = strcspn(path, "?");
    return true;
}

/* Whether the head has no bytes but those that can be seen. */
static bool is_all_seen(const fl_http_raw_head *raw) {
    size_t n =
        strlen(raw->method) + strlen(raw->target) + strlen(raw->version) + 6; /* two blanks, two line ends */
    for (size_t i = 0; i < raw->n_fields; i++)
        n += raw->fields[i].name_bytes + raw->fields[i].value_bytes + 4;
    return raw->head_bytes <= n;
}

void fl_http_guard(const fl_http_raw_head *raw, fl_http_verdict *out) {
    seen s = {0};
    *out = (fl_http_verdict){.path = raw->target};
    bool version_1_1 = strcmp(raw->version, "HTTP/1.1") == 0;
    if (!version_1_1 && strcmp(raw->version, "HTTP/1.0") != 0) {
        (void)refuse(out, 505, "expected HTTP/1.1 or HTTP/1.0");
        return;
    }
    if (raw->n_fields > FL_HTTP_GUARD_FIELDS_MAX) {
        (void)refuse(out, 431, "too many header fields");
        return;
    }
    size_t method_bytes = strlen(raw->method);
    if (method_bytes > METHOD_BYTES_MAX || !is_token(raw->method, method_bytes)) {
        (void)refuse(out, 400, "the method is no token");
        return;
    }
    if (!is_all_seen(raw)) {
        (void)refuse(out, 400, "the head has a NUL, a line without a name, or more blanks than one");
        return;
    }
    if (!sort_fields(raw, &s, out) || !check_framing(&s, version_1_1, out)) return;
    if (!s.host && version_1_1) {
        (void)refuse(out, 400, "Host: HTTP/1.1 needs one");
        return;
    }
    if (s.host && !is_host(s.host->value, s.host->value_bytes)) {
        (void)refuse(out, 400, "Host: expected a name or address, and a port");
        return;
    }
    if (!check_target(raw, &s, out)) return;
    out->host = s.host;
    out->authorization = s.authorization;
    out->content_type = s.content_type;
}
