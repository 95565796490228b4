/* Which keywords a schema may have, and what kinds of values. */
#include <math.h>
#include <string.h>

#include "text/schema_build.h"

/* What a keyword's value must be. */
typedef enum shape {
    SCHEMA,         /* an object or a boolean */
    SCHEMAS,        /* an array of them, not empty */
    SCHEMA_OR_LIST, /* one or several */
    NAMED_SCHEMAS,  /* an object of them */
    NAMES,          /* an array of strings */
    COUNT,          /* an integer >= 0 */
    NUMBER,
    TEXT,
    TYPES,  /* a string or an array of strings */
    VALUES, /* an array, not empty */
    ANY,
    REFUSED,
    REFUSED_UNLESS_FALSE, /* false or 0 restricts nothing */
} shape;

typedef struct keyword {
    const char *name;
    shape shape;
} keyword;

static const keyword KEYWORDS[] = {
    {"$ref", TEXT},
    {"type", TYPES},
    {"enum", VALUES},
    {"const", ANY},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"allOf", SCHEMAS},
    {"properties", NAMED_SCHEMAS},
    {"required", NAMES},
    {"additionalProperties", SCHEMA},
    {"items", SCHEMA_OR_LIST},
    {"prefixItems", SCHEMAS},
    {"additionalItems", SCHEMA},
    {"minItems", COUNT},
    {"maxItems", COUNT},
    {"minLength", COUNT},
    {"maxLength", COUNT},
    {"pattern", TEXT},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"not", REFUSED},
    {"if", REFUSED},
    {"dependentSchemas", REFUSED},
    {"dependentRequired", REFUSED},
    {"dependencies", REFUSED},
    {"patternProperties", REFUSED},
    {"propertyNames", REFUSED},
    {"unevaluatedProperties", REFUSED},
    {"unevaluatedItems", REFUSED},
    {"contains", REFUSED},
    {"maxContains", REFUSED},
    {"uniqueItems", REFUSED_UNLESS_FALSE},
    {"multipleOf", REFUSED},
    {"minProperties", REFUSED_UNLESS_FALSE},
    {"maxProperties", REFUSED},
    {"$dynamicRef", REFUSED},
    {"$recursiveRef", REFUSED},
};

static bool is_schema(const json_t *value) {
    return json_is_object(value) || json_is_boolean(value);
}

static bool is_list_of(const json_t *value, bool (*is)(const json_t *), size_t least) {
    if (!json_is_array(value) || json_array_size(value) < least) return false;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is(json_array_get(value, i))) return false;
    return true;
}

static bool is_text(const json_t *value) {
    return json_is_string(value);
}

static bool is_count(const json_t *value) {
    if (json_is_integer(value)) return json_integer_value(value) >= 0;
    double number = json_is_real(value) ? json_real_value(value) : -1;
    return number >= 0 && number == floor(number);
}

static bool are_named_schemas(const json_t *value) {
    const char *name;
    json_t *child, *object = (json_t *)(uintptr_t)value; /* jansson's iterators take no const */
    if (!json_is_object(value)) return false;
    json_object_foreach(object, name, child) if (!is_schema(child)) return false;
    return true;
}

/* What was expected, NULL if the value is that. */
static const char *wrong(shape expected, const json_t *value) {
    switch (expected) {
    case SCHEMA: return is_schema(value) ? NULL : "expected a schema";
    case SCHEMAS: return is_list_of(value, is_schema, 1) ? NULL : "expected schemas in an array";
    case SCHEMA_OR_LIST:
        return is_schema(value) || is_list_of(value, is_schema, 0) ? NULL : "expected a schema";
    case NAMED_SCHEMAS: return are_named_schemas(value) ? NULL : "expected an object of schemas";
    case NAMES: return is_list_of(value, is_text, 0) ? NULL : "expected strings in an array";
    case COUNT: return is_count(value) ? NULL : "expected an integer of at least 0";
    case NUMBER: return json_is_number(value) ? NULL : "expected a number";
    case TEXT: return is_text(value) ? NULL : "expected a string";
    case TYPES:
        return is_text(value) || is_list_of(value, is_text, 1) ? NULL
                                                               : "expected a type or an array of types";
    case VALUES:
        return json_is_array(value) && json_array_size(value) > 0 ? NULL : "expected values in an array";
    case ANY:
    case REFUSED:
    case REFUSED_UNLESS_FALSE: return NULL;
    }
    return NULL;
}

static bool restricts_nothing(const json_t *value) {
    return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
}

static const keyword *find(const char *name) {
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (strcmp(KEYWORDS[i].name, name) == 0) return &KEYWORDS[i];
    return NULL;
}

fl_err fl_schema_check_keywords(fl_schema_build *b, const json_t *schema) {
    const char *name;
    json_t *value, *object = (json_t *)(uintptr_t)schema; /* jansson's iterators take no const */
    if (json_is_boolean(schema)) return FL_ERR_OK;
    json_object_foreach(object, name, value) {
        const keyword *k = find(name);
        FL_TRY(fl_schema_work(b, 1 + (int64_t)json_array_size(value) + (int64_t)json_object_size(value)));
        if (!k) continue;
        bool refused = k->shape == REFUSED || (k->shape == REFUSED_UNLESS_FALSE && !restricts_nothing(value));
        if (refused) return FL_SCHEMA_FAIL(b, FL_ERR_UNSUPPORTED, schema, name, "not supported");
        const char *expected = wrong(k->shape, value);
        if (expected) return FL_SCHEMA_FAIL(b, FL_ERR_INVALID, schema, name, "%s", expected);
    }
    return FL_ERR_OK;
}

bool fl_schema_says_more(const json_t *schema) {
    const char *name;
    json_t *value, *object = (json_t *)(uintptr_t)schema; /* jansson's iterators take no const */
    json_object_foreach(object, name, value) {
        bool refers = strcmp(name, "$ref") == 0 || strcmp(name, "allOf") == 0 || strcmp(name, "anyOf") == 0 ||
                      strcmp(name, "oneOf") == 0;
        if (!refers && find(name)) return true;
    }
    return false;
}

uint32_t fl_schema_count_of(const json_t *schema, const char *name, uint32_t otherwise) {
    const json_t *value = json_object_get(schema, name);
    if (!value) return otherwise;
    double number = json_number_value(value);
    return number < FL_SCHEMA_NONE - 1 ? (uint32_t)number : FL_SCHEMA_NONE - 1;
}
