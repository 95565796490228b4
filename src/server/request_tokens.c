/* From a checked request to token ids: chat template, tokenizer, begin token, vocabulary. */
#include "server/front.h"

#include <stdlib.h>
#include <string.h>

static fl_err render(const fl_front *front, const fl_api_request *r, fl_chat_text *text) {
    const fl_chat_options options = {.add_generation_prompt = r->add_generation_prompt,
                                     .tools = r->tool_choice == FL_API_TOOLS_NONE ? NULL : r->tools,
                                     .extra_kwargs = r->template_kwargs};
    if (!front->chat)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "messages: this model has no chat template: %s", front->no_chat);
    return fl_chat_render(front->chat, r->messages, r->n_messages, &options, text);
}

static fl_err tokenize_chat(const fl_front *front, const fl_api_request *r, fl_prompt_tokens *out) {
    fl_chat_text text;
    size_t border = 0;
    FL_TRY(render(front, r, &text));
    fl_err err = fl_tokenizer_encode(front->tokenizer, text.text, text.n_bytes, text.trusted, text.n_trusted,
                                     &out->ids, &out->n);
    if (err == FL_ERR_OK && r->question_bytes > 0 && r->question_message < r->n_messages) {
        size_t question = r->messages[r->question_message].content_bytes - r->question_bytes;
        if (fl_chat_text_locate(&text, r->question_message, question, &border))
            out->document_tokens = fl_tokenizer_count_before(front->tokenizer, out->ids, out->n, border);
    }
    fl_chat_text_free(&text);
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

static fl_err copy_ids(const fl_front *front, const fl_api_prompt *p, fl_prompt_tokens *out) {
    int32_t n_vocab = fl_tokenizer_n_vocab(front->tokenizer);
    out->ids = malloc(((size_t)p->n_tokens + 1) * sizeof *out->ids);
    if (!out->ids) return FL_FAIL(FL_ERR_NOMEM, "%lld tokens", (long long)p->n_tokens);
    for (int64_t i = 0; i < p->n_tokens; i++) {
        if (p->tokens[i] < 0 || p->tokens[i] >= n_vocab)
            return FL_FAIL(FL_ERR_INVALID, "prompt: token %lld: expected an id in 0..%d, found %d",
                           (long long)i, n_vocab - 1, p->tokens[i]);
        out->ids[i] = p->tokens[i];
    }
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
        err = p->text ? tokenize_text(front, request, p, out) : copy_ids(front, p, out);
    }
    if (err != FL_ERR_OK) {
        free(out->ids);
        *out = (fl_prompt_tokens){.n = 0};
    }
    return err;
}
