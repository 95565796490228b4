/* The filters. args[0] is what the filter is applied to. */
#include "text/jinja_args.h"
#include "text/jinja_str.h"
#include "text/jinja_text.h"
#include "text/jinja_tree.h"

#include <inttypes.h>
#include <math.h>

static fl_err filter_length(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    size_t n = 0;
    switch (args[0].kind) {
    case FL_JUNDEFINED: break;
    case FL_JSTR:
        FL_TRY(fl_jrun_charge(run, args[0].as.str->n));
        n = fl_jstr_length(args[0].as.str->bytes, args[0].as.str->n);
        break;
    case FL_JLIST: n = args[0].as.list->n; break;
    case FL_JDICT: n = args[0].as.dict->n; break;
    default: return fl_jval_fail_kind(run, "'length'", "a string, list or dictionary", &args[0]);
    }
    *out = fl_jval_int((int64_t)n, true);
    return FL_ERR_OK;
}

static fl_err filter_trim(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *str, *chars;
    FL_TRY(fl_jval_text(run, &args[0], &str));
    FL_TRY(fl_jarg_optional_str(run, &args[1], "'trim'", &chars));
    return fl_jtext_strip(run, str, chars, true, true, out);
}

static fl_err change_case(fl_jrun *run, const fl_jval *args, fl_jcase how, fl_jval *out) {
    const fl_jstr *str;
    FL_TRY(fl_jval_text(run, &args[0], &str));
    return fl_jtext_case(run, str, how, out);
}

static fl_err filter_upper(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return change_case(run, args, FL_JCASE_UPPER, out);
}

static fl_err filter_lower(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return change_case(run, args, FL_JCASE_LOWER, out);
}

static fl_err filter_capitalize(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return change_case(run, args, FL_JCASE_CAPITALIZE, out);
}

static fl_err filter_default(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    bool also_false = args[2].kind != FL_JABSENT && fl_jval_truth(&args[2]);
    *out = args[0];
    if (args[0].kind != FL_JUNDEFINED && !(also_false && !fl_jval_truth(&args[0]))) return FL_ERR_OK;
    *out = args[1];
    if (args[1].kind == FL_JABSENT) return fl_jval_from_bytes(&run->arena, "", 0, out);
    return FL_ERR_OK;
}

static fl_err filter_join(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *items;
    const fl_jstr *separator;
    size_t n;
    fl_jval none = {.kind = FL_JUNDEFINED};
    FL_TRY(fl_jval_items(run, &args[0], &items, &n));
    FL_TRY(fl_jval_text(run, args[1].kind == FL_JABSENT ? &none : &args[1], &separator));
    return fl_jtext_join(run, separator, items, n, false, out);
}

static fl_err filter_string(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *str;
    FL_TRY(fl_jval_text(run, &args[0], &str));
    *out = fl_jval_str(str);
    return FL_ERR_OK;
}

static fl_err filter_safe(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return filter_string(run, args, out);
}

static fl_err filter_items(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    if (args[0].kind == FL_JUNDEFINED) return fl_jval_from_items(run, NULL, 0, false, out);
    if (args[0].kind != FL_JDICT) return fl_jval_fail_kind(run, "'items'", "a dictionary", &args[0]);
    return fl_jbuiltin_method("items", 5)->call(run, args, out);
}

static fl_err filter_list(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *items;
    size_t n;
    FL_TRY(fl_jval_items(run, &args[0], &items, &n));
    return fl_jval_from_items(run, items, n, false, out);
}

static fl_err filter_first(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *items;
    size_t n;
    FL_TRY(fl_jval_items(run, &args[0], &items, &n));
    *out = n > 0 ? items[0] : fl_jval_undefined(NULL);
    return FL_ERR_OK;
}

static fl_err filter_last(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *items;
    size_t n;
    FL_TRY(fl_jval_items(run, &args[0], &items, &n));
    *out = n > 0 ? items[n - 1] : fl_jval_undefined(NULL);
    return FL_ERR_OK;
}

static fl_err filter_reverse(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *items;
    size_t n;
    FL_TRY(fl_jval_items(run, &args[0], &items, &n));
    FL_TRY(fl_jrun_charge(run, n * sizeof *items));
    fl_jval *reversed = fl_jarena_alloc(&run->arena, n, sizeof *reversed);
    if (reversed == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < n; i++) reversed[i] = items[n - 1 - i];
    if (args[0].kind == FL_JSTR) return fl_jtext_join(run, &(fl_jstr){.bytes = ""}, reversed, n, true, out);
    return fl_jval_from_items(run, reversed, n, false, out);
}

static fl_err filter_replace(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    fl_jreplace replace;
    FL_TRY(fl_jval_text(run, &args[0], &replace.str));
    FL_TRY(fl_jval_text(run, &args[1], &replace.old));
    FL_TRY(fl_jval_text(run, &args[2], &replace.by));
    FL_TRY(fl_jarg_int(run, &args[3], "'replace'", -1, &replace.count));
    return fl_jtext_replace(run, &replace, out);
}

