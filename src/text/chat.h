/* A checkpoint's chat template: messages in, prompt text out, together with what the tokeniser and the engine
 * must know about it: which bytes are the template's own (only those may become control tokens, so nothing a
 * user writes can open or close a turn) and where each message's content went. */
#ifndef FL_TEXT_CHAT_H
#define FL_TEXT_CHAT_H

#include "base/err.h"
#include "text/jinja.h"
#include "text/text_span.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct fl_chat fl_chat;

/* Reads the template of a checkpoint folder: chat_template.jinja if there is one, else "chat_template" of
 * tokenizer_config.json (a text, or a list of named ones of which "default" is taken), and bos_token and
 * eos_token. FL_ERR_UNSUPPORTED: no template, or one outside the subset (jinja.h). FL_ERR_IO, FL_ERR_DATA:
 * the files are missing or broken. The caller owns *out. */
fl_err fl_chat_open(const char *model_dir, fl_chat **out);

/* The same from memory. `bos` and `eos` are the control tokens' texts, NULL = none. Everything is copied. */
fl_err fl_chat_open_template(const char *template_text, size_t n_bytes, const char *bos, const char *eos,
                             fl_chat **out);

void fl_chat_close(fl_chat *chat);

/* All members are borrowed for the call. */
typedef struct fl_chat_message {
    const char
        *role; /* the usual ones (system, user, assistant, tool, developer) count as the template's text */
    const char *content; /* NULL = none */
    size_t content_bytes;
    json_t *tool_calls; /* a list, or NULL: the message has no such key */
    json_t *extra; /* an object of more keys ("name", "tool_call_id", "reasoning_content"; with content NULL
                      also "content"), or NULL */
} fl_chat_message;

typedef struct fl_chat_options {
    bool add_generation_prompt;
    json_t *tools;                 /* a list, or NULL = none */
    json_t *extra_kwargs;          /* an object of more variables ("enable_thinking"), or NULL */
    const fl_jinja_limits *limits; /* NULL = the default ones */
} fl_chat_options;

/* A run of bytes of the prompt that is message content. */
typedef struct fl_chat_piece {
    fl_text_span text;    /* bytes of the prompt */
    size_t message;       /* whose content */
    size_t content_begin; /* where in that content the run begins: templates strip and cut contents */
} fl_chat_piece;

typedef struct fl_chat_text {
    char *text; /* [n_bytes], and a NUL behind; owned */
    size_t n_bytes;
    fl_text_span
        *trusted; /* [n_trusted] the template's own bytes, ascending, not touching each other; owned */
    size_t n_trusted;
    fl_chat_piece *pieces; /* [n_pieces] in the order of the text; owned */
    size_t n_pieces;
} fl_chat_text;

/* Renders a conversation. One chat may render in several threads at once. FL_ERR_INVALID: the template
 * refused it, or a message is malformed (detail names it). FL_ERR_DATA, FL_ERR_UNSUPPORTED, FL_ERR_LIMIT: see
 * fl_jinja_render. */
fl_err fl_chat_render(const fl_chat *chat, const fl_chat_message *messages, size_t n_messages,
                      const fl_chat_options *options, fl_chat_text *out);

/* Where byte `content_byte` of a message's content is in the prompt, where it first appears: the border
 * between a document and the question behind it, for one. A byte right behind a piece's end counts as in it.
 * false: not in the prompt. */
bool fl_chat_text_locate(const fl_chat_text *text, size_t message, size_t content_byte, size_t *out);

/* Frees what `text` holds and clears it. */
void fl_chat_text_free(fl_chat_text *text);

#endif
