#include "server/api_tools.h"

#include "server/api_fields.h"

#include <string.h>

json_t *fl_api_tool(const fl_api_request *request, size_t i) {
    return json_object_get(json_array_get(request->tools, i), "function");
}

size_t fl_api_tool_find(const fl_api_request *request, const char *name, size_t n_bytes) {
    size_t n = json_array_size(request->tools), i = 0;
    for (; i < n; i++) {
        const json_t *own = json_object_get(fl_api_tool(request, i), "name");
        if (json_string_length(own) == n_bytes && memcmp(json_string_value(own), name, n_bytes) == 0) break;
    }
    return i;
}

static bool is_name(const json_t *value) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t n = json_string_length(value);
    return n >= 1 && n <= FL_API_NAME_BYTES_MAX && strspn(json_string_value(value), allowed) == n;
}

static fl_err read_tool(fl_api_parser *p, size_t i, json_t *tool) {
    const json_t *type = json_object_get(tool, "type");
    json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *description = json_object_get(function, "description");
    const json_t *parameters = json_object_get(function, "parameters");
    if (!fl_api_is(type, "function"))
        return fl_api_refuse(p, fl_api_path_of("tools[%zu].type", i).text, "\"function\"", type);
    if (!json_is_object(function))
        return fl_api_refuse(p, fl_api_path_of("tools[%zu].function", i).text, "an object", function);
    if (!is_name(name))
        return fl_api_refuse(p, fl_api_path_of("tools[%zu].function.name", i).text,
                             "1 to 64 letters, digits, '_', '-' or '.'", name);
    if (description != NULL && !json_is_null(description) && !json_is_string(description))
        return fl_api_refuse(p, fl_api_path_of("tools[%zu].function.description", i).text, "a string",
                             description);
    if (parameters != NULL && !json_is_null(parameters) && !json_is_object(parameters))
        return fl_api_refuse(p, fl_api_path_of("tools[%zu].function.parameters", i).text,
                             "a JSON schema (an object)", parameters);
    if (fl_api_tool_find(p->request, json_string_value(name), json_string_length(name)) < i)
        return fl_api_error_set(p->error, 400, fl_api_path_of("tools[%zu].function.name", i).text, NULL,
                                "tools[%zu].function.name: expected names that differ, found \"%s\" again", i,
                                json_string_value(name));
    return FL_ERR_OK;
}

fl_err fl_api_read_tools(fl_api_parser *p, const char *name, json_t *value) {
    size_t n = json_array_size(value), i;
    json_t *tool;
    if (!json_is_array(value) || n > FL_API_TOOLS_MAX)
        return fl_api_refuse(p, name, "an array of at most 128 tools", value);
    if (n == 0) return FL_ERR_OK;
    p->request->tools = value;
    json_array_foreach(value, i, tool) FL_TRY(read_tool(p, i, tool));
    return FL_ERR_OK;
}

static const char *const choice_names[] = {
    [FL_API_TOOLS_AUTO] = "auto", [FL_API_TOOLS_NONE] = "none", [FL_API_TOOLS_REQUIRED] = "required"};

/* {"type": "function", "function": {"name": ".."}} */
static fl_err read_named(fl_api_parser *p, json_t *value) {
    fl_api_request *r = p->request;
    const json_t *name = json_object_get(json_object_get(value, "function"), "name");
    if (!json_is_string(name)) return fl_api_refuse(p, "tool_choice.function.name", "a tool's name", name);
    if (fl_api_tool_find(r, json_string_value(name), json_string_length(name)) == json_array_size(r->tools))
        return fl_api_refuse(p, "tool_choice.function.name", "the name of one of \"tools\"", name);
    r->tool_choice = FL_API_TOOLS_NAMED;
    r->tool_name = json_string_value(name);
    return FL_ERR_OK;
}

fl_err fl_api_read_tool_choice(fl_api_parser *p, const char *name, json_t *value) {
    fl_api_request *r = p->request;
    int choice = FL_API_TOOLS_AUTO;
    if (!json_is_object(value)) {
        while (choice < FL_API_TOOLS_NAMED && !fl_api_is(value, choice_names[choice])) choice++;
        if (choice == FL_API_TOOLS_NAMED)
            return fl_api_refuse(
                p, name, "\"none\", \"auto\", \"required\" or an object that names a function", value);
    }
    if (r->tools == NULL && (json_is_object(value) || choice == FL_API_TOOLS_REQUIRED))
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected only with \"tools\"", name);
    if (json_is_object(value)) return read_named(p, value);
    r->tool_choice = (fl_api_tool_choice)choice;
    return FL_ERR_OK;
}

/* ---- forced calls -------------------------------------------------------------------------------------- */

/* A tool's parameters; an object of any kind where it has none. New reference. */
static json_t *parameters_of(const fl_api_request *r, size_t i) {
    json_t *parameters = json_object_get(fl_api_tool(r, i), "parameters");
    return json_is_object(parameters) ? json_incref(parameters) : json_pack("{s:s}", "type", "object");
}

/* {"name": this one, "arguments": under its parameters}; NULL without memory. An $id keeps references inside of the
 * parameters. */
static json_t *call_schema(const fl_api_request *r, size_t i) {
    json_t *name = json_object_get(fl_api_tool(r, i), "name"), *all = parameters_of(r, i);
    json_t *parameters = json_copy(all);
    json_decref(all);
    if (!json_object_get(parameters, "$id")) json_object_set(parameters, "$id", name);
    return json_pack("{s:s, s:{s:{s:[O]}, s:o}, s:[s, s], s:b}", "type", "object", "properties", "name",
                     "enum", name, "arguments", parameters, "required", "name", "arguments",
                     "additionalProperties", 0);
}

static json_t *any_call_schema(const fl_api_request *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(r->tools); i++)
        if (json_array_append_new(list, call_schema(r, i)) != 0) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:o}", "anyOf", list);
}

fl_err fl_api_tools_force(fl_api_request *r, fl_api_error *error) {
    if (r->tools == NULL || r->tool_choice < FL_API_TOOLS_REQUIRED) return FL_ERR_OK;
    if (r->tool_choice == FL_API_TOOLS_REQUIRED && json_array_size(r->tools) == 1) {
        r->tool_choice = FL_API_TOOLS_NAMED;
        r->tool_name = json_string_value(json_object_get(fl_api_tool(r, 0), "name"));
    }
    json_t *schema = r->tool_choice == FL_API_TOOLS_REQUIRED
                         ? any_call_schema(r)
                         : parameters_of(r, fl_api_tool_find(r, r->tool_name, strlen(r->tool_name)));
    r->json_schema = json_dumps(schema, JSON_COMPACT);
    json_decref(schema);
    if (r->json_schema != NULL) return FL_ERR_OK;
    return fl_api_error_set(error, 503, "tools", "out_of_memory", "tools: no memory for their schema");
}
