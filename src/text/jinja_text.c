/* String operations of filters and methods. */
#include "text/jinja_text.h"

#include "text/jinja_str.h"

#include <inttypes.h>
#include <string.h>

fl_err fl_jtext_case(fl_jrun *run, const fl_jstr *str, fl_jcase how, fl_jval *out) {
    FL_TRY(fl_jrun_charge(run, str->n));
    char *bytes = fl_jarena_alloc(&run->arena, str->n, 1);
    fl_jstr *made = fl_jarena_alloc(&run->arena, 1, sizeof *made);
    if (bytes == NULL || made == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < str->n; i++) {
        char c = str->bytes[i];
        bool upper = how == FL_JCASE_UPPER || (how == FL_JCASE_CAPITALIZE && i == 0);
        if (upper && c >= 'a' && c <= 'z') c = (char)(c - 'a' + 'A');
        else if (!upper && c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        bytes[i] = c;
    }
    *made = (fl_jstr){.bytes = bytes, .n = str->n, .marks = str->marks, .n_marks = str->n_marks};
    *out = fl_jval_str(made);
    return FL_ERR_OK;
}

/* Is the character [length] in `chars`? */
static bool is_one_of(const fl_jstr *chars, const char *bytes, size_t length) {
    uint32_t c;
    for (size_t at = 0; at < chars->n;) {
        size_t n = fl_jstr_char(chars->bytes + at, chars->n - at, &c);
        if (n == length && memcmp(chars->bytes + at, bytes, n) == 0) return true;
        at += n;
    }
    return false;
}

fl_err fl_jtext_strip(fl_jrun *run, const fl_jstr *str, const fl_jstr *chars, bool left, bool right,
                      fl_jval *out) {
    size_t begin = 0, end = str->n;
    uint32_t c;
    FL_TRY(fl_jrun_charge(run, str->n));
    if (chars == NULL) fl_jstr_trim(str->bytes, &begin, &end, left, right);
    while (chars != NULL && left && begin < end) {
        size_t length = fl_jstr_char(str->bytes + begin, end - begin, &c);
        if (!is_one_of(chars, str->bytes + begin, length)) break;
        FL_TRY(fl_jrun_charge(run, chars->n));
        begin += length;
    }
    while (chars != NULL && right && begin < end) {
        size_t length = fl_jstr_last_char(str->bytes + begin, end - begin, &c);
        if (!is_one_of(chars, str->bytes + end - length, length)) break;
        FL_TRY(fl_jrun_charge(run, chars->n));
        end -= length;
    }
    const fl_jstr *slice;
    FL_TRY(fl_jstr_slice(run, str, begin, end, &slice));
    *out = fl_jval_str(slice);
    return FL_ERR_OK;
}

/* An empty string is found before every character and at the end. */
static size_t find_next(const fl_jstr *str, const fl_jstr *old, size_t from, bool first) {
    if (old->n > 0 || first) return fl_jstr_find(str, old, from);
    if (from >= str->n) return SIZE_MAX;
    uint32_t c;
    return from + fl_jstr_char(str->bytes + from, str->n - from, &c);
}

fl_err fl_jtext_replace(fl_jrun *run, const fl_jreplace *args, fl_jval *out) {
    fl_jbuf buf = {.run = run, .max_bytes = SIZE_MAX};
    const fl_jstr *str = args->str, *made;
    size_t done = 0;
    FL_TRY(fl_jrun_charge(run, str->n));
    for (int64_t n = 0; args->count < 0 || n < args->count; n++) {
        size_t at = find_next(str, args->old, done, n == 0);
        if (at == SIZE_MAX) break;
        FL_TRY(fl_jrun_charge(run, 0));
        FL_TRY(fl_jbuf_add(&buf, str, done, at));
        FL_TRY(fl_jbuf_add(&buf, args->by, 0, args->by->n));
        done = at + args->old->n;
    }
    FL_TRY(fl_jbuf_add(&buf, str, done, str->n));
    FL_TRY(fl_jbuf_finish(&buf, &made));
    *out = fl_jval_str(made);
    return FL_ERR_OK;
}

/* A growing list of slices. */
typedef struct slices {
    fl_jval *items;
    size_t n, cap;
} slices;

static fl_err add_slice(fl_jrun *run, slices *list, const fl_jstr *str, size_t begin, size_t end) {
    if (list->n == list->cap) {
        fl_jval *grown = fl_jarena_grow(&run->arena, list->items, list->n, sizeof *grown, &list->cap);
        if (grown == NULL) return fl_jarena_error(&run->arena);
        list->items = grown;
    }
    const fl_jstr *slice;
    FL_TRY(fl_jstr_slice(run, str, begin, end, &slice));
    list->items[list->n++] = fl_jval_str(slice);
    return FL_ERR_OK;
}

static fl_err split_at_space(fl_jrun *run, const fl_jstr *str, int64_t count, slices *list) {
    size_t begin = 0, end = str->n;
    for (;;) {
        fl_jstr_trim(str->bytes, &begin, &end, true, false);
        if (begin == str->n) return FL_ERR_OK;
        size_t stop = begin;
        while (stop < str->n) {
            uint32_t c;
            size_t length = fl_jstr_char(str->bytes + stop, str->n - stop, &c);
            if (fl_jstr_is_space(c)) break;
            stop += length;
        }
        if (count >= 0 && list->n == (uint64_t)count) stop = str->n;
        FL_TRY(add_slice(run, list, str, begin, stop));
        begin = stop;
    }
}

fl_err fl_jtext_split(fl_jrun *run, const fl_jstr *str, const fl_jstr *separator, int64_t count,
                      fl_jval *out) {
    slices list = {0};
    FL_TRY(fl_jrun_charge(run, str->n));
    if (separator == NULL) {
        FL_TRY(split_at_space(run, str, count, &list));
        return fl_jval_from_items(run, list.items, list.n, false, out);
    }
    if (separator->n == 0) {
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": 'split' at an empty string", run->line);
    }
    size_t begin = 0;
    while (count < 0 || list.n < (uint64_t)count) {
        size_t at = fl_jstr_find(str, separator, begin);
        if (at == SIZE_MAX) break;
        FL_TRY(add_slice(run, &list, str, begin, at));
        begin = at + separator->n;
    }
    FL_TRY(add_slice(run, &list, str, begin, str->n));
    return fl_jval_from_items(run, list.items, list.n, false, out);
}