static fl_err filter_abs(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *x = &args[0];
    if (x->kind == FL_JFLOAT) {
        *out = fl_jval_float(fabs(x->as.real), x->trusted);
    } else if (x->kind == FL_JINT && x->as.integer != INT64_MIN) {
        *out = fl_jval_int(x->as.integer < 0 ? -x->as.integer : x->as.integer, x->trusted);
    } else if (x->kind == FL_JBOOL) {
        *out = fl_jval_int(x->as.truth, true);
    } else {
        return fl_jval_fail_kind(run, "'abs'", "a number of at most 63 bits", x);
    }
    return FL_ERR_OK;
}

/* An optional sign and digits with white space around, as Python's int() takes (without underscores). */
static bool parse_int(const fl_jstr *str, int64_t *out) {
    size_t at = 0, end = str->n;
    fl_jstr_trim(str->bytes, &at, &end, true, true);
    bool negative = at < end && str->bytes[at] == '-';
    if (at < end && (str->bytes[at] == '-' || str->bytes[at] == '+')) at++;
    if (at == end) return false;
    *out = 0;
    for (; at < end; at++) {
        if (str->bytes[at] < '0' || str->bytes[at] > '9') return false;
        int digit = str->bytes[at] - '0';
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, negative ? -digit : digit, out)) {
            return false;
        }
    }
    return true;
}

static fl_err filter_int(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jval *x = &args[0];
    int64_t value;
    *out = args[1].kind == FL_JABSENT ? fl_jval_int(0, true) : args[1];
    if (x->kind == FL_JUNDEFINED) return fl_jval_fail_undefined(run, x);
    if (x->kind == FL_JINT) *out = *x;
    else if (x->kind == FL_JBOOL) *out = fl_jval_int(x->as.truth, true);
    else if (x->kind == FL_JFLOAT && fabs(x->as.real) < 9e18)
        *out = fl_jval_int((int64_t)x->as.real, x->trusted);
    else if (x->kind == FL_JSTR && parse_int(x->as.str, &value)) *out = fl_jval_int(value, false);
    return FL_ERR_OK;
}

static fl_err filter_tojson(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    fl_jjson style = {0};
    int64_t indent;
    style.ascii = args[1].kind != FL_JABSENT && fl_jval_truth(&args[1]);
    FL_TRY(fl_jarg_int(run, &args[2], "the indent of 'tojson'", 0, &indent));
    style.pretty = args[2].kind != FL_JABSENT && args[2].kind != FL_JNONE;
    style.indent = indent > 0 ? (size_t)indent : 0;
    style.sort = args[4].kind != FL_JABSENT && fl_jval_truth(&args[4]);
    if (args[3].kind == FL_JLIST && args[3].as.list->n == 2) {
        FL_TRY(fl_jarg_str(run, &args[3].as.list->items[0], "a separator of 'tojson'", &style.item));
        FL_TRY(fl_jarg_str(run, &args[3].as.list->items[1], "a separator of 'tojson'", &style.pair));
    } else if (args[3].kind != FL_JABSENT && args[3].kind != FL_JNONE) {
        return fl_jval_fail_kind(run, "'tojson'", "two separators", &args[3]);
    }
    return fl_jtext_json(run, &args[0], &style, out);
}

static const fl_jbuiltin filters[] = {
    {"length", filter_length, 0, {NULL}},
    {"count", filter_length, 0, {NULL}},
    {"trim", filter_trim, 0, {"chars"}},
    {"upper", filter_upper, 0, {NULL}},
    {"lower", filter_lower, 0, {NULL}},
    {"capitalize", filter_capitalize, 0, {NULL}},
    {"default", filter_default, 0, {"default_value", "boolean"}},
    {"d", filter_default, 0, {"default_value", "boolean"}},
    {"join", filter_join, 0, {"d"}},
    {"string", filter_string, 0, {NULL}},
    {"safe", filter_safe, 0, {NULL}},
    {"items", filter_items, 0, {NULL}},
    {"list", filter_list, 0, {NULL}},
    {"first", filter_first, 0, {NULL}},
    {"last", filter_last, 0, {NULL}},
    {"reverse", filter_reverse, 0, {NULL}},
    {"replace", filter_replace, 2, {"old", "new", "count"}},
    {"abs", filter_abs, 0, {NULL}},
    {"int", filter_int, 0, {"default"}},
    {"tojson", filter_tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
};

const fl_jbuiltin *fl_jbuiltin_filter(const char *name, size_t n) {
    const fl_jstr wanted = {.bytes = name, .n = n};
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (fl_jstr_is(&wanted, filters[i].name)) return &filters[i];
    }
    return NULL;
}
