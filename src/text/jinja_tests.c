/* The tests of `is`. args[0] is what is tested. */
#include "text/jinja_args.h"
#include "text/jinja_str.h"
#include "text/jinja_tree.h"

#include <inttypes.h>

/* Tests that only look at the kind. */
#define KIND_TEST(name, condition)                                                                           \
    static fl_err test_##name(fl_jrun *run, const fl_jval *args, fl_jval *out) {                             \
        (void)run;                                                                                           \
        fl_jkind kind = args[0].kind;                                                                        \
        *out = fl_jval_bool(condition);                                                                      \
        return FL_ERR_OK;                                                                                    \
    }

KIND_TEST(defined, kind != FL_JUNDEFINED)
KIND_TEST(undefined, kind == FL_JUNDEFINED)
KIND_TEST(none, kind == FL_JNONE)
KIND_TEST(boolean, kind == FL_JBOOL)
KIND_TEST(true, kind == FL_JBOOL && args[0].as.truth)
KIND_TEST(false, kind == FL_JBOOL && !args[0].as.truth)
KIND_TEST(integer, kind == FL_JINT)
KIND_TEST(float, kind == FL_JFLOAT)
KIND_TEST(number, kind == FL_JBOOL || kind == FL_JINT || kind == FL_JFLOAT)
KIND_TEST(string, kind == FL_JSTR)
KIND_TEST(mapping, kind == FL_JDICT)
KIND_TEST(sequence, kind == FL_JSTR || kind == FL_JLIST || kind == FL_JDICT || kind == FL_JUNDEFINED)
KIND_TEST(iterable, kind == FL_JSTR || kind == FL_JLIST || kind == FL_JDICT || kind == FL_JUNDEFINED ||
                        kind == FL_JLOOP)

static fl_err divides(fl_jrun *run, const fl_jval *x, const fl_jval *by, int64_t rest, fl_jval *out) {
    int64_t value, divisor;
    if (x->kind == FL_JNONE || by->kind == FL_JNONE)
        return fl_jval_fail_kind(run, "a test", "integers", &(fl_jval){.kind = FL_JNONE});
    FL_TRY(fl_jarg_int(run, x, "a test", 0, &value));
    FL_TRY(fl_jarg_int(run, by, "a test", 0, &divisor));
    if (divisor == 0)
        return FL_FAIL(FL_ERR_DATA, "chat template line %" PRIu32 ": division by zero", run->line);
    int64_t found = divisor == -1 ? 0 : value % divisor; /* INT64_MIN % -1 overflows */
    *out = fl_jval_bool(found == rest || found == -rest);
    return FL_ERR_OK;
}

static fl_err test_divisibleby(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    return divides(run, &args[0], &args[1], 0, out);
}

static fl_err test_even(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    fl_jval two = fl_jval_int(2, true);
    return divides(run, &args[0], &two, 0, out);
}

static fl_err test_odd(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    fl_jval two = fl_jval_int(2, true);
    return divides(run, &args[0], &two, 1, out);
}

static fl_err test_eq(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    bool same;
    FL_TRY(fl_jval_equal(run, &args[0], &args[1], &same));
    *out = fl_jval_bool(same);
    return FL_ERR_OK;
}

static fl_err test_ne(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    FL_TRY(test_eq(run, args, out));
    *out = fl_jval_bool(!out->as.truth);
    return FL_ERR_OK;
}

static fl_err test_in(fl_jrun *run, const fl_jval *args, fl_jval *out) {
    bool found;
    FL_TRY(fl_jval_contains(run, &args[1], &args[0], &found));
    *out = fl_jval_bool(found);
    return FL_ERR_OK;
}

#define ORDER_TEST(name, condition)                                                                          \
    static fl_err test_##name(fl_jrun *run, const fl_jval *args, fl_jval *out) {                             \
        int order;                                                                                           \
        FL_TRY(fl_jval_compare(run, &args[0], &args[1], &order));                                            \
        *out = fl_jval_bool(condition);                                                                      \
        return FL_ERR_OK;                                                                                    \
    }

ORDER_TEST(lt, order == -1)
ORDER_TEST(le, order == -1 || order == 0)
ORDER_TEST(gt, order == 1)
ORDER_TEST(ge, order == 1 || order == 0)

static const fl_jbuiltin tests[] = {
    {"defined", test_defined, 0, {NULL}},   {"undefined", test_undefined, 0, {NULL}},
    {"none", test_none, 0, {NULL}},         {"boolean", test_boolean, 0, {NULL}},
    {"true", test_true, 0, {NULL}},         {"false", test_false, 0, {NULL}},
    {"integer", test_integer, 0, {NULL}},   {"float", test_float, 0, {NULL}},
    {"number", test_number, 0, {NULL}},     {"string", test_string, 0, {NULL}},
    {"mapping", test_mapping, 0, {NULL}},   {"sequence", test_sequence, 0, {NULL}},
    {"iterable", test_iterable, 0, {NULL}}, {"odd", test_odd, 0, {NULL}},
    {"even", test_even, 0, {NULL}},         {"divisibleby", test_divisibleby, 1, {"num"}},
    {"eq", test_eq, 1, {"other"}},          {"equalto", test_eq, 1, {"other"}},
    {"ne", test_ne, 1, {"other"}},          {"in", test_in, 1, {"seq"}},
    {"lt", test_lt, 1, {"other"}},          {"lessthan", test_lt, 1, {"other"}},
    {"le", test_le, 1, {"other"}},          {"gt", test_gt, 1, {"other"}},
    {"greaterthan", test_gt, 1, {"other"}}, {"ge", test_ge, 1, {"other"}},
};

const fl_jbuiltin *fl_jbuiltin_test(const char *name, size_t n) {
    const fl_jstr wanted = {.bytes = name, .n = n};
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (fl_jstr_is(&wanted, tests[i].name)) return &tests[i];
    }
    return NULL;
}
