/* Text in and out of the public API. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static fl_err need_text(const fl_engine *engine) {
    if (engine->tokenizer) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_UNSUPPORTED, "no tokenizer: %s", engine->no_chat);
}

typedef struct encoding {
    const char *text;
    size_t n_bytes;
    const fl_text_span *trusted; /* [n_trusted] */
    size_t n_trusted;
} encoding;

static fl_err encode(const fl_engine *engine, const encoding *e, int32_t **tokens, int64_t *n_tokens) {
    double begin_s = fl_trace_now(engine->trace);
    FL_TRY(fl_tokenizer_encode(engine->tokenizer, e->text, e->n_bytes, e->trusted, e->n_trusted, tokens,
                               n_tokens));
    fl_trace_span(engine->trace, FL_TRACE_TEXT, "tokenise", begin_s, *n_tokens);
    return FL_ERR_OK;
}

fl_err fl_tokenize(const fl_engine *engine, const char *text, size_t text_bytes, bool parse_special,
                   int32_t **tokens, int64_t *n_tokens) {
    const fl_text_span all = {0, text_bytes};
    FL_TRY(need_text(engine));
    return encode(engine, &(encoding){text, text_bytes, &all, parse_special ? 1 : 0}, tokens, n_tokens);
}

fl_err fl_detokenize(const fl_engine *engine, const int32_t *tokens, int64_t n_tokens, char **text,
                     size_t *text_bytes) {
    FL_TRY(need_text(engine));
    return fl_tokenizer_decode(engine->tokenizer, tokens, n_tokens, false, text, text_bytes);
}

static fl_err render(const fl_engine *engine, const fl_message *messages, int32_t n_messages,
                     fl_chat_text *out) {
    fl_chat_message *list = calloc((size_t)n_messages, sizeof *list);
    if (!list) return FL_FAIL(FL_ERR_NOMEM, "%d messages", n_messages);
    for (int32_t i = 0; i < n_messages; i++)
        list[i] = (fl_chat_message){.role = messages[i].role,
                                    .content = messages[i].content,
                                    .content_bytes = messages[i].content_bytes};
    const fl_chat_options options = {.add_generation_prompt = true};
    fl_err err = fl_chat_render(engine->chat, list, (size_t)n_messages, &options, out);
    free(list);
    return err;
}

fl_err fl_chat_tokenize(const fl_engine *engine, const fl_message *messages, int32_t n_messages,
                        size_t question_bytes, fl_chat_prompt *out) {
    if (!engine->chat) return FL_FAIL(FL_ERR_UNSUPPORTED, "no chat template: %s", engine->no_chat);
    if (n_messages < 1) return FL_FAIL(FL_ERR_INVALID, "messages: expected at least one");
    const fl_message *last = &messages[n_messages - 1];
    if (question_bytes > last->content_bytes)
        return FL_FAIL(FL_ERR_INVALID,
                       "question_bytes: expected at most the %zu bytes of the last message, found %zu",
                       last->content_bytes, question_bytes);
    fl_chat_text text;
    size_t border, question = last->content_bytes - question_bytes;
    FL_TRY(render(engine, messages, n_messages, &text));
    const encoding all = {text.text, text.n_bytes, text.trusted, text.n_trusted};
    fl_err err = encode(engine, &all, &out->tokens, &out->n_tokens);
    bool found = question_bytes > 0 && fl_chat_text_locate(&text, (size_t)n_messages - 1, question, &border);
    out->document_tokens = -1;
    if (err == FL_ERR_OK && found)
        out->document_tokens =
            fl_tokenizer_count_before(engine->tokenizer, out->tokens, out->n_tokens, border);
    fl_chat_text_free(&text);
    return err;
}
