/* Chat templates of checkpoints: reading the files, building the variables, turning marks into spans. */
#include "text/chat.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

struct fl_chat {
    fl_jinja *jinja;
    char *bos, *eos; /* NULL = none */
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static fl_err copy_text(const char *text, char **out) {
    *out = NULL;
    if (text == NULL) return FL_ERR_OK;
    *out = strdup(text);
    return *out != NULL ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, "chat template: %zu bytes", strlen(text));
}

fl_err fl_chat_open_template(const char *template_text, size_t n_bytes, const char *bos, const char *eos,
                             fl_chat **out) {
    fl_jinja_limits limits;
    fl_err err = FL_ERR_OK;
    fl_chat *chat = calloc(1, sizeof *chat);
    if (chat == NULL) return FL_FAIL(FL_ERR_NOMEM, "chat template: %zu bytes", sizeof *chat);
    fl_jinja_limits_default(&limits);
    FL_TRY_GOTO(copy_text(bos, &chat->bos));
    FL_TRY_GOTO(copy_text(eos, &chat->eos));
    FL_TRY_GOTO(fl_jinja_open(template_text, n_bytes, &limits, &chat->jinja));
    *out = chat;
    return FL_ERR_OK;
fail:
    fl_chat_close(chat);
    return err;
}

void fl_chat_close(fl_chat *chat) {
    if (chat == NULL) return;
    fl_jinja_close(chat->jinja);
    free(chat->bos);
    free(chat->eos);
    free(chat);
}

/* Longest file read here; the largest real tokenizer_config.json are below 1 MiB. */
enum { FILE_MAX_BYTES = 64 << 20 };

#define CONFIG_NAME "tokenizer_config.json"
#define JINJA_NAME  "chat_template.jinja"

/* A special token's text: written as a string or as {"content": "..."}; *out is NULL where it is null or
 * missing. */
static fl_err special_token(json_t *config, const char *key, const char **out) {
    json_t *token = json_object_get(config, key);
    *out = NULL;
    if (token == NULL || json_is_null(token)) return FL_ERR_OK;
    if (json_is_object(token)) token = json_object_get(token, "content");
    *out = json_string_value(token);
    return *out != NULL ? FL_ERR_OK : FL_FAIL(FL_ERR_DATA, CONFIG_NAME ": %s: expected a string", key);
}

/* The template in the configuration; *out is NULL if there is none. */
static fl_err config_template(json_t *config, json_t **out) {
    json_t *found = json_object_get(config, "chat_template"), *entry;
    size_t i;
    *out = NULL;
    if (found == NULL || json_is_null(found)) return FL_ERR_OK;
    if (json_is_array(found)) {
        json_array_foreach(found, i, entry) {
            const char *name = json_string_value(json_object_get(entry, "name"));
            if (name != NULL && strcmp(name, "default") == 0) *out = json_object_get(entry, "template");
        }
        if (*out == NULL)
            return FL_FAIL(FL_ERR_UNSUPPORTED, CONFIG_NAME ": chat_template: none is named 'default'");
    } else {
        *out = found;
    }
    if (json_is_string(*out)) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_DATA, CONFIG_NAME ": chat_template: expected a string or a list of named strings");
}

/* Reads the JSON object in tokenizer_config.json. */
static fl_err read_config(const char *model_dir, json_t **out) {
    char *text;
    size_t n_bytes;
    json_error_t error;
    FL_TRY(fl_file_read(model_dir, CONFIG_NAME, FILE_MAX_BYTES, &text, &n_bytes));
    *out = json_loadb(text, n_bytes, 0, &error);
    free(text);
    if (*out == NULL) return FL_FAIL(FL_ERR_DATA, CONFIG_NAME ": line %d: %s", error.line, error.text);
    return json_is_object(*out) ? FL_ERR_OK : FL_FAIL(FL_ERR_DATA, CONFIG_NAME ": expected an object");
}

fl_err fl_chat_open(const char *model_dir, fl_chat **out) {
    char *jinja_text = NULL;
    const char *bos = NULL, *eos = NULL, *bytes, *name = JINJA_NAME;
    size_t n_bytes = 0;
    json_t *config = NULL, *inside = NULL;
    fl_err err = FL_ERR_OK;
    FL_TRY_GOTO(read_config(model_dir, &config));
    FL_TRY_GOTO(special_token(config, "bos_token", &bos));
    FL_TRY_GOTO(special_token(config, "eos_token", &eos));
    if (fl_file_exists(model_dir, JINJA_NAME)) {
        FL_TRY_GOTO(fl_file_read(model_dir, JINJA_NAME, FILE_MAX_BYTES, &jinja_text, &n_bytes));
        bytes = jinja_text;
    } else {
        name = CONFIG_NAME;
        FL_TRY_GOTO(config_template(config, &inside));
        if (inside == NULL) {
            err = FL_FAIL(FL_ERR_UNSUPPORTED, "%s: no chat_template in " CONFIG_NAME " and no " JINJA_NAME,
                          model_dir);
            goto fail;
        }
        bytes = json_string_value(inside);
        n_bytes = json_string_length(inside);
    }
    err = fl_chat_open_template(bytes, n_bytes, bos, eos, out);
    if (err != FL_ERR_OK) err = FL_FAIL(err, "%s: %s", name, fl_err_detail());
fail:
    json_decref(config);
    free(jinja_text);
    return err;
}

