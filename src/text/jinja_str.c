/* Strings with marks: characters, slices and the building buffer. */
#include "text/jinja_str.h"

#include "text/jinja.h"
#include "text/utf8.h"

#include <string.h>

/* ---- characters ---------------------------------------------------------------------------------------- */

size_t fl_jstr_char(const char *bytes, size_t n, uint32_t *code_point) {
    int length = fl_utf8_decode((const uint8_t *)bytes, n, code_point);
    if (length > 0) return (size_t)length;
    *code_point = 0xFFFD;
    return 1;
}

size_t fl_jstr_last_char(const char *bytes, size_t n, uint32_t *code_point) {
    for (size_t back = 2; back <= 4 && back <= n; back++) {
        if (fl_jstr_char(bytes + n - back, back, code_point) == back) return back;
    }
    return fl_jstr_char(bytes + n - 1, 1, code_point);
}

bool fl_jstr_is_space(uint32_t c) {
    if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t fl_jstr_length(const char *bytes, size_t n) {
    size_t count = 0;
    uint32_t c;
    for (size_t at = 0; at < n; count++) at += fl_jstr_char(bytes + at, n - at, &c);
    return count;
}

size_t fl_jstr_offset(const char *bytes, size_t n, size_t at) {
    size_t offset = 0;
    uint32_t c;
    for (; at > 0 && offset < n; at--) offset += fl_jstr_char(bytes + offset, n - offset, &c);
    return offset;
}

size_t fl_jstr_find(const fl_jstr *hay, const fl_jstr *needle, size_t from) {
    if (from > hay->n || needle->n > hay->n - from) return SIZE_MAX;
    if (needle->n == 0) return from;
    const char *found = memmem(hay->bytes + from, hay->n - from, needle->bytes, needle->n);
    return found == NULL ? SIZE_MAX : (size_t)(found - hay->bytes);
}

bool fl_jstr_same(const fl_jstr *a, const fl_jstr *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->bytes, b->bytes, a->n) == 0);
}

bool fl_jstr_is(const fl_jstr *a, const char *text) {
    return a->n == strlen(text) && memcmp(a->bytes, text, a->n) == 0;
}

size_t fl_jstr_encode(uint32_t c, char *out) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> length & 0xFF) | c); /* 110, 1110, 11110 and then the value's highest bits */
    return length;
}

void fl_jstr_trim(const char *bytes, size_t *begin, size_t *end, bool left, bool right) {
    uint32_t c;
    while (left && *begin < *end) {
        size_t length = fl_jstr_char(bytes + *begin, *end - *begin, &c);
        if (!fl_jstr_is_space(c)) break;
        *begin += length;
    }
    while (right && *begin < *end) {
        size_t length = fl_jstr_last_char(bytes + *begin, *end - *begin, &c);
        if (!fl_jstr_is_space(c)) break;
        *end -= length;
    }
}

/* ---- building ------------------------------------------------------------------------------------------ */

static fl_err reserve(fl_jbuf *buf, size_t n) {
    fl_jarena *arena = &buf->run->arena;
    if (n > buf->max_bytes - buf->n) {
        return FL_FAIL(FL_ERR_LIMIT, "chat template: the text is longer than %zu bytes", buf->max_bytes);
    }
    if (n <= buf->cap - buf->n) return FL_ERR_OK;
    size_t cap = buf->cap < 32 ? 32 : buf->cap;
    while (cap - buf->n < n) cap = cap > SIZE_MAX / 2 ? SIZE_MAX : cap * 2;
    char *grown = fl_jarena_alloc(arena, cap, 1);
    if (grown == NULL) return fl_jarena_error(arena);
    if (buf->n > 0) memcpy(grown, buf->bytes, buf->n);
    buf->bytes = grown;
    buf->cap = cap;
    return FL_ERR_OK;
}

/* Adds a mark, joined with the last one where they continue each other. */
static fl_err add_mark(fl_jbuf *buf, const fl_jmark *mark) {
    if (buf->n_marks > 0) {
        fl_jmark *last = &buf->marks[buf->n_marks - 1];
        bool follows = last->end == mark->begin && last->origin == mark->origin;
        if (follows && (mark->origin == FL_JORIGIN_TEMPLATE ||
                        last->origin_begin + (last->end - last->begin) == mark->origin_begin)) {
            last->end = mark->end;
            return FL_ERR_OK;
        }
    }
    if (buf->n_marks == buf->cap_marks) {
        fl_jarena *arena = &buf->run->arena;
        fl_jmark *grown = fl_jarena_grow(arena, buf->marks, buf->n_marks, sizeof *grown, &buf->cap_marks);
        if (grown == NULL) return fl_jarena_error(arena);
        buf->marks = grown;
    }
    buf->marks[buf->n_marks++] = *mark;
    return FL_ERR_OK;
}

