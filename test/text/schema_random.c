#include "text/schema_random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 6, DEPTH_MAX = 40 };

static const char *const NAME[NAMES] = {"a", "ab", "b\"\n", "\xc3\xa9t\xc3\xa9", "name", "z"};
static const char *const PATTERN[] = {"^[a-c]{1,3}$", "^(x|yy)*$", "b", "^[0-9]+-[0-9]$", "^[^a-z]", "q$"};

uint32_t roll(dice *d, uint32_t n) {
    d->state += 0x9e3779b97f4a7c15u;
    uint64_t z = d->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}

static void set(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) abort();
}

static json_t *typed(const char *type) {
    json_t *schema = json_object();
    set(schema, "type", json_string(type));
    return schema;
}

static json_t *random_scalar(dice *d) {
    static const char *const TEXTS[] = {
        "", "a", "abc", "x", "yy", "12-3", "B", "\xe2\x82\xac\n\"", "long enough text"};
    switch (roll(d, 6)) {
    case 0: return json_null();
    case 1: return json_boolean((int)roll(d, 2));
    case 2: return json_integer((json_int_t)roll(d, 300) - 150);
    case 3: return json_real(((double)roll(d, 400) - 200) / 8 + 0.0625);
    default: return json_string(TEXTS[roll(d, sizeof TEXTS / sizeof *TEXTS)]);
    }
}

static json_t *random_value(dice *d, int depth) {
    static const char *const OTHERS[] = {"k", "zz k", "\xc3\xa9"};
    json_t *out;
    uint32_t kind = roll(d, depth > 0 ? 5 : 3), n = roll(d, 3);
    if (kind < 3) return random_scalar(d);
    out = kind == 3 ? json_array() : json_object();
    for (uint32_t i = 0; i < n; i++) {
        json_t *child = random_value(d, depth - 1);
        if (kind == 3) json_array_append_new(out, child);
        else set(out, OTHERS[i], child);
    }
    return out;
}

static json_t *random_schema(dice *d, int depth);

static json_t *random_number(dice *d) {
    bool integer = roll(d, 2);
    json_t *schema = typed(integer ? "integer" : "number");
    int low = (int)roll(d, 200) - 150, width = (int)roll(d, 300);
    double step = integer ? 1 : 0.375;
    if (roll(d, 2)) set(schema, roll(d, 3) ? "minimum" : "exclusiveMinimum", json_real(low * step));
    if (roll(d, 2)) set(schema, roll(d, 3) ? "maximum" : "exclusiveMaximum", json_real((low + width) * step));
    return schema;
}

static json_t *random_string(dice *d) {
    json_t *schema = typed("string");
    if (roll(d, 3) == 0)
        set(schema, "pattern", json_string(PATTERN[roll(d, sizeof PATTERN / sizeof *PATTERN)]));
    uint32_t min = roll(d, 3);
    if (roll(d, 3) == 0) set(schema, "minLength", json_integer((json_int_t)min));
    if (roll(d, 2) == 0) set(schema, "maxLength", json_integer((json_int_t)(min + roll(d, 12))));
    return schema;
}

static json_t *random_array(dice *d, int depth) {
    json_t *schema = typed("array");
    uint32_t min = roll(d, 3), n_first = roll(d, 4) == 0 ? 1 + roll(d, 2) : 0;
    if (roll(d, 4) > 0) set(schema, "items", random_schema(d, depth - 1));
    if (n_first > 0) set(schema, "prefixItems", json_array());
    for (uint32_t i = 0; i < n_first; i++)
        json_array_append_new(json_object_get(schema, "prefixItems"), random_schema(d, depth - 1));
    if (roll(d, 3) == 0) set(schema, "minItems", json_integer((json_int_t)min));
    if (roll(d, 2) == 0) set(schema, "maxItems", json_integer((json_int_t)(min + roll(d, 3))));
    return schema;
}

/* Names NAME[first..end). */
static json_t *random_object(dice *d, int depth, uint32_t first, uint32_t end) {
    json_t *schema = typed("object"), *properties = json_object(), *required = json_array();
    for (uint32_t i = first; i < end; i++) {
        if (roll(d, 2)) continue;
        set(properties, NAME[i], random_schema(d, depth - 1));
        if (roll(d, 2)) json_array_append_new(required, json_string(NAME[i]));
    }
    if (roll(d, 6) == 0) json_array_append_new(required, json_string("zz"));
    set(schema, "properties", properties);
    set(schema, "required", required);
    switch (roll(d, 4)) {
    case 0: break;
    case 1: set(schema, "additionalProperties", random_schema(d, depth - 1)); break;
    default: set(schema, "additionalProperties", json_false()); break;
    }
    return schema;
}

static json_t *random_fixed(dice *d) {
    json_t *schema = json_object(), *values = json_array();
    if (roll(d, 4) == 0) set(schema, "const", random_value(d, 2));
    else {
        for (uint32_t n = 1 + roll(d, 4); n > 0; n--) json_array_append_new(values, random_value(d, 1));
        set(schema, "enum", json_incref(values));
    }
    json_decref(values);
    if (roll(d, 4) == 0) set(schema, "maxLength", json_integer(3));
    if (roll(d, 4) == 0) set(schema, "minimum", json_integer(-20));
    return schema;
}

