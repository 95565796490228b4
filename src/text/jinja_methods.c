/* Methods of strings and dictionaries, and the global functions. args[0] of a method is its object. */
#include "text/jinja_args.h"
#include "text/jinja_str.h"
#include "text/jinja_text.h"
#include "text/jinja_tree.h"

#include <inttypes.h>
#include <string.h>

/* ---- arguments ----------------------------------------------------------------------------------------- */

fl_err fl_jarg_str(fl_jrun *run, const fl_jval *arg, const char *doing, const fl_jstr **out) {
    if (arg->kind != FL_JSTR) return fl_jval_fail_kind(run, doing, "a string", arg);
    *out = arg->as.str;
    return FL_ERR_OK;
}

fl_err fl_jarg_optional_str(fl_jrun *run, const fl_jval *arg, const char *doing, const fl_jstr **out) {
    *out = NULL;
    if (arg->kind == FL_JABSENT || arg->kind == FL_JNONE) return FL_ERR_OK;
    return fl_jarg_str(run, arg, doing, out);
}

fl_err fl_jarg_int(fl_jrun *run, const fl_jval *arg, const char *doing, int64_t otherwise, int64_t *out) {
    *out = otherwise;
    if (arg->kind == FL_JABSENT || arg->kind == FL_JNONE) return FL_ERR_OK;
    if (arg->kind == FL_JBOOL) *out = arg->as.truth;
    else if (arg->kind == FL_JINT) *out = arg->as.integer;
    else return fl_jval_fail_kind(run, doing, "an integer", arg);
    return FL_ERR_OK;
}

/* ---- strings ------------------------------------------------------------------------------------------- */

static bool has_affix(const fl_jstr *str, const fl_jstr *affix, bool at_end) {
    if (affix->n > str->n) return false;
    return affix->n == 0 ||
           memcmp(str->bytes + (at_end ? str->n - affix->n : 0), affix->bytes, affix->n) == 0;
}

/* startswith and endswith; the affix may be a tuple of strings. */
static fl_err check_affix(fl_jrun *run, const fl_jval *args, bool at_end, fl_jval *out) {
    const char *doing = at_end ? "'endswith'" : "'startswith'";
    const fl_jstr *str = NULL, *affix = NULL;
    bool found = false;
    FL_TRY(fl_jarg_str(run, &args[0], doing, &str));
    if (args[1].kind == FL_JLIST && args[1].as.list->tuple) {
        const fl_jlist *list = args[1].as.list;
        for (size_t i = 0; !found && i < list->n; i++) {
            FL_TRY(fl_jarg_str(run, &list->items[i], doing, &affix));
            found = has_affix(str, affix, at_end);
        }
    } else {
        FL_TRY(fl_jarg_str(run, &args[1], doing, &affix));
        found = has_affix(str, affix, at_end);
    }
    *out = fl_jval_bool(found);
    return FL_ERR_OK;
}

static fl_err method_startswith(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return check_affix(run, args, false, out);
}

static fl_err method_endswith(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return check_affix(run, args, true, out);
}

static fl_err remove_affix(fl_jrun *run, const fl_jval *args, bool at_end, fl_jval *out) {
    const char *doing = at_end ? "'removesuffix'" : "'removeprefix'";
    const fl_jstr *str = NULL, *affix = NULL, *slice = NULL;
    FL_TRY(fl_jarg_str(run, &args[0], doing, &str));
    FL_TRY(fl_jarg_str(run, &args[1], doing, &affix));
    size_t cut = has_affix(str, affix, at_end) ? affix->n : 0;
    FL_TRY(fl_jstr_slice(run, str, at_end ? 0 : cut, at_end ? str->n - cut : str->n, &slice));
    *out = fl_jval_str(slice);
    return FL_ERR_OK;
}

static fl_err method_removeprefix(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return remove_affix(run, args, false, out);
}

static fl_err method_removesuffix(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return remove_affix(run, args, true, out);
}

static fl_err strip(fl_jrun *run, const fl_jval *args, bool left, bool right, fl_jval *out) {
    const fl_jstr *str = NULL, *chars = NULL;
    FL_TRY(fl_jarg_str(run, &args[0], "'strip'", &str));
    FL_TRY(fl_jarg_optional_str(run, &args[1], "'strip'", &chars));
    return fl_jtext_strip(run, str, chars, left, right, out);
}

static fl_err method_strip(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return strip(run, args, true, true, out);
}

static fl_err method_lstrip(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return strip(run, args, true, false, out);
}

static fl_err method_rstrip(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return strip(run, args, false, true, out);
}

static fl_err method_split(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *str = NULL, *separator = NULL;
    int64_t count;
    FL_TRY(fl_jarg_str(run, &args[0], "'split'", &str));
    FL_TRY(fl_jarg_optional_str(run, &args[1], "'split'", &separator));
    FL_TRY(fl_jarg_int(run, &args[2], "'split'", -1, &count));
    return fl_jtext_split(run, str, separator, count, out);
}

static fl_err method_splitlines(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *str = NULL;
    FL_TRY(fl_jarg_str(run, &args[0], "'splitlines'", &str));
    return fl_jtext_splitlines(run, str, out);
}

