#include "server/api_tool_parse.h"

#include "server/api_json.h"
#include "server/api_tools.h"

#include <stdlib.h>
#include <string.h>

static const char calls_begin[] = "<｜tool▁calls▁begin｜>";
static const char calls_end[] = "<｜tool▁calls▁end｜>";
static const char call_begin[] = "<｜tool▁call▁begin｜>";
static const char call_end[] = "<｜tool▁call▁end｜>";
static const char fenced_call_end[] = "\n```<｜tool▁call▁end｜>";
static const char separator[] = "<｜tool▁sep｜>";

void fl_tool_parser_init(fl_tool_parser *p, const fl_api_request *request, fl_tool_sink sink) {
    bool forced = request->tool_choice == FL_API_TOOLS_NAMED;
    *p = (fl_tool_parser){.request = request, .sink = sink, .state = forced ? FL_TOOL_FORCED : FL_TOOL_START};
    fl_buffer_init(&p->held, FL_TOOL_HELD_BYTES_MAX + (4 << 20)); /* and the largest piece of text */
    if (forced) sink.call(sink.context, request->tool_name, strlen(request->tool_name));
}

void fl_tool_parser_free(fl_tool_parser *p) {
    fl_buffer_free(&p->held);
}

enum {
    HEAD_BYTES_MAX = 256,  /* a longer name is none; so much white space begins no call */
    FORM_BYTES_MAX = 1024, /* of an object before its arguments, if they are to stream */
};

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* How two texts begin: 1 the text begins with all of `word`, 0 it ends inside of it, -1 they differ. */
static int begins(const char *text, size_t n, const char *word) {
    size_t length = strlen(word), m = n < length ? n : length;
    if (m > 0 && memcmp(text, word, m) != 0) return -1;
    return n >= length;
}

/* Where `word` first is in the text; n if nowhere. */
static size_t find(const char *text, size_t n, const char *word) {
    const char *at = n > 0 ? memmem(text, n, word, strlen(word)) : NULL;
    return at != NULL ? (size_t)(at - text) : n;
}

/* Bytes at the text's end that may be the beginning of `word`. */
static size_t unsure(const char *text, size_t n, const char *word) {
    size_t most = strlen(word) - 1;
    for (size_t k = most < n ? most : n; k > 0; k--)
        if (memcmp(text + n - k, word, k) == 0) return k;
    return 0;
}

typedef void give_fn(void *context, const char *text, size_t n);

static void give(fl_tool_parser *p, give_fn *to, size_t n) {
    if (n > 0) to(p->sink.context, p->held.bytes, n);
    fl_buffer_drop(&p->held, n);
}

/* ---- the JSON form ------------------------------------------------------------------------------------- */

/* Does the text begin as a call: {"name"? 1, 0 (too short to say), -1. White space is free. */
static int begins_call(const char *text, size_t n, size_t *skip) {
    static const char *const words[] = {"{", "\"name\"", ":"};
    size_t at = 0;
    for (size_t w = 0; w < 3; w++) {
        while (at < n && is_space(text[at])) at++;
        if (w == 0) *skip = at;
        int same = begins(text + at, n - at, words[w]);
        if (same <= 0) return same;
        at += strlen(words[w]);
    }
    return 1;
}

/* Passes white space; then the text must go on with `word`: as `begins`, and *at is behind it. */
static int pass(const char *text, size_t n, size_t *at, const char *word) {
    while (*at < n && is_space(text[*at])) (*at)++;
    int same = begins(text + *at, n - *at, word);
    if (same > 0) *at += strlen(word);
    return same;
}

typedef struct call_form {
    size_t name, name_bytes; /* in the held text */
    size_t arguments;        /* where their object begins */
} call_form;

/* Does the object go {"name": "NAME", "arguments": {..? 1, 0 (too short to say), -1. No known name has an
 * escape. */
static int match_form(const fl_tool_parser *p, call_form *form) {
    const char *text = p->held.bytes;
    size_t n = p->held.n, at = 0;
    static const char *const before[] = {"{", "\"name\"", ":", "\""};
    for (size_t i = 0; i < 4; i++) {
        int same = pass(text, n, &at, before[i]);
        if (same <= 0) return same;
    }
    form->name = at;
    while (at < n && text[at] != '"') at++;
    form->name_bytes = at - form->name;
    if (form->name_bytes > FL_API_NAME_BYTES_MAX) return -1;
    int same = pass(text, n, &at, "\"");
    if (same > 0) same = pass(text, n, &at, ",");
    if (same <= 0) return same;
    if (fl_api_tool_find(p->request, text + form->name, form->name_bytes) >=
        json_array_size(p->request->tools))
        return -1;
    size_t other = at;
    same = pass(text, n, &at, "\"arguments\"");
    int parameters = same < 0 ? pass(text, n, &other, "\"parameters\"") : -1;
    if (parameters > 0) at = other;
    if (parameters >= 0) same = parameters;
    if (same > 0) same = pass(text, n, &at, ":");
    if (same > 0) same = pass(text, n, &at, "{");
    form->arguments = at - 1;
    return same;
}

