#include "server/api_request.h"

#include "server/api_fields.h"
#include "server/api_json.h"
#include "server/api_tools.h"
#include "text/schema.h"

#include <stdlib.h>
#include <string.h>

void fl_api_settings_default(fl_api_settings *settings) {
    *settings = (fl_api_settings){
        .body_bytes_max = 32 << 20,
        .values_max = 4 << 20,
        .containers_max = 100000,
        .depth_max = 64,
        .temperature = 1,
        .top_p = 1,
        .completion_max_tokens = 16,
    };
}

static void set_defaults(fl_api_kind kind, const fl_api_settings *settings, fl_api_request *r) {
    *r = (fl_api_request){
        .kind = kind,
        .max_tokens = kind == FL_API_COMPLETION ? settings->completion_max_tokens : 0,
        .temperature = settings->temperature,
        .top_p = settings->top_p,
        .top_k = settings->top_k,
        .repetition_penalty = 1,
        .n = 1,
        .parallel_tool_calls = true,
        .add_generation_prompt = true,
        .add_special_tokens = true,
    };
}

/* What must be there, by endpoint. */
static fl_err check_presence(fl_api_parser *p) {
    const fl_api_request *r = p->request;
    bool messages = r->messages != NULL, prompt = r->prompts != NULL;
    switch (r->kind) {
    case FL_API_CHAT:
        return messages ? FL_ERR_OK : fl_api_refuse(p, "messages", "an array of messages", NULL);
    case FL_API_COMPLETION: return prompt ? FL_ERR_OK : fl_api_refuse(p, "prompt", "a prompt", NULL);
    case FL_API_DETOKENIZE: return prompt ? FL_ERR_OK : fl_api_refuse(p, "tokens", "an array of ids", NULL);
    case FL_API_TOKENIZE: break;
    }
    if (messages != prompt) return FL_ERR_OK;
    if (!messages) return fl_api_refuse(p, "prompt", "a prompt or messages", NULL);
    return fl_api_error_set(p->error, 400, "prompt", NULL,
                            "prompt: expected a prompt or messages, found both");
}

/* What fields must be to each other. */
static fl_err check_together(fl_api_parser *p) {
    const fl_api_request *r = p->request;
    if (r->best_of != 0 && r->best_of != r->n)
        return fl_api_error_set(p->error, 400, "best_of", "unsupported_parameter",
                                "best_of: expected n (%lld) or nothing, found %lld: answers are not ranked",
                                (long long)r->n, (long long)r->best_of);
    if (r->n_prompts > 0 && r->n * r->n_prompts > FL_API_CHOICES_MAX)
        return fl_api_error_set(p->error, 400, "n", NULL,
                                "n: expected at most %d answers of all prompts, found %lld for each of %d",
                                FL_API_CHOICES_MAX, (long long)r->n, r->n_prompts);
    if (r->top_logprobs > 0 && !r->logprobs)
        return fl_api_error_set(p->error, 400, "top_logprobs", NULL,
                                "top_logprobs: expected only with \"logprobs\": true");
    if (r->max_tokens > 0 && r->min_tokens > r->max_tokens)
        return fl_api_error_set(p->error, 400, "min_tokens", NULL,
                                "min_tokens: expected at most max_tokens (%lld), found %lld",
                                (long long)r->max_tokens, (long long)r->min_tokens);
    if (r->tools != NULL && r->tool_choice != FL_API_TOOLS_NONE && r->json_schema != NULL)
        return fl_api_error_set(
            p->error, 400, "response_format", "unsupported_parameter",
            "response_format: expected \"text\" where tools may be called, since an answer "
            "is one or the other; \"tool_choice\": \"none\" leaves the tools out");
    return FL_ERR_OK;
}

/* A schema is compiled here once to refuse it before anything is queued, and again where it is used. */
static fl_err check_schema(fl_api_parser *p) {
    const fl_api_request *r = p->request;
    const char *param =
        r->tools != NULL && r->tool_choice >= FL_API_TOOLS_REQUIRED ? "tools" : "response_format";
    if (r->json_schema == NULL) return FL_ERR_OK;
    if (r->ignore_eos)
        return fl_api_error_set(p->error, 400, "ignore_eos", NULL,
                                "ignore_eos: expected false, since a schema says where the answer ends");
    if (fl_schema_check(r->json_schema) == FL_ERR_OK) return FL_ERR_OK;
    return fl_api_error_set(p->error, 400, param, "invalid_schema", "%s: %s", param, fl_err_detail());
}

static fl_err read_all(fl_api_parser *p) {
    fl_api_request *r = p->request;
    FL_TRY(fl_api_fields_read(p, r->root));
    if (r->top_k < 0) r->top_k = 0;
    r->seed_given = json_is_integer(json_object_get(r->root, "seed"));
    FL_TRY(check_presence(p));
    FL_TRY(check_together(p));
    if (r->kind == FL_API_CHAT) FL_TRY(fl_api_tools_force(r, p->error));
    FL_TRY(check_schema(p));
    fl_api_find_question(r);
    return FL_ERR_OK;
}

