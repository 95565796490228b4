#include "server/json_write.h"

#include "text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a byte below 0x80 becomes; NULL: itself. `room` is for the escapes that need digits. */
static const char *escape_of(unsigned char c, char room[8]) {
    switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
    }
    if (c >= 0x20 && c != 0x7f) return NULL;
    snprintf(room, 8, "\\u%04x", c);
    return room;
}

void fl_json_escape(fl_buffer *b, const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    size_t done = 0; /* everything before it was added */
    char room[8];
    if (n == 0) return;
    for (size_t at = 0; at < n;) {
        uint32_t code_point;
        const char *instead = NULL;
        size_t length = 1;
        if (p[at] < 0x80) {
            instead = escape_of(p[at], room);
        } else {
            int decoded = fl_utf8_decode(p + at, n - at, &code_point);
            if (decoded <= 0) instead = "\xef\xbf\xbd";
            length = decoded > 0 ? (size_t)decoded : decoded < 0 ? (size_t)-decoded : n - at;
        }
        if (instead != NULL) {
            fl_buffer_add(b, text + done, at - done);
            fl_buffer_add_text(b, instead);
            done = at + length;
        }
        at += length;
    }
    fl_buffer_add(b, text + done, n - done);
}

void fl_json_string(fl_buffer *b, const char *text, size_t n) {
    fl_buffer_add(b, "\"", 1);
    fl_json_escape(b, text, n);
    fl_buffer_add(b, "\"", 1);
}

void fl_json_text(fl_buffer *b, const char *text) {
    if (text == NULL) fl_buffer_add_text(b, "null");
    else fl_json_string(b, text, strlen(text));
}

void fl_json_int(fl_buffer *b, int64_t value) {
    char text[24];
    size_t at = sizeof text;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do text[--at] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0) text[--at] = '-';
    fl_buffer_add(b, text + at, sizeof text - at);
}

void fl_json_real(fl_buffer *b, double value, int digits) {
    char text[32];
    if (!isfinite(value)) {
        fl_buffer_add_text(b, "null");
        return;
    }
    int n = snprintf(text, sizeof text, "%.*g", digits, value);
    fl_buffer_add(b, text, (size_t)n);
}