static fl_err method_replace(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    fl_jreplace replace;
    FL_TRY(fl_jarg_str(run, &args[0], "'replace'", &replace.str));
    FL_TRY(fl_jarg_str(run, &args[1], "'replace'", &replace.old));
    FL_TRY(fl_jarg_str(run, &args[2], "'replace'", &replace.by));
    FL_TRY(fl_jarg_int(run, &args[3], "'replace'", -1, &replace.count));
    return fl_jtext_replace(run, &replace, out);
}

static fl_err change_case(fl_jrun *run, const fl_jval *args, fl_jcase how, fl_jval *out) {
    const fl_jstr *str = NULL;
    FL_TRY(fl_jarg_str(run, &args[0], "changing case", &str));
    return fl_jtext_case(run, str, how, out);
}

static fl_err method_upper(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return change_case(run, args, FL_JCASE_UPPER, out);
}

static fl_err method_lower(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return change_case(run, args, FL_JCASE_LOWER, out);
}

static fl_err method_capitalize(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return change_case(run, args, FL_JCASE_CAPITALIZE, out);
}

static fl_err method_find(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *str = NULL, *wanted = NULL;
    FL_TRY(fl_jarg_str(run, &args[0], "'find'", &str));
    FL_TRY(fl_jarg_str(run, &args[1], "'find'", &wanted));
    FL_TRY(fl_jrun_charge(run, str->n));
    size_t at = fl_jstr_find(str, wanted, 0);
    *out = fl_jval_int(at == SIZE_MAX ? -1 : (int64_t)fl_jstr_length(str->bytes, at), true);
    return FL_ERR_OK;
}

static fl_err method_join(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *separator = NULL;
    const fl_jval *items;
    size_t n;
    FL_TRY(fl_jarg_str(run, &args[0], "'join'", &separator));
    FL_TRY(fl_jval_items(run, &args[1], &items, &n));
    return fl_jtext_join(run, separator, items, n, true, out);
}

/* ---- dictionaries -------------------------------------------------------------------------------------- */

static fl_err want_dict(fl_jrun *run, const fl_jval *arg, const char *doing, const fl_jdict **out) {
    if (arg->kind != FL_JDICT) return fl_jval_fail_kind(run, doing, "a dictionary", arg);
    *out = arg->as.dict;
    return FL_ERR_OK;
}

static fl_err method_get(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jdict *dict = NULL;
    const fl_jval *found;
    FL_TRY(want_dict(run, &args[0], "'get'", &dict));
    if (args[1].kind == FL_JLIST || args[1].kind == FL_JDICT) {
        return fl_jval_fail_kind(run, "'get'", "a string or number", &args[1]);
    }
    FL_TRY(fl_jval_find(run, &args[0], &args[1], &found));
    *out = found != NULL ? *found : args[2].kind != FL_JABSENT ? args[2] : fl_jval_none();
    return FL_ERR_OK;
}

static fl_err method_items(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jdict *dict = NULL;
    FL_TRY(want_dict(run, &args[0], "'items'", &dict));
    fl_jval *items = fl_jarena_alloc(&run->arena, dict->n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < dict->n; i++) {
        fl_jval *pair = fl_jarena_alloc(&run->arena, 2, sizeof *pair);
        if (pair == NULL) return fl_jarena_error(&run->arena);
        pair[0] = dict->pairs[i].key;
        pair[1] = dict->pairs[i].value;
        FL_TRY(fl_jval_from_items(run, pair, 2, true, &items[i]));
    }
    return fl_jval_from_items(run, items, dict->n, false, out);
}

static fl_err method_keys(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jdict *dict = NULL;
    const fl_jval *items;
    size_t n;
    FL_TRY(want_dict(run, &args[0], "'keys'", &dict));
    FL_TRY(fl_jval_items(run, &args[0], &items, &n));
    return fl_jval_from_items(run, items, n, false, out);
}

static fl_err method_values(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jdict *dict = NULL;
    FL_TRY(want_dict(run, &args[0], "'values'", &dict));
    fl_jval *items = fl_jarena_alloc(&run->arena, dict->n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < dict->n; i++) items[i] = dict->pairs[i].value;
    return fl_jval_from_items(run, items, dict->n, false, out);
}

/* ---- functions ----------------------------------------------------------------------------------------- */

static fl_err function_raise_exception(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    const fl_jstr *text = NULL;
    FL_TRY(fl_jval_text(run, &args[0], &text));
    *out = fl_jval_none();
    return FL_FAIL(FL_ERR_INVALID, "the chat template refuses this conversation: %.*s",
                   (int)(text->n < 400 ? text->n : 400), text->bytes);
}

/* The most items of a range, as in Jinja's sandbox. */
enum { RANGE_MAX = 100000 };

