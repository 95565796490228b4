/* Nodes of strings, numbers and fixed values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema_build.h"

/* --- strings -------------------------------------------------------------------------------------------------- */

/* The pattern of the list's strings, NULL if none; two different ones are refused. */
static fl_err find_pattern(fl_schema_build *b, const fl_schema_list *list, const json_t **at,
                           const json_t **out) {
    *out = NULL;
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *schema = list->items[i].schema, *pattern = json_object_get(schema, "pattern");
        if (!pattern) continue;
        if (*out && !json_equal(*out, pattern))
            return FL_SCHEMA_FAIL(b, FL_ERR_UNSUPPORTED, schema, "pattern", "two patterns for one string");
        *out = pattern;
        *at = schema;
    }
    return FL_ERR_OK;
}

static bool is_same(const fl_schema_pattern *a, const fl_schema_pattern *b) {
    return a->n_bytes == b->n_bytes && a->min == b->min && a->max == b->max &&
           memcmp(a->text, b->text, a->n_bytes) == 0;
}

/* The pattern's table, *dfa: made now or before. */
static fl_err find_table(fl_schema_build *b, const json_t *at, const fl_schema_pattern *pattern,
                         uint32_t *dfa) {
    fl_schema *s = b->out;
    for (*dfa = 0; *dfa < s->n_dfas; ++*dfa)
        if (is_same(&b->patterns[*dfa], pattern)) return FL_ERR_OK;
    if (s->n_dfas == FL_SCHEMA_DFAS_MAX)
        return FL_SCHEMA_FAIL(b, FL_ERR_LIMIT, at, "pattern", "more than %d patterns", FL_SCHEMA_DFAS_MAX);
    fl_err err = fl_schema_dfa_make(pattern, &b->pattern_work, &s->dfas[*dfa]);
    if (err != FL_ERR_OK) {
        char why[160];
        snprintf(why, sizeof why, "%s", fl_err_detail());
        return FL_SCHEMA_FAIL(b, err, at, "pattern", "%s", why);
    }
    b->patterns[s->n_dfas++] = *pattern;
    b->n_dfa_states += s->dfas[*dfa].n;
    if (b->n_dfa_states > FL_SCHEMA_DFA_STATES_MAX)
        return FL_SCHEMA_FAIL(b, FL_ERR_LIMIT, at, "pattern", "the patterns need more than %d states",
                              FL_SCHEMA_DFA_STATES_MAX);
    return FL_ERR_OK;
}

fl_err fl_schema_make_string(fl_schema_build *b, const fl_schema_list *list) {
    fl_schema_node node = {.kind = FL_SCHEMA_STRING, .max = FL_SCHEMA_NONE, .detail = FL_SCHEMA_NONE};
    const json_t *pattern, *at = NULL;
    uint32_t index;
    for (uint32_t i = 0; i < list->n; i++) {
        uint32_t min = fl_schema_count_of(list->items[i].schema, "minLength", 0);
        uint32_t max = fl_schema_count_of(list->items[i].schema, "maxLength", FL_SCHEMA_NONE);
        if (min > node.min) node.min = min;
        if (max < node.max) node.max = max;
    }
    if (node.min > node.max) return FL_ERR_OK;
    FL_TRY(find_pattern(b, list, &at, &pattern));
    if (pattern) {
        const fl_schema_pattern p = {json_string_value(pattern), json_string_length(pattern), node.min,
                                     node.max};
        FL_TRY(find_table(b, at, &p, &node.detail));
        if (b->out->dfas[node.detail].n == 0) return FL_ERR_OK; /* no string matches */
    }
    FL_TRY(fl_schema_add_node(b, &node, &index));
    return fl_schema_link(b, index);
}

/* --- numbers -------------------------------------------------------------------------------------------------- */

/* A bound of all schemas of a list. */
typedef struct bound {
    const json_t *at, *value; /* value NULL: none */
    const char *keyword;
    long double number;
    bool strict;
} bound;

static long double number_of(const json_t *value) {
    return json_is_integer(value) ? (long double)json_integer_value(value)
                                  : (long double)json_real_value(value);
}

