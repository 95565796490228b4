/* A reader for exactly the JSON subset that safetensors headers are: one object, whose values are either the
 * "__metadata__" object of strings or {"dtype", "shape", "data_offsets"}. Anything else is refused at once,
 * so nothing nests and nothing needs a stack. */
#include "model/safetensors.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *file;
    const char *begin, *at, *end; /* the header text */
    char *name_at;                /* where the next name goes in `names` */
    fl_safetensors *out;
    int64_t capacity;
} reader;

/* A string as it stands between its quotes in the header. */
typedef struct span {
    const char *text;
    size_t n;
    bool plain; /* printable ASCII without escapes */
} span;

static const struct {
    const char *name;
    int32_t dtype;
    int32_t bits;
} file_dtypes[] = {
    {"F32", FL_DTYPE_F32, 32}, {"BF16", FL_DTYPE_BF16, 16},
    {"F16", FL_DTYPE_F16, 16}, {"F8_E4M3", FL_DTYPE_F8_E4M3, 8},
    {"F64", -1, 64},           {"F8_E5M2", -1, 8},
    {"F8_E8M0", -1, 8},        {"F4", -1, 4},
    {"I64", -1, 64},           {"I32", -1, 32},
    {"I16", -1, 16},           {"I8", -1, 8},
    {"U64", -1, 64},           {"U32", -1, 32},
    {"U16", -1, 16},           {"U8", -1, 8},
    {"BOOL", -1, 8},           {"C64", -1, 64},
};

static fl_err fail_at(const reader *r, const char *expected) {
    long long place = (long long)(r->at - r->begin);
    if (r->at >= r->end)
        return FL_FAIL(FL_ERR_DATA, "%s: header ends at byte %lld, expected %s", r->file, place, expected);
    unsigned char found = (unsigned char)*r->at;
    if (found < 0x20 || found > 0x7e)
        return FL_FAIL(FL_ERR_DATA, "%s: header byte %lld: expected %s, found 0x%02x", r->file, place,
                       expected, found);
    return FL_FAIL(FL_ERR_DATA, "%s: header byte %lld: expected %s, found '%c'", r->file, place, expected,
                   found);
}

static void skip_space(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) r->at++;
}