static fl_err function_range(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    int64_t bounds[3] = {0, 0, 1}; /* begin, end, step */
    for (size_t i = 0; i < 3; i++) {
        if (args[i].kind != FL_JABSENT && args[i].kind != FL_JINT && args[i].kind != FL_JBOOL) {
            return fl_jval_fail_kind(run, "'range'", "integers", &args[i]);
        }
        FL_TRY(fl_jarg_int(run, &args[i], "'range'", bounds[i], &bounds[i]));
    }
    if (args[1].kind == FL_JABSENT) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    if (bounds[2] == 0)
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": 'range' with a step of 0", run->line);
    bool up = bounds[2] > 0;
    uint64_t n = 0;
    if (up ? bounds[0] < bounds[1] : bounds[0] > bounds[1]) {
        uint64_t distance =
            up ? (uint64_t)bounds[1] - (uint64_t)bounds[0] : (uint64_t)bounds[0] - (uint64_t)bounds[1];
        uint64_t step = up ? (uint64_t)bounds[2] : 0 - (uint64_t)bounds[2];
        n = (distance - 1) / step + 1;
    }
    if (n > RANGE_MAX) {
        return FL_FAIL(FL_ERR_LIMIT, "chat template line %" PRIu32 ": 'range' of more than %d items",
                       run->line, RANGE_MAX);
    }
    fl_jval *items = fl_jarena_alloc(&run->arena, (size_t)n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    uint64_t at = (uint64_t)bounds[0];
    for (uint64_t i = 0; i < n; i++, at += (uint64_t)bounds[2]) items[i] = fl_jval_int((int64_t)at, true);
    return fl_jval_from_items(run, items, (size_t)n, false, out);
}

/* ---- tables -------------------------------------------------------------------------------------------- */

static const fl_jbuiltin methods[] = {
    {"startswith", method_startswith, 1, {"prefix"}},
    {"endswith", method_endswith, 1, {"suffix"}},
    {"removeprefix", method_removeprefix, 1, {"prefix"}},
    {"removesuffix", method_removesuffix, 1, {"suffix"}},
    {"strip", method_strip, 0, {"chars"}},
    {"lstrip", method_lstrip, 0, {"chars"}},
    {"rstrip", method_rstrip, 0, {"chars"}},
    {"split", method_split, 0, {"sep", "maxsplit"}},
    {"splitlines", method_splitlines, 0, {NULL}},
    {"replace", method_replace, 2, {"old", "new", "count"}},
    {"upper", method_upper, 0, {NULL}},
    {"lower", method_lower, 0, {NULL}},
    {"capitalize", method_capitalize, 0, {NULL}},
    {"find", method_find, 1, {"sub"}},
    {"join", method_join, 1, {"iterable"}},
    {"get", method_get, 1, {"key", "default"}},
    {"items", method_items, 0, {NULL}},
    {"keys", method_keys, 0, {NULL}},
    {"values", method_values, 0, {NULL}},
};

static const fl_jbuiltin functions[] = {
    {"raise_exception", function_raise_exception, 1, {"message"}},
    {"range", function_range, 1, {"start", "stop", "step"}},
};

static const fl_jbuiltin *find_builtin(const fl_jbuiltin *table, size_t n_table, const char *name, size_t n) {
    const fl_jstr wanted = {.bytes = name, .n = n};
    for (size_t i = 0; i < n_table; i++) {
        if (fl_jstr_is(&wanted, table[i].name)) return &table[i];
    }
    return NULL;
}

const fl_jbuiltin *fl_jbuiltin_method(const char *name, size_t n) {
    return find_builtin(methods, sizeof methods / sizeof methods[0], name, n);
}

const fl_jbuiltin *fl_jbuiltin_function(const char *name, size_t n) {
    return find_builtin(functions, sizeof functions / sizeof functions[0], name, n);
}

bool fl_jbuiltin_is_python_method(const fl_jval *object, const fl_jstr *name) {
    static const char *const of_strings[] = {
        "capitalize",  "casefold", "center",       "count",      "encode",       "endswith",
        "expandtabs",  "find",     "format",       "format_map", "index",        "isalnum",
        "isalpha",     "isascii",  "isdecimal",    "isdigit",    "islower",      "isnumeric",
        "isprintable", "isspace",  "istitle",      "isupper",    "join",         "ljust",
        "lower",       "lstrip",   "isidentifier", "maketrans",  "partition",    "replace",
        "rfind",       "rindex",   "rjust",        "rpartition", "removeprefix", "removesuffix",
        "rsplit",      "rstrip",   "split",        "splitlines", "startswith",   "strip",
        "swapcase",    "title",    "translate",    "upper",      "zfill",        NULL};
    static const char *const of_lists[] = {"append", "clear", "copy",   "count", "extend",  "index",
                                           "insert", "pop",   "remove", "sort",  "reverse", NULL};
    static const char *const of_dicts[] = {"clear", "copy",    "fromkeys",   "get",    "items",  "keys",
                                           "pop",   "popitem", "setdefault", "update", "values", NULL};
    const char *const *names = object->kind == FL_JSTR    ? of_strings
                               : object->kind == FL_JLIST ? of_lists
                               : object->kind == FL_JDICT ? of_dicts
                                                          : NULL;
    for (; names != NULL && *names != NULL; names++) {
        if (fl_jstr_is(name, *names)) return true;
    }
    return false;
}