/* Keeps the tighter of the bound and the schema's; sign 1: lower bounds, -1: upper ones. */
static void tighten(bound *b, const json_t *schema, const char *keyword, int sign, bool strict) {
    const json_t *value = json_object_get(schema, keyword);
    if (!value) return;
    long double number = number_of(value), more = (number - b->number) * (long double)sign;
    if (b->value && (more < 0 || (more == 0 && !strict))) return;
    *b = (bound){schema, value, keyword, number, strict};
}

static void find_bounds(const json_t *schema, bound *low, bound *high) {
    tighten(low, schema, "minimum", 1, false);
    tighten(low, schema, "exclusiveMinimum", 1, true);
    tighten(high, schema, "maximum", -1, false);
    tighten(high, schema, "exclusiveMaximum", -1, true);
}

/* The shortest decimal number that is the bound, without its sign. */
static void write_shortest(const json_t *value, char *out, size_t room) {
    if (json_is_integer(value)) {
        long long number = json_integer_value(value);
        snprintf(out, room, "%llue+00",
                 number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number);
        return;
    }
    double number = fabs(json_real_value(value));
    for (int digits = 0; digits <= 16; digits++) {
        snprintf(out, room, "%.*e", digits, number);
        if (strtod(out, NULL) == number) return;
    }
}

/* False: more digits than there is room for. */
static bool put_digit(char *digits, uint8_t *n, char digit) {
    if (*n == FL_SCHEMA_DIGITS_MAX) return false;
    digits[(*n)++] = digit;
    return true;
}

/* Digits and exponent ("d.ddde-03") as whole part and fraction. */
static bool read_decimal(const char *text, fl_schema_decimal *out) {
    int point = (int)strcspn(text, ".e"), whole = point + (int)strtol(strchr(text, 'e') + 1, NULL, 10),
        at = 0;
    *out = (fl_schema_decimal){0};
    for (int i = whole; i < 0; i++)
        if (!put_digit(out->fraction, &out->n_fraction, '0')) return false;
    for (const char *p = text; *p != 'e'; p++) {
        if (*p == '.') continue;
        bool leading = *p == '0' && out->n_whole == 0, behind = at++ >= whole;
        if (!behind && leading) continue;
        if (!(behind ? put_digit(out->fraction, &out->n_fraction, *p)
                     : put_digit(out->whole, &out->n_whole, *p)))
            return false;
    }
    for (; at < whole && out->n_whole > 0; at++)
        if (!put_digit(out->whole, &out->n_whole, '0')) return false;
    while (out->n_fraction > 0 && out->fraction[out->n_fraction - 1] == '0') out->n_fraction--;
    return true;
}

/* The magnitude of a bound; a large one bounds nothing that has room: *large. */
static fl_err decimal_of(fl_schema_build *b, const bound *from, fl_schema_decimal *out, bool *large) {
    char text[64];
    *large = fabsl(from->number) >= 1e18L;
    if (*large) return FL_ERR_OK;
    write_shortest(from->value, text, sizeof text);
    if (!read_decimal(text, out) || out->n_fraction == FL_SCHEMA_DIGITS_MAX)
        return FL_SCHEMA_FAIL(b, FL_ERR_UNSUPPORTED, from->at, from->keyword,
                              "more than %d digits behind the point", FL_SCHEMA_DIGITS_MAX - 1);
    return FL_ERR_OK;
}

/* Numbers of one sign between `near` and `far` from zero, NULL: none on this side. */
static fl_err make_side(fl_schema_build *b, const bound *near, const bound *far, fl_schema_side *out) {
    bool large = false;
    if (near) {
        FL_TRY(decimal_of(b, near, &out->lower, &large));
        out->lower_strict = near->strict;
        if (large) { /* beyond what has room: no number */
            out->lower = (fl_schema_decimal){.n_whole = 1, .whole = "1"};
            return FL_ERR_OK;
        }
    }
    out->unbounded = !far;
    if (far) {
        FL_TRY(decimal_of(b, far, &out->upper, &out->unbounded));
        out->upper_strict = far->strict;
    }
    return FL_ERR_OK;
}

static bool may_begin(const fl_schema *s, const fl_schema_node *node) {
    fl_schema_frame f;
    if (fl_schema_number_begin(s, node, '-', &f)) return true;
    for (int digit = '0'; digit <= '9'; digit++)
        if (fl_schema_number_begin(s, node, (uint8_t)digit, &f)) return true;
    return false;
}

