/* Any bytes as a request's head, cut into lines and fields as the HTTP library may hand them on: what the guard lets
 * through is framed in one way only. */
#include "server/http_guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { BYTES_MAX = 32 << 10 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void require(bool held) {
    if (!held) abort();
}

static int count(const fl_http_raw_head *raw, const char *name) {
    int n = 0;
    for (size_t i = 0; i < raw->n_fields; i++)
        n += raw->fields[i].name_bytes == strlen(name) &&
             strncasecmp(raw->fields[i].name, name, strlen(name)) == 0;
    return n;
}

static void check(const fl_http_raw_head *raw) {
    fl_http_verdict v;
    fl_http_guard(raw, &v);
    if (v.status) {
        require(v.status >= 400 && v.status < 600 && v.reason);
        return;
    }
    int lengths = count(raw, "content-length"), codings = count(raw, "transfer-encoding");
    require(lengths + codings <= 1 && count(raw, "host") <= 1 && count(raw, "authorization") <= 1);
    require(v.content_length >= -1 && v.content_length < 1000000000000000);
    require((v.content_length == -1) == (codings == 1));
    require(v.path[0] == '/' && v.path_bytes >= 1 && v.path_bytes <= strlen(v.path));
    require(v.path >= raw->target && v.path + v.path_bytes <= raw->target + strlen(raw->target));
    require(v.host || strcmp(raw->version, "HTTP/1.0") == 0);
    for (size_t i = 0; i < raw->n_fields; i++)
        for (size_t k = 0; k < raw->fields[i].value_bytes; k++)
            require((unsigned char)raw->fields[i].value[k] >= 0x20 || raw->fields[i].value[k] == '\t');
}

/* The line's end; the next one begins behind it. */
static char *line_end(char *at, char *end) {
    char *found = memchr(at, '\n', (size_t)(end - at));
    return found ? found : end;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static char text[BYTES_MAX + 1];
    fl_http_field fields[FL_HTTP_GUARD_FIELDS_MAX + 4];
    if (n_bytes > BYTES_MAX) return 0;
    memcpy(text, bytes, n_bytes);
    char *end = text + n_bytes, *at = line_end(text, end);
    *end = '\0';
    fl_http_raw_head raw = {.fields = fields};
    if (at < end) *at++ = '\0';
    char *rest = NULL, *method = strtok_r(text, " ", &rest), *target = strtok_r(NULL, " ", &rest);
    raw.method = method ? method : "";
    raw.target = target ? target : "";
    raw.version = rest && *rest ? rest : "HTTP/1.1";
    while (at < end && raw.n_fields < sizeof fields / sizeof fields[0]) {
        char *to = line_end(at, end), *colon = memchr(at, ':', (size_t)(to - at));
        char *value = colon ? colon + 1 : to;
        while (value < to && *value == ' ') value++;
        fields[raw.n_fields++] =
            (fl_http_field){at, value, (size_t)((colon ? colon : to) - at), (size_t)(to - value)};
        at = to < end ? to + 1 : end;
    }
    check(&raw);
    return 0;
}