/* ---- variables ----------------------------------------------------------------------------------------- */

static fl_err set_pair(fl_jrun *run, fl_jpair *pair, const char *key, fl_jval value) {
    pair->value = value;
    return fl_jval_from_bytes(&run->arena, key, strlen(key), &pair->key);
}

/* Adds the keys of `extra` to `pairs`. Those that the message itself defines may not be among them. */
static fl_err add_extra(fl_jrun *run, const fl_chat_message *message, size_t at, fl_jpair *pairs, size_t *n) {
    const char *key;
    json_t *value;
    json_object_foreach(message->extra, key, value) {
        bool content = strcmp(key, "content") == 0;
        if (content && message->content == NULL) {
            FL_TRY(fl_jval_from_json(run, value, &pairs[1].value));
            continue;
        }
        if (content || strcmp(key, "role") == 0 || strcmp(key, "tool_calls") == 0) {
            return FL_FAIL(FL_ERR_INVALID, "message %zu: '%s' may not be among the extra keys", at, key);
        }
        fl_jval converted;
        FL_TRY(fl_jval_from_json(run, value, &converted));
        FL_TRY(set_pair(run, &pairs[(*n)++], key, converted));
    }
    return FL_ERR_OK;
}

/* Templates may build a turn's control token from the role ('<|' + role + '|>'), so the usual roles count as template
 * text; any other role is as untrusted as content. */
static fl_err make_role(fl_jrun *run, const char *role, fl_jval *out) {
    static const char *const usual[] = {"system", "user", "assistant", "tool", "developer"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        if (strcmp(role, usual[i]) == 0) {
            return fl_jval_from_marked(&run->arena, role, strlen(role), FL_JORIGIN_TEMPLATE, out);
        }
    }
    return fl_jval_from_bytes(&run->arena, role, strlen(role), out);
}

static fl_err make_message(fl_jrun *run, const fl_chat_message *message, size_t at, fl_jval *out) {
    fl_jval value;
    if (message->role == NULL) return FL_FAIL(FL_ERR_INVALID, "message %zu: no role", at);
    if (message->extra != NULL && !json_is_object(message->extra)) {
        return FL_FAIL(FL_ERR_INVALID, "message %zu: extra: expected an object", at);
    }
    size_t n = 0;
    fl_jpair *pairs = fl_jarena_alloc(&run->arena, 3 + json_object_size(message->extra), sizeof *pairs);
    if (pairs == NULL) return fl_jarena_error(&run->arena);
    FL_TRY(make_role(run, message->role, &value));
    FL_TRY(set_pair(run, &pairs[n++], "role", value));
    value = fl_jval_none();
    if (message->content != NULL) {
        FL_TRY(fl_jval_from_marked(&run->arena, message->content, message->content_bytes, at, &value));
    }
    FL_TRY(set_pair(run, &pairs[n++], "content", value));
    if (message->tool_calls != NULL) {
        FL_TRY(fl_jval_from_json(run, message->tool_calls, &value));
        FL_TRY(set_pair(run, &pairs[n++], "tool_calls", value));
    }
    FL_TRY(add_extra(run, message, at, pairs, &n));
    return fl_jval_from_pairs(run, pairs, n, out);
}

static fl_err make_messages(fl_jrun *run, const fl_chat_message *messages, size_t n, fl_jval *out) {
    fl_jval *items = fl_jarena_alloc(&run->arena, n, sizeof *items);
    if (items == NULL) return fl_jarena_error(&run->arena);
    for (size_t i = 0; i < n; i++) FL_TRY(make_message(run, &messages[i], i, &items[i]));
    return fl_jval_from_items(run, items, n, false, out);
}

/* What a template finds besides extra_kwargs; those may replace the last two, as in Hugging Face's. */
enum { VAR_MESSAGES, VAR_TOOLS, VAR_DOCUMENTS, VAR_PROMPT, VAR_FIXED, VAR_BOS = VAR_FIXED, VAR_EOS, N_VARS };

static fl_err make_token(fl_jrun *run, const char *token, const char *name, fl_jvar *out) {
    *out = (fl_jvar){.name = name, .value = {.kind = FL_JUNDEFINED}};
    if (token == NULL) {
        fl_jval text;
        FL_TRY(fl_jval_from_bytes(&run->arena, name, strlen(name), &text));
        out->value = fl_jval_undefined(text.as.str);
        return FL_ERR_OK;
    }
    return fl_jval_from_marked(&run->arena, token, strlen(token), FL_JORIGIN_TEMPLATE, &out->value);
}

