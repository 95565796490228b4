/* Values of a rendering: making, comparing, printing. Recursion over nested values is bounded: every list and
 * dictionary knows its depth, and one deeper than limits->nesting is refused when it is made. */
#include "text/jinja_value.h"

#include "text/jinja.h"
#include "text/jinja_str.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fl_jinja_limits_default(fl_jinja_limits *limits) {
    *limits = (fl_jinja_limits){
        .template_bytes = (size_t)1 << 20,
        .tree_bytes = (size_t)64 << 20,
        .nesting = 100,
        .eval_nesting = 400,
        .steps = 20000000,
        .output_bytes = (size_t)64 << 20,
        .value_bytes = (size_t)256 << 20,
    };
}

void fl_jrun_init(fl_jrun *run, const fl_jinja_limits *limits) {
    *run = (fl_jrun){.limits = limits};
    fl_jarena_init(&run->arena, limits->value_bytes);
}

void fl_jrun_clear(fl_jrun *run) {
    fl_jarena_clear(&run->arena);
}

fl_err fl_jrun_charge(fl_jrun *run, size_t bytes) {
    run->steps += 1 + bytes / 64;
    if (run->steps <= run->limits->steps) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": more than %" PRIu64 " steps", run->line,
                   run->limits->steps);
}

/* ---- making -------------------------------------------------------------------------------------------- */

fl_err fl_jval_from_marked(fl_jarena *arena, const char *bytes, size_t n, size_t origin, fl_jval *out) {
    fl_jmark *mark = fl_jarena_alloc(arena, 1, sizeof *mark);
    if (mark == NULL) return fl_jarena_error(arena);
    *mark = (fl_jmark){.end = n, .origin = origin};
    fl_jstr *str = fl_jarena_alloc(arena, 1, sizeof *str);
    if (str == NULL) return fl_jarena_error(arena);
    *str = (fl_jstr){.bytes = bytes, .n = n, .marks = mark, .n_marks = n > 0};
    *out = fl_jval_str(str);
    return FL_ERR_OK;
}

fl_err fl_jval_from_bytes(fl_jarena *arena, const char *bytes, size_t n, fl_jval *out) {
    fl_jstr *str = fl_jarena_alloc(arena, 1, sizeof *str);
    if (str == NULL) return fl_jarena_error(arena);
    *str = (fl_jstr){.bytes = bytes, .n = n};
    *out = fl_jval_str(str);
    return FL_ERR_OK;
}

static size_t depth_of(const fl_jval *value) {
    if (value->kind == FL_JLIST) return value->as.list->depth;
    return value->kind == FL_JDICT ? value->as.dict->depth : 0;
}

static fl_err check_depth(const fl_jrun *run, size_t depth) {
    if (depth <= run->limits->nesting) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": a value nested deeper than %zu levels",
                   run->line, run->limits->nesting);
}

fl_err fl_jval_from_items(fl_jrun *run, const fl_jval *items, size_t n, bool tuple, fl_jval *out) {
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (depth_of(&items[i]) > depth) depth = depth_of(&items[i]);
    }
    FL_TRY(fl_jrun_charge(run, n * sizeof *items));
    FL_TRY(check_depth(run, depth + 1));
    fl_jlist *list = fl_jarena_alloc(&run->arena, 1, sizeof *list);
    if (list == NULL) return fl_jarena_error(&run->arena);
    *list = (fl_jlist){.items = items, .n = n, .depth = depth + 1, .tuple = tuple};
    *out = (fl_jval){.kind = FL_JLIST, .as.list = list};
    return FL_ERR_OK;
}

static bool is_scalar(const fl_jval *value) {
    return value->kind >= FL_JNONE && value->kind <= FL_JSTR;
}