static bool is_line_end(uint32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

fl_err fl_jtext_splitlines(fl_jrun *run, const fl_jstr *str, fl_jval *out) {
    slices list = {0};
    size_t begin = 0;
    FL_TRY(fl_jrun_charge(run, str->n));
    for (size_t at = 0; at < str->n;) {
        uint32_t c;
        size_t end = at;
        at += fl_jstr_char(str->bytes + at, str->n - at, &c);
        if (!is_line_end(c)) continue;
        if (c == '\r' && at < str->n && str->bytes[at] == '\n') at++;
        FL_TRY(add_slice(run, &list, str, begin, end));
        begin = at;
    }
    if (begin < str->n) FL_TRY(add_slice(run, &list, str, begin, str->n));
    return fl_jval_from_items(run, list.items, list.n, false, out);
}

fl_err fl_jtext_join(fl_jrun *run, const fl_jstr *separator, const fl_jval *items, size_t n, bool strict,
                     fl_jval *out) {
    fl_jbuf buf = {.run = run, .max_bytes = SIZE_MAX};
    const fl_jstr *text;
    for (size_t i = 0; i < n; i++) {
        if (strict && items[i].kind != FL_JSTR) return fl_jval_fail_kind(run, "'join'", "strings", &items[i]);
        FL_TRY(fl_jrun_charge(run, 0));
        FL_TRY(fl_jval_text(run, &items[i], &text));
        if (i > 0) FL_TRY(fl_jbuf_add(&buf, separator, 0, separator->n));
        FL_TRY(fl_jbuf_add(&buf, text, 0, text->n));
    }
    FL_TRY(fl_jbuf_finish(&buf, &text));
    *out = fl_jval_str(text);
    return FL_ERR_OK;
}
