#include "server/api_fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    CHAT = 1 << FL_API_CHAT,
    COMPLETION = 1 << FL_API_COMPLETION,
    TOKENIZE = 1 << FL_API_TOKENIZE,
    DETOKENIZE = 1 << FL_API_DETOKENIZE,
    ANSWER = CHAT | COMPLETION,
    TALK = CHAT | TOKENIZE,
    ALL = ANSWER | TOKENIZE | DETOKENIZE,
};

#define AT(member) .offset = offsetof(fl_api_request, member)
#define INT(name, ends, low, high, at)                                                                       \
    { name, ends, FL_API_TYPE_INT, .min = (low), .max = (high), AT(at) }
#define REAL(name, ends, low, high, at)                                                                      \
    { name, ends, FL_API_TYPE_REAL, .min = (low), .max = (high), AT(at) }
#define BOOL(name, ends, at)                                                                                 \
    { name, ends, FL_API_TYPE_BOOL, AT(at) }
#define STRING(name, ends, low, high, at)                                                                    \
    { name, ends, FL_API_TYPE_STRING, .min = (low), .max = (high), AT(at) }
#define OBJECT(name, ends, at)                                                                               \
    { name, ends, FL_API_TYPE_OBJECT, AT(at) }
#define CODE(name, ends, reader)                                                                             \
    { name, ends, FL_API_TYPE_CODE, .read = reader }
#define REFUSED(name, ends, why)                                                                             \
    { name, ends, FL_API_TYPE_REFUSED, .text = (why) }

/* Whole numbers beyond 2^53 do not fit a double: only `seed` takes all 64 bits, whose ends are exact. */
const fl_api_field fl_api_fields[] = {
    STRING("model", ALL, 1, 512, model),
    STRING("user", ANSWER, 0, 512, user),
    STRING("cache_salt", ANSWER, 1, 512, cache_salt),
    CODE("tools", TALK, fl_api_read_tools),
    CODE("tool_choice", CHAT, fl_api_read_tool_choice),
    BOOL("parallel_tool_calls", CHAT, parallel_tool_calls),
    REFUSED("functions", CHAT, "write them as \"tools\""),
    REFUSED("function_call", CHAT, "write it as \"tool_choice\""),
    CODE("messages", TALK, fl_api_read_messages),
    OBJECT("chat_template_kwargs", TALK, template_kwargs),
    BOOL("add_generation_prompt", TALK, add_generation_prompt),
    CODE("prompt", COMPLETION | TOKENIZE, fl_api_read_prompt),
    CODE("content", TOKENIZE, fl_api_read_prompt),
    BOOL("add_special_tokens", COMPLETION | TOKENIZE, add_special_tokens),
    BOOL("add_special", TOKENIZE, add_special_tokens),
    BOOL("parse_special", TOKENIZE, parse_special),
    CODE("tokens", DETOKENIZE, fl_api_read_tokens),
    INT("max_tokens", ANSWER, 1, INT32_MAX, max_tokens),
    INT("max_completion_tokens", ANSWER, 1, INT32_MAX, max_tokens),
    INT("min_tokens", ANSWER, 0, INT32_MAX, min_tokens),
    REAL("temperature", ANSWER, 0, 2, temperature),
    {"top_p", ANSWER, FL_API_TYPE_REAL, .min = 0, .max = 1, .above_min = true, AT(top_p)},
    INT("top_k", ANSWER, -1, INT32_MAX, top_k),
    {"min_p", ANSWER, FL_API_TYPE_REAL, .min = 0, .max = 1, .below_max = true, AT(min_p)},
    REAL("presence_penalty", ANSWER, -2, 2, presence_penalty),
    REAL("frequency_penalty", ANSWER, -2, 2, frequency_penalty),
    {"repetition_penalty", ANSWER, FL_API_TYPE_REAL, .min = 0, .max = 100, .above_min = true,
     AT(repetition_penalty)},
    INT("seed", ANSWER, -0x1p63, 0x1p63, seed),
    INT("n", ANSWER, 1, FL_API_N_MAX, n),
    INT("best_of", COMPLETION, 1, FL_API_N_MAX, best_of),
    BOOL("logprobs", CHAT, logprobs),
    CODE("logprobs", COMPLETION, fl_api_read_legacy_logprobs),
    INT("top_logprobs", CHAT, 0, FL_TOP_LOGPROBS_MAX, top_logprobs),
    CODE("stop", ANSWER, fl_api_read_stop),
    CODE("stop_token_ids", ANSWER, fl_api_read_stop_tokens),
    CODE("logit_bias", ANSWER, fl_api_read_logit_bias),
    BOOL("ignore_eos", ANSWER, ignore_eos),
    CODE("response_format", ANSWER, fl_api_read_response_format),
    BOOL("stream", ANSWER, stream),
    CODE("stream_options", ANSWER, fl_api_read_stream_options),
    BOOL("timeline", ANSWER, timeline),
    INT("priority", ANSWER, INT32_MIN, INT32_MAX, priority),
    REAL("deadline_s", ANSWER, 0, 86400, deadline_s),
    REFUSED("echo", COMPLETION, "prompts are not repeated"),
    REFUSED("suffix", COMPLETION, "text is not inserted, only continued"),
    REFUSED("prompt_logprobs", ANSWER, "prompts are not scored here: firstlight eval does"),
    {0},
};