/* Whether the next token is `c`; takes it if so. */
static bool take(reader *r, char c) {
    skip_space(r);
    if (r->at >= r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static fl_err expect(reader *r, char c, const char *expected) {
    return take(r, c) ? FL_ERR_OK : fail_at(r, expected);
}

static fl_err read_escape(reader *r) {
    r->at++; /* the backslash */
    if (r->at >= r->end || !memchr("\"\\/bfnrtu", *r->at, 9)) return fail_at(r, "a JSON escape");
    if (*r->at != 'u') return FL_ERR_OK;
    for (int i = 0; i < 4; i++) {
        r->at++;
        if (r->at >= r->end || !memchr("0123456789abcdefABCDEF", *r->at, 22))
            return fail_at(r, "a hex digit");
    }
    return FL_ERR_OK;
}

static fl_err read_string(reader *r, span *out) {
    FL_TRY(expect(r, '"', "a string"));
    *out = (span){.text = r->at, .plain = true};
    for (; r->at < r->end && *r->at != '"'; r->at++) {
        unsigned char c = (unsigned char)*r->at;
        if (c < 0x20) return fail_at(r, "a string without control bytes");
        if (c == '\\' || c > 0x7e) out->plain = false;
        if (c == '\\') FL_TRY(read_escape(r));
    }
    if (r->at >= r->end) return fail_at(r, "the end of a string");
    out->n = (size_t)(r->at - out->text);
    r->at++;
    return FL_ERR_OK;
}

static bool span_is(const span *s, const char *text) {
    return s->n == strlen(text) && memcmp(s->text, text, s->n) == 0;
}

/* A whole number 0..INT64_MAX in JSON spelling: no sign, fraction, exponent or leading zero. */
static fl_err read_number(reader *r, int64_t *out) {
    skip_space(r);
    const char *first = r->at;
    int64_t value = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        if (!fl_mul_i64(value, 10, &value) || !fl_add_i64(value, *r->at - '0', &value))
            return fail_at(r, "a number below 2^63");
    }
    if (r->at == first) return fail_at(r, "a whole number of at least 0");
    if (*first == '0' && r->at - first > 1) {
        r->at = first;
        return fail_at(r, "a number without leading zeros");
    }
    *out = value;
    return FL_ERR_OK;
}

/* [n, n, ...] with at most `max` members. */
static fl_err read_numbers(reader *r, int32_t max, int64_t *numbers, int32_t *n) {
    FL_TRY(expect(r, '[', "'['"));
    *n = 0;
    if (take(r, ']')) return FL_ERR_OK;
    do {
        if (*n == max) return fail_at(r, "']': the list is too long");
        FL_TRY(read_number(r, &numbers[(*n)++]));
    } while (take(r, ','));
    return expect(r, ']', "',' or ']'");
}

static fl_err skip_metadata(reader *r) {
    FL_TRY(expect(r, '{', "'{' after __metadata__"));
    if (take(r, '}')) return FL_ERR_OK;
    do {
        span text;
        FL_TRY(read_string(r, &text));
        FL_TRY(expect(r, ':', "':'"));
        FL_TRY(read_string(r, &text));
    } while (take(r, ','));
    return expect(r, '}', "',' or '}'");
}

static fl_err read_dtype(reader *r, fl_safetensors_entry *entry) {
    span name;
    FL_TRY(read_string(r, &name));
    for (size_t i = 0; i < sizeof file_dtypes / sizeof file_dtypes[0]; i++) {
        if (!span_is(&name, file_dtypes[i].name)) continue;
        entry->dtype_name = file_dtypes[i].name;
        entry->dtype = file_dtypes[i].dtype;
        return FL_ERR_OK;
    }
    return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s': dtype '%.*s' is not one of the safetensors format", r->file,
                   entry->name, name.n < 40 ? (int)name.n : 40, name.text);
}

/* The object that describes one tensor; its three members come in any order, each once. */
static fl_err read_entry(reader *r, fl_safetensors_entry *entry) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0;
    FL_TRY(expect(r, '{', "'{'"));
    do {
        span key;
        const char *key_at = r->at;
        FL_TRY(read_string(r, &key));
        FL_TRY(expect(r, ':', "':'"));
        int member = span_is(&key, "dtype") ? DTYPE : span_is(&key, "shape") ? SHAPE : 0;
        if (span_is(&key, "data_offsets")) member = OFFSETS;
        if (member == 0 || (seen & member)) {
            r->at = key_at;
            return fail_at(r, "each of dtype, shape and data_offsets once");
        }
        seen |= member;
        if (member == DTYPE) FL_TRY(read_dtype(r, entry));
        if (member == SHAPE) FL_TRY(read_numbers(r, FL_SAFETENSORS_RANK_MAX, entry->dims, &entry->ndim));
        if (member == OFFSETS) {
            int64_t range[2];
            int32_t n = 0;
            FL_TRY(read_numbers(r, 2, range, &n));
            if (n != 2) return fail_at(r, "two data_offsets before this place");
            entry->begin_bytes = range[0];
            entry->end_bytes = range[1];
        }
    } while (take(r, ','));
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return fail_at(r, "dtype, shape and data_offsets before this place");
    return expect(r, '}', "',' or '}'");
}

const char *fl_safetensors_shape_text(char *text, size_t size, int32_t ndim, const int64_t *dims) {
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "[", (long long)dims[i]);
    if (used < size) snprintf(text + used, size - used, "%s", ndim ? "]" : "[]");
    return text;
}

static int64_t dtype_bits(const char *dtype_name) {
    for (size_t i = 0; i < sizeof file_dtypes / sizeof file_dtypes[0]; i++)
        if (strcmp(file_dtypes[i].name, dtype_name) == 0) return file_dtypes[i].bits;
    return 0;
}

