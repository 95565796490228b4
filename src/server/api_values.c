/* Readers of the fields that are lists or objects: prompts, stops, biases, formats. */
#include "server/api_fields.h"

#include "text/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static fl_err no_memory(fl_api_parser *p, const char *name, size_t n) {
    return fl_api_error_set(p->error, 503, name, "out_of_memory", "%s: no memory for %zu entries", name, n);
}

/* Token ids of an array into a list of the request's. */
static fl_err read_ids(fl_api_parser *p, const char *param, json_t *array, int32_t **out, int64_t *n_out) {
    size_t n = json_array_size(array), i;
    json_t *item;
    int32_t *ids = malloc((n > 0 ? n : 1) * sizeof *ids);
    if (ids == NULL) return no_memory(p, param, n);
    *out = ids; /* the request's from here on, whatever comes */
    json_array_foreach(array, i, item) {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            return fl_api_refuse(p, fl_api_path_of("%s[%zu]", param, i).text, "a token id 0..2147483647",
                                 item);
        ids[i] = (int32_t)id;
    }
    *n_out = (int64_t)n;
    return FL_ERR_OK;
}

static fl_err read_one_prompt(fl_api_parser *p, const char *param, json_t *value, fl_api_prompt *out) {
    if (json_is_string(value) && json_string_length(value) > 0) {
        out->text = json_string_value(value);
        out->text_bytes = json_string_length(value);
        return FL_ERR_OK;
    }
    if (json_is_array(value) && json_array_size(value) > 0)
        return read_ids(p, param, value, &out->tokens, &out->n_tokens);
    return fl_api_refuse(p, param, "a non-empty string or array of token ids", value);
}

static fl_err new_prompts(fl_api_parser *p, const char *name, size_t n) {
    fl_api_request *r = p->request;
    if (r->prompts != NULL)
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected one prompt, found a second", name);
    r->prompts = calloc(n, sizeof *r->prompts);
    if (r->prompts == NULL) return no_memory(p, name, n);
    r->n_prompts = (int32_t)n;
    return FL_ERR_OK;
}

fl_err fl_api_read_prompt(fl_api_parser *p, const char *name, json_t *value) {
    const json_t *first = json_array_get(value, 0);
    size_t n = json_array_size(value), i;
    json_t *item;
    bool several = json_is_array(value) && (json_is_string(first) || json_is_array(first));
    if (!several) {
        FL_TRY(new_prompts(p, name, 1));
        return read_one_prompt(p, name, value, &p->request->prompts[0]);
    }
    size_t most = p->request->kind == FL_API_COMPLETION ? FL_API_CHOICES_MAX : 1;
    if (n > most)
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected at most %zu prompts, found %zu",
                                name, most, n);
    FL_TRY(new_prompts(p, name, n));
    json_array_foreach(value, i, item) {
        FL_TRY(read_one_prompt(p, fl_api_path_of("%s[%zu]", name, i).text, item, &p->request->prompts[i]));
    }
    return FL_ERR_OK;
}

fl_err fl_api_read_tokens(fl_api_parser *p, const char *name, json_t *value) {
    if (!json_is_array(value)) return fl_api_refuse(p, name, "an array of token ids", value);
    FL_TRY(new_prompts(p, name, 1));
    return read_ids(p, name, value, &p->request->prompts[0].tokens, &p->request->prompts[0].n_tokens);
}

fl_err fl_api_read_stop(fl_api_parser *p, const char *name, json_t *value) {
    fl_api_request *r = p->request;
    size_t n = json_array_size(value), i;
    json_t *item;
    if (!json_is_string(value) && !json_is_array(value))
        return fl_api_refuse(p, name, "a string or an array of strings", value);
    if (n > FL_STOPS_MAX)
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected at most %d strings, found %zu", name,
                                FL_STOPS_MAX, n);
    r->stops = calloc(FL_STOPS_MAX, sizeof *r->stops);
    if (r->stops == NULL) return no_memory(p, name, n);
    if (json_is_string(value)) {
        r->n_stops = 1;
        return fl_api_read_string(p, name, value, FL_STOP_BYTES_MAX, &r->stops[0]);
    }
    json_array_foreach(value, i, item) {
        FL_TRY(fl_api_read_string(p, fl_api_path_of("%s[%zu]", name, i).text, item, FL_STOP_BYTES_MAX,
                                  &r->stops[i]));
    }
    r->n_stops = (int32_t)n;
    return FL_ERR_OK;
}

