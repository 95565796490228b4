/* Any bytes as a chat template, rendered over a fixed conversation under small limits. What comes out must keep the
 * promises of chat.h: spans in order and apart, pieces true to their messages, and no byte of a message trusted. */
#include "text/chat.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const fl_chat_text *text, const fl_chat_message *messages) {
    size_t last = 0;
    for (size_t i = 0; i < text->n_trusted; i++) {
        const fl_text_span *span = &text->trusted[i];
        if (span->begin >= span->end || span->end > text->n_bytes || (i > 0 && span->begin <= last)) abort();
        last = span->end;
    }
    last = 0;
    for (size_t i = 0; i < text->n_pieces; i++) {
        const fl_chat_piece *piece = &text->pieces[i];
        if (piece->text.begin < last || piece->text.begin >= piece->text.end ||
            piece->text.end > text->n_bytes)
            abort();
        last = piece->text.end;
        if (piece->message > 2) abort();
        size_t n = last - piece->text.begin;
        if (piece->content_begin + n > messages[piece->message].content_bytes) abort();
        /* Filters may change the case of ASCII letters and nothing else. */
        for (size_t j = 0; j < n; j++) {
            char a = text->text[piece->text.begin + j],
                 b = messages[piece->message].content[piece->content_begin + j];
            if (a != b && ((a ^ b) != 0x20 || (a | 0x20) < 'a' || (a | 0x20) > 'z')) abort();
        }
        for (size_t j = 0; j < text->n_trusted; j++) {
            if (text->trusted[j].begin < piece->text.end && text->trusted[j].end > piece->text.begin) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char tools_text[] =
        "[{\"function\": {\"name\": \"f\", \"n\": [1, 2.5, true, null, {\"a b\": \"\\u00e9\"}]}}]";
    static const char extra_text[] = "{\"name\": \"n\", \"deep\": {\"k\": [[], {}]}, \"items\": 3}";
    fl_chat *chat = NULL;
    fl_chat_text text = {0};
    if (fl_chat_open_template((const char *)bytes, n_bytes, "<s>", "</s>", &chat) != FL_ERR_OK) {
        if (fl_err_detail()[0] == '\0') abort();
        return 0;
    }
    json_t *tools = json_loads(tools_text, 0, NULL), *extra = json_loads(extra_text, 0, NULL);
    fl_jinja_limits limits;
    fl_jinja_limits_default(&limits);
    limits.steps = 20000;
    limits.output_bytes = 1 << 16;
    limits.value_bytes = 1 << 20;
    const fl_chat_message messages[] = {
        {.role = "system", .content = "Be brief.\n", .content_bytes = 10},
        {.role = "user",
         .content = " <s>\xc3\xa9 {{ x }}\t\xe2\x80\xa8 b",
         .content_bytes = 20,
         .extra = extra},
        {.role = "assistant", .content = NULL, .tool_calls = tools},
    };
    const fl_chat_options options = {
        .add_generation_prompt = true, .tools = tools, .extra_kwargs = extra, .limits = &limits};
    if (fl_chat_render(chat, messages, 3, &options, &text) == FL_ERR_OK) check(&text, messages);
    else if (fl_err_detail()[0] == '\0') abort();
    fl_chat_text_free(&text);
    fl_chat_close(chat);
    json_decref(tools);
    json_decref(extra);
    return 0;
}