fl_api_path fl_api_path_of(const char *format, ...) {
    fl_api_path path;
    va_list args;
    va_start(args, format);
    vsnprintf(path.text, sizeof path.text, format, args);
    va_end(args);
    return path;
}

fl_api_found fl_api_found_of(const json_t *value) {
    fl_api_found f = {"nothing"};
    if (value == NULL) return f;
    switch (json_typeof(value)) {
    case JSON_OBJECT: snprintf(f.text, sizeof f.text, "an object"); break;
    case JSON_ARRAY: snprintf(f.text, sizeof f.text, "an array of %zu", json_array_size(value)); break;
    case JSON_INTEGER: snprintf(f.text, sizeof f.text, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: { /* 2.0 stays 2.0, which is no whole number, and 2.1 has no more digits than that */
        size_t n = json_dumpb(value, f.text, sizeof f.text - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(16));
        f.text[n < sizeof f.text ? n : 0] = '\0';
        break;
    }
    case JSON_TRUE: snprintf(f.text, sizeof f.text, "true"); break;
    case JSON_FALSE: snprintf(f.text, sizeof f.text, "false"); break;
    case JSON_NULL: snprintf(f.text, sizeof f.text, "null"); break;
    case JSON_STRING:
        if (json_string_length(value) <= 40)
            snprintf(f.text, sizeof f.text, "\"%s\"", json_string_value(value));
        else snprintf(f.text, sizeof f.text, "a string of %zu bytes", json_string_length(value));
        break;
    }
    return f;
}

bool fl_api_is(const json_t *value, const char *text) {
    size_t n = strlen(text);
    return json_is_string(value) && json_string_length(value) == n &&
           memcmp(json_string_value(value), text, n) == 0;
}

fl_err fl_api_refuse(fl_api_parser *p, const char *param, const char *wanted, const json_t *found) {
    return fl_api_error_set(p->error, 400, param, NULL, "%s: expected %s, found %s", param, wanted,
                            fl_api_found_of(found).text);
}

fl_err fl_api_read_string(fl_api_parser *p, const char *param, json_t *value, size_t max_bytes,
                          const char **out) {
    char wanted[64];
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    snprintf(wanted, sizeof wanted, "a string of 1 to %zu bytes", max_bytes);
    if (text == NULL || n < 1 || n > max_bytes) return fl_api_refuse(p, param, wanted, value);
    if (strlen(text) != n)
        return fl_api_error_set(p->error, 400, param, NULL, "%s: expected no NUL character, found one",
                                param);
    *out = text;
    return FL_ERR_OK;
}

fl_err fl_api_read_int(fl_api_parser *p, const char *param, const json_t *value, int64_t min, int64_t max,
                       int64_t *out) {
    char wanted[96];
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < min || number > max) {
        snprintf(wanted, sizeof wanted, "a whole number %lld..%lld", (long long)min, (long long)max);
        return fl_api_refuse(p, param, wanted, value);
    }
    *out = number;
    return FL_ERR_OK;
}

