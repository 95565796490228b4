#include "server/api_chat.h"

#include "server/api_tools.h"
#include "server/json_write.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a template shows ----------------------------------------------------------------------------- */

#define TOOL_MARK   "probe-tool-5e1d"
#define CALL_MARK   "probe-call-5e1d"
#define RESULT_MARK "probe-result-5e1d"

static bool shows(const fl_chat *chat, const fl_chat_message *messages, size_t n, json_t *tools,
                  const char *mark) {
    const fl_chat_options options = {.add_generation_prompt = true, .tools = tools};
    fl_chat_text text;
    if (fl_chat_render(chat, messages, n, &options, &text) != FL_ERR_OK) return false;
    bool found = strstr(text.text, mark) != NULL;
    fl_chat_text_free(&text);
    return found;
}

static void probe_tools(const fl_chat *chat, fl_api_template *out) {
    const fl_chat_message user = {.role = "user", .content = "q", .content_bytes = 1};
    json_t *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type", "function", "function", "name",
                              TOOL_MARK, "description", "d", "parameters", "type", "object", "properties");
    out->tools = tools != NULL && shows(chat, &user, 1, tools, TOOL_MARK);
    json_decref(tools);
}

/* A question, a call, its result. */
static bool shows_calls(const fl_chat *chat, bool objects, const char *content, const char *mark) {
    json_t *arguments = objects ? json_object() : json_string("{}");
    json_t *calls = json_pack("[{s:s, s:s, s:{s:s, s:o}}]", "id", "call_1", "type", "function", "function",
                              "name", CALL_MARK, "arguments", arguments);
    json_t *extra = json_pack("{s:s, s:s}", "tool_call_id", "call_1", "name", CALL_MARK);
    const fl_chat_message messages[] = {
        {.role = "user", .content = "q", .content_bytes = 1},
        {.role = "assistant",
         .content = content,
         .content_bytes = content != NULL ? strlen(content) : 0,
         .tool_calls = calls},
        {.role = "tool", .content = RESULT_MARK, .content_bytes = strlen(RESULT_MARK), .extra = extra},
    };
    bool found = calls != NULL && extra != NULL && shows(chat, messages, 3, NULL, mark);
    json_decref(calls);
    json_decref(extra);
    return found;
}

void fl_api_template_probe(const fl_chat *chat, fl_api_template *out) {
    *out = (fl_api_template){0};
    if (chat == NULL) return;
    probe_tools(chat, out);
    for (int way = 0; way < 4 && !out->calls; way++) {
        bool objects = (way & 1) != 0, needed = (way & 2) != 0;
        const char *none = needed ? "" : NULL;
        if (!shows_calls(chat, objects, none, CALL_MARK)) continue;
        out->calls = true;
        out->arguments_objects = objects;
        out->content_needed = needed;
        out->results = shows_calls(chat, objects, none, RESULT_MARK);
        out->beside_content = shows_calls(chat, objects, "words", CALL_MARK);
    }
}

/* ---- texts --------------------------------------------------------------------------------------------- */

enum { TEXT_BYTES_MAX = 128 << 20 };

/* Gives a finished buffer to the chat as the text of `message`. */
static fl_err own_text(fl_api_chat *c, fl_buffer *text, fl_chat_message *message) {
    size_t n = text->n;
    fl_buffer_add(text, "", 1);
    fl_err err = fl_buffer_check(text);
    if (err != FL_ERR_OK) {
        fl_buffer_free(text);
        return err;
    }
    c->texts[c->n_texts++] = text->bytes;
    message->content = text->bytes;
    message->content_bytes = n;
    return FL_ERR_OK;
}

static void add_json(fl_buffer *out, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text != NULL) fl_buffer_add_text(out, text);
    else out->failure = FL_ERR_NOMEM;
    free(text);
}