static fl_err make_bounds(fl_schema_build *b, const bound *low, const bound *high, bool integer,
                          uint32_t *index) {
    if (b->out->n_bounds == FL_SCHEMA_BOUNDS_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d ranges of numbers", FL_SCHEMA_BOUNDS_MAX);
    *index = b->out->n_bounds++;
    fl_schema_bounds *out = &b->out->bounds[*index];
    fl_schema_side *plus = &out->side[0], *minus = &out->side[1];
    *out = (fl_schema_bounds){.integer = integer};
    const bool positive = low->value && low->number >= 0, negative = high->value && high->number < 0;
    /* a side without numbers is left as [0, 0) */
    plus->upper_strict = minus->upper_strict = true;
    if (!negative) FL_TRY(make_side(b, positive ? low : NULL, high->value ? high : NULL, plus));
    if (!positive) FL_TRY(make_side(b, negative ? high : NULL, low->value ? low : NULL, minus));
    if (!negative) minus->lower_strict = true; /* no -0 */
    fl_schema_side_finish(plus, integer);
    fl_schema_side_finish(minus, integer);
    return FL_ERR_OK;
}

fl_err fl_schema_make_number(fl_schema_build *b, const fl_schema_list *list, bool integer) {
    fl_schema_node node = {.kind = FL_SCHEMA_NUMBER, .detail = FL_SCHEMA_NONE};
    bound low = {0}, high = {0};
    uint32_t index;
    for (uint32_t i = 0; i < list->n; i++) {
        find_bounds(list->items[i].schema, &low, &high);
    }
    if (low.value || high.value || integer) {
        FL_TRY(make_bounds(b, &low, &high, integer, &node.detail));
        if (!may_begin(b->out, &node)) return FL_ERR_OK;
    }
    FL_TRY(fl_schema_add_node(b, &node, &index));
    return fl_schema_link(b, index);
}

/* --- fixed values --------------------------------------------------------------------------------------------- */

uint32_t fl_schema_type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL: return FL_SCHEMA_TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return FL_SCHEMA_TYPE_BOOLEAN;
    case JSON_INTEGER: return FL_SCHEMA_TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? FL_SCHEMA_TYPE_INTEGER
                                                                       : FL_SCHEMA_TYPE_FRACTION;
    case JSON_STRING: return FL_SCHEMA_TYPE_STRING;
    case JSON_ARRAY: return FL_SCHEMA_TYPE_ARRAY;
    case JSON_OBJECT: return FL_SCHEMA_TYPE_OBJECT;
    }
    return FL_SCHEMA_TYPES;
}

static bool is_equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool is_among(const json_t *value, const json_t *schema) {
    const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    if (one && !is_equal(value, one)) return false;
    for (size_t i = 0; i < json_array_size(values); i++)
        if (is_equal(value, json_array_get(values, i))) return true;
    return !values;
}

/* Keywords that would have to be checked against the insides of fixed arrays and objects. */
static fl_err refuse_beside_fixed(fl_schema_build *b, const json_t *schema) {
    static const char *const KEYWORDS[] = {"properties", "required",    "additionalProperties",
                                           "items",      "prefixItems", "additionalItems",
                                           "minItems",   "maxItems"};
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (json_object_get(schema, KEYWORDS[i]))
            return FL_SCHEMA_FAIL(b, FL_ERR_UNSUPPORTED, schema, KEYWORDS[i],
                                  "not supported beside an array or object in enum or const");
    return FL_ERR_OK;
}

static bool is_within(const json_t *schema, const json_t *value) {
    bound low = {0}, high = {0};
    find_bounds(schema, &low, &high);
    long double number = number_of(value);
    return !(low.value && (number < low.number || (low.strict && number == low.number))) &&
           !(high.value && (number > high.number || (high.strict && number == high.number)));
}

