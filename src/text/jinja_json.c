/* Values as JSON text, letter for letter what Python's json.dumps makes. Recursion is bounded by the values'
 * depth. */
#include "text/jinja.h"
#include "text/jinja_str.h"
#include "text/jinja_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    fl_jbuf buf;
    const fl_jjson *style;
} writer;

static fl_err write_value(writer *w, const fl_jval *value, size_t level);

static fl_err write_text(writer *w, const char *text) {
    return fl_jbuf_add_bytes(&w->buf, text, strlen(text));
}

/* The escape of `c` in `text` (16 bytes); 0 if it stands for itself. */
static size_t escape(uint32_t c, bool ascii, char *text) {
    static const char plain[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    const char *known = c != 0 && c < 0x80 ? strchr(plain, (int)c) : NULL;
    if (known != NULL) return (size_t)snprintf(text, 16, "\\%c", letters[known - plain]);
    if (c >= 0x20 && (c < 0x7F || !ascii)) return 0;
    if (c < 0x10000) return (size_t)snprintf(text, 16, "\\u%04" PRIx32, c);
    c -= 0x10000;
    return (size_t)snprintf(text, 16, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD800 + (c >> 10),
                            0xDC00 + (c & 0x3FF));
}

/* Runs that need no escape are copied with their marks. */
static fl_err write_string(writer *w, const fl_jstr *str) {
    size_t done = 0;
    FL_TRY(write_text(w, "\""));
    for (size_t at = 0; at < str->n;) {
        uint32_t c;
        char text[16];
        size_t length = fl_jstr_char(str->bytes + at, str->n - at, &c);
        size_t n = escape(c, w->style->ascii, text);
        if (n > 0) {
            FL_TRY(fl_jbuf_add(&w->buf, str, done, at));
            FL_TRY(fl_jbuf_add_bytes(&w->buf, text, n));
            done = at + length;
        }
        at += length;
    }
    FL_TRY(fl_jbuf_add(&w->buf, str, done, str->n));
    return write_text(w, "\"");
}

static fl_err write_scalar(writer *w, const fl_jval *value) {
    char text[32];
    switch (value->kind) {
    case FL_JNONE: return write_text(w, "null");
    case FL_JBOOL: return write_text(w, value->as.truth ? "true" : "false");
    case FL_JSTR: return write_string(w, value->as.str);
    case FL_JINT: snprintf(text, sizeof text, "%" PRId64, value->as.integer); return write_text(w, text);
    case FL_JFLOAT:
        if (isnan(value->as.real)) return write_text(w, "NaN");
        if (isinf(value->as.real)) return write_text(w, value->as.real < 0 ? "-Infinity" : "Infinity");
        return fl_jbuf_add_bytes(&w->buf, text, fl_jval_print_float(value->as.real, text));
    default: return fl_jval_fail_kind(w->buf.run, "'tojson'", "a JSON value", value);
    }
}

/* Before item `i` of a list or dictionary, or (closing) before its end. */
static fl_err write_gap(writer *w, size_t i, bool closing, size_t level) {
    const fl_jstr *separator = w->style->item;
    if (i > 0 && !closing) {
        if (separator != NULL) FL_TRY(fl_jbuf_add(&w->buf, separator, 0, separator->n));
        else FL_TRY(write_text(w, w->style->pretty ? "," : ", "));
    }
    if (!w->style->pretty) return FL_ERR_OK;
    FL_TRY(write_text(w, "\n"));
    for (size_t n = 0; n < (closing ? level : level + 1); n++) {
        for (size_t space = 0; space < w->style->indent; space++) FL_TRY(write_text(w, " "));
    }
    return FL_ERR_OK;
}

static fl_err write_list(writer *w, const fl_jlist *list, size_t level) {
    FL_TRY(write_text(w, "["));
    for (size_t i = 0; i < list->n; i++) {
        FL_TRY(write_gap(w, i, false, level));
        FL_TRY(write_value(w, &list->items[i], level + 1));
    }
    if (list->n > 0) FL_TRY(write_gap(w, list->n, true, level));
    return write_text(w, "]");
}

/* JSON keys are strings: other scalars are written as one. */
static fl_err write_key(writer *w, const fl_jval *key) {
    if (key->kind == FL_JSTR) return write_string(w, key->as.str);
    FL_TRY(write_text(w, "\""));
    FL_TRY(write_scalar(w, key));
    return write_text(w, "\"");
}

static int order_pairs(const void *a, const void *b) {
    const fl_jstr *x = ((const fl_jpair *)a)->key.as.str, *y = ((const fl_jpair *)b)->key.as.str;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = n == 0 ? 0 : memcmp(x->bytes, y->bytes, n);
    return order != 0 ? order : x->n < y->n ? -1 : x->n > y->n;
}

static fl_err sorted_pairs(writer *w, const fl_jdict *dict, const fl_jpair **out) {
    fl_jrun *run = w->buf.run;
    fl_jpair *pairs = fl_jarena_alloc(&run->arena, dict->n, sizeof *pairs);
    if (pairs == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < dict->n; i++) {
        pairs[i] = dict->pairs[i];
        if (pairs[i].key.kind != FL_JSTR)
            return fl_jval_fail_kind(run, "'tojson' with sort_keys", "string keys", &pairs[i].key);
    }
    if (dict->n > 1) qsort(pairs, dict->n, sizeof *pairs, order_pairs);
    *out = pairs;
    return fl_jrun_charge(run, dict->n * sizeof *pairs);
}

static fl_err write_dict(writer *w, const fl_jdict *dict, size_t level) {
    const fl_jpair *pairs = dict->pairs;
    const fl_jstr *separator = w->style->pair;
    if (w->style->sort) FL_TRY(sorted_pairs(w, dict, &pairs));
    FL_TRY(write_text(w, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        FL_TRY(write_gap(w, i, false, level));
        FL_TRY(write_key(w, &pairs[i].key));
        if (separator != NULL) FL_TRY(fl_jbuf_add(&w->buf, separator, 0, separator->n));
        else FL_TRY(write_text(w, ": "));
        FL_TRY(write_value(w, &pairs[i].value, level + 1));
    }
    if (dict->n > 0) FL_TRY(write_gap(w, dict->n, true, level));
    return write_text(w, "}");
}

static fl_err write_value(writer *w, const fl_jval *value, size_t level) {
    FL_TRY(fl_jrun_charge(w->buf.run, 0));
    if (value->kind == FL_JLIST) return write_list(w, value->as.list, level);
    if (value->kind == FL_JDICT) return write_dict(w, value->as.dict, level);
    return write_scalar(w, value);
}

fl_err fl_jtext_json(fl_jrun *run, const fl_jval *value, const fl_jjson *style, fl_jval *out) {
    writer w = {.buf = {.run = run, .max_bytes = SIZE_MAX}, .style = style};
    const fl_jstr *text;
    FL_TRY(write_value(&w, value, 0));
    FL_TRY(fl_jbuf_finish(&w.buf, &text));
    *out = fl_jval_str(text);
    return FL_ERR_OK;
}
