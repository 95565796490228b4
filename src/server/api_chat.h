/* A chat request's conversation as the model's template gets it: tools, calls and results go in the
 * template's own way where it has one, else as text.
 *
 * A template that does not render "tools" gets them described in the first system message, with the JSON
 * form in which a call is to be written (api_tool_parse.h reads it back). One that does not render calls or
 * results gets earlier calls as that JSON in the assistant's text, and results as messages of the user. All
 * of it is content of some message: no byte of it can become a control token. */
#ifndef FL_SERVER_API_CHAT_H
#define FL_SERVER_API_CHAT_H

#include "server/api_request.h"

/* What a template shows. */
typedef struct fl_api_template {
    bool tools;             /* the list of tools */
    bool calls;             /* an assistant's tool_calls */
    bool results;           /* messages of the role "tool" */
    bool beside_content;    /* calls also where the message has content */
    bool arguments_objects; /* arguments must be objects (else texts) */
    bool content_needed;    /* a message without content is "" rather than none */
} fl_api_template;

/* Finds out by rendering small conversations. NULL: no template, which shows nothing. */
void fl_api_template_probe(const fl_chat *chat, fl_api_template *out);

typedef struct fl_api_chat {
    fl_chat_message *messages; /* [n_messages]; what they point to is the request's or owned here */
    size_t n_messages;
    size_t question_message; /* where the request's question_message went; n_messages = there is none */
    fl_chat_options options; /* for fl_chat_render */
    char **texts;            /* [n_texts], owned */
    size_t n_texts;
    json_t *calls; /* owned: rewritten tool_calls */
} fl_api_chat;

/* Prepares the messages of a chat or tokenize request, which is borrowed until fl_api_chat_free.
 * FL_ERR_NOMEM. */
fl_err fl_api_chat_prepare(const fl_api_request *request, const fl_api_template *shows, fl_api_chat *out);

/* Accepts a zeroed one; leaves one. */
void fl_api_chat_free(fl_api_chat *chat);

#endif