fl_err fl_api_read_stop_tokens(fl_api_parser *p, const char *name, json_t *value) {
    int64_t n = 0;
    if (!json_is_array(value)) return fl_api_refuse(p, name, "an array of token ids", value);
    if (json_array_size(value) > FL_STOP_TOKENS_MAX)
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected at most %d token ids, found %zu",
                                name, FL_STOP_TOKENS_MAX, json_array_size(value));
    FL_TRY(read_ids(p, name, value, &p->request->stop_tokens, &n));
    p->request->n_stop_tokens = (int32_t)n;
    return FL_ERR_OK;
}

/* A key of logit_bias: digits only, so that "1e3", " 7" and "+7" are no ids. */
static bool parse_id(const char *text, int32_t *out) {
    int64_t id = 0;
    size_t n = strlen(text);
    if (n < 1 || n > 10 || strspn(text, "0123456789") != n) return false;
    for (size_t i = 0; i < n; i++) id = id * 10 + (text[i] - '0');
    if (id > INT32_MAX) return false;
    *out = (int32_t)id;
    return true;
}

fl_err fl_api_read_logit_bias(fl_api_parser *p, const char *name, json_t *value) {
    fl_api_request *r = p->request;
    const char *key;
    json_t *bias;
    if (!json_is_object(value)) return fl_api_refuse(p, name, "an object of token ids and numbers", value);
    size_t n = json_object_size(value);
    if (n > FL_LOGIT_BIASES_MAX)
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected at most %d tokens, found %zu", name,
                                FL_LOGIT_BIASES_MAX, n);
    r->biases = calloc(n > 0 ? n : 1, sizeof *r->biases);
    if (r->biases == NULL) return no_memory(p, name, n);
    json_object_foreach(value, key, bias) {
        fl_logit_bias *out = &r->biases[r->n_biases++];
        double number = json_number_value(bias);
        if (!parse_id(key, &out->token))
            return fl_api_error_set(p->error, 400, name, NULL,
                                    "%s: expected token ids 0..2147483647 as keys, found \"%.40s\"", name,
                                    key);
        if (!json_is_number(bias) || !(number >= -100 && number <= 100))
            return fl_api_refuse(p, fl_api_path_of("%s.%s", name, key).text, "a number -100..100", bias);
        out->bias = (float)number;
    }
    return FL_ERR_OK;
}

/* Keeps a schema's text. */
static fl_err keep_schema(fl_api_parser *p, json_t *format) {
    static const char where[] = "response_format.json_schema";
    json_t *wrapper = json_object_get(format, "json_schema"), *schema = json_object_get(wrapper, "schema");
    if (!json_is_object(wrapper)) return fl_api_refuse(p, where, "an object with name and schema", wrapper);
    if (!json_is_object(schema))
        return fl_api_refuse(p, "response_format.json_schema.schema", "a JSON schema (an object)", schema);
    p->request->json_schema = json_dumps(schema, JSON_COMPACT);
    return p->request->json_schema != NULL ? FL_ERR_OK : no_memory(p, where, 1);
}

fl_err fl_api_read_response_format(fl_api_parser *p, const char *name, json_t *value) {
    json_t *type_value = json_object_get(value, "type");
    if (!json_is_object(value)) return fl_api_refuse(p, name, "an object with a type", value);
    if (fl_api_is(type_value, "text")) return FL_ERR_OK;
    if (fl_api_is(type_value, "json_schema")) return keep_schema(p, value);
    if (!fl_api_is(type_value, "json_object"))
        return fl_api_refuse(p, "response_format.type", "\"text\", \"json_object\" or \"json_schema\"",
                             type_value);
    p->request->json_schema = strdup("");
    return p->request->json_schema != NULL ? FL_ERR_OK : no_memory(p, name, 1);
}

fl_err fl_api_read_stream_options(fl_api_parser *p, const char *name, json_t *value) {
    json_t *usage = json_object_get(value, "include_usage");
    if (!json_is_object(value)) return fl_api_refuse(p, name, "an object", value);
    if (!p->request->stream)
        return fl_api_error_set(p->error, 400, name, NULL, "%s: expected only with \"stream\": true", name);
    if (usage == NULL || json_is_null(usage)) return FL_ERR_OK;
    if (!json_is_boolean(usage))
        return fl_api_refuse(p, "stream_options.include_usage", "true or false", usage);
    p->request->include_usage = json_is_true(usage);
    return FL_ERR_OK;
}

fl_err fl_api_read_legacy_logprobs(fl_api_parser *p, const char *name, json_t *value) {
    FL_TRY(fl_api_read_int(p, name, value, 0, FL_TOP_LOGPROBS_MAX, &p->request->top_logprobs));
    p->request->logprobs = true;
    return FL_ERR_OK;
}
