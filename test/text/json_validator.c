#include "text/json_validator.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

static bool is_type(const char *type, const json_t *value) {
    if (strcmp(type, "null") == 0) return json_is_null(value);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(value);
    if (strcmp(type, "number") == 0) return json_is_number(value);
    if (strcmp(type, "string") == 0) return json_is_string(value);
    if (strcmp(type, "array") == 0) return json_is_array(value);
    if (strcmp(type, "object") == 0) return json_is_object(value);
    bool whole = json_is_real(value) && floor(json_real_value(value)) == json_real_value(value);
    return strcmp(type, "integer") == 0 && (json_is_integer(value) || whole);
}

static bool type_holds(const json_t *type, const json_t *value) {
    if (!type) return true;
    if (json_is_string(type)) return is_type(json_string_value(type), value);
    for (size_t i = 0; i < json_array_size(type); i++)
        if (is_type(json_string_value(json_array_get(type, i)), value)) return true;
    return false;
}

static bool equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool fixed_holds(const json_t *schema, const json_t *value) {
    const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    bool found = !values;
    for (size_t i = 0; i < json_array_size(values); i++) found |= equal(json_array_get(values, i), value);
    return found && (!one || equal(one, value));
}

static double limit(const json_t *schema, const char *keyword, double otherwise) {
    const json_t *value = json_object_get(schema, keyword);
    return value ? json_number_value(value) : otherwise;
}

static bool number_holds(const json_t *schema, const json_t *value) {
    double number = json_number_value(value);
    return !json_is_number(value) ||
           (number >= limit(schema, "minimum", -INFINITY) && number <= limit(schema, "maximum", INFINITY) &&
            number > limit(schema, "exclusiveMinimum", -INFINITY) &&
            number < limit(schema, "exclusiveMaximum", INFINITY));
}

static bool string_holds(const json_t *schema, const json_t *value) {
    const char *text = json_string_value(value),
               *pattern = json_string_value(json_object_get(schema, "pattern"));
    double points = 0;
    regex_t regex;
    if (!text) return true;
    for (const char *p = text; *p; p++) points += ((unsigned char)*p & 0xc0) != 0x80;
    if (points < limit(schema, "minLength", 0) || points > limit(schema, "maxLength", INFINITY)) return false;
    if (!pattern) return true;
    if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0) abort();
    bool holds = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return holds;
}

static bool array_holds(const json_t *root, const json_t *schema, const json_t *value) {
    const json_t *first = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
    double n = (double)json_array_size(value);
    if (!json_is_array(value)) return true;
    if (n < limit(schema, "minItems", 0) || n > limit(schema, "maxItems", INFINITY)) return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = i < json_array_size(first) ? json_array_get(first, i) : items;
        if (item && !json_is_valid(root, item, json_array_get(value, i))) return false;
    }
    return true;
}

static bool object_holds(const json_t *root, const json_t *schema, json_t *value) {
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    const json_t *others = json_object_get(schema, "additionalProperties");
    const char *name;
    json_t *member;
    if (!json_is_object(value)) return true;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return false;
    json_object_foreach(value, name, member) {
        const json_t *property = json_object_get(properties, name);
        if (!property) property = others;
        if (property && !json_is_valid(root, property, member)) return false;
    }
    return true;
}

static bool any_holds(const json_t *root, const json_t *schemas, const json_t *value) {
    for (size_t i = 0; i < json_array_size(schemas); i++)
        if (json_is_valid(root, json_array_get(schemas, i), value)) return true;
    return !schemas;
}

static bool all_hold(const json_t *root, const json_t *schemas, const json_t *value) {
    for (size_t i = 0; i < json_array_size(schemas); i++)
        if (!json_is_valid(root, json_array_get(schemas, i), value)) return false;
    return true;
}

/* "#" and "#/$defs/NAME". */
static bool reference_holds(const json_t *root, const json_t *schema, const json_t *value) {
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (!reference) return true;
    if (strcmp(reference, "#") == 0) return json_is_valid(root, root, value);
    return json_is_valid(
        root, json_object_get(json_object_get(root, "$defs"), reference + strlen("#/$defs/")), value);
}

static bool holds(const json_t *root, const json_t *schema, const json_t *value) {
    return type_holds(json_object_get(schema, "type"), value) && fixed_holds(schema, value) &&
           number_holds(schema, value) && string_holds(schema, value) && array_holds(root, schema, value) &&
           object_holds(root, schema, (json_t *)value) &&
           any_holds(root, json_object_get(schema, "anyOf"), value) &&
           any_holds(root, json_object_get(schema, "oneOf"), value) &&
           all_hold(root, json_object_get(schema, "allOf"), value) && reference_holds(root, schema, value);
}

/* What is being asked already holds for no other reason: false. */
bool json_is_valid(const json_t *root, const json_t *schema, const json_t *value) {
    static struct { const json_t *schema, *value; } asked[4096];
    static int n;
    if (json_is_boolean(schema)) return json_is_true(schema);
    for (int i = 0; i < n; i++)
        if (asked[i].schema == schema && asked[i].value == value) return false;
    if (n == 4096) abort();
    asked[n].schema = schema;
    asked[n++].value = value;
    bool valid = holds(root, schema, value);
    n--;
    return valid;
}