static void describe_tools(const fl_api_request *r, fl_buffer *out) {
    fl_buffer_add_text(
        out, "You can call functions. Here they are, each as JSON with its name, what it does and the JSON "
             "schema of its arguments:\n\n");
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        add_json(out, fl_api_tool(r, i));
        fl_buffer_add_text(out, "\n");
    }
    if (r->tool_choice == FL_API_TOOLS_NAMED) {
        fl_buffer_add_text(out, "\nCall the function ");
        fl_buffer_add_text(out, r->tool_name);
        fl_buffer_add_text(out, " now: answer with the JSON object of its arguments and nothing else.");
        return;
    }
    fl_buffer_add_text(out,
                       "\nTo call a function, answer with a JSON object of this form and nothing else:\n"
                       "{\"name\": \"the function's name\", \"arguments\": {\"argument\": \"value\"}}\n");
    if (r->parallel_tool_calls) fl_buffer_add_text(out, "For several calls write one such object a line. ");
    fl_buffer_add_text(out, "You will then be told the result.");
    fl_buffer_add_text(out, r->tool_choice == FL_API_TOOLS_REQUIRED
                                ? " Call a function now."
                                : " If no function is needed, answer in plain words.");
}

/* The calls of an assistant's message in the JSON form, one a line. */
static void write_calls(const json_t *calls, fl_buffer *out) {
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        const json_t *name = json_object_get(function, "name"),
                     *arguments = json_object_get(function, "arguments");
        if (out->n > 0) fl_buffer_add_text(out, "\n");
        fl_buffer_add_text(out, "{\"name\": ");
        fl_json_string(out, json_string_value(name), json_string_length(name));
        fl_buffer_add_text(out, ", \"arguments\": ");
        /* As the model wrote it: texts of arguments are JSON where all went well. */
        fl_buffer_add(out, json_string_value(arguments), json_string_length(arguments));
        fl_buffer_add_text(out, "}");
    }
}

/* The name of the function whose call has this id, in the nearest message before that has calls; NULL =
 * unknown. */
static const json_t *called_name(const fl_api_request *r, size_t at) {
    const json_t *id = json_object_get(r->messages[at].extra, "tool_call_id");
    size_t i;
    json_t *call;
    while (at > 0 && r->messages[at - 1].tool_calls == NULL) at--;
    if (at == 0 || id == NULL) return NULL;
    json_array_foreach(r->messages[at - 1].tool_calls, i, call) {
        if (json_equal(json_object_get(call, "id"), id))
            return json_object_get(json_object_get(call, "function"), "name");
    }
    return NULL;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* The calls with their arguments as objects, where they are objects. Owned by the chat. */
static fl_err make_objects(fl_api_chat *c, fl_chat_message *message) {
    size_t i;
    json_t *call, *calls = json_deep_copy(message->tool_calls);
    if (c->calls == NULL) c->calls = json_array();
    if (json_array_append_new(c->calls, calls) != 0) return FL_FAIL(FL_ERR_NOMEM, "tool_calls");
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function"), *text = json_object_get(function, "arguments");
        json_t *object =
            json_loadb(json_string_value(text), json_string_length(text), JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(object)) json_object_set(function, "arguments", object);
        json_decref(object);
    }
    message->tool_calls = calls;
    return FL_ERR_OK;
}

static fl_err add_calls_as_text(fl_api_chat *c, fl_chat_message *message) {
    fl_buffer text;
    fl_buffer_init(&text, TEXT_BYTES_MAX);
    fl_buffer_add(&text, message->content, message->content_bytes);
    write_calls(message->tool_calls, &text);
    message->tool_calls = NULL;
    return own_text(c, &text, message);
}

/* An assistant's message with calls, as the template takes it. */
static fl_err add_calls(fl_api_chat *c, const fl_api_template *shown, fl_chat_message message) {
    if (!shown->calls) {
        FL_TRY(add_calls_as_text(c, &message));
        c->messages[c->n_messages++] = message;
        return FL_ERR_OK;
    }
    bool words = message.content_bytes > 0;
    if (words &&
        !shown->beside_content) { /* the words as a message of their own, or the calls would be lost */
        fl_chat_message alone = message;
        alone.tool_calls = NULL;
        c->messages[c->n_messages++] = alone;
        words = false;
    }
    if (!words) {
        message.content = shown->content_needed ? "" : NULL;
        message.content_bytes = 0;
    }
    if (shown->arguments_objects) FL_TRY(make_objects(c, &message));
    c->messages[c->n_messages++] = message;
    return FL_ERR_OK;
}

