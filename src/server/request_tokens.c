/* From a checked request to token ids: chat template, tokenizer, begin token, vocabulary. */
#include "server/front.h"

#include <stdlib.h>
#include <string.h>

/* Where the question begins, as a number of tokens; -1 = no question was told apart. */
static int64_t document_end(const fl_front *front, const fl_api_request *r, const fl_api_chat *chat,
                            const fl_chat_text *text, const fl_prompt_tokens *prompt) {
    size_t border = 0;
    if (r->question_bytes == 0 || chat->question_message >= chat->n_messages) return -1;
    size_t question = r->messages[r->question_message].content_bytes - r->question_bytes;
    if (!fl_chat_text_locate(text, chat->question_message, question, &border)) return -1;
    return fl_tokenizer_count_before(front->tokenizer, prompt->ids, prompt->n, border);
}

static fl_err tokenize_chat(const fl_front *front, const fl_api_request *r, fl_prompt_tokens *out) {
    fl_api_chat chat;
    fl_chat_text text = {0};
    fl_err err = FL_ERR_OK;
    if (!front->chat)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "messages: this model has no chat template: %s", front->no_chat);
    FL_TRY(fl_api_chat_prepare(r, &front->shows, &chat));
    FL_TRY_GOTO(fl_chat_render(front->chat, chat.messages, chat.n_messages, &chat.options, &text));
    FL_TRY_GOTO(fl_tokenizer_encode(front->tokenizer, text.text, text.n_bytes, text.trusted, text.n_trusted,
                                    &out->ids, &out->n));
    out->document_tokens = document_end(front, r, &chat, &text, out);
fail:
    fl_chat_text_free(&text);
    fl_api_chat_free(&chat);
    return err;
}

static fl_err add_bos(const fl_front *front, fl_prompt_tokens *out) {
    if (out->n > 0 && out->ids[0] == front->bos_token) return FL_ERR_OK;
    int32_t *ids = realloc(out->ids, ((size_t)out->n + 1) * sizeof *ids);
    if (!ids) return FL_FAIL(FL_ERR_NOMEM, "%lld tokens", (long long)out->n);
    memmove(ids + 1, ids, (size_t)out->n * sizeof *ids);
    ids[0] = front->bos_token;
    out->ids = ids;
    out->n++;
    return FL_ERR_OK;
}

static fl_err tokenize_text(const fl_front *front, const fl_api_request *r, const fl_api_prompt *p,
                            fl_prompt_tokens *out) {
    const fl_text_span all = {0, p->text_bytes};
    FL_TRY(fl_tokenizer_encode(front->tokenizer, p->text, p->text_bytes, &all, r->parse_special ? 1 : 0,
                               &out->ids, &out->n));
    return r->add_special_tokens && front->add_bos ? add_bos(front, out) : FL_ERR_OK;
}

static fl_err copy_ids(const fl_api_prompt *p, fl_prompt_tokens *out) {
    out->ids = malloc(((size_t)p->n_tokens + 1) * sizeof *out->ids);
    if (!out->ids) return FL_FAIL(FL_ERR_NOMEM, "%lld tokens", (long long)p->n_tokens);
    memcpy(out->ids, p->tokens, (size_t)p->n_tokens * sizeof *out->ids);
    out->n = p->n_tokens;
    return FL_ERR_OK;
}

fl_err fl_front_tokenize(const fl_front *front, const fl_api_request *request, int32_t index,
                         fl_prompt_tokens *out) {
    *out = (fl_prompt_tokens){.document_tokens = -1};
    fl_err err;
    if (request->n_prompts == 0) err = tokenize_chat(front, request, out);
    else {
        const fl_api_prompt *p = &request->prompts[index];
        err = p->text ? tokenize_text(front, request, p, out) : copy_ids(p, out);
    }
    if (err != FL_ERR_OK) {
        free(out->ids);
        *out = (fl_prompt_tokens){.n = 0};
    }
    return err;
}