fl_err fl_jval_from_pairs(fl_jrun *run, fl_jpair *pairs, size_t n, fl_jval *out) {
    fl_jdict *dict = fl_jarena_alloc(&run->arena, 1, sizeof *dict);
    if (dict == NULL) return fl_jarena_error(&run->arena);
    size_t kept = 0, depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_scalar(&pairs[i].key)) {
            return fl_jval_fail_kind(run, "a dictionary key", "a string or number", &pairs[i].key);
        }
        if (depth_of(&pairs[i].value) > depth) depth = depth_of(&pairs[i].value);
        size_t at = 0;
        bool same = false;
        for (; at < kept && !same; at += !same) {
            FL_TRY(fl_jval_equal(run, &pairs[at].key, &pairs[i].key, &same));
        }
        if (same) pairs[at].value = pairs[i].value;
        else pairs[kept++] = pairs[i];
    }
    FL_TRY(check_depth(run, depth + 1));
    *dict = (fl_jdict){.pairs = pairs, .n = kept, .depth = depth + 1};
    *out = (fl_jval){.kind = FL_JDICT, .as.dict = dict};
    return FL_ERR_OK;
}

static fl_err from_json(fl_jrun *run, json_t *json, size_t level, fl_jval *out);

static fl_err from_json_array(fl_jrun *run, json_t *json, size_t level, fl_jval *out) {
    size_t n = json_array_size(json);
    fl_jval *items = fl_jarena_alloc(&run->arena, n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < n; i++) FL_TRY(from_json(run, json_array_get(json, i), level + 1, &items[i]));
    return fl_jval_from_items(run, items, n, false, out);
}

static fl_err from_json_object(fl_jrun *run, json_t *json, size_t level, fl_jval *out) {
    size_t n = json_object_size(json), i = 0;
    fl_jpair *pairs = fl_jarena_alloc(&run->arena, n, sizeof *pairs);
    fl_jdict *dict = fl_jarena_alloc(&run->arena, 1, sizeof *dict);
    if (pairs == NULL || dict == NULL) return fl_jarena_error(&run->arena);
    size_t depth = 0;
    for (void *it = json_object_iter(json); it != NULL; it = json_object_iter_next(json, it), i++) {
        const char *key = json_object_iter_key(it);
        FL_TRY(fl_jval_from_bytes(&run->arena, key, strlen(key), &pairs[i].key));
        FL_TRY(from_json(run, json_object_iter_value(it), level + 1, &pairs[i].value));
        if (depth_of(&pairs[i].value) > depth) depth = depth_of(&pairs[i].value);
    }
    /* JSON object keys are unique already. */
    *dict = (fl_jdict){.pairs = pairs, .n = n, .depth = depth + 1};
    *out = (fl_jval){.kind = FL_JDICT, .as.dict = dict};
    return FL_ERR_OK;
}

static fl_err from_json(fl_jrun *run, json_t *json, size_t level, fl_jval *out) {
    FL_TRY(fl_jrun_charge(run, 0));
    switch (json_typeof(json)) {
    case JSON_OBJECT: FL_TRY(check_depth(run, level)); return from_json_object(run, json, level, out);
    case JSON_ARRAY: FL_TRY(check_depth(run, level)); return from_json_array(run, json, level, out);
    case JSON_STRING:
        return fl_jval_from_bytes(&run->arena, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER: *out = fl_jval_int(json_integer_value(json), false); return FL_ERR_OK;
    case JSON_REAL: *out = fl_jval_float(json_real_value(json), false); return FL_ERR_OK;
    case JSON_TRUE: *out = fl_jval_bool(true); return FL_ERR_OK;
    case JSON_FALSE: *out = fl_jval_bool(false); return FL_ERR_OK;
    case JSON_NULL: break;
    }
    *out = fl_jval_none();
    return FL_ERR_OK;
}

fl_err fl_jval_from_json(fl_jrun *run, json_t *json, fl_jval *out) {
    return from_json(run, json, 1, out);
}

/* ---- failing ------------------------------------------------------------------------------------------- */

const char *fl_jval_kind_name(const fl_jval *value) {
    switch (value->kind) {
    case FL_JABSENT:
    case FL_JUNDEFINED: return "undefined value";
    case FL_JNONE: return "none";
    case FL_JBOOL: return "boolean";
    case FL_JINT: return "integer";
    case FL_JFLOAT: return "float";
    case FL_JSTR: return "string";
    case FL_JLIST: return value->as.list->tuple ? "tuple" : "list";
    case FL_JDICT: return "dictionary";
    case FL_JNAMESPACE: return "namespace";
    case FL_JLOOP: return "loop";
    }
    return "value";
}

void fl_jval_note_undefined(const fl_jrun *run, const fl_jval *value) {
    const fl_jstr *name = value->as.name;
    if (name == NULL) FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": undefined value", run->line);
    else {
        FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": '%.*s' is undefined", run->line,
                (int)(name->n < 64 ? name->n : 64), name->bytes);
    }
}