/* Shape x dtype against the byte range, and the range against the data part. */
static fl_err check_entry(const reader *r, fl_safetensors_entry *entry) {
    char shape[200];
    int64_t elements = 1, bits = 0, range = entry->end_bytes - entry->begin_bytes; /* both are >= 0 */
    fl_safetensors_shape_text(shape, sizeof shape, entry->ndim, entry->dims);
    bool fits = true;
    for (int32_t i = 0; i < entry->ndim; i++) fits = fits && fl_mul_i64(elements, entry->dims[i], &elements);
    fits = fits && fl_mul_i64(elements, dtype_bits(entry->dtype_name), &bits);
    if (!fits)
        return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s': shape %s of %s is too large for any file", r->file,
                       entry->name, shape, entry->dtype_name);
    if (entry->begin_bytes > entry->end_bytes || entry->end_bytes > r->out->data_bytes)
        return FL_FAIL(FL_ERR_DATA,
                       "%s: tensor '%s': data_offsets [%lld, %lld] leave the %lld data bytes of the file",
                       r->file, entry->name, (long long)entry->begin_bytes, (long long)entry->end_bytes,
                       (long long)r->out->data_bytes);
    if (bits % 8 != 0 || bits / 8 != range)
        return FL_FAIL(FL_ERR_DATA,
                       "%s: tensor '%s': shape %s of %s expects %lld bytes, data_offsets hold %lld", r->file,
                       entry->name, shape, entry->dtype_name, (long long)(bits / 8), (long long)range);
    entry->elements = elements;
    return FL_ERR_OK;
}

static fl_err take_name(reader *r, const span *name, fl_safetensors_entry *entry) {
    if (!name->plain || name->n == 0 || name->n > FL_SAFETENSORS_NAME_MAX) {
        r->at = name->text;
        return fail_at(r, "a tensor name of 1 to 255 printable ASCII characters without escapes");
    }
    memcpy(r->name_at, name->text, name->n); /* the closing quote leaves room for the NUL */
    r->name_at[name->n] = '\0';
    entry->name = r->name_at;
    r->name_at += name->n + 1;
    return FL_ERR_OK;
}

static fl_err add_entry(reader *r, const fl_safetensors_entry *entry) {
    if (r->out->n_entries == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 64;
        fl_safetensors_entry *grown = realloc(r->out->entries, (size_t)capacity * sizeof *grown);
        if (!grown) return FL_FAIL(FL_ERR_NOMEM, "%s: table of %lld tensors", r->file, (long long)capacity);
        r->out->entries = grown;
        r->capacity = capacity;
    }
    r->out->entries[r->out->n_entries++] = *entry;
    return FL_ERR_OK;
}

static fl_err read_header(reader *r) {
    bool metadata = false;
    FL_TRY(expect(r, '{', "'{'"));
    if (!take(r, '}')) {
        do {
            span name;
            FL_TRY(read_string(r, &name));
            FL_TRY(expect(r, ':', "':'"));
            if (span_is(&name, "__metadata__")) {
                if (metadata) return fail_at(r, "__metadata__ only once");
                metadata = true;
                FL_TRY(skip_metadata(r));
                continue;
            }
            fl_safetensors_entry entry = {0};
            FL_TRY(take_name(r, &name, &entry));
            FL_TRY(read_entry(r, &entry));
            FL_TRY(check_entry(r, &entry));
            FL_TRY(add_entry(r, &entry));
        } while (take(r, ','));
        FL_TRY(expect(r, '}', "',' or '}'"));
    }
    skip_space(r);
    return r->at == r->end ? FL_ERR_OK : fail_at(r, "only spaces after the closing '}'");
}

static int compare_ranges(const void *left, const void *right) {
    const fl_safetensors_entry *a = left, *b = right;
    if (a->begin_bytes != b->begin_bytes) return a->begin_bytes < b->begin_bytes ? -1 : 1;
    return (a->end_bytes > b->end_bytes) - (a->end_bytes < b->end_bytes);
}