/* A whole object of the held text: a call of a known tool? */
static bool give_call(fl_tool_parser *p, size_t n) {
    fl_api_settings settings;
    fl_api_error error;
    json_t *root = NULL;
    fl_api_settings_default(&settings);
    if (fl_api_json_load(p->held.bytes, n, &settings, &root, &error) != FL_ERR_OK) return false;
    const json_t *name = json_object_get(root, "name");
    json_t *arguments = json_object_get(root, "arguments");
    if (arguments == NULL) arguments = json_object_get(root, "parameters");
    const char *bytes = json_string_value(name);
    bool known =
        bytes != NULL && json_is_object(arguments) &&
        fl_api_tool_find(p->request, bytes, json_string_length(name)) < json_array_size(p->request->tools);
    char *text = known ? json_dumps(arguments, JSON_COMPACT) : NULL;
    if (text != NULL) {
        p->sink.call(p->sink.context, bytes, json_string_length(name));
        p->sink.arguments(p->sink.context, text, strlen(text));
    }
    free(text);
    json_decref(root);
    return text != NULL;
}

/* Begins a walk over an object that `depth` others hold. */
static void begin_walk(fl_tool_parser *p, int32_t depth) {
    p->seen = 0;
    p->depth = depth;
    p->in_string = p->escaped = false;
}

/* Walks on to the end of the object; its length, or 0: not there yet. */
static size_t object_end(fl_tool_parser *p) {
    for (; p->seen < p->held.n; p->seen++) {
        char c = p->held.bytes[p->seen];
        if (p->in_string) {
            if (p->escaped) p->escaped = false;
            else if (c == '\\') p->escaped = true;
            else if (c == '"') p->in_string = false;
        } else if (c == '"') p->in_string = true;
        else if (c == '{' || c == '[') p->depth++;
        else if ((c == '}' || c == ']') && --p->depth == 0) return ++p->seen;
    }
    return 0;
}

/* ---- steps: true = something was done, look again ------------------------------------------------------ */

static bool step_start(fl_tool_parser *p) {
    size_t skip = 0;
    int call = begins_call(p->held.bytes, p->held.n, &skip);
    if (call == 0 && p->held.n <= HEAD_BYTES_MAX) return false;
    p->state = call > 0 ? FL_TOOL_JSON : FL_TOOL_CONTENT;
    if (call > 0) fl_buffer_drop(&p->held, skip);
    p->whole = false;
    begin_walk(p, 0);
    return true;
}

/* true: it is a call, and its arguments begin. */
static bool begin_form(fl_tool_parser *p) {
    call_form form;
    int same = match_form(p, &form);
    if (same > 0) {
        p->sink.call(p->sink.context, p->held.bytes + form.name, form.name_bytes);
        p->called = true;
        fl_buffer_drop(&p->held, form.arguments);
        begin_walk(p, 0);
        p->state = FL_TOOL_JSON_ARGUMENTS;
    }
    p->whole = same < 0 || (same == 0 && p->held.n > FORM_BYTES_MAX);
    return same > 0;
}

static bool step_json_arguments(fl_tool_parser *p) {
    size_t n = object_end(p);
    give(p, p->sink.arguments, n > 0 ? n : p->held.n);
    p->seen = 0;
    if (n == 0) return false;
    begin_walk(p, 1);
    p->state = FL_TOOL_JSON_TAIL;
    return true;
}

static bool step_json_tail(fl_tool_parser *p) {
    size_t n = object_end(p);
    fl_buffer_drop(&p->held, n > 0 ? n : p->held.n);
    p->seen = 0;
    if (n > 0) p->state = FL_TOOL_START;
    return n > 0;
}

static bool step_json(fl_tool_parser *p) {
    if (!p->whole && begin_form(p)) return true;
    if (!p->whole) return false;
    size_t n = object_end(p);
    if (n == 0 && p->held.n <= FL_TOOL_HELD_BYTES_MAX) return false;
    p->state = FL_TOOL_CONTENT;
    if (n > 0 && give_call(p, n)) {
        fl_buffer_drop(&p->held, n);
        p->called = true;
        p->state = FL_TOOL_START;
    }
    return true;
}

static bool step_content(fl_tool_parser *p) {
    size_t n = p->held.n, at = find(p->held.bytes, n, calls_begin);
    if (at == n) {
        give(p, p->sink.content, n - unsure(p->held.bytes, n, calls_begin));
        return false;
    }
    give(p, p->sink.content, at);
    fl_buffer_drop(&p->held, strlen(calls_begin));
    p->state = FL_TOOL_BETWEEN;
    return true;
}

