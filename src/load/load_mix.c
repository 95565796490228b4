#include "load/load_mix.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { FILE_BYTES_MAX = 1 << 20, TOKENS_MAX = 1 << 24 };

/* The number of a field, or `fallback`. */
static fl_err read_real(const json_t *object, const char *name, double fallback, double *out) {
    const json_t *value = json_object_get(object, name);
    *out = value ? json_number_value(value) : fallback;
    if (value && !(json_is_number(value) && *out >= 0 && *out <= 1e9))
        return FL_FAIL(FL_ERR_DATA, "mix: %s: expected a number from 0 to 1e9", name);
    return FL_ERR_OK;
}

static fl_err read_tokens(const json_t *value, const char *name, int64_t *out) {
    *out = json_integer_value(value);
    if (!json_is_integer(value) || *out < 1 || *out > TOKENS_MAX)
        return FL_FAIL(FL_ERR_DATA, "mix: %s: expected a whole number from 1 to %d, or two of them", name,
                       TOKENS_MAX);
    return FL_ERR_OK;
}

/* N or [MIN, MAX]. */
static fl_err read_range(const json_t *object, const char *name, int64_t *min, int64_t *max) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_array(value)) {
        FL_TRY(read_tokens(value, name, min));
        *max = *min;
        return FL_ERR_OK;
    }
    FL_TRY(read_tokens(json_array_get(value, 0), name, min));
    FL_TRY(read_tokens(json_array_get(value, 1), name, max));
    if (json_array_size(value) != 2 || *min > *max)
        return FL_FAIL(FL_ERR_DATA, "mix: %s: expected [MIN, MAX] with MIN <= MAX", name);
    return FL_ERR_OK;
}

static fl_err check_names(const json_t *object) {
    static const char *const known[] = {"name",         "share",         "prompt_tokens", "answer_tokens",
                                        "ttft_limit_s", "shared_tokens", "priority"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || strcmp(name, known[i]) == 0;
        if (!found) return FL_FAIL(FL_ERR_DATA, "mix: no field '%s' in a class", name);
    }
    return FL_ERR_OK;
}

static fl_err read_class(const json_t *object, fl_load_class *c) {
    const char *name = json_string_value(json_object_get(object, "name"));
    double shared, priority;
    if (!json_is_object(object)) return FL_FAIL(FL_ERR_DATA, "mix: expected objects in classes");
    FL_TRY(check_names(object));
    if (!name || !name[0] || strlen(name) >= sizeof c->name)
        return FL_FAIL(FL_ERR_DATA, "mix: name: expected 1..%d bytes", FL_LOAD_NAME_BYTES - 1);
    memcpy(c->name, name, strlen(name) + 1);
    FL_TRY(read_real(object, "share", 1, &c->share));
    FL_TRY(read_range(object, "prompt_tokens", &c->prompt_min, &c->prompt_max));
    FL_TRY(read_range(object, "answer_tokens", &c->answer_min, &c->answer_max));
    FL_TRY(read_real(object, "ttft_limit_s", 0, &c->ttft_limit_s));
    FL_TRY(read_real(object, "shared_tokens", 0, &shared));
    FL_TRY(read_real(object, "priority", 0, &priority));
    c->shared_tokens = (int64_t)shared;
    c->priority = (int64_t)priority;
    return FL_ERR_OK;
}

static fl_err read_classes(const json_t *root, fl_load_mix *out) {
    const json_t *classes = json_object_get(root, "classes");
    size_t n = json_array_size(classes);
    double sum = 0;
    if (n < 1 || n > FL_LOAD_CLASSES_MAX || json_object_size(root) != 1)
        return FL_FAIL(FL_ERR_DATA, "mix: expected {\"classes\": [...]} with 1..%d classes",
                       FL_LOAD_CLASSES_MAX);
    *out = (fl_load_mix){.n = (int32_t)n};
    for (size_t i = 0; i < n; i++) {
        FL_TRY(read_class(json_array_get(classes, i), &out->classes[i]));
        sum += out->classes[i].share;
    }
    if (sum <= 0) return FL_FAIL(FL_ERR_DATA, "mix: share: expected at least one above 0");
    for (size_t i = 0; i < n; i++) out->classes[i].share /= sum;
    return FL_ERR_OK;
}

fl_err fl_load_mix_parse(const char *text, size_t n_bytes, fl_load_mix *out) {
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) return FL_FAIL(FL_ERR_DATA, "mix: line %d: %s", error.line, error.text);
    fl_err err = read_classes(root, out);
    json_decref(root);
    return err;
}

fl_err fl_load_mix_read(const char *path, fl_load_mix *out) {
    static const char questions[] =
        "{\"classes\": [{\"name\": \"questions\", \"prompt_tokens\": [128, 512], \"answer_tokens\": 32}]}";
    if (!path) return fl_load_mix_parse(questions, sizeof questions - 1, out);
    char *bytes = NULL;
    size_t n = 0;
    FL_TRY(fl_file_read(path[0] == '/' ? "/" : ".", path, FILE_BYTES_MAX, &bytes, &n));
    fl_err err = fl_load_mix_parse(bytes, n, out);
    free(bytes);
    return err;
}