static int compare_names(const void *left, const void *right) {
    const fl_safetensors_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* The ranges in order must meet end to begin from the first data byte to the last. */
static fl_err check_cover(const reader *r) {
    fl_safetensors *st = r->out;
    int64_t place = 0;
    if (st->n_entries) qsort(st->entries, (size_t)st->n_entries, sizeof *st->entries, compare_ranges);
    for (int64_t i = 0; i < st->n_entries; i++) {
        const fl_safetensors_entry *entry = &st->entries[i];
        if (entry->begin_bytes != place)
            return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s': data_offsets begin at %lld, expected %lld (%s)",
                           r->file, entry->name, (long long)entry->begin_bytes, (long long)place,
                           entry->begin_bytes < place ? "it overlaps another tensor"
                                                      : "bytes before it belong to none");
        place = entry->end_bytes;
    }
    if (place != st->data_bytes)
        return FL_FAIL(FL_ERR_DATA, "%s: tensors cover %lld bytes, the file holds %lld data bytes", r->file,
                       (long long)place, (long long)st->data_bytes);
    return FL_ERR_OK;
}

static fl_err sort_by_name(const reader *r) {
    fl_safetensors *st = r->out;
    if (st->n_entries) qsort(st->entries, (size_t)st->n_entries, sizeof *st->entries, compare_names);
    for (int64_t i = 1; i < st->n_entries; i++)
        if (strcmp(st->entries[i - 1].name, st->entries[i].name) == 0)
            return FL_FAIL(FL_ERR_DATA, "%s: tensor '%s' is listed twice", r->file, st->entries[i].name);
    return FL_ERR_OK;
}

static fl_err parse_parts(const char *file, const unsigned char *bytes, size_t n_bytes, fl_safetensors *out) {
    uint64_t header_bytes = 0;
    if (n_bytes < 8)
        return FL_FAIL(FL_ERR_DATA, "%s: %zu bytes, a safetensors file has at least 8", file, n_bytes);
    for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | bytes[i];
    if (header_bytes > FL_SAFETENSORS_HEADER_MAX || header_bytes > n_bytes - 8)
        return FL_FAIL(FL_ERR_DATA, "%s: header length %llu, expected at most %zu (file) and %d (format)",
                       file, (unsigned long long)header_bytes, n_bytes - 8, FL_SAFETENSORS_HEADER_MAX);
    const char *text = (const char *)bytes + 8;
    out->data = bytes + 8 + header_bytes;
    out->data_bytes = (int64_t)(n_bytes - 8 - (size_t)header_bytes);
    out->names = malloc((size_t)header_bytes + 1);
    if (!out->names) return FL_FAIL(FL_ERR_NOMEM, "%s: names of tensors", file);
    reader r = {.file = file,
                .begin = text,
                .at = text,
                .end = text + header_bytes,
                .name_at = out->names,
                .out = out};
    FL_TRY(read_header(&r));
    FL_TRY(check_cover(&r));
    return sort_by_name(&r);
}

fl_err fl_safetensors_parse(const char *file, const unsigned char *bytes, size_t n_bytes,
                            fl_safetensors *out) {
    *out = (fl_safetensors){0};
    fl_err err = parse_parts(file, bytes, n_bytes, out);
    if (err != FL_ERR_OK) fl_safetensors_close(out);
    return err;
}

void fl_safetensors_close(fl_safetensors *st) {
    free(st->entries);
    free(st->names);
    *st = (fl_safetensors){0};
}

const fl_safetensors_entry *fl_safetensors_find(const fl_safetensors *st, const char *name) {
    fl_safetensors_entry key = {.name = name};
    if (st->n_entries == 0) return NULL;
    return bsearch(&key, st->entries, (size_t)st->n_entries, sizeof *st->entries, compare_names);
}