void fl_jval_note_kind(const fl_jrun *run, const char *doing, const char *wanted, const fl_jval *found) {
    if (found->kind == FL_JUNDEFINED) {
        fl_jval_note_undefined(run, found);
        return;
    }
    FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": %s needs %s, found %s", run->line, doing, wanted,
            fl_jval_kind_name(found));
}

/* ---- asking -------------------------------------------------------------------------------------------- */

bool fl_jval_truth(const fl_jval *value) {
    switch (value->kind) {
    case FL_JABSENT:
    case FL_JUNDEFINED:
    case FL_JNONE: return false;
    case FL_JBOOL: return value->as.truth;
    case FL_JINT: return value->as.integer != 0;
    case FL_JFLOAT: return value->as.real != 0;
    case FL_JSTR: return value->as.str->n > 0;
    case FL_JLIST: return value->as.list->n > 0;
    case FL_JDICT: return value->as.dict->n > 0;
    case FL_JNAMESPACE:
    case FL_JLOOP: return true;
    }
    return false;
}

static bool is_number(const fl_jval *value) {
    return value->kind == FL_JBOOL || value->kind == FL_JINT || value->kind == FL_JFLOAT;
}

/* long double holds every int64_t and every double exactly on x86-64. */
static long double number_of(const fl_jval *value) {
    if (value->kind == FL_JFLOAT) return value->as.real;
    return value->kind == FL_JINT ? value->as.integer : value->as.truth;
}

static fl_err lists_equal(fl_jrun *run, const fl_jlist *a, const fl_jlist *b, bool *out) {
    *out = a->n == b->n && a->tuple == b->tuple;
    for (size_t i = 0; *out && i < a->n; i++) FL_TRY(fl_jval_equal(run, &a->items[i], &b->items[i], out));
    return FL_ERR_OK;
}

static fl_err dicts_equal(fl_jrun *run, const fl_jdict *a, const fl_jval *b, bool *out) {
    *out = a->n == b->as.dict->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const fl_jval *other;
        FL_TRY(fl_jval_find(run, b, &a->pairs[i].key, &other));
        if (other == NULL) *out = false;
        else FL_TRY(fl_jval_equal(run, &a->pairs[i].value, other, out));
    }
    return FL_ERR_OK;
}

fl_err fl_jval_equal(fl_jrun *run, const fl_jval *a, const fl_jval *b, bool *out) {
    FL_TRY(fl_jrun_charge(run, 0));
    *out = false;
    if (is_number(a) && is_number(b)) {
        *out = number_of(a) == number_of(b);
        return FL_ERR_OK;
    }
    if (a->kind != b->kind) return FL_ERR_OK;
    switch (a->kind) {
    case FL_JSTR:
        *out = fl_jstr_same(a->as.str, b->as.str);
        return *out ? fl_jrun_charge(run, a->as.str->n) : FL_ERR_OK;
    case FL_JLIST: return lists_equal(run, a->as.list, b->as.list, out);
    case FL_JDICT: return dicts_equal(run, a->as.dict, b, out);
    case FL_JNAMESPACE: *out = a->as.space == b->as.space; return FL_ERR_OK;
    case FL_JLOOP: *out = a->as.loop == b->as.loop; return FL_ERR_OK;
    default: *out = true; return FL_ERR_OK; /* none and undefined */
    }
}

