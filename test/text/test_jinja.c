/* The template language: tables of templates with what they must give, and where each byte of that came from. What
 * Jinja itself gives for such templates is checked at random by chat_oracle.py; here stands what must hold by
 * definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/jinja_render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    const char *source, *expect;
} row;

static void assert_rows(const row *rows, size_t n, bool expressions) {
    for (size_t i = 0; i < n; i++) {
        char source[600], *text, *marks;
        snprintf(source, sizeof source, expressions ? "{{ %s }}" : "%s", rows[i].source);
        if (jinja_render_default(source, &text, &marks) != FL_ERR_OK)
            fail_msg("%s: %s", source, fl_err_detail());
        if (strcmp(text, rows[i].expect) != 0)
            fail_msg("%s: '%s', expected '%s'", source, text, rows[i].expect);
        free(text);
        free(marks);
    }
}

#define ASSERT_ROWS(rows, expressions) assert_rows((rows), sizeof(rows) / sizeof((rows)[0]), (expressions))

/* ---- expressions --- */

static void numbers(void **state) {
    (void)state;
    static const row rows[] = {
        {"1 + 2 * 3", "7"},
        {"(1 + 2) * 3", "9"},
        {"7 // 2", "3"},
        {"-7 // 2", "-4"},
        {"7 // -2", "-4"},
        {"-7 % 3", "2"},
        {"7 % -3", "-2"},
        {"7 / 2", "3.5"},
        {"4 / 2", "2.0"},
        {"1 - 2 - 3", "-4"},
        {"2 - -3", "5"},
        {"- - 3", "3"},
        {"+3", "3"},
        {"-true", "-1"},
        {"true + true", "2"},
        {"1.5 + 1", "2.5"},
        {"7.5 // 2", "3.0"},
        {"-7.5 % 2", "0.5"},
        {"1e3", "1000.0"},
        {"0.1 + 0.2", "0.30000000000000004"},
        {"1e16", "1e+16"},
        {"123456789012345.0", "123456789012345.0"},
        {"1e-5", "1e-05"},
        {"0.0001", "0.0001"},
        {"1.5e300 * 1e300", "inf"},
        {"5e-324", "5e-324"},
        {"1.25E+2", "125.0"},
        {"n + f", "9.5"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775807 - 1", "-9223372036854775808"},
        {"n|string + '!'", "7!"},
        {"-5|abs", "5"},
        {"(-2.5)|abs", "2.5"},
        {"' -12 '|int + 1", "-11"},
        {"'x'|int(3)", "3"},
        {"2.9|int", "2"},
        {"5.5 - 1", "4.5"},
        {"-4.0 % 2", "0.0"},
        {"4.0 % -2", "-0.0"},
        {"true|abs", "1"},
        {"'99999999999999999999'|int(1)", "1"},
        {"0", "0"},

    };
    ASSERT_ROWS(rows, true);
}

static void comparisons_and_logic(void **state) {
    (void)state;
    static const row rows[] = {
        {"1 < 2", "True"},
        {"1 < 2 < 3", "True"},
        {"1 < 3 < 2", "False"},
        {"3 > 2 >= 2 != 1", "True"},
        {"1 == 1.0", "True"},
        {"true == 1", "True"},
        {"'a' < 'b'", "True"},
        {"'a' < 'a'", "False"},
        {"'' < 'a'", "True"},
        {"[1, [2]] == [1, [2]]", "True"},
        {"[1] == (1,)", "False"},
        {"{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "True"},
        {"{'a': 1} == {'a': 2}", "False"},
        {"none == none", "True"},
        {"missing == absent", "True"},
        {"missing == none", "False"},
        {"'1' == 1", "False"},
        {"'b' in 'abc'", "True"},
        {"'' in ''", "True"},
        {"1 in [1, 2]", "True"},
        {"3 not in [1, 2]", "True"},
        {"'k' in d", "True"},
        {"'v' in d", "False"},
        {"'x' in missing", "False"},
        {"1 and 2", "2"},
        {"0 and 2", "0"},
        {"0 or 'x'", "x"},
        {"'' or [] or 'z'", "z"},
        {"not 0", "True"},
        {"not not 3", "True"},
        {"not 1 == 2", "True"},
        {"not none and 1", "1"},
        {"1 if yes", "1"},
        {"1 if not yes", ""},
        {"1 if nil else 2", "2"},
        {"'a' if false else 'b' if false else 'c'", "c"},
        {"1 or 2 and 0", "1"},
        {"1 < 2 and 2 < 1", "False"},
    };
    ASSERT_ROWS(rows, true);
}

static void strings(void **state) {
    (void)state;
    static const row rows[] = {
        {"'a' + 'b' + 'c'", "abc"},
        {"'a' 'b' \"c\"", "abc"},
        {"1 ~ 'x' ~ none ~ true", "1xNoneTrue"},
        {"'ab' * 3", "ababab"},
        {"2 * 'ab'", "abab"},
        {"'ab' * -1", ""},
        {"'a' ~ 1 + 2 if false else 'q'", "q"},
        {"'\\x41\\u00e9\\U0001F600\\101\\q\\''", "Aé😀A\\q'"},
        {"\"it's\"", "it's"},
        {"'a\\\nb'", "ab"},
        {"uni[1]", "é"},
        {"uni[-2]", "😀"},
        {"uni[9]", ""},
        {"uni[1:3]", "é漢"},
        {"uni[:-1]", "aé漢😀"},
        {"uni[::-1]", "z😀漢éa"},
        {"uni[::2]", "a漢z"},
        {"uni[3:1:-1]", "😀漢"},
        {"uni[-100:100]", "aé漢😀z"},
        {"uni[::9223372036854775807]", "a"},
        {"uni[::-9223372036854775807]", "z"},
        {"uni[1:4:3]", "é"},
        {"uni[:0:-2]", "z漢"},
        {"uni[4:2]", ""},
        {"uni|length", "5"},
        {"'abc'.startswith('ab')", "True"},
        {"'abc'.endswith(('x', 'c'))", "True"},
        {"'abc'.startswith(('x', 'ab', 'y'))", "True"},
        {"'abc'.startswith(('x', 'b'))", "False"},
        {"'abc'.startswith(())", "False"},
        {"'abc'.startswith('')", "True"},
        {"'[' + ' \\n a b\\t'.strip() + ']'", "[a b]"},
        {"'xxaxx'.strip('x')", "a"},
        {"'éaé'.strip('é')", "a"},
        {"'xxaxx'.lstrip('x')", "axx"},
        {"'xxaxx'.rstrip('x')", "xxa"},
        {"'\\u3000a\\u2028'|trim", "a"},
        {"'a,b,,c'.split(',')|join('|')", "a|b||c"},
        {"'a,b,c'.split(',', 1)|join('|')", "a|b,c"},
        {"' a  b c '.split()|join('|')", "a|b|c"},
        {"' a  b c '.split(none, 1)|join('|')", "a|b c "},
        {"''.split(',')|length", "1"},
        {"''.split()|length", "0"},
        {"'a-b-c'.replace('-', '+', 1)", "a+b-c"},
        {"'ab'.replace('', '.')", ".a.b."},
        {"'aaa'|replace('aa', 'b')", "ba"},
        {"'aBc'.lower() ~ 'aBC'.capitalize() ~ 'x'|safe", "abcAbcx"},
        {"'aBc'.upper() + 'aBc'|lower", "ABCabc"},
        {"'hELLO'|capitalize", "Hello"},
        {"'a\\nb\\r\\nc\\n'.splitlines()|join('|')", "a|b|c"},
        {"'abc'.find('c')", "2"},
        {"uni.find('漢')", "2"},
        {"'abc'.find('x')", "-1"},
        {"','.join(['a', 'b'])", "a,b"},
        {"'abc'|reverse", "cba"},
        {"'prefix'.removeprefix('pre') ~ 'a.txt'.removesuffix('.txt')", "fixa"},
        {"'abc'|first ~ 'abc'|last", "ac"},
        {"'ab'|list|join('-')", "a-b"},
        {"'abc'['upper'] is defined if false else 'skipped'", "skipped"},
    };
    ASSERT_ROWS(rows, true);
}

static void containers(void **state) {
    (void)state;
    static const row rows[] = {
        {"list[1]", "b"},
        {"list[-3]", "1"},
        {"list[5] is defined", "False"},
        {"list|length", "3"},
        {"list.1", "b"},
        {"[1, 2, 3][1:]|join", "23"},
        {"(1, 2, 3)[::-1]|join(',')", "3,2,1"},
        {"[]|length", "0"},
        {"()|length", "0"},
        {"(1,)|length", "1"},
        {"(1)", "1"},
        {"[1,]|length", "1"},
        {"([1] + [2])|join(',')", "1,2"},
        {"d.k", "v"},
        {"d['k']", "v"},
        {"d.nope is defined", "False"},
        {"d['items']", "1"},
        {"d.get('k')", "v"},
        {"d.get('x')", "None"},
        {"d.get('x', 5)", "5"},
        {"d.keys()|join(',')", "k,items,e,l"},
        {"{'a': 1, 'a': 2, 'b': 3}.values()|join(',')", "2,3"},
        {"{1: 'x'}[1]", "x"},
        {"{'a': 1}.items()|list|first|join('=')", "a=1"},
        {"d|items|length", "4"},
        {"dict(a=1, b=2)|list|join", "ab"},
        {"range(3)|join", "012"},
        {"range(1, 4)|join", "123"},
        {"range(5, 0, -2)|join", "531"},
        {"range(100000)|length", "100000"},
        {"range(3, 3)|length", "0"},
        {"range(2, -9223372036854775807, -9223372036854775807)|join(' ')", "2 -9223372036854775805"},
        {"range(0)|length", "0"},
        {"none.x is defined", "False"},
        {"5.x is defined if false else n.x is defined", "False"},
        {"nil['x'] is defined", "False"},
        {"[1, 2]|last", "2"},
        {"[]|first is defined", "False"},
        {"[3, 1]|reverse|join", "13"},
        {"list|join('-')", "1-b-None"},
        {"missing|list|length", "0"},
        {"missing|length", "0"},
        {"{}|length", "0"},
        {"namespace(a=1) is defined and loopless is not defined", "True"},
        {"namespace() == namespace()", "False"},
        {"1 if namespace() else 2", "1"},
        {"1 if {} else 2", "2"},
        {"1 if 0.0 else 2", "2"},
        {"namespace(a=1).a", "1"},
        {"namespace(a=1).b is defined", "False"},
        {"dict(a=1).a", "1"},
    };
    ASSERT_ROWS(rows, true);
}

static void tests_and_defaults(void **state) {
    (void)state;
    static const row rows[] = {
        {"missing is defined", "False"},
        {"missing is undefined", "True"},
        {"nil is none", "True"},
        {"nil is not none", "False"},
        {"not nil is defined", "False"},
        {"'a' is string", "True"},
        {"1 is string", "False"},
        {"d is mapping", "True"},
        {"list is mapping", "False"},
        {"list is iterable", "True"},
        {"1 is iterable", "False"},
        {"'a' is sequence", "True"},
        {"true is number", "True"},
        {"true is integer", "False"},
        {"1 is integer", "True"},
        {"f is float", "True"},
        {"yes is true", "True"},
        {"1 is true", "False"},
        {"false is false", "True"},
        {"yes is boolean", "True"},
        {"3 is odd", "True"},
        {"-3 is odd", "True"},
        {"4 is even", "True"},
        {"9 is divisibleby 3", "True"},
        {"9 is divisibleby(2)", "False"},
        {"word is eq 'wort'", "True"},
        {"'wort' is eq word or false", "True"},
        {"7 is eq n", "True"},
        {"1 is eq not_there or true", "True"},
        {"1 not in [] if true", "True"},
        {"1 is eq 1", "True"},
        {"1 is ne(2)", "True"},
        {"2 is in [1, 2]", "True"},
        {"2 is gt 1 and 1 is lt 2", "True"},
        {"1 is ge 2", "False"},
        {"2 is le 1", "False"},
        {"1 is gt 1", "False"},
        {"1 is lt 1", "False"},
        {"2 is greaterthan 1", "True"},
        {"1 is lessthan 1", "False"},
        {"2 is equalto 1", "False"},
        {"1 is le 1 and 1 is ge 1", "True"},
        {"missing|default('x')", "x"},
        {"''|default('x')", ""},
        {"''|default('x', true)", "x"},
        {"missing|d", ""},
        {"0|default(default_value=5, boolean=true)", "5"},
        {"missing.x is defined if false else 1", "1"},
        {"missing", ""},
        {"missing ~ 'a'", "a"},
        {"missing|trim|upper ~ '.'", "."},
        {"'a' is not number", "True"},
        {"(list is defined and list)|length", "3"},
    };
    ASSERT_ROWS(rows, true);
}

static void json(void **state) {
    (void)state;
    static const row rows[] = {
        {"list|tojson", "[1, \"b\", null]"},
        {"d|tojson", "{\"k\": \"v\", \"items\": 1, \"e\": {}, \"l\": []}"},
        {"esc|tojson", "\"\\\"\\\\\\n\\u0001\x7fé😀\""},
        {"esc|tojson(ensure_ascii=true)", "\"\\\"\\\\\\n\\u0001\\u007f\\u00e9\\ud83d\\ude00\""},
        {"[true, none, 1.5, 2.0, 1e100]|tojson", "[true, null, 1.5, 2.0, 1e+100]"},
        {"{'b': 1, 'a': [2]}|tojson(sort_keys=true, indent=2)", "{\n  \"a\": [\n    2\n  ],\n  \"b\": 1\n}"},
        {"d|tojson(separators=(',', ':'))", "{\"k\":\"v\",\"items\":1,\"e\":{},\"l\":[]}"},
        {"{1: 2, none: 3, true: 4}|tojson", "{\"1\": 4, \"null\": 3}"},
        {"{'a': 1}|tojson(indent=1)", "{\n \"a\": 1\n}"},
        {"[[1, [2]], {}]|tojson(indent=1)", "[\n [\n  1,\n  [\n   2\n  ]\n ],\n {}\n]"},
        {"'\\0'|tojson", "\"\\u0000\""},
        {"'a'|tojson ~ (-3)|tojson", "\"a\"-3"},
        {"[]|tojson(indent=1)", "[]"},
        {"(1e300 * 1e300)|tojson", "Infinity"},
        {"[1]|tojson(indent=0)", "[\n1\n]"},
    };
    ASSERT_ROWS(rows, true);
}

/* ---- statements --- */

static void statements(void **state) {
    (void)state;
    static const row rows[] = {
        {"{% if n > 5 %}a{% elif n %}b{% else %}c{% endif %}", "a"},
        {"{% if nil %}a{% elif n %}b{% else %}c{% endif %}", "b"},
        {"{% if nil %}a{% elif 0 %}b{% else %}c{% endif %}", "c"},
        {"{% for x in list %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ x }};{% endfor %}",
         "1TrueFalse1;2FalseFalseb;3FalseTrueNone;"},
        {"{% for x in [1,2] %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }};{% "
         "endfor %}",
         "0212;1102;"},
        {"{% for x in 'ab' %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{% endfor %}", "<a>ba<b>"},
        {"{% for k, v in d.items() %}{{ k }}={{ v is mapping }} {% endfor %}",
         "k=False items=False e=True l=False "},
        {"{% for x in range(6) if x is odd %}{{ x }}{{ loop.length }} {% endfor %}", "13 33 53 "},
        {"{% for x in [4, 5, 6] if x is even %}{{ x }}{{ loop.last }} {% endfor %}", "4False 6True "},
        {"{% for x in [1] %}{% continue %}{% else %}e{% endfor %}", "e"},
        {"{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}", ""},
        {"{% for x, y in ['ab', 'cd'] %}{{ y }}{{ x }}{% endfor %}", "badc"},
        {"{% set ns = namespace() %}{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.length }}",
         "2"},
        {"{% for x in [] %}a{% else %}b{% endfor %}", "b"},
        {"{% for x in missing %}a{% endfor %}.", "."},
        {"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif "
         "%}{{ x }}{% endfor %}",
         "02"},
        {"{% for x in [1,2] %}{% for y in [1,2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }}{{ "
         "loop.index }} {% endfor %}{{ loop.index }}{% endfor %}",
         "111 1211 2"},
        {"{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "231"},
        {"{% for i in [1] %}{% set x = 5 %}{% endfor %}{{ x }}", ""},
        {"{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "5"},
        {"{% set a, b = 1, 'z' %}{{ b }}{{ a }}", "z1"},
        {"{% set a = 1, 2 %}{{ a[1] }}", "2"},
        {"{% set ns = namespace(x=0) %}{% for i in range(4) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x "
         "}}",
         "6"},
        {"{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = 2 %}{% set ns.a = 3 %}{{ ns.a }}{{ ns.b "
         "}}",
         "32"},
        {"{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}", "a7b3"},
        {"{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ "
         "m() }}",
         "[1d][12][43][d]"},
        {"{% macro m(k) %}{% if k %}{{ k }}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "321"},
        {"{% set x = 'top' %}{% macro m() %}{{ x }}{{ i }}{% endmacro %}{% for i in [1] %}{% set x = 'in' "
         "%}{{ m() }}{{ x }}{% endfor %}",
         "topin"},
        {"{% macro m(x) %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{% set x = 9 %}{{ m(1) }}{{ x }}",
         "129"},
        {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "B"},
        {"{# a {{ comment }} #}x{#- y -#}", "x"},
        {"{{ loop is defined }}{% for loop_ in [1] %}{{ loop is defined }}{% endfor %}", "FalseTrue"},
    };
    ASSERT_ROWS(rows, false);
}

static void white_space(void **state) {
    (void)state;
    static const row rows[] = {
        {"a\n", "a"},
        {"a\n\n", "a\n"},
        {"a\r\nb\rc", "a\nb\nc"},
        {"{% if 1 %}\nx\n{% endif %}\ny", "x\ny"},
        {"  {% if 1 %}\n  x\n  {% endif %}\ny", "  x\ny"},
        {"a {% if 1 %} b {% endif %} c", "a  b  c"},
        {"a \n {%- if 1 -%} \n b \n {%- endif -%} \n c", "abc"},
        {"  {%+ if 1 %}x{% endif %}", "  x"},
        {"{% if 1 +%}\nx{% endif %}", "\nx"},
        {"  {{ 1 }}\n", "  1"},
        {"a\n{{- 1 -}}\n b", "a1b"},
        {"  {# c #}\nx", "x"},
        {"a\n  {# c #}\nb", "a\nb"},
        {"x  {# c #}\n", "x  "},
        {"{# c -#} \n x", "x"},
        {"\n  {%- set x = 1 %}\n  y", "  y"},
        {"{% set x = 1 %}  {% set y = 2 %}z", "  z"},
        {"{{ 1 }}  {% if 1 %}z{% endif %}", "1  z"},
        {"{% set x = 1 -%}\n  {% if 1 %}z{% endif %}", "z"},
        {"\xe3\x80\x80{%- if 1 %}z{% endif %}", "z"},
        {"{{ {'a': {'b': 1}}.a.b }}", "1"},
        {"{{'}}'}}{{\"%}\"}}", "}}%}"},
        {"{ { %} #} }", "{ { %} #} }"},
        {"", ""},
        {"\n", ""},
    };
    ASSERT_ROWS(rows, false);
}

/* ---- provenance --- */

typedef struct marked {
    const char *source, *text, *marks;
} marked;

static void every_byte_keeps_its_origin(void **state) {
    (void)state;
    static const marked rows[] = {
        {"a{{ content }}b{{ other }}{{ word }}", "a <s> x byzwort", "t0000000t11...."},
        {"{{ 'a' + content + 'b' }}", "a <s> x b", "t0000000t"},
        {"{{ 'a' ~ other ~ 1 ~ n ~ none }}", "ayz17None", "t11t.tttt"},
        {"{{ (content + '!')|trim }}", "<s> x !", "000000t"},
        {"{{ content[1:4] ~ other[::-1] }}", "<s>zy", "00011"},
        {"{{ content.strip().split(' ')|join('<s>') }}", "<s><s>x", "000ttt0"},
        {"{{ content.replace('s', 'TT') }}", " <TT> x ", "00tt0000"},
        {"{{ ('<s>' + other)|replace(other, '') }}", "<s>", "ttt"},
        {"{{ content|replace(' ', other) }}", "yz<s>yzxyz", "1100011011"},
        {"{{ (word ~ content)|upper }}", "WORT <S> X ", "....0000000"},
        {"{{ [content, word]|tojson }}", "[\" <s> x \", \"wort\"]", "..0000000.........."},
        {"{{ {'k': other}|tojson }}", "{\"k\": \"yz\"}", "..t....11.."},
        {"{% set x %}<{{ other }}>{% endset %}{{ x }}", "<yz>", "t11t"},
        {"{% macro m(a) %}<{{ a }}{% endmacro %}{{ m(other) }}", "<yz", "t11"},
        {"{% for c in other %}{{ c }}-{% endfor %}", "y-z-", "1t1t"},
        {"{{ other * 2 }}{{ 'q' * 2 }}", "yzyzqq", "1111tt"},
        {"{{ n + 1 }}{{ 3 + 4 }}{{ loop }}{{ n|string ~ f }}", "8772.5", ".t...."},
        {"{{ other if true else word }}{{ missing|default(other) }}", "yzyz", "1111"},
        {"{% set ns = namespace(s='') %}{% set ns.s = ns.s + other %}{{ ns.s }}", "yz", "11"},
        {"{{ content|first ~ content|list|last ~ content[3] }}", "  >", "000"},
        {"{{ ('<' ~ other ~ '|' ~ content ~ '>')[1:-1].split('|')[1] }}", " <s> x ", "0000000"},
        {"{{ (other ~ '-' ~ word ~ '-' ~ content)[1:11] }}", "z-wort- <s", "1t....t000"},
        {"{{ other|reverse }}{{ other.splitlines()[0] }}{{ other.removeprefix('y') }}", "zyyzz", "11111"},
        {"{{ '%s' ~ d.k ~ d.keys()|first }}", "%svk", "tt.."},
        {"{{ '12'|int }}{{ word|length }}", "124", "..t"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text, *marks;
        if (jinja_render_default(rows[i].source, &text, &marks) != FL_ERR_OK)
            fail_msg("%s: %s", rows[i].source, fl_err_detail());
        if (strcmp(text, rows[i].text) != 0)
            fail_msg("%s: '%s', expected '%s'", rows[i].source, text, rows[i].text);
        if (strcmp(marks, rows[i].marks) != 0)
            fail_msg("%s: '%s' has '%s', expected '%s'", rows[i].source, text, marks, rows[i].marks);
        free(text);
        free(marks);
    }
}

/* The number of arena bytes shows a copy for each operator: 30 additions to a large content must not make 30 copies. */
static void a_chain_of_additions_copies_once(void **state) {
    (void)state;
    fl_jinja_limits limits;
    fl_jinja_limits_default(&limits);
    limits.value_bytes = 12 << 20;
    char *source = jinja_repeat("{% set x = 'x' * 1000000 %}{{ x", " + 'a'", 30, " }}"), *text, *marks;
    assert_int_equal(jinja_render(source, strlen(source), &limits, &text, &marks), FL_ERR_OK);
    assert_int_equal(strlen(text), 1000030);
    free(source);
    free(text);
    free(marks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(comparisons_and_logic),
        cmocka_unit_test(strings),
        cmocka_unit_test(containers),
        cmocka_unit_test(tests_and_defaults),
        cmocka_unit_test(json),
        cmocka_unit_test(statements),
        cmocka_unit_test(white_space),
        cmocka_unit_test(every_byte_keeps_its_origin),
        cmocka_unit_test(a_chain_of_additions_copies_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
