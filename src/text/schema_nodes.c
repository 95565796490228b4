/* Nodes of a list of schemas without choices: which types are left, and objects and arrays. */
#include <stdlib.h>
#include <string.h>

#include "text/schema_build.h"

enum {
    NUMBER = 1 << FL_SCHEMA_TYPE_INTEGER | 1 << FL_SCHEMA_TYPE_FRACTION,
    EVERY_TYPE = (1 << FL_SCHEMA_TYPES) - 1,
};

static fl_err type_named(fl_schema_build *b, const json_t *schema, const json_t *name, uint32_t *types) {
    static const struct {
        const char *name;
        uint32_t types;
    } TYPES[] = {{"null", 1 << FL_SCHEMA_TYPE_NULL},       {"boolean", 1 << FL_SCHEMA_TYPE_BOOLEAN},
                 {"integer", 1 << FL_SCHEMA_TYPE_INTEGER}, {"number", NUMBER},
                 {"string", 1 << FL_SCHEMA_TYPE_STRING},   {"array", 1 << FL_SCHEMA_TYPE_ARRAY},
                 {"object", 1 << FL_SCHEMA_TYPE_OBJECT}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (strcmp(TYPES[i].name, json_string_value(name)) != 0) continue;
        *types |= TYPES[i].types;
        return FL_ERR_OK;
    }
    return FL_SCHEMA_FAIL(b, FL_ERR_INVALID, schema, "type", "no type is called \"%.64s\"",
                          json_string_value(name));
}

/* Types that all schemas of the list allow. */
static fl_err find_types(fl_schema_build *b, const fl_schema_list *list, uint32_t *out) {
    *out = EVERY_TYPE;
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *schema = list->items[i].schema, *type = json_object_get(schema, "type");
        uint32_t types = type ? 0 : EVERY_TYPE;
        if (json_is_string(type)) FL_TRY(type_named(b, schema, type, &types));
        for (size_t k = 0; k < json_array_size(type); k++)
            FL_TRY(type_named(b, schema, json_array_get(type, k), &types));
        *out &= types;
    }
    return FL_ERR_OK;
}

static fl_err add_property(fl_schema_build *b, const fl_schema_property *property) {
    FL_TRY(fl_schema_work(b, 1));
    if (b->out->n_properties == FL_SCHEMA_PROPERTIES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d properties and places",
                       FL_SCHEMA_PROPERTIES_MAX);
    b->out->properties[b->out->n_properties++] = *property;
    return FL_ERR_OK;
}

/* --- objects -------------------------------------------------------------------------------------------------- */

/* A property: what each schema says of the name. */
static fl_err property_choice(fl_schema_build *b, const fl_schema_list *list, const char *name,
                              uint32_t *choice) {
    fl_schema_list sub = {0};
    FL_TRY(fl_schema_work(b, list->n));
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *schema = list->items[i].schema;
        const json_t *property = json_object_get(json_object_get(schema, "properties"), name);
        if (!property) property = json_object_get(schema, "additionalProperties");
        FL_TRY(fl_schema_list_add(b, &sub, property, NULL));
    }
    return fl_schema_list_choice(b, &sub, choice);
}

/* Names that no schema declares. */
static fl_err other_properties(fl_schema_build *b, const fl_schema_list *list, uint32_t *choice) {
    fl_schema_list sub = {0};
    for (uint32_t i = 0; i < list->n; i++)
        FL_TRY(fl_schema_list_add(b, &sub, json_object_get(list->items[i].schema, "additionalProperties"),
                                  NULL));
    *choice = FL_SCHEMA_NONE;
    return sub.impossible ? FL_ERR_OK : fl_schema_list_choice(b, &sub, choice);
}

/* Adds a name to the ordered set, or marks one as required. */
static fl_err add_name(fl_schema_build *b, json_t *names, const char *name, bool required) {
    FL_TRY(fl_schema_work(b, 1));
    const json_t *known = json_object_get(names, name);
    if (known && (!required || json_is_true(known))) return FL_ERR_OK;
    if (json_object_size(names) == FL_SCHEMA_PROPERTIES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "json_schema: more than %d properties", FL_SCHEMA_PROPERTIES_MAX);
    if (json_object_set_new(names, name, json_boolean(required)) != 0)
        return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    return FL_ERR_OK;
}

/* Declared names in order, then those that are only required. */
static fl_err collect_names(fl_schema_build *b, const fl_schema_list *list, json_t *names) {
    for (uint32_t i = 0; i < list->n; i++) {
        json_t *properties = json_object_get(list->items[i].schema, "properties"), *property;
        const char *name;
        json_object_foreach(properties, name, property) FL_TRY(add_name(b, names, name, false));
    }
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *required = json_object_get(list->items[i].schema, "required");
        for (size_t k = 0; k < json_array_size(required); k++)
            FL_TRY(add_name(b, names, json_string_value(json_array_get(required, k)), true));
    }
    return FL_ERR_OK;
}