fl_err fl_jval_compare(fl_jrun *run, const fl_jval *a, const fl_jval *b, int *out) {
    if (a->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, a);
    if (b->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, b);
    if (is_number(a) && is_number(b)) {
        long double x = number_of(a), y = number_of(b);
        *out = isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
        return FL_ERR_OK;
    }
    if (a->kind == FL_JSTR && b->kind == FL_JSTR) {
        size_t na = a->as.str->n, nb = b->as.str->n, n = na < nb ? na : nb;
        int order = n == 0 ? 0 : memcmp(a->as.str->bytes, b->as.str->bytes, n);
        *out = order < 0 ? -1 : order > 0 ? 1 : na < nb ? -1 : na > nb;
        return fl_jrun_charge(run, n);
    }
    return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": cannot order %s and %s", run->line,
                   fl_jval_kind_name(a), fl_jval_kind_name(b));
}

fl_err fl_jval_find(fl_jrun *run, const fl_jval *value, const fl_jval *key, const fl_jval **out) {
    const fl_jpair *pairs = value->kind == FL_JDICT ? value->as.dict->pairs : value->as.space->pairs;
    size_t n = value->kind == FL_JDICT ? value->as.dict->n : value->as.space->n;
    *out = NULL;
    if (!is_scalar(key)) return FL_ERR_OK;
    for (size_t i = 0; i < n; i++) {
        bool same;
        FL_TRY(fl_jval_equal(run, &pairs[i].key, key, &same));
        if (same) {
            *out = &pairs[i].value;
            return FL_ERR_OK;
        }
    }
    return FL_ERR_OK;
}

fl_err fl_jval_contains(fl_jrun *run, const fl_jval *hay, const fl_jval *needle, bool *out) {
    *out = false;
    switch (hay->kind) {
    case FL_JUNDEFINED: return FL_ERR_OK;
    case FL_JSTR:
        if (needle->kind != FL_JSTR) return fl_jval_fail_kind(run, "'in' a string", "a string", needle);
        FL_TRY(fl_jrun_charge(run, hay->as.str->n));
        *out = fl_jstr_find(hay->as.str, needle->as.str, 0) != SIZE_MAX;
        return FL_ERR_OK;
    case FL_JLIST:
        for (size_t i = 0; !*out && i < hay->as.list->n; i++) {
            FL_TRY(fl_jval_equal(run, &hay->as.list->items[i], needle, out));
        }
        return FL_ERR_OK;
    case FL_JDICT: {
        if (needle->kind == FL_JLIST || needle->kind == FL_JDICT) {
            return fl_jval_fail_kind(run, "'in' a dictionary", "a string or number", needle);
        }
        const fl_jval *found;
        FL_TRY(fl_jval_find(run, hay, needle, &found));
        *out = found != NULL;
        return FL_ERR_OK;
    }
    default: return fl_jval_fail_kind(run, "'in'", "a string, list or dictionary", hay);
    }
}

/* ---- printing ------------------------------------------------------------------------------------------ */

size_t fl_jval_print_float(double real, char *text) {
    if (isnan(real)) return (size_t)snprintf(text, 32, "nan");
    if (isinf(real)) return (size_t)snprintf(text, 32, real < 0 ? "-inf" : "inf");
    /* The shortest digits that read back as the same number. The C library may print another decimal point
     * than '.' (locale), so only digits are taken from it. */
    char printed[40], digits[20];
    int precision = 0;
    do {
        snprintf(printed, sizeof printed, "%.*e", precision, real);
    } while (strtod(printed, NULL) != real && ++precision < 17);
    size_t n_digits = 0;
    const char *p = printed;
    for (; *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9' && n_digits < sizeof digits) digits[n_digits++] = *p;
    }
    long exponent = strtol(p + 1, NULL, 10);
    while (n_digits > 1 && digits[n_digits - 1] == '0') n_digits--;
    size_t n = 0;
    if (signbit(real)) text[n++] = '-';
    if (exponent < -4 || exponent >= 16) {
        text[n++] = digits[0];
        if (n_digits > 1) text[n++] = '.';
        for (size_t i = 1; i < n_digits; i++) text[n++] = digits[i];
        return n + (size_t)snprintf(text + n, 8, "e%c%02ld", exponent < 0 ? '-' : '+', labs(exponent));
    }
    if (exponent < 0) {
        text[n++] = '0';
        text[n++] = '.';
        for (long i = -1; i > exponent; i--) text[n++] = '0';
        for (size_t i = 0; i < n_digits; i++) text[n++] = digits[i];
        return n;
    }
    for (size_t i = 0; i <= (size_t)exponent; i++) text[n++] = i < n_digits ? digits[i] : '0';
    text[n++] = '.';
    if (n_digits <= (size_t)exponent + 1) text[n++] = '0';
    for (size_t i = (size_t)exponent + 1; i < n_digits; i++) text[n++] = digits[i];
    return n;
}