static fl_err add_result(fl_api_chat *c, const fl_api_request *r, size_t at) {
    fl_chat_message message = r->messages[at];
    const json_t *name = called_name(r, at);
    fl_buffer text;
    fl_buffer_init(&text, TEXT_BYTES_MAX);
    fl_buffer_add_text(&text, "Result of the call");
    if (name != NULL) {
        fl_buffer_add_text(&text, " of ");
        fl_buffer_add(&text, json_string_value(name), json_string_length(name));
    }
    fl_buffer_add_text(&text, ":\n");
    fl_buffer_add(&text, message.content, message.content_bytes);
    FL_TRY(own_text(c, &text, &message));
    message.role = "user";
    c->messages[c->n_messages++] = message;
    return FL_ERR_OK;
}

/* The first message, with the tools described in it. */
static fl_err add_description(fl_api_chat *c, const fl_api_request *r) {
    bool system = strcmp(r->messages[0].role, "system") == 0;
    fl_chat_message message = {.role = "system"};
    fl_buffer text;
    fl_buffer_init(&text, TEXT_BYTES_MAX);
    if (system) {
        message = r->messages[0];
        fl_buffer_add(&text, message.content, message.content_bytes);
        fl_buffer_add_text(&text, "\n\n");
    }
    describe_tools(r, &text);
    FL_TRY(own_text(c, &text, &message));
    c->messages[c->n_messages++] = message;
    return FL_ERR_OK;
}

static fl_err add_message(fl_api_chat *c, const fl_api_request *r, const fl_api_template *shown, size_t at) {
    const fl_chat_message *message = &r->messages[at];
    if (at == r->question_message) c->question_message = c->n_messages;
    if (message->tool_calls != NULL) return add_calls(c, shown, *message);
    if (strcmp(message->role, "tool") == 0 && !shown->results) return add_result(c, r, at);
    c->messages[c->n_messages++] = *message;
    return FL_ERR_OK;
}

fl_err fl_api_chat_prepare(const fl_api_request *r, const fl_api_template *shown, fl_api_chat *out) {
    bool tools = r->tools != NULL && r->tool_choice != FL_API_TOOLS_NONE, described = tools && !shown->tools;
    size_t most = 2 * r->n_messages + 1, first = 0; /* a message may become two, and one may come first */
    fl_err err = FL_ERR_OK;
    *out = (fl_api_chat){.question_message = SIZE_MAX};
    out->messages = calloc(most, sizeof *out->messages);
    out->texts = calloc(most, sizeof *out->texts);
    if (out->messages == NULL || out->texts == NULL) {
        err = FL_FAIL(FL_ERR_NOMEM, "%zu messages", r->n_messages);
        goto fail;
    }
    out->options = (fl_chat_options){.add_generation_prompt = r->add_generation_prompt,
                                     .tools = tools && shown->tools ? r->tools : NULL,
                                     .extra_kwargs = r->template_kwargs};
    if (described) {
        FL_TRY_GOTO(add_description(out, r));
        first = strcmp(r->messages[0].role, "system") == 0;
    }
    for (size_t i = first; i < r->n_messages; i++) FL_TRY_GOTO(add_message(out, r, shown, i));
    if (out->question_message == SIZE_MAX) out->question_message = out->n_messages;
    return FL_ERR_OK;
fail:
    fl_api_chat_free(out);
    return err;
}

void fl_api_chat_free(fl_api_chat *c) {
    for (size_t i = 0; i < c->n_texts; i++) free(c->texts[i]);
    free(c->texts);
    free(c->messages);
    json_decref(c->calls);
    *c = (fl_api_chat){0};
}
