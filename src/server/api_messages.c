/* The field "messages", and where a chat's question begins. */
#include "server/api_fields.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* What a role becomes in the template: models of this family know no "developer", and would leave it out. */
typedef struct role_name {
    const char *name, *rendered;
} role_name;

static const role_name roles[] = {
    {"system", "system"},    {"user", "user"}, {"assistant", "assistant"},
    {"developer", "system"}, {"tool", "tool"},
};

static fl_err read_role(fl_api_parser *p, size_t at, json_t *message, const char **out) {
    json_t *value = json_object_get(message, "role");
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (!fl_api_is(value, roles[i].name)) continue;
        *out = roles[i].rendered;
        return FL_ERR_OK;
    }
    return fl_api_refuse(p, fl_api_path_of("messages[%zu].role", at).text,
                         "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"", value);
}

/* The text of a content part. */
static fl_err read_part(fl_api_parser *p, size_t at, size_t i, json_t *part, json_t **out) {
    json_t *type_value = json_object_get(part, "type");
    const char *key = fl_api_is(type_value, "refusal") ? "refusal" : "text";
    if (!fl_api_is(type_value, key))
        return fl_api_refuse(p, fl_api_path_of("messages[%zu].content[%zu].type", at, i).text,
                             "\"text\" (this model reads nothing else)", type_value);
    *out = json_object_get(part, key);
    if (json_is_string(*out)) return FL_ERR_OK;
    return fl_api_refuse(p, fl_api_path_of("messages[%zu].content[%zu].%s", at, i, key).text, "a string",
                         *out);
}

/* Several parts as one text, a line break between them; the last one's length is the message's question. */
static fl_err join_parts(fl_api_parser *p, size_t at, json_t *parts, size_t *last_bytes) {
    fl_api_request *r = p->request;
    fl_chat_message *message = &r->messages[at];
    size_t n_bytes = 0, i, done = 0;
    json_t *part, *text;
    json_array_foreach(parts, i, part) {
        FL_TRY(read_part(p, at, i, part, &text));
        n_bytes += json_string_length(text) + 1;
        *last_bytes = json_string_length(text);
    }
    if (n_bytes == 0)
        return fl_api_refuse(p, fl_api_path_of("messages[%zu].content", at).text, "at least one part", parts);
    char *joined = malloc(n_bytes);
    if (joined == NULL)
        return fl_api_error_set(p->error, 503, "messages", "out_of_memory",
                                "messages: no memory for %zu bytes", n_bytes);
    r->joined[at] = joined;
    json_array_foreach(parts, i, part) {
        FL_TRY(read_part(p, at, i, part, &text));
        if (i > 0) joined[done++] = '\n';
        memcpy(joined + done, json_string_value(text), json_string_length(text));
        done += json_string_length(text);
    }
    message->content = joined;
    message->content_bytes = done;
    return FL_ERR_OK;
}

static fl_err read_content(fl_api_parser *p, size_t at, json_t *source, size_t *last_bytes) {
    fl_chat_message *message = &p->request->messages[at];
    json_t *content = json_object_get(source, "content");
    *last_bytes = 0;
    if (json_is_string(content)) {
        message->content = json_string_value(content);
        message->content_bytes = json_string_length(content);
        return FL_ERR_OK;
    }
    if (json_is_array(content)) return join_parts(p, at, content, last_bytes);
    bool absent = content == NULL || json_is_null(content);
    if (absent && message->tool_calls != NULL) return FL_ERR_OK;
    return fl_api_refuse(p, fl_api_path_of("messages[%zu].content", at).text,
                         "a string or an array of text parts", content);
}

/* One entry of an assistant's tool_calls. */
static fl_err check_call(fl_api_parser *p, size_t at, size_t i, json_t *call) {
    const json_t *function = json_object_get(call, "function");
    static const char *const keys[] = {"name", "arguments"};
    const json_t *id = json_object_get(call, "id"), *type = json_object_get(call, "type");
    if (!json_is_string(id))
        return fl_api_refuse(p, fl_api_path_of("messages[%zu].tool_calls[%zu].id", at, i).text, "a string",
                             id);
    if (type != NULL && !fl_api_is(type, "function"))
        return fl_api_refuse(p, fl_api_path_of("messages[%zu].tool_calls[%zu].type", at, i).text,
                             "\"function\"", type);
    for (size_t k = 0; k < 2; k++) {
        const json_t *text = json_object_get(function, keys[k]);
        if (json_is_string(text) && (k > 0 || json_string_length(text) > 0)) continue;
        return fl_api_refuse(p,
                             fl_api_path_of("messages[%zu].tool_calls[%zu].function.%s", at, i, keys[k]).text,
                             k == 0 ? "a non-empty string" : "a string of JSON", text);
    }
    return FL_ERR_OK;
}

