#include "server/api_json.h"

#include <string.h>

/* A walk over JSON text that knows strings and levels, nothing else; on text that is not JSON its counts
 * are upper bounds of what a parser builds before it gives up. */
typedef struct scan {
    const char *body;
    int32_t depth, depth_max;
    int64_t values, containers;
    bool in_string, escaped;
    size_t string_begin, string_end; /* the last string at level 1 */
    size_t key_begin, key_end;       /* the field being walked through; equal = none */
} scan;

static void scan_string(scan *s, size_t at) {
    char c = s->body[at];
    if (s->escaped) s->escaped = false;
    else if (c == '\\') s->escaped = true;
    else if (c == '"') {
        s->in_string = false;
        if (s->depth == 1) s->string_end = at;
    }
}

static void scan_byte(scan *s, size_t at) {
    switch (s->body[at]) {
    case '"':
        s->in_string = true;
        if (s->depth == 1) s->string_begin = s->string_end = at + 1;
        break;
    case '[':
    case '{':
        s->containers++;
        s->values++;
        s->depth++;
        if (s->depth > s->depth_max) s->depth_max = s->depth;
        break;
    case ']':
    case '}': s->depth--; break;
    case ',':
        s->values++;
        if (s->depth == 1) s->key_begin = s->key_end = s->string_begin = s->string_end = 0;
        break;
    case ':':
        if (s->depth != 1) break;
        s->key_begin = s->string_begin;
        s->key_end = s->string_end;
        break;
    default: break;
    }
}

/* Walks over body[0, end); true: a limit was passed, and the walk ends there. */
static bool walk(scan *s, const char *body, size_t end, const fl_api_settings *limits) {
    *s = (scan){.body = body};
    for (size_t at = 0; at < end; at++) {
        if (s->in_string) scan_string(s, at);
        else scan_byte(s, at);
        if (limits == NULL) continue;
        if (s->depth > limits->depth_max || s->containers > limits->containers_max ||
            s->values > limits->values_max)
            return true;
    }
    return false;
}

/* The name of the field that a walk ended in; "" = none. */
static const char *field_of(const scan *s, char name[64]) {
    bool key = s->key_end >
               s->key_begin; /* else the walk may have ended before the colon: a name that comes twice */
    size_t begin = key ? s->key_begin : s->string_begin, end = key ? s->key_end : s->string_end;
    size_t n = end - begin < 63 ? end - begin : 63;
    if (n > 0) memcpy(name, s->body + begin, n);
    name[n] = '\0';
    return name;
}

static fl_err refuse_limit(const scan *s, const fl_api_settings *limits, fl_api_error *error) {
    char name[64];
    const char *field = field_of(s, name);
    if (s->depth > limits->depth_max)
        return fl_api_error_set(error, 400, field, NULL,
                                "the body: expected at most %d levels of objects and arrays, found more",
                                limits->depth_max);
    if (s->containers > limits->containers_max)
        return fl_api_error_set(error, 400, field, NULL,
                                "the body: expected at most %lld objects and arrays, found more",
                                (long long)limits->containers_max);
    return fl_api_error_set(error, 400, field, NULL, "the body: expected at most %lld values, found more",
                            (long long)limits->values_max);
}

fl_err fl_api_json_load(const char *body, size_t n_bytes, const fl_api_settings *settings, json_t **out,
                        fl_api_error *error) {
    json_error_t fault;
    char name[64];
    scan s;
    *out = NULL;
    if (n_bytes > settings->body_bytes_max)
        return fl_api_error_set(error, 413, NULL, "body_too_large",
                                "the body: expected at most %zu bytes, found %zu", settings->body_bytes_max,
                                n_bytes);
    const char *nul = n_bytes > 0 ? memchr(body, '\0', n_bytes) : NULL;
    if (nul != NULL) { /* jansson passes over one behind a number */
        walk(&s, body, (size_t)(nul - body), NULL);
        return fl_api_error_set(error, 400, field_of(&s, name), "invalid_json",
                                "the body is not valid JSON: byte %zu is NUL", (size_t)(nul - body));
    }
    if (walk(&s, body, n_bytes, settings)) return refuse_limit(&s, settings, error);
    json_t *root = json_loadb(body, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &fault);
    if (root == NULL) {
        size_t at = fault.position > 0 ? (size_t)fault.position : 0;
        walk(&s, body, at < n_bytes ? at : n_bytes, NULL);
        return fl_api_error_set(error, 400, field_of(&s, name), "invalid_json",
                                "the body is not valid JSON: line %d, column %d: %s", fault.line,
                                fault.column, fault.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return fl_api_error_set(error, 400, NULL, "invalid_json",
                                "the body: expected a JSON object, found an array");
    }
    *out = root;
    return FL_ERR_OK;
}
