#include "server/api_error.h"

#include "server/json_write.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct status_type {
    int32_t status;
    const char *type;
} status_type;

/* The first line whose status is not above the error's. */
static const status_type types[] = {
    {500, "server_error"},         {499, "cancelled"},           {430, "invalid_request_error"},
    {429, "rate_limit_error"},     {404, "not_found_error"},     {403, "permission_error"},
    {401, "authentication_error"}, {0, "invalid_request_error"},
};

static const char *type_of(int32_t status) {
    size_t i = 0;
    while (types[i].status > status) i++;
    /* 405 and its neighbours are faults of the request, not missing things. */
    if (status > 404 && status < 429) return "invalid_request_error";
    return types[i].type;
}

fl_err fl_api_error_set(fl_api_error *error, int32_t status, const char *param, const char *code,
                        const char *format, ...) {
    va_list args;
    *error = (fl_api_error){.status = status, .type = type_of(status), .code = code};
    if (param != NULL) snprintf(error->param, sizeof error->param, "%s", param);
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    for (char *c = error->message; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return FL_FAIL(status < 500 ? FL_ERR_INVALID : FL_ERR_INTERNAL, "%s", error->message);
}

typedef struct err_status {
    fl_err err;
    int32_t status;
    const char *code;
} err_status;

static const err_status statuses[] = {
    {FL_ERR_INVALID, 400, NULL},
    {FL_ERR_LIMIT, 400, "limit_exceeded"},
    {FL_ERR_AGAIN, 429, "queue_full"},
    {FL_ERR_CANCELLED, 499, "cancelled"},
    {FL_ERR_UNSUPPORTED, 501, "unsupported"},
    {FL_ERR_DEVICE, 503, "engine_lost"},
    {FL_ERR_NOMEM, 503, "out_of_memory"},
    {FL_ERR_NUMERIC, 500, "not_a_number"},
};

typedef struct engine_name {
    const char *engine, *param;
} engine_name;

/* Fields that only the engine can judge, as its messages begin, and what a client calls them. */
static const engine_name engine_names[] = {
    {"stop_tokens", "stop_token_ids"},
    {"logit_biases", "logit_bias"},
    {"json_schema", "response_format"},
    {"tokens", "prompt"},
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"min_tokens", "min_tokens"},
    {"repetition_penalty", "repetition_penalty"},
    {"deadline_s", "deadline_s"},
    {"priority", "priority"},
};

/* The client's field that the engine's message is about; NULL = none. */
static const char *param_of(const char *detail) {
    size_t n = strspn(detail, "abcdefghijklmnopqrstuvwxyz_");
    for (size_t i = 0; i < sizeof engine_names / sizeof engine_names[0]; i++)
        if (strlen(engine_names[i].engine) == n && memcmp(engine_names[i].engine, detail, n) == 0 &&
            (detail[n] == ':' || detail[n] == '['))
            return engine_names[i].param;
    return NULL;
}

void fl_api_error_from(fl_api_error *error, fl_err err, const char *detail) {
    err_status found = {err, 500, "internal_error"};
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].err == err) found = statuses[i];
    const char *text = detail != NULL && detail[0] != '\0' ? detail : fl_err_name(err);
    const char *param = found.status == 400 || found.status == 501 ? param_of(text) : NULL;
    if (err == FL_ERR_LIMIT && param != NULL && strcmp(param, "deadline_s") == 0)
        found.code = "deadline_exceeded";
    int32_t status = param != NULL ? 400 : found.status; /* what a field asked for is the client's matter */
    fl_api_error_set(error, status, param, found.code, "%s", text);
}

void fl_api_error_write(const fl_api_error *error, fl_buffer *out) {
    fl_buffer_add_text(out, "{\"error\":{\"message\":");
    fl_json_text(out, error->message);
    fl_buffer_add_text(out, ",\"type\":");
    fl_json_text(out, error->type);
    fl_buffer_add_text(out, ",\"param\":");
    fl_json_text(out, error->param[0] != '\0' ? error->param : NULL);
    fl_buffer_add_text(out, ",\"code\":");
    fl_json_text(out, error->code);
    fl_buffer_add_text(out, "}}");
}