fl_err fl_jval_text(fl_jrun *run, const fl_jval *value, const fl_jstr **out) {
    char text[32];
    size_t n = 0;
    bool trusted = true;
    switch (value->kind) {
    case FL_JSTR: *out = value->as.str; return FL_ERR_OK;
    case FL_JABSENT:
    case FL_JUNDEFINED: break;
    case FL_JNONE: n = (size_t)snprintf(text, sizeof text, "None"); break;
    case FL_JBOOL: n = (size_t)snprintf(text, sizeof text, value->as.truth ? "True" : "False"); break;
    case FL_JINT:
        n = (size_t)snprintf(text, sizeof text, "%" PRId64, value->as.integer);
        trusted = value->trusted;
        break;
    case FL_JFLOAT:
        n = fl_jval_print_float(value->as.real, text);
        trusted = value->trusted;
        break;
    default:
        return FL_FAIL(FL_ERR_UNSUPPORTED,
                       "chat template line %" PRIu32 ": a %s as text is not supported (use tojson or join)",
                       run->line, fl_jval_kind_name(value));
    }
    char *copy = fl_jarena_alloc(&run->arena, n, 1);
    if (copy == NULL) return fl_jarena_error(&run->arena);
    memcpy(copy, text, n);
    fl_jval made;
    if (trusted) FL_TRY(fl_jval_from_marked(&run->arena, copy, n, FL_JORIGIN_TEMPLATE, &made));
    else FL_TRY(fl_jval_from_bytes(&run->arena, copy, n, &made));
    *out = made.as.str;
    return FL_ERR_OK;
}

static fl_err characters(fl_jrun *run, const fl_jstr *str, const fl_jval **items, size_t *n) {
    *n = fl_jstr_length(str->bytes, str->n);
    fl_jval *chars = fl_jarena_alloc(&run->arena, *n, sizeof *chars);
    if (chars == NULL) return fl_jarena_error(&run->arena);
    size_t at = 0;
    for (size_t i = 0; i < *n; i++) {
        uint32_t c;
        size_t length = fl_jstr_char(str->bytes + at, str->n - at, &c);
        const fl_jstr *one;
        FL_TRY(fl_jstr_slice(run, str, at, at + length, &one));
        chars[i] = fl_jval_str(one);
        at += length;
    }
    *items = chars;
    return FL_ERR_OK;
}

fl_err fl_jval_items(fl_jrun *run, const fl_jval *value, const fl_jval **items, size_t *n) {
    *items = NULL;
    *n = 0;
    switch (value->kind) {
    case FL_JUNDEFINED: return FL_ERR_OK;
    case FL_JLIST:
        *items = value->as.list->items;
        *n = value->as.list->n;
        return FL_ERR_OK;
    case FL_JSTR: return characters(run, value->as.str, items, n);
    case FL_JDICT: {
        *n = value->as.dict->n;
        FL_TRY(fl_jrun_charge(run, *n * sizeof(fl_jval)));
        fl_jval *keys = fl_jarena_alloc(&run->arena, *n, sizeof *keys);
        if (keys == NULL) return fl_jarena_error(&run->arena);
        for (size_t i = 0; i < *n; i++) keys[i] = value->as.dict->pairs[i].key;
        *items = keys;
        return FL_ERR_OK;
    }
    default: return fl_jval_fail_kind(run, "iterating", "a list, dictionary or string", value);
    }
}