fl_err fl_api_request_parse(fl_api_kind kind, const char *body, size_t n_bytes,
                            const fl_api_settings *settings, fl_api_request *out, fl_api_error *error) {
    fl_api_parser parser = {settings, out, error};
    set_defaults(kind, settings, out);
    *error = (fl_api_error){0};
    fl_err err = fl_api_json_load(body, n_bytes, settings, &out->root, error);
    if (err == FL_ERR_OK) err = read_all(&parser);
    if (err != FL_ERR_OK) fl_api_request_free(out);
    return err;
}

/* The first id of a prompt that is not below n_vocab; the number of ids if there is none. */
static int64_t first_unknown(const fl_api_prompt *prompt, int32_t n_vocab) {
    int64_t i = 0;
    while (i < prompt->n_tokens && prompt->tokens[i] < n_vocab) i++;
    return i;
}

static fl_err refuse_id(const char *param, int32_t id, int32_t n_vocab, fl_api_error *error) {
    return fl_api_error_set(error, 400, param, NULL, "%s: expected a token id 0..%d, found %d", param,
                            n_vocab - 1, id);
}

fl_err fl_api_request_check_ids(const fl_api_request *r, int32_t n_vocab, fl_api_error *error) {
    const char *name = r->kind == FL_API_DETOKENIZE ? "tokens" : "prompt";
    for (int32_t i = 0; i < r->n_prompts; i++) {
        int64_t at = first_unknown(&r->prompts[i], n_vocab);
        if (at == r->prompts[i].n_tokens) continue;
        fl_api_path path = r->n_prompts > 1 ? fl_api_path_of("%s[%d][%lld]", name, i, (long long)at)
                                            : fl_api_path_of("%s[%lld]", name, (long long)at);
        return refuse_id(path.text, r->prompts[i].tokens[at], n_vocab, error);
    }
    for (int32_t i = 0; i < r->n_stop_tokens; i++)
        if (r->stop_tokens[i] >= n_vocab)
            return refuse_id(fl_api_path_of("stop_token_ids[%d]", i).text, r->stop_tokens[i], n_vocab, error);
    for (int32_t i = 0; i < r->n_biases; i++)
        if (r->biases[i].token >= n_vocab)
            return refuse_id(fl_api_path_of("logit_bias.%d", r->biases[i].token).text, r->biases[i].token,
                             n_vocab, error);
    return FL_ERR_OK;
}

void fl_api_request_free(fl_api_request *r) {
    for (size_t i = 0; i < r->n_messages; i++) {
        json_decref(r->messages[i].extra);
        free(r->joined[i]);
    }
    for (int32_t i = 0; i < r->n_prompts; i++) free(r->prompts[i].tokens);
    free(r->messages);
    free(r->joined);
    free(r->prompts);
    free(r->stops);
    free(r->stop_tokens);
    free(r->biases);
    free(r->json_schema);
    json_decref(r->root);
    *r = (fl_api_request){0};
}

int32_t fl_api_request_choices(const fl_api_request *r) {
    return (int32_t)r->n * (r->n_prompts > 0 ? r->n_prompts : 1);
}

void fl_api_request_params(const fl_api_request *r, int32_t choice, uint64_t random_seed,
                           fl_request_params *out) {
    fl_request_params_default(out);
    out->max_tokens = r->max_tokens > 0 ? r->max_tokens : INT32_MAX;
    out->min_tokens = r->min_tokens;
    out->cache_salt = r->cache_salt;
    out->priority = (int32_t)r->priority;
    out->sampling = (fl_sampling){
        .temperature = (float)r->temperature,
        .top_k = (int32_t)r->top_k,
        .top_p = (float)r->top_p,
        .min_p = (float)r->min_p,
        .repetition_penalty = (float)r->repetition_penalty,
        .presence_penalty = (float)r->presence_penalty,
        .frequency_penalty = (float)r->frequency_penalty,
        .seed = (r->seed_given ? (uint64_t)r->seed : random_seed) + (uint64_t)(choice % (int32_t)r->n),
    };
    out->top_logprobs = (int32_t)r->top_logprobs;
    out->stops = r->stops;
    out->n_stops = r->n_stops;
    out->stop_tokens = r->stop_tokens;
    out->n_stop_tokens = r->n_stop_tokens;
    out->logit_biases = r->biases;
    out->n_logit_biases = r->n_biases;
    out->ignore_eos = r->ignore_eos;
    out->json_schema = r->json_schema;
    out->priority = (int32_t)r->priority;
    out->deadline_s = r->deadline_s;
}