/* The first mark of `str` that ends after `at`. */
static size_t first_mark_after(const fl_jstr *str, size_t at) {
    size_t low = 0, high = str->n_marks;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (str->marks[middle].end > at) high = middle;
        else low = middle + 1;
    }
    return low;
}

fl_err fl_jbuf_add(fl_jbuf *buf, const fl_jstr *str, size_t begin, size_t end) {
    if (begin >= end) return FL_ERR_OK;
    FL_TRY(fl_jrun_charge(buf->run, end - begin));
    FL_TRY(reserve(buf, end - begin));
    size_t base = buf->n;
    memcpy(buf->bytes + base, str->bytes + begin, end - begin);
    buf->n += end - begin;
    for (size_t i = first_mark_after(str, begin); i < str->n_marks && str->marks[i].begin < end; i++) {
        fl_jmark mark = str->marks[i];
        size_t cut = mark.begin < begin ? begin - mark.begin : 0;
        mark.begin += cut;
        if (mark.origin != FL_JORIGIN_TEMPLATE) mark.origin_begin += cut;
        if (mark.end > end) mark.end = end;
        mark.begin = mark.begin - begin + base;
        mark.end = mark.end - begin + base;
        FL_TRY(fl_jrun_charge(buf->run, 0));
        FL_TRY(add_mark(buf, &mark));
    }
    return FL_ERR_OK;
}

fl_err fl_jbuf_add_bytes(fl_jbuf *buf, const char *bytes, size_t n) {
    if (n == 0) return FL_ERR_OK;
    FL_TRY(fl_jrun_charge(buf->run, n));
    FL_TRY(reserve(buf, n));
    memcpy(buf->bytes + buf->n, bytes, n);
    buf->n += n;
    return FL_ERR_OK;
}

fl_err fl_jbuf_finish(fl_jbuf *buf, const fl_jstr **out) {
    fl_jarena *arena = &buf->run->arena;
    fl_jstr *str = fl_jarena_alloc(arena, 1, sizeof *str);
    if (str == NULL) return fl_jarena_error(arena);
    *str = (fl_jstr){
        .bytes = buf->n > 0 ? buf->bytes : "", .n = buf->n, .marks = buf->marks, .n_marks = buf->n_marks};
    *out = str;
    return FL_ERR_OK;
}

fl_err fl_jstr_slice(fl_jrun *run, const fl_jstr *str, size_t begin, size_t end, const fl_jstr **out) {
    if (begin == 0 && end == str->n) {
        *out = str;
        return FL_ERR_OK;
    }
    /* The bytes are shared with `str`; only the marks are new. */
    fl_jarena *arena = &run->arena;
    FL_TRY(fl_jrun_charge(run, 0));
    fl_jstr *slice = fl_jarena_alloc(arena, 1, sizeof *slice);
    if (slice == NULL) return fl_jarena_error(arena);
    *slice = (fl_jstr){.bytes = str->bytes + begin, .n = end - begin};
    size_t first = first_mark_after(str, begin), last = first;
    while (last < str->n_marks && str->marks[last].begin < end) last++;
    if (first < last && begin < end) {
        fl_jmark *marks = fl_jarena_alloc(arena, last - first, sizeof *marks);
        if (marks == NULL) return fl_jarena_error(arena);
        FL_TRY(fl_jrun_charge(run, (last - first) * sizeof *marks));
        for (size_t i = first; i < last; i++) {
            fl_jmark mark = str->marks[i];
            size_t cut = mark.begin < begin ? begin - mark.begin : 0;
            if (mark.origin != FL_JORIGIN_TEMPLATE) mark.origin_begin += cut;
            mark.begin = mark.begin + cut - begin;
            mark.end = (mark.end < end ? mark.end : end) - begin;
            marks[i - first] = mark;
        }
        slice->marks = marks;
        slice->n_marks = last - first;
    }
    *out = slice;
    return FL_ERR_OK;
}
