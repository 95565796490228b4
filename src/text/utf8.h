/* One code point of UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef FL_TEXT_UTF8_H
#define FL_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Looks at what p[0, n), n >= 1, begins with. Positive: the length of a code point, stored in *code_point. Zero: a code
 * point that is good so far and cut off by the end. Negative: minus the length of a maximal part that cannot be
 * completed, 1..3. */
static inline int fl_utf8_decode(const uint8_t *p, size_t n, uint32_t *code_point) {
    uint8_t first = p[0];
    if (first < 0x80) {
        *code_point = first;
        return 1;
    }
    if (first < 0xc2 || first > 0xf4) return -1;
    int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    /* The second byte's range is what shuts out overlong forms, surrogates and values above U+10FFFF. */
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    uint32_t value = first & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n) return 0;
        if (p[i] < low || p[i] > high) return -i;
        value = value << 6 | (p[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *code_point = value;
    return length;
}

/* Whether it is text: UTF-8 without NUL. */
static inline bool fl_utf8_is_text(const char *text, size_t n_bytes) {
    const uint8_t *p = (const uint8_t *)text;
    uint32_t code_point;
    for (size_t i = 0; i < n_bytes;) {
        int n = fl_utf8_decode(p + i, n_bytes - i, &code_point);
        if (n <= 0 || code_point == 0) return false;
        i += (size_t)n;
    }
    return true;
}

#endif