static bool step_between(fl_tool_parser *p) {
    size_t skip = 0;
    while (skip < p->held.n && is_space(p->held.bytes[skip])) skip++;
    fl_buffer_drop(&p->held, skip);
    int next = begins(p->held.bytes, p->held.n, call_begin),
        end = begins(p->held.bytes, p->held.n, calls_end);
    if (next == 0 || end == 0) return false;
    p->state = next > 0 ? FL_TOOL_HEAD : FL_TOOL_CONTENT;
    if (next > 0) fl_buffer_drop(&p->held, strlen(call_begin));
    else if (end > 0) fl_buffer_drop(&p->held, strlen(calls_end));
    return true;
}

/* Begins the call whose name is the held text up to `end`; drops `rest` more bytes. */
static void begin_call(fl_tool_parser *p, size_t end, size_t rest, bool fenced) {
    size_t begin = 0, last = end;
    while (begin < last && is_space(p->held.bytes[begin])) begin++;
    while (last > begin && is_space(p->held.bytes[last - 1])) last--;
    p->sink.call(p->sink.context, p->held.bytes + begin, last - begin);
    fl_buffer_drop(&p->held, end + rest);
    p->fenced = fenced;
    p->state = fenced ? FL_TOOL_FENCE : FL_TOOL_ARGUMENTS;
}

static bool step_head(fl_tool_parser *p) {
    size_t n = p->held.n, at = find(p->held.bytes, n, separator);
    if (at == n) {
        if (n > HEAD_BYTES_MAX) p->state = FL_TOOL_CONTENT;
        return n > HEAD_BYTES_MAX;
    }
    if (at == strlen("function") && memcmp(p->held.bytes, "function", at) == 0) {
        fl_buffer_drop(&p->held, at + strlen(separator));
        p->state = FL_TOOL_NAME;
    } else {
        begin_call(p, at, strlen(separator), false);
    }
    return true;
}

static bool step_name(fl_tool_parser *p) {
    size_t at = find(p->held.bytes, p->held.n, "\n");
    if (at == p->held.n && at <= HEAD_BYTES_MAX) return false;
    if (at > HEAD_BYTES_MAX) p->state = FL_TOOL_CONTENT;
    else begin_call(p, at, 1, true);
    return true;
}

/* The line "```json" before the arguments; left out by some answers. */
static bool step_fence(fl_tool_parser *p) {
    int fence = begins(p->held.bytes, p->held.n, "```json\n");
    if (fence == 0) return false;
    if (fence > 0) fl_buffer_drop(&p->held, strlen("```json\n"));
    p->state = FL_TOOL_ARGUMENTS;
    return true;
}

static bool step_arguments(fl_tool_parser *p) {
    const char *end = p->fenced ? fenced_call_end : call_end;
    size_t n = p->held.n, at = find(p->held.bytes, n, end), plain = find(p->held.bytes, n, call_end);
    if (plain < at) { /* the fence is missing */
        at = plain;
        end = call_end;
    }
    if (at == n) {
        size_t held = unsure(p->held.bytes, n, end), held_plain = unsure(p->held.bytes, n, call_end);
        give(p, p->sink.arguments, n - (held > held_plain ? held : held_plain));
        return false;
    }
    give(p, p->sink.arguments, at);
    fl_buffer_drop(&p->held, strlen(end));
    p->state = FL_TOOL_BETWEEN;
    return true;
}

static bool step_forced(fl_tool_parser *p) {
    give(p, p->sink.arguments, p->held.n);
    return false;
}

static bool step(fl_tool_parser *p) {
    if (p->held.n == 0) return false;
    switch (p->state) {
    case FL_TOOL_START: return step_start(p);
    case FL_TOOL_JSON: return step_json(p);
    case FL_TOOL_JSON_ARGUMENTS: return step_json_arguments(p);
    case FL_TOOL_JSON_TAIL: return step_json_tail(p);
    case FL_TOOL_CONTENT: return step_content(p);
    case FL_TOOL_BETWEEN: return step_between(p);
    case FL_TOOL_HEAD: return step_head(p);
    case FL_TOOL_NAME: return step_name(p);
    case FL_TOOL_FENCE: return step_fence(p);
    case FL_TOOL_ARGUMENTS: return step_arguments(p);
    case FL_TOOL_FORCED: return step_forced(p);
    }
    return false;
}

fl_err fl_tool_parser_push(fl_tool_parser *p, const char *text, size_t n) {
    fl_buffer_add(&p->held, text, n);
    while (p->held.failure == FL_ERR_OK && step(p)) {
    }
    return fl_buffer_check(&p->held);
}

static bool is_blank(const fl_buffer *text) {
    size_t i = 0;
    while (i < text->n && is_space(text->bytes[i])) i++;
    return i == text->n;
}

fl_err fl_tool_parser_finish(fl_tool_parser *p) {
    bool arguments = p->state == FL_TOOL_ARGUMENTS || p->state == FL_TOOL_FORCED;
    bool text = p->state == FL_TOOL_START || p->state == FL_TOOL_JSON || p->state == FL_TOOL_CONTENT;
    if (arguments) give(p, p->sink.arguments, p->held.n);
    else if (text && !(p->called && is_blank(&p->held))) give(p, p->sink.content, p->held.n);
    return fl_buffer_check(&p->held);
}
