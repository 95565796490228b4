/* Requests of the OpenAI-shaped API: bytes of a JSON body in, a checked struct or an error that names the
 * field out. Pure functions: no sockets, no model, no threads. Fields are a table (api_fields.c); those not
 * in it are ignored. */
#ifndef FL_SERVER_API_REQUEST_H
#define FL_SERVER_API_REQUEST_H

#include "server/api_error.h"
#include "text/chat.h"

#include <jansson.h>

typedef enum fl_api_kind {
    FL_API_CHAT,       /* POST /v1/chat/completions */
    FL_API_COMPLETION, /* POST /v1/completions */
    FL_API_TOKENIZE,   /* POST /tokenize */
    FL_API_DETOKENIZE, /* POST /detokenize */
} fl_api_kind;

enum {
    FL_API_CHOICES_MAX = 64,    /* answers of one request: n times prompts */
    FL_API_N_MAX = 16,          /* the field n */
    FL_API_MESSAGES_MAX = 4096, /* of one conversation */
    FL_API_TOOLS_MAX = 128,
    FL_API_NAME_BYTES_MAX = 64,             /* a function's name */
    FL_API_QUESTION_BYTES_MAX = 4096,       /* a question found by its blank line */
    FL_API_QUESTION_PART_BYTES_MAX = 16384, /* a question that is the last of several parts */
};

/* What a body may cost, checked before it is parsed, and what absent fields mean. Fill with
 * fl_api_settings_default. */
typedef struct fl_api_settings {
    size_t body_bytes_max; /* default 32 MiB */
    int64_t values_max;    /* values of the JSON text; default 4 Mi, which holds 1M token ids thrice */
    int64_t
        containers_max; /* objects and arrays among them, some 300 bytes of memory each; default 100,000 */
    int32_t depth_max;  /* levels of objects and arrays, 1..96; default 64 */
    double temperature; /* default 1 */
    double top_p;       /* default 1 */
    int64_t top_k;      /* default 0 = all */
    int64_t
        completion_max_tokens; /* of POST /v1/completions; default 16, as the API says. Chat: all the room */
} fl_api_settings;

void fl_api_settings_default(fl_api_settings *settings);

typedef enum fl_api_tool_choice {
    FL_API_TOOLS_AUTO,     /* the model decides */
    FL_API_TOOLS_NONE,     /* no call; tools are not shown to the model */
    FL_API_TOOLS_REQUIRED, /* at least one call */
    FL_API_TOOLS_NAMED,    /* one call of `tool_name` */
} fl_api_tool_choice;

/* One prompt of POST /v1/completions or /tokenize: a text or token ids. */
typedef struct fl_api_prompt {
    const char *text; /* borrowed from the request; NULL = ids */
    size_t text_bytes;
    int32_t *tokens; /* owned by the request; ids are 0..2^31 - 1, the model's vocabulary is checked later */
    int64_t n_tokens;
} fl_api_prompt;

/* A checked request. Pointers live until fl_api_request_free; json_t values are borrowed from `root`. */
typedef struct fl_api_request {
    fl_api_kind kind;
    json_t *root;           /* the body, owned */
    const char *model;      /* NULL = not given */
    const char *user;       /* NULL = not given */
    const char *cache_salt; /* NULL = not given */

    /* chat, and tokenize with messages */
    fl_chat_message *messages; /* [n_messages], their joined contents owned */
    char **joined;             /* [n_messages] contents made of several parts, or NULL */
    size_t n_messages;
    size_t question_message; /* index of the last user message; n_messages = there is none */
    bool question_in_parts;  /* that message came in several parts */
    size_t question_bytes;   /* at that message's end; 0 = no question was told apart */
    json_t *tools;           /* a non-empty array, or NULL */
    fl_api_tool_choice tool_choice;
    const char *tool_name; /* with NAMED */
    bool parallel_tool_calls;
    json_t *template_kwargs; /* an object, or NULL */
    bool add_generation_prompt;

    /* completions, tokenize with a prompt, detokenize (one prompt of ids) */
    fl_api_prompt *prompts; /* [n_prompts] */
    int32_t n_prompts;
    bool add_special_tokens; /* a begin token, where the model's tokenizer adds one; default true */
    bool parse_special;      /* tokenize: control tokens written in the text are them; default false */

    /* the answer */
    int64_t max_tokens; /* 0 = all the room there is */
    int64_t min_tokens;
    double temperature, top_p, min_p;
    int64_t top_k; /* 0 = all */
    double presence_penalty, frequency_penalty, repetition_penalty;
    bool seed_given;
    int64_t seed;
    int64_t n;
    int64_t best_of; /* 0 = not given, else equal to n */
    bool logprobs;
    int64_t top_logprobs;
    const char **stops; /* [n_stops] pointers into root; the array is owned */
    int32_t n_stops;
    int32_t *stop_tokens; /* [n_stop_tokens], owned */
    int32_t n_stop_tokens;
    fl_logit_bias *biases; /* [n_biases], owned */
    int32_t n_biases;
    bool ignore_eos;
    char *json_schema; /* owned; NULL = free text, "" = any JSON object, else a schema's text */
    bool stream, include_usage;
    bool timeline;     /* a stream tells where the time went, in a comment */
    int64_t priority;  /* lower is sooner */
    double deadline_s; /* 0 = none */
} fl_api_request;

/* Checks `body` as a request of this kind. On success the caller frees *out; on failure *out is empty and
 * *error says what to answer: 413 for a body over body_bytes_max, 503 without memory, else 400, with the
 * field to blame where there is one. */
fl_err fl_api_request_parse(fl_api_kind kind, const char *body, size_t n_bytes,
                            const fl_api_settings *settings, fl_api_request *out, fl_api_error *error);

/* What only a model's vocabulary can tell: ids of prompts, stop_token_ids and logit_bias must be below
 * n_vocab. 400 names the entry. */
fl_err fl_api_request_check_ids(const fl_api_request *request, int32_t n_vocab, fl_api_error *error);

/* Accepts a zeroed request; leaves one. */
void fl_api_request_free(fl_api_request *request);

/* How many answers it asks for: n for each prompt; choice c belongs to prompt c / n. */
int32_t fl_api_request_choices(const fl_api_request *request);

/* What the engine is asked for choice `choice`, all but the prompt's tokens (tokens, n_tokens,
 * document_tokens), which the caller fills. Arrays are borrowed from the request. Without a seed of the
 * request's own `random_seed` takes its place; the choices of one prompt draw differently. */
void fl_api_request_params(const fl_api_request *request, int32_t choice, uint64_t random_seed,
                           fl_request_params *out);

#endif