static fl_err make_variables(fl_jrun *run, const fl_chat *chat, const fl_chat_options *options,
                             fl_jvar *vars) {
    vars[VAR_MESSAGES] = (fl_jvar){.name = "messages", .value = fl_jval_none()};
    vars[VAR_TOOLS] = (fl_jvar){.name = "tools", .value = fl_jval_none()};
    if (options->tools != NULL) FL_TRY(fl_jval_from_json(run, options->tools, &vars[VAR_TOOLS].value));
    vars[VAR_DOCUMENTS] = (fl_jvar){.name = "documents", .value = fl_jval_none()};
    vars[VAR_PROMPT] =
        (fl_jvar){.name = "add_generation_prompt", .value = fl_jval_bool(options->add_generation_prompt)};
    FL_TRY(make_token(run, chat->bos, "bos_token", &vars[VAR_BOS]));
    FL_TRY(make_token(run, chat->eos, "eos_token", &vars[VAR_EOS]));
    size_t n = N_VARS;
    const char *key;
    json_t *value;
    json_object_foreach(options->extra_kwargs, key, value) {
        for (size_t i = 0; i < VAR_FIXED; i++) {
            if (strcmp(key, vars[i].name) == 0) {
                return FL_FAIL(FL_ERR_INVALID, "extra template variables: '%s' may not be among them", key);
            }
        }
        vars[n].name = key; /* a later variable of the same name wins */
        FL_TRY(fl_jval_from_json(run, value, &vars[n++].value));
    }
    return FL_ERR_OK;
}

/* ---- rendering ----------------------------------------------------------------------------------------- */

/* Moves the rendered string out of the arena, its marks as spans and pieces. */
static fl_err take_text(const fl_jstr *str, fl_chat_text *out) {
    size_t n_trusted = 0;
    for (size_t i = 0; i < str->n_marks; i++) n_trusted += str->marks[i].origin == FL_JORIGIN_TEMPLATE;
    fl_chat_text made = {.n_bytes = str->n};
    made.text = malloc(str->n + 1);
    made.trusted = calloc(n_trusted + 1, sizeof *made.trusted);
    made.pieces = calloc(str->n_marks - n_trusted + 1, sizeof *made.pieces);
    if (made.text == NULL || made.trusted == NULL || made.pieces == NULL) {
        fl_chat_text_free(&made);
        return FL_FAIL(FL_ERR_NOMEM, "prompt of %zu bytes", str->n);
    }
    memcpy(made.text, str->bytes, str->n);
    made.text[str->n] = '\0';
    for (size_t i = 0; i < str->n_marks; i++) {
        const fl_jmark *mark = &str->marks[i];
        const fl_text_span span = {.begin = mark->begin, .end = mark->end};
        if (mark->origin == FL_JORIGIN_TEMPLATE) {
            made.trusted[made.n_trusted++] = span;
        } else {
            made.pieces[made.n_pieces++] =
                (fl_chat_piece){.text = span, .message = mark->origin, .content_begin = mark->origin_begin};
        }
    }
    *out = made;
    return FL_ERR_OK;
}

fl_err fl_chat_render(const fl_chat *chat, const fl_chat_message *messages, size_t n_messages,
                      const fl_chat_options *options, fl_chat_text *out) {
    fl_jinja_limits limits;
    fl_jrun run;
    const fl_jstr *text = NULL;
    fl_err err = FL_ERR_OK;
    if (options->extra_kwargs != NULL && !json_is_object(options->extra_kwargs)) {
        return FL_FAIL(FL_ERR_INVALID, "extra template variables: expected an object");
    }
    fl_jinja_limits_default(&limits);
    fl_jrun_init(&run, options->limits != NULL ? options->limits : &limits);
    size_t n_vars = N_VARS + json_object_size(options->extra_kwargs);
    fl_jvar *vars = fl_jarena_alloc(&run.arena, n_vars, sizeof *vars);
    if (vars == NULL) {
        err = fl_jarena_error(&run.arena);
        goto fail;
    }
    FL_TRY_GOTO(make_variables(&run, chat, options, vars));
    FL_TRY_GOTO(make_messages(&run, messages, n_messages, &vars[VAR_MESSAGES].value));
    FL_TRY_GOTO(fl_jinja_render(chat->jinja, &run, vars, n_vars, &text));
    err = take_text(text, out);
fail:
    fl_jrun_clear(&run);
    return err;
}

bool fl_chat_text_locate(const fl_chat_text *text, size_t message, size_t content_byte, size_t *out) {
    for (size_t i = 0; i < text->n_pieces; i++) {
        const fl_chat_piece *piece = &text->pieces[i];
        size_t n = piece->text.end - piece->text.begin;
        if (piece->message != message || content_byte < piece->content_begin) continue;
        if (content_byte - piece->content_begin > n) continue;
        *out = piece->text.begin + (content_byte - piece->content_begin);
        return true;
    }
    return false;
}

void fl_chat_text_free(fl_chat_text *text) {
    if (text == NULL) return;
    free(text->text);
    free(text->trusted);
    free(text->pieces);
    *text = (fl_chat_text){0};
}