static fl_err read_calls(fl_api_parser *p, size_t at, json_t *source) {
    fl_chat_message *message = &p->request->messages[at];
    json_t *calls = json_object_get(source, "tool_calls"), *call;
    fl_api_path path = fl_api_path_of("messages[%zu].tool_calls", at);
    size_t i;
    if (calls == NULL || json_is_null(calls)) return FL_ERR_OK;
    if (!json_is_array(calls)) return fl_api_refuse(p, path.text, "an array", calls);
    if (json_array_size(calls) == 0) return FL_ERR_OK;
    if (strcmp(message->role, "assistant") != 0 || json_array_size(calls) > FL_API_TOOLS_MAX)
        return fl_api_error_set(p->error, 400, path.text, NULL,
                                "%s: expected at most %d calls, in messages of the assistant only", path.text,
                                FL_API_TOOLS_MAX);
    json_array_foreach(calls, i, call) {
        FL_TRY(check_call(p, at, i, call));
        if (json_object_get(call, "type") == NULL) json_object_set_new(call, "type", json_string("function"));
    }
    message->tool_calls = calls;
    return FL_ERR_OK;
}

/* The keys that templates may read besides role, content and tool_calls. */
static fl_err read_extra(fl_api_parser *p, size_t at, json_t *source) {
    static const char *const keys[] = {"name", "tool_call_id", "reasoning_content"};
    fl_chat_message *message = &p->request->messages[at];
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *value = json_object_get(source, keys[i]);
        if (value == NULL || json_is_null(value)) continue;
        if (!json_is_string(value))
            return fl_api_refuse(p, fl_api_path_of("messages[%zu].%s", at, keys[i]).text, "a string", value);
        if (message->extra == NULL) message->extra = json_object();
        json_object_set(message->extra, keys[i], value);
    }
    return FL_ERR_OK;
}

static fl_err read_message(fl_api_parser *p, size_t at, json_t *source) {
    fl_api_request *r = p->request;
    size_t last_bytes;
    if (!json_is_object(source))
        return fl_api_refuse(p, fl_api_path_of("messages[%zu]", at).text, "an object", source);
    FL_TRY(read_role(p, at, source, &r->messages[at].role));
    FL_TRY(read_calls(p, at, source));
    FL_TRY(read_content(p, at, source, &last_bytes));
    FL_TRY(read_extra(p, at, source));
    if (strcmp(r->messages[at].role, "user") == 0) {
        r->question_message = at;
        r->question_bytes = last_bytes;
        r->question_in_parts = json_array_size(json_object_get(source, "content")) > 1;
    }
    return FL_ERR_OK;
}

fl_err fl_api_read_messages(fl_api_parser *p, const char *name, json_t *value) {
    fl_api_request *r = p->request;
    size_t n = json_array_size(value), i;
    json_t *item;
    if (!json_is_array(value) || n < 1 || n > FL_API_MESSAGES_MAX)
        return fl_api_refuse(p, name, "an array of 1 to 4096 messages", value);
    r->messages = calloc(n, sizeof *r->messages);
    r->joined = calloc(n, sizeof *r->joined);
    if (r->messages == NULL || r->joined == NULL)
        return fl_api_error_set(p->error, 503, name, "out_of_memory", "%s: no memory for %zu", name, n);
    r->n_messages = r->question_message = n;
    json_array_foreach(value, i, item) FL_TRY(read_message(p, i, item));
    return FL_ERR_OK;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Bytes behind the last blank line of a text whose white space at the end does not count; 0 = there is no
 * such line. */
static size_t after_blank_line(const char *text, size_t n) {
    size_t end = n;
    while (end > 0 && is_blank(text[end - 1])) end--;
    for (size_t at = end; at > 0; at--) {
        if (text[at - 1] != '\n') continue;
        size_t before = at - 1;
        while (before > 0 && is_blank(text[before - 1]) && text[before - 1] != '\n') before--;
        if (before > 0 && text[before - 1] == '\n') return n - at;
    }
    return 0;
}

void fl_api_find_question(fl_api_request *r) {
    size_t most = FL_API_QUESTION_PART_BYTES_MAX;
    if (r->question_message >= r->n_messages) return;
    const fl_chat_message *message = &r->messages[r->question_message];
    if (!r->question_in_parts) {
        most = FL_API_QUESTION_BYTES_MAX;
        r->question_bytes = after_blank_line(message->content, message->content_bytes);
    }
    if (r->question_bytes > most) r->question_bytes = 0;
}
