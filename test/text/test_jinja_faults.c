/* What the template language refuses: constructs outside the subset, bad syntax, wrong values, and every limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/jinja_render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors --- */

typedef struct refusal {
    const char *source;
    fl_err code;
    const char *detail; /* all of it */
} refusal;

static void assert_refusals(const refusal *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char *text, *marks;
        fl_err err = jinja_render_default(rows[i].source, &text, &marks);
        if (err != rows[i].code)
            fail_msg("%s: %s: %s", rows[i].source, fl_err_name(err),
                     err == FL_ERR_OK ? text : fl_err_detail());
        if (strcmp(fl_err_detail(), rows[i].detail) != 0)
            fail_msg("%s: '%s', expected '%s'", rows[i].source, fl_err_detail(), rows[i].detail);
    }
}

#define LINE(n) "chat template line " #n ": "

static void what_is_outside_the_subset_is_named_at_load(void **state) {
    (void)state;
    /* Behind `if false`, so that only the parser can have seen it. */
    static const refusal rows[] = {
        {"\n{% if false %}{% include 'x' %}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(2) "the statement 'include' is not supported"},
        {"{% if false %}\n\n{{ x|shuffle }}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(3) "the filter 'shuffle' is not supported"},
        {"{% if false %}{{ x is prime }}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the test 'prime' is not supported"},
        {"{% if false %}{{ x.title() }}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the method 'title' is not supported"},
        {"{% if false %}{{ strftime_now('%Y') }}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the function 'strftime_now' is not supported"},
        {"{% if false %}{{ x()() }}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(1) "a call of a value by '(' is not supported"},
        {"{% if false %}{{ 2 ** 3 }}{% endif %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the operator '**' is not supported"},
        {"{% for x in y recursive %}{% endfor %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the loop modifier 'recursive' is not supported"},
        {"{% for x in y %}{{ loop.cycle('a', 'b') }}{% endfor %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the method 'cycle' is not supported"},
        {"{% for x in y %}{{ loop.depth }}{% endfor %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the loop attribute 'depth' is not supported"},
        {"{% set x | upper %}a{% endset %}", FL_ERR_UNSUPPORTED,
         LINE(1) "a filter on 'set' is not supported"},
        {"{% raw %}{{ }{% endraw %}", FL_ERR_UNSUPPORTED, LINE(1) "the statement 'raw' is not supported"},
        {"{% for x in [1] %}{% macro m() %}{% endmacro %}{% endfor %}", FL_ERR_UNSUPPORTED,
         LINE(1) "inside a loop, macro or set, the statement 'macro' is not supported"},
        {"{{ f(*x) }}", FL_ERR_UNSUPPORTED, LINE(1) "the argument prefix '*' is not supported"},
        {"{{ x|join(attribute='y') }}", FL_ERR_UNSUPPORTED,
         LINE(1) "the argument 'attribute' of 'join' is not supported"},
        {"{{ x|join('a', 'b') }}", FL_ERR_UNSUPPORTED,
         LINE(1) "'join' with 2 arguments is not supported (at most 1)"},
        {"{{ namespace(x) }}", FL_ERR_UNSUPPORTED,
         LINE(1) "an unnamed argument of 'namespace' is not supported"},
        {"{{ 0x10 }}", FL_ERR_UNSUPPORTED, LINE(1) "a number like '0x' is not supported"},
        {"{{ 99999999999999999999 }}", FL_ERR_UNSUPPORTED,
         LINE(1) "the large number '99999999999999999999' is not supported"},
        {"{{ 1.00000000000000000000000000000000000000001 }}", FL_ERR_UNSUPPORTED,
         LINE(1) "the long number '1.00000000000000000000000000000000000000' is not supported"},
        {"{{ '\\N{BULLET}' }}", FL_ERR_UNSUPPORTED, LINE(1) "the escape \\N in a string is not supported"},
        {"{% for loop in x %}{% endfor %}", FL_ERR_UNSUPPORTED, LINE(1) "setting 'loop' is not supported"},
    };
    assert_refusals(rows, sizeof rows / sizeof rows[0]);
}

static void what_is_not_jinja_is_refused_at_load(void **state) {
    (void)state;
    static const refusal rows[] = {
        {"\n{{ 1", FL_ERR_DATA, LINE(2) "'{{' has no end"},
        {"{% if x %}", FL_ERR_DATA, LINE(1) "expected endif, found the template's end"},
        {"{# x", FL_ERR_DATA, LINE(1) "'{#' has no end"},
        {"{{ }}", FL_ERR_DATA, LINE(1) "expected an expression, found '}}'"},
        {"{{ f(1 2) }}", FL_ERR_DATA, LINE(1) "expected ',', found '2'"},
        {"{{ 1 'a' }}", FL_ERR_DATA, LINE(1) "expected '}}', found the string 'a'"},
        {"{% set a, b %}x{% endset %}", FL_ERR_DATA, LINE(1) "expected '=', found '%}'"},
        {"{{ 1 not 2 }}", FL_ERR_DATA, LINE(1) "expected '}}', found 'not'"},
        {"{% if 1 %}{% for x in y %}a{% endif %}", FL_ERR_DATA, LINE(1) "expected endfor, found 'endif'"},
        {"{{ 1 2 }}", FL_ERR_DATA, LINE(1) "expected '}}', found '2'"},
        {"{{ 'a }}", FL_ERR_DATA, LINE(1) "a string that begins with ' has no end"},
        {"{{ (1] }}", FL_ERR_DATA, LINE(1) "unexpected ']', expected ')'"},
        {"{{ 1) }}", FL_ERR_DATA, LINE(1) "unexpected ')'"},
        {"{{ 1 ? 2 }}", FL_ERR_DATA, LINE(1) "unexpected character U+003F"},
        {"{{ é }}", FL_ERR_DATA, LINE(1) "unexpected character U+00E9"},
        {"{% endif %}", FL_ERR_DATA, LINE(1) "expected a statement, found 'endif'"},
        {"{% for x of y %}", FL_ERR_DATA, LINE(1) "expected 'in', found 'of'"},
        {"{% if x %}{% endfor %}", FL_ERR_DATA, LINE(1) "expected endif, found 'endfor'"},
        {"{% break %}", FL_ERR_DATA, LINE(1) "break outside a loop"},
        {"{% for x in y %}{% set z %}{% continue %}{% endset %}{% endfor %}", FL_ERR_DATA,
         LINE(1) "continue outside a loop"},
        {"{{ x|replace('a') }}", FL_ERR_DATA, LINE(1) "'replace' lacks its argument 'new'"},
        {"{{ '\\x4' }}", FL_ERR_DATA, LINE(1) "bad escape in a string, 2 hex digits expected"},
        {"{{ '\\ud800' }}", FL_ERR_DATA, LINE(1) "a string has an escape of U+D800, which is no character"},
        {"{{ 012 }}", FL_ERR_DATA, LINE(1) "a number begins with 0"},
        {"{{ x[] }}", FL_ERR_DATA, LINE(1) "expected an index, found ']'"},
        {"{% set true = 1 %}", FL_ERR_DATA, LINE(1) "expected a variable name, found 'true'"},
        {"{% macro m(a=1, b) %}{% endmacro %}", FL_ERR_DATA, LINE(1) "expected a default value, found ')'"},
        {"{{ f(a=1, 2) }}", FL_ERR_DATA, LINE(1) "expected a named argument, found '2'"},
        {"{% set x = 1 }}", FL_ERR_DATA, LINE(1) "unexpected '}'"},
        {"{{ x. }}", FL_ERR_DATA, LINE(1) "expected an attribute name, found '}}'"},
        {"{{ x is }}", FL_ERR_DATA, LINE(1) "expected a test, found '}}'"},
        {"{% if x %}{{ 1 }}{% else %}{% elif y %}{% endif %}", FL_ERR_DATA,
         LINE(1) "expected endif, found 'elif'"},
        {"{%", FL_ERR_DATA, LINE(1) "'{%' has no end"},
    };
    assert_refusals(rows, sizeof rows / sizeof rows[0]);
}

static void wrong_values_are_refused_when_met(void **state) {
    (void)state;
    static const refusal rows[] = {
        {"\n\n{{ missing.x }}", FL_ERR_DATA, LINE(3) "'missing' is undefined"},
        {"{{ d.a.b }}", FL_ERR_DATA, LINE(1) "'a' is undefined"},
        {"{{ 'a' + 1 }}", FL_ERR_DATA, LINE(1) "'+' of string and integer"},
        {"{{ 'a' + none }}", FL_ERR_DATA, LINE(1) "'+' of string and none"},
        {"{{ 1 + missing }}", FL_ERR_DATA, LINE(1) "'missing' is undefined"},
        {"{{ [1] + (2,) }}", FL_ERR_DATA, LINE(1) "'+' of list and tuple"},
        {"{{ 1 // 0 }}", FL_ERR_DATA, LINE(1) "division by zero"},
        {"{{ 1 % 0.0 }}", FL_ERR_DATA, LINE(1) "division by zero"},
        {"{{ 1 < 'a' }}", FL_ERR_DATA, LINE(1) "cannot order integer and string"},
        {"{{ 1 in 'a' }}", FL_ERR_DATA, LINE(1) "'in' a string needs a string, found integer"},
        {"{{ 1 in 2 }}", FL_ERR_DATA, LINE(1) "'in' needs a string, list or dictionary, found integer"},
        {"{% for x in 1 %}{% endfor %}", FL_ERR_DATA,
         LINE(1) "iterating needs a list, dictionary or string, found integer"},
        {"{% for a, b in [[1]] %}{% endfor %}", FL_ERR_DATA, LINE(1) "2 variables for 1 values"},
        {"{{ nil|length }}", FL_ERR_DATA, LINE(1) "'length' needs a string, list or dictionary, found none"},
        {"{% set n.x = 1 %}", FL_ERR_DATA, LINE(1) "setting an attribute needs a namespace, found integer"},
        {"{{ n.strip() }}", FL_ERR_DATA, LINE(1) "'strip' needs a string, found integer"},
        {"{{ word.get('x') }}", FL_ERR_DATA, LINE(1) "'get' needs a dictionary, found string"},
        {"{{ 'a'.split('') }}", FL_ERR_DATA, LINE(1) "'split' at an empty string"},
        {"{{ {[]: 1} }}", FL_ERR_DATA, LINE(1) "a dictionary key needs a string or number, found list"},
        {"{{ [missing]|tojson }}", FL_ERR_DATA, LINE(1) "'missing' is undefined"},
        {"{{ 'abc'[::0] }}", FL_ERR_DATA, LINE(1) "a slice with a step of 0"},
        {"{{ nil[1:] }}", FL_ERR_DATA, LINE(1) "a slice needs a string or list, found none"},
        {"{{ {1: 2}|tojson(sort_keys=true) }}", FL_ERR_DATA,
         LINE(1) "'tojson' with sort_keys needs string keys, found integer"},
        {"{{ 1|tojson(separators=3) }}", FL_ERR_DATA, LINE(1) "'tojson' needs two separators, found integer"},
        {"{{ 'x'|abs }}", FL_ERR_DATA, LINE(1) "'abs' needs a number of at most 63 bits, found string"},
        {"{{ 'a'.split('b', 1.5) }}", FL_ERR_DATA, LINE(1) "'split' needs an integer, found float"},
        {"{{ d.get([]) }}", FL_ERR_DATA, LINE(1) "'get' needs a string or number, found list"},
        {"{{ range('a') }}", FL_ERR_DATA, LINE(1) "'range' needs integers, found string"},
        {"{{ [] in d }}", FL_ERR_DATA, LINE(1) "'in' a dictionary needs a string or number, found list"},
        {"{{ 1 is divisibleby 0 }}", FL_ERR_DATA, LINE(1) "division by zero"},
        {"{{ nil is odd }}", FL_ERR_DATA, LINE(1) "a test needs integers, found none"},
        {"{% for x in [1] %}{{ loop + 1 }}{% endfor %}", FL_ERR_DATA, LINE(1) "'+' of loop and integer"},
        {"{{ namespace() + true }}", FL_ERR_DATA, LINE(1) "'+' of namespace and boolean"},
        {"{{ d + 1.5 }}", FL_ERR_DATA, LINE(1) "'+' of dictionary and float"},
        {"{{ (1 if false) + 1 }}", FL_ERR_DATA, LINE(1) "undefined value"},
        {"{% for x in [1] %}{{ loop['depth'] }}{% endfor %}", FL_ERR_UNSUPPORTED,
         LINE(1) "the loop attribute 'depth' is not supported"},
        {"{{ -word }}", FL_ERR_DATA, LINE(1) "the sign '-' needs a number, found string"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", FL_ERR_DATA,
         LINE(1) "the macro 'm' is called with too many arguments"},
        {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", FL_ERR_DATA,
         LINE(1) "the macro 'm' is called with an unknown argument"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", FL_ERR_DATA,
         LINE(1) "the macro 'm' is called with an argument given twice"},
        {"{{ m() }}{% macro m() %}{% endmacro %}", FL_ERR_DATA, LINE(1) "'m' is undefined"},
        {"{{ range(1, 2, 0) }}", FL_ERR_DATA, LINE(1) "'range' with a step of 0"},
        {"{{ list }}", FL_ERR_UNSUPPORTED, LINE(1) "a list as text is not supported (use tojson or join)"},
        {"{{ d }}", FL_ERR_UNSUPPORTED, LINE(1) "a dictionary as text is not supported (use tojson or join)"},
        {"{{ 'a%s' % 1 }}", FL_ERR_UNSUPPORTED, LINE(1) "'%' on a string is not supported"},
        {"{{ d.items }}", FL_ERR_UNSUPPORTED,
         LINE(1) "the method 'items' of a dictionary without a call is not supported"},
        {"{{ word.upper }}", FL_ERR_UNSUPPORTED,
         LINE(1) "the method 'upper' of a string without a call is not supported"},
        {"{{ ['x'].append is defined }}", FL_ERR_UNSUPPORTED,
         LINE(1) "the method 'append' of a list without a call is not supported"},
        {"{{ raise_exception('roles must ' ~ word) }}", FL_ERR_INVALID,
         "the chat template refuses this conversation: roles must wort"},
        {"{{ 9223372036854775807 + 1 }}", FL_ERR_LIMIT, LINE(1) "an integer of more than 64 bits"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", FL_ERR_LIMIT, LINE(1) "an integer of more than 64 bits"},
        {"{{ range(100001)|length }}", FL_ERR_LIMIT, LINE(1) "'range' of more than 100000 items"},
    };
    assert_refusals(rows, sizeof rows / sizeof rows[0]);
}

/* ---- caps --- */

static fl_err render_repeated(const char *before, const char *middle, size_t n, const char *after) {
    char *source = jinja_repeat(before, middle, n, after), *text, *marks;
    fl_err err = jinja_render_default(source, &text, &marks);
    free(source);
    free(text);
    free(marks);
    return err;
}

static void nesting_is_capped_however_it_is_written(void **state) {
    (void)state;
    static const struct {
        const char *before, *middle, *after;
    } deep[] = {
        {"{{ ", "(", "1"},
        {"{{ ", "[", "1"},
        {"{{ ", "{'a':", "1"},
        {"{{ ", "- ", "1 }}"},
        {"{{ ", "x(", ""},
        {"{{ x", ".a", " }}"},
        {"{{ x", "[0]", " }}"},
        {"{{ x", "|trim", " }}"},
        {"{{ x", " is defined", " }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for x in y %}", ""},
        {"", "{% set x %}", ""},
        {"{{ ", "1 if 1 else ", "1 }}"},
        {"{{ 1", " if 1", " }}"},
        {"{{ ", "x.get(", ""},
        {"{{ ", "x|d(", ""},
        {"{{ 1 ", "is eq [", ""},
    };
    for (size_t i = 0; i < sizeof deep / sizeof deep[0]; i++) {
        fl_err err = render_repeated(deep[i].before, deep[i].middle, 60000, deep[i].after);
        if (err != FL_ERR_LIMIT) fail_msg("%s: %s: %s", deep[i].middle, fl_err_name(err), fl_err_detail());
    }
    /* What is long but not deep is fine. */
    assert_int_equal(render_repeated("{{ 1", " + 1", 50000, " }}"), FL_ERR_OK);
    assert_int_equal(render_repeated("{{ ", "not ", 50001, "1 }}"), FL_ERR_OK);
    assert_int_equal(render_repeated("{{ '' ", "'a'", 50000, " }}"), FL_ERR_OK);
    assert_int_equal(render_repeated("{% if 0 %}", "{% elif 0 %}", 50000, "{% endif %}"), FL_ERR_OK);
    assert_int_equal(render_repeated("{{ [", "1,", 50000, "]|length }}"), FL_ERR_OK);
    assert_int_equal(render_repeated("{{ ", "(", 90, "1") == FL_ERR_LIMIT,
                     0); /* the bracket is missing, that is all */
}

/* The limit itself is allowed, one less is not. */
static void nesting_is_counted_exactly(void **state) {
    (void)state;
    static const struct {
        const char *source;
        size_t levels;
    } rows[] = {
        {"x", 2},         /* block, text */
        {"{{ 1 }}", 3},   /* block, print, constant; and as open constructs block, expression, operand */
        {"{{ (1) }}", 5}, /* two more open constructs */
        {"{{ [1] }}", 5},
        {"{{ word|trim|trim|trim }}", 6}, /* block, print, three filters, name */
        {"{% if 1 %}x{% endif %}", 4},    /* block, if, block, text */
        {"{{ [[[2]]]|length }}", 9},
    };
    fl_jinja_limits limits;
    char *text, *marks;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fl_jinja_limits_default(&limits);
        limits.nesting = rows[i].levels;
        fl_err err = jinja_render(rows[i].source, strlen(rows[i].source), &limits, &text, &marks);
        if (err == FL_ERR_LIMIT) fail_msg("%s is deeper than %zu", rows[i].source, rows[i].levels);
        free(text);
        free(marks);
        limits.nesting--;
        err = jinja_render(rows[i].source, strlen(rows[i].source), &limits, &text, &marks);
        if (err != FL_ERR_LIMIT) fail_msg("%s is not deeper than %zu", rows[i].source, limits.nesting);
    }
}

static void rendering_is_capped(void **state) {
    (void)state;
    static const refusal rows[] = {
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", FL_ERR_LIMIT,
         LINE(1) "evaluation nested deeper than 400 levels"},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", FL_ERR_LIMIT,
         LINE(1) "more than 20000000 steps"},
        {"{% set ns = namespace(x=[]) %}{% for a in range(200) %}{% set ns.x = [ns.x] %}{% endfor %}",
         FL_ERR_LIMIT, LINE(1) "a value nested deeper than 100 levels"},
        {"{% set ns = namespace(x='a') %}{% for a in range(200) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
         FL_ERR_LIMIT, "chat template: its values need more than 268435456 bytes"},
        {"{{ 'x' * 999999999 }}", FL_ERR_LIMIT, LINE(1) "more than 20000000 steps"},
        {"{% set x = 'x' * 1000000 %}{% for a in range(200) %}{{ x }}{% endfor %}", FL_ERR_LIMIT,
         "chat template: the text is longer than 67108864 bytes"},
    };
    assert_refusals(rows, sizeof rows / sizeof rows[0]);
}

static void small_limits_hold_one_by_one(void **state) {
    (void)state;
    static const char source[] = "{% for x in [1, [2, [3]]] %}{{ loop.index ~ 'abcdef' }}{% endfor %}";
    fl_jinja_limits limits;
    char *text, *marks;
    for (int which = 0; which < 7; which++) {
        fl_jinja_limits_default(&limits);
        if (which == 0) limits.template_bytes = sizeof source - 2;
        if (which == 1) limits.tree_bytes = 4000;
        if (which == 2) limits.nesting = 3;
        if (which == 3) limits.eval_nesting = 4;
        if (which == 4) limits.steps = 20;
        if (which == 5) limits.output_bytes = 13;
        if (which == 6) limits.value_bytes = 1000;
        if (jinja_render(source, sizeof source - 1, &limits, &text, &marks) != FL_ERR_LIMIT)
            fail_msg("limit %d", which);
    }
    fl_jinja_limits_default(&limits);
    limits.template_bytes = sizeof source - 1;
    limits.output_bytes = 14;
    assert_int_equal(jinja_render(source, sizeof source - 1, &limits, &text, &marks), FL_ERR_OK);
    assert_string_equal(text, "1abcdef2abcdef");
    free(text);
    free(marks);
}

static void names_are_capped(void **state) {
    (void)state;
    char *source = malloc(5000 * 12 + 1), *end = source, *text, *marks;
    assert_non_null(source);
    for (int i = 0; i < 5000; i++) end += sprintf(end, "{{ v%d }}", i);
    assert_int_equal(jinja_render_default(source, &text, &marks), FL_ERR_LIMIT);
    assert_string_equal(fl_err_detail(), LINE(1) "more than 4096 variable names");
    free(source);
}

/* Every allocation fails once: whatever the limit, the answer is FL_ERR_LIMIT or the right text, and nothing leaks. */
static void any_memory_limit_fails_cleanly(void **state) {
    (void)state;
    static const char source[] = "{%- macro m(a, b='x') %}{{ a ~ b }}{% endmacro %}{% set ns = "
                                 "namespace(s='', l=[]) %}{% for k, v in d.items() if k %}"
                                 "{% set ns.s = ns.s + m(k) + content.replace('s', k)[1:-1:2] ~ loop.index "
                                 "%}{% set ns.t = [ns.s] + list %}"
                                 "{% set y %}{{ {'a': [ns.s]}|tojson(sort_keys=true) }}{% endset %}{{ "
                                 "y.split(',')|join(other)|upper }}{% endfor %}";
    fl_jinja_limits limits;
    size_t n_limited = 0, n_done = 0;
    char *text, *marks;
    for (int tree = 0; tree < 2; tree++) {
        for (size_t bytes = 0; bytes < 120000; bytes += bytes < 30000 ? 48 : 997) {
            fl_jinja_limits_default(&limits);
            if (tree == 1) limits.tree_bytes = bytes;
            else limits.value_bytes = bytes;
            fl_err err = jinja_render(source, sizeof source - 1, &limits, &text, &marks);
            if (err != FL_ERR_OK) assert_int_equal(err, FL_ERR_LIMIT);
            n_limited += err != FL_ERR_OK;
            n_done += err == FL_ERR_OK;
            free(text);
            free(marks);
        }
    }
    assert_true(n_limited > 300 && n_done > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_outside_the_subset_is_named_at_load),
        cmocka_unit_test(what_is_not_jinja_is_refused_at_load),
        cmocka_unit_test(wrong_values_are_refused_when_met),
        cmocka_unit_test(nesting_is_capped_however_it_is_written),
        cmocka_unit_test(nesting_is_counted_exactly),
        cmocka_unit_test(rendering_is_capped),
        cmocka_unit_test(small_limits_hold_one_by_one),
        cmocka_unit_test(names_are_capped),
        cmocka_unit_test(any_memory_limit_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