/* A name as it is written, without the quote in front. */
static fl_err add_name_word(fl_schema *s, const char *name, uint32_t index) {
    json_t *text = json_string(name);
    char *written = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    fl_err err = written ? fl_schema_words_add(s, written + 1, strlen(written + 1), index)
                         : FL_FAIL(FL_ERR_NOMEM, "json_schema");
    free(written);
    json_decref(text);
    return err;
}

static fl_err add_properties(fl_schema_build *b, const fl_schema_list *list, json_t *names,
                             fl_schema_node *node) {
    fl_schema *s = b->out;
    const char *name;
    json_t *required;
    FL_TRY(fl_schema_words_begin(s, &node->words));
    node->first = s->n_properties;
    json_object_foreach(names, name, required) {
        fl_schema_property property = {.required = json_is_true(required)};
        FL_TRY(property_choice(b, list, name, &property.choice));
        FL_TRY(add_name_word(s, name, node->n++));
        FL_TRY(add_property(b, &property));
    }
    fl_schema_words_end(s, node->words);
    return FL_ERR_OK;
}

static fl_err make_object(fl_schema_build *b, const fl_schema_list *list) {
    fl_schema_node node = {.kind = FL_SCHEMA_OBJECT}, key = {.kind = FL_SCHEMA_KEY};
    uint32_t index;
    json_t *names = json_object();
    if (!names) return FL_FAIL(FL_ERR_NOMEM, "json_schema");
    fl_err err = collect_names(b, list, names);
    if (err == FL_ERR_OK) err = add_properties(b, list, names, &node);
    json_decref(names);
    FL_TRY(err);
    FL_TRY(other_properties(b, list, &node.rest));
    FL_TRY(fl_schema_add_node(b, &key, &node.detail));
    FL_TRY(fl_schema_add_node(b, &node, &index));
    b->out->nodes[node.detail].detail = index;
    return fl_schema_link(b, index);
}

/* --- arrays --------------------------------------------------------------------------------------------------- */

/* The schemas of the first items: prefixItems, in older schemas an array under items. */
static const json_t *first_items(const json_t *schema) {
    const json_t *items = json_object_get(schema, "items");
    return json_is_array(items) ? items : json_object_get(schema, "prefixItems");
}

/* The schema of those behind. */
static const json_t *other_items(const json_t *schema) {
    const json_t *items = json_object_get(schema, "items");
    return json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
}

/* Item `place`, or those behind all first ones. */
static fl_err item_choice(fl_schema_build *b, const fl_schema_list *list, size_t place, bool other,
                          uint32_t *choice) {
    fl_schema_list sub = {0};
    FL_TRY(fl_schema_work(b, list->n));
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *schema = list->items[i].schema, *first = first_items(schema);
        bool named = !other && place < json_array_size(first);
        FL_TRY(fl_schema_list_add(b, &sub, named ? json_array_get(first, place) : other_items(schema), NULL));
    }
    *choice = FL_SCHEMA_NONE;
    return other && sub.impossible ? FL_ERR_OK : fl_schema_list_choice(b, &sub, choice);
}

static fl_err make_array(fl_schema_build *b, const fl_schema_list *list) {
    fl_schema_node node = {.kind = FL_SCHEMA_ARRAY, .max = FL_SCHEMA_NONE};
    uint32_t index, places = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *schema = list->items[i].schema, *first = first_items(schema);
        uint32_t min = fl_schema_count_of(schema, "minItems", 0);
        uint32_t max = fl_schema_count_of(schema, "maxItems", FL_SCHEMA_NONE);
        if (min > node.min) node.min = min;
        if (max < node.max) node.max = max;
        if (json_array_size(first) > places) places = (uint32_t)json_array_size(first);
    }
    node.first = b->out->n_properties;
    for (; node.n < places; node.n++) {
        fl_schema_property place = {0};
        FL_TRY(item_choice(b, list, node.n, false, &place.choice));
        FL_TRY(add_property(b, &place));
    }
    FL_TRY(item_choice(b, list, 0, true, &node.rest));
    FL_TRY(fl_schema_add_node(b, &node, &index));
    return fl_schema_link(b, index);
}

fl_err fl_schema_make_nodes(fl_schema_build *b, const fl_schema_list *list) {
    uint32_t types, fixed = 1 << FL_SCHEMA_TYPE_NULL | 1 << FL_SCHEMA_TYPE_BOOLEAN;
    FL_TRY(find_types(b, list, &types));
    for (uint32_t i = 0; i < list->n; i++) {
        const json_t *schema = list->items[i].schema;
        if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
            return fl_schema_make_fixed(b, list, types);
    }
    if (types & fixed) FL_TRY(fl_schema_make_fixed(b, NULL, types & fixed));
    if (types & NUMBER) FL_TRY(fl_schema_make_number(b, list, !(types & 1 << FL_SCHEMA_TYPE_FRACTION)));
    if (types & 1 << FL_SCHEMA_TYPE_STRING) FL_TRY(fl_schema_make_string(b, list));
    if (types & 1 << FL_SCHEMA_TYPE_ARRAY) FL_TRY(make_array(b, list));
    return types & 1 << FL_SCHEMA_TYPE_OBJECT ? make_object(b, list) : FL_ERR_OK;
}