static fl_err check_text(fl_schema_build *b, const json_t *schema, const json_t *value, bool *allowed) {
    const char *text = json_string_value(value);
    const json_t *pattern = json_object_get(schema, "pattern");
    uint32_t points = 0, dfa = 0, state = 0;
    for (const char *p = text; *p; p++) points += ((uint8_t)*p & 0xc0) != 0x80;
    *allowed = points >= fl_schema_count_of(schema, "minLength", 0) &&
               points <= fl_schema_count_of(schema, "maxLength", FL_SCHEMA_NONE);
    if (!pattern || !*allowed) return FL_ERR_OK;
    const fl_schema_pattern p = {json_string_value(pattern), json_string_length(pattern), 0, FL_SCHEMA_NONE};
    FL_TRY(find_table(b, schema, &p, &dfa));
    const fl_schema_dfa *table = &b->out->dfas[dfa];
    if (table->n == 0) state = FL_PATTERN_DEAD;
    for (; *text && state != FL_PATTERN_DEAD; text++) state = table->next[state][(uint8_t)*text];
    *allowed = state != FL_PATTERN_DEAD && table->accepts[state];
    return FL_ERR_OK;
}

/* Whether the schema's keywords beside enum, const and type allow a fixed value. */
static fl_err check_limits(fl_schema_build *b, const json_t *schema, const json_t *value, bool *allowed) {
    *allowed = true;
    if (json_is_array(value) || json_is_object(value)) return refuse_beside_fixed(b, schema);
    if (json_is_string(value)) return check_text(b, schema, value, allowed);
    if (json_is_number(value)) *allowed = is_within(schema, value);
    return FL_ERR_OK;
}

/* The value's text: compact, numbers with as few digits as they need. */
static fl_err add_value(fl_schema *s, const json_t *value) {
    fl_err err = FL_FAIL(FL_ERR_NOMEM, "json_schema");
    for (size_t precision = 15; precision <= 17; precision++) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(precision));
        json_t *back = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = back && json_equal(back, value);
        if (same || (text && precision == 17)) err = fl_schema_words_add(s, text, strlen(text), 0);
        free(text);
        json_decref(back);
        if (same) break;
    }
    return err;
}

/* Whether all schemas of the list allow a fixed value; what `from` says is known. */
static fl_err check_value(fl_schema_build *b, const fl_schema_list *list, const json_t *value,
                          const json_t *from, bool *allowed) {
    *allowed = true;
    for (uint32_t i = 0; i < list->n && *allowed; i++) {
        const json_t *schema = list->items[i].schema;
        FL_TRY(check_limits(b, schema, value, allowed));
        if (schema == from || !*allowed) continue;
        FL_TRY(fl_schema_work(b, 1 + (int64_t)json_array_size(json_object_get(schema, "enum"))));
        *allowed = is_among(value, schema);
    }
    return FL_ERR_OK;
}

/* Those of a list's fixed values that are of these types and that all of its schemas allow. */
static fl_err add_values(fl_schema_build *b, const fl_schema_list *list, uint32_t types) {
    const json_t *from = NULL;
    for (uint32_t i = list->n; i-- > 0;) {
        const json_t *schema = list->items[i].schema;
        if (json_object_get(schema, "enum") || json_object_get(schema, "const")) from = schema;
    }
    const json_t *values = json_object_get(from, "enum"), *one = json_object_get(from, "const");
    size_t n = one ? 1 : json_array_size(values);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = one ? one : json_array_get(values, i);
        bool allowed;
        FL_TRY(check_value(b, list, value, one && values ? NULL : from, &allowed));
        if (allowed && (types >> fl_schema_type_of(value) & 1)) FL_TRY(add_value(b->out, value));
    }
    return FL_ERR_OK;
}

/* null, true and false of the types. */
static fl_err add_names(fl_schema *s, uint32_t types) {
    if (types >> FL_SCHEMA_TYPE_NULL & 1) FL_TRY(fl_schema_words_add(s, "null", 4, 0));
    if (!(types >> FL_SCHEMA_TYPE_BOOLEAN & 1)) return FL_ERR_OK;
    FL_TRY(fl_schema_words_add(s, "true", 4, 0));
    return fl_schema_words_add(s, "false", 5, 0);
}

fl_err fl_schema_make_fixed(fl_schema_build *b, const fl_schema_list *list, uint32_t types) {
    fl_schema_node node = {.kind = FL_SCHEMA_WORDS};
    uint32_t index;
    FL_TRY(fl_schema_words_begin(b->out, &node.words));
    FL_TRY(list ? add_values(b, list, types) : add_names(b->out, types));
    fl_schema_words_end(b->out, node.words);
    if (b->out->word_sets[node.words].n == 0) return FL_ERR_OK;
    FL_TRY(fl_schema_add_node(b, &node, &index));
    return fl_schema_link(b, index);
}