static fl_err read_real(fl_api_parser *p, const fl_api_field *f, const json_t *value, double *out) {
    double number = json_number_value(value);
    bool fits = isfinite(number) && number >= f->min && number <= f->max;
    if (f->above_min && !(number > f->min)) fits = false;
    if (f->below_max && !(number < f->max)) fits = false;
    if (!json_is_number(value) || !fits) {
        char wanted[96];
        snprintf(wanted, sizeof wanted, "a number %s%g%s%g", f->above_min ? "above " : "", f->min,
                 f->below_max   ? " and below "
                 : f->above_min ? " and at most "
                                : "..",
                 f->max);
        return fl_api_refuse(p, f->name, wanted, value);
    }
    *out = number;
    return FL_ERR_OK;
}

static fl_err read_bool(fl_api_parser *p, const fl_api_field *f, const json_t *value, bool *out) {
    if (!json_is_boolean(value)) return fl_api_refuse(p, f->name, "true or false", value);
    *out = json_is_true(value);
    return FL_ERR_OK;
}

static fl_err read_text(fl_api_parser *p, const fl_api_field *f, json_t *value, const char **out) {
    if (f->min == 0 && json_is_string(value) && json_string_length(value) == 0) {
        *out = json_string_value(value);
        return FL_ERR_OK;
    }
    return fl_api_read_string(p, f->name, value, (size_t)f->max, out);
}

static fl_err read_refused(fl_api_parser *p, const fl_api_field *f, const json_t *value) {
    bool empty = json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
                 (json_is_string(value) && json_string_length(value) == 0);
    if (empty) return FL_ERR_OK;
    return fl_api_error_set(p->error, 400, f->name, "unsupported_parameter", "%s is not supported: %s",
                            f->name, f->text);
}

static int64_t int_limit(double limit) {
    return limit >= 0x1p63 ? INT64_MAX : (int64_t)limit;
}

static fl_err read_field(fl_api_parser *p, const fl_api_field *f, json_t *value) {
    void *target = (char *)p->request + f->offset;
    switch (f->type) {
    case FL_API_TYPE_INT:
        return fl_api_read_int(p, f->name, value, int_limit(f->min), int_limit(f->max), target);
    case FL_API_TYPE_REAL: return read_real(p, f, value, target);
    case FL_API_TYPE_BOOL: return read_bool(p, f, value, target);
    case FL_API_TYPE_STRING: return read_text(p, f, value, target);
    case FL_API_TYPE_OBJECT:
        if (!json_is_object(value)) return fl_api_refuse(p, f->name, "an object", value);
        *(json_t **)target = value;
        return FL_ERR_OK;
    case FL_API_TYPE_CODE: return f->read(p, f->name, value);
    case FL_API_TYPE_REFUSED: return read_refused(p, f, value);
    }
    return FL_ERR_OK;
}

fl_err fl_api_fields_read(fl_api_parser *p, const json_t *root) {
    for (const fl_api_field *f = fl_api_fields; f->name != NULL; f++) {
        json_t *value = json_object_get(root, f->name);
        bool here = (f->endpoints & 1u << p->request->kind) != 0;
        if (!here || value == NULL || json_is_null(value)) continue;
        FL_TRY(read_field(p, f, value));
    }
    return FL_ERR_OK;
}