static json_t *random_choice(dice *d, int depth) {
    json_t *schema = json_object(), *members = json_array();
    for (uint32_t n = 1 + roll(d, 3); n > 0; n--) json_array_append_new(members, random_schema(d, depth - 1));
    set(schema, roll(d, 2) ? "anyOf" : "oneOf", members);
    return schema;
}

static json_t *random_all(dice *d, int depth) {
    json_t *schema = json_object(), *members = json_array();
    json_array_append_new(members, random_object(d, depth, 0, NAMES / 2));
    json_array_append_new(members, random_object(d, depth, NAMES / 2, NAMES));
    json_object_del(json_array_get(members, 0), "additionalProperties");
    json_object_del(json_array_get(members, 1), "additionalProperties");
    set(schema, "allOf", members);
    if (roll(d, 3) == 0) set(schema, "description", json_string("both"));
    return schema;
}

static json_t *random_reference(dice *d) {
    static const char *const PLACES[] = {"#", "#/$defs/d0", "#/$defs/d1"};
    json_t *schema = json_object();
    set(schema, "$ref", json_string(PLACES[roll(d, 3)]));
    return schema;
}

static json_t *random_types(dice *d) {
    static const char *const TYPES[] = {"null", "boolean", "integer", "number", "string"};
    json_t *schema = json_object(), *types = json_array();
    for (uint32_t n = 1 + roll(d, 3); n > 0; n--)
        json_array_append_new(types, json_string(TYPES[roll(d, 5)]));
    set(schema, "type", types);
    return schema;
}

static json_t *random_schema(dice *d, int depth) {
    switch (depth > 0 ? roll(d, 16) : roll(d, 7)) {
    case 0:
    case 1: return random_number(d);
    case 2:
    case 3: return random_string(d);
    case 4: return random_fixed(d);
    case 5: return random_types(d);
    case 6: return roll(d, 4) ? typed("boolean") : json_true();
    case 7:
    case 8: return random_array(d, depth);
    case 9: return random_choice(d, depth);
    case 10: return random_all(d, depth);
    case 11: return random_reference(d);
    default: return random_object(d, depth, 0, NAMES);
    }
}

json_t *schema_random(dice *d) {
    json_t *schema = random_schema(d, 3), *definitions = json_object();
    if (!json_is_object(schema)) schema = json_object();
    set(definitions, "d0", random_schema(d, 2));
    set(definitions, "d1", random_schema(d, 1));
    set(schema, "$defs", definitions);
    return schema;
}

static json_t *mutated_array(dice *d, const json_t *value) {
    json_t *out = json_copy((json_t *)value);
    size_t n = json_array_size(out), i = n > 0 ? roll(d, (uint32_t)n) : 0;
    uint32_t what = roll(d, 4);
    if (what == 0 || n == 0) json_array_append_new(out, random_value(d, 1));
    else if (what == 1) json_array_remove(out, i);
    else json_array_set_new(out, i, value_mutated(d, json_array_get(value, i)));
    return out;
}

static json_t *mutated_object(dice *d, const json_t *value) {
    json_t *out = json_copy((json_t *)value);
    size_t n = json_object_size(out), i = n > 0 ? roll(d, (uint32_t)n) : 0;
    uint32_t what = roll(d, 5);
    void *at = json_object_iter(out);
    while (i-- > 0) at = json_object_iter_next(out, at);
    if (what == 0 || n == 0) set(out, roll(d, 2) ? "zz" : "zy", random_value(d, 1));
    else if (what == 1) json_object_del(out, json_object_iter_key(at));
    else json_object_iter_set_new(out, at, value_mutated(d, json_object_iter_value(at)));
    return out;
}

json_t *value_mutated(dice *d, const json_t *value) {
    if (roll(d, 8) == 0) return random_value(d, 2);
    if (json_is_array(value)) return mutated_array(d, value);
    if (json_is_object(value)) return mutated_object(d, value);
    if (json_is_integer(value) && roll(d, 2))
        return json_integer(json_integer_value(value) + (json_int_t)roll(d, 3) - 1);
    return random_scalar(d);
}

static int place_of(const char *name) {
    for (int i = 0; i < NAMES; i++)
        if (strcmp(name, NAME[i]) == 0) return i;
    return strcmp(name, "zz") == 0 ? NAMES : NAMES + 1;
}

bool value_is_canonical(const json_t *value, int depth) {
    char text[40];
    const char *name;
    json_t *child;
    int last = 0;
    if (depth > DEPTH_MAX) return false;
    if (json_is_real(value)) {
        snprintf(text, sizeof text, "%.15g", json_real_value(value));
        return !strchr(text, 'e') && strchr(text, '.') && strtod(text, NULL) == json_real_value(value);
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!value_is_canonical(json_array_get(value, i), depth + 1)) return false;
    json_object_foreach((json_t *)value, name, child) {
        int place = place_of(name);
        if (place < last || !value_is_canonical(child, depth + 1)) return false;
        last = place;
    }
    return true;
}
