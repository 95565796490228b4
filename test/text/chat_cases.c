/* Runs files of chat template cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/chat.h"
#include "text/chat_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Control tokens of DeepSeek's tokenizer, which the cases' templates use. */
static const char bos[] = "<｜begin▁of▁sentence｜>";
static const char eos[] = "<｜end▁of▁sentence｜>";

static fl_err open_template(json_t *test, fl_chat **out) {
    const char *path = json_string_value(json_object_get(test, "file"));
    json_t *text = json_object_get(test, "text"), *own_bos = json_object_get(test, "bos");
    const char *first = own_bos != NULL ? json_string_value(own_bos) : bos;
    if (path == NULL)
        return fl_chat_open_template(json_string_value(text), json_string_length(text), first, eos, out);
    char bytes[1 << 14];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(n, 1, sizeof bytes - 1);
    return fl_chat_open_template(bytes, n, first, eos, out);
}

static fl_chat_message *make_messages(json_t *list) {
    fl_chat_message *messages = calloc(json_array_size(list) + 1, sizeof *messages);
    assert_non_null(messages);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *from = json_array_get(list, i), *content = json_object_get(from, "content");
        messages[i] = (fl_chat_message){.role = json_string_value(json_object_get(from, "role")),
                                        .content = json_string_value(content),
                                        .content_bytes = json_string_length(content),
                                        .tool_calls = json_object_get(from, "tool_calls")};
    }
    return messages;
}

/* Are spans and pieces in order, apart from each other, and the pieces what their messages say? */
static const char *check_spans(const fl_chat_text *text, const fl_chat_message *messages, bool alphabet) {
    char *kind = calloc(text->n_bytes + 1, 1);
    const char *fault = NULL;
    assert_non_null(kind);
    size_t last = 0;
    for (size_t i = 0; i < text->n_trusted && fault == NULL; i++) {
        const fl_text_span *span = &text->trusted[i];
        if (span->begin >= span->end || span->end > text->n_bytes || (i > 0 && span->begin <= last))
            fault = "trusted spans";
        else memset(kind + span->begin, 't', span->end - span->begin);
        last = span->end;
    }
    for (size_t i = 0; i < text->n_pieces && fault == NULL; i++) {
        const fl_chat_piece *piece = &text->pieces[i];
        const fl_chat_message *message = &messages[piece->message];
        size_t n = piece->text.end - piece->text.begin;
        if (piece->text.begin >= piece->text.end || piece->text.end > text->n_bytes) fault = "pieces";
        else if (piece->content_begin + n > message->content_bytes) fault = "piece beyond its content";
        else if (memchr(kind + piece->text.begin, 't', n) != NULL) fault = "piece and trusted span overlap";
        else if (alphabet &&
                 memcmp(text->text + piece->text.begin, message->content + piece->content_begin, n) != 0) {
            fault = "piece differs from its content";
        } else memset(kind + piece->text.begin, 'c', n);
    }
    for (size_t i = 0; alphabet && i < text->n_bytes && fault == NULL;) {
        unsigned char lead = (unsigned char)text->text[i];
        char wanted = lead < 0x80 ? 't' : lead == 0xD6 || lead == 0xD7 ? 0 : 'c';
        do {
            if (kind[i] != wanted) fault = "origin of a byte";
        } while (((unsigned char)text->text[++i] & 0xC0) == 0x80);
    }
    free(kind);
    return fault;
}

static void report(json_t *test, const char *what, const char *found) {
    char *printed = json_dumps(test, JSON_ENSURE_ASCII);
    printf("WRONG %s: %s\n  case %s\n  found %s\n", json_string_value(json_object_get(test, "name")), what,
           printed, found);
    free(printed);
}

static void run_case(json_t *test, chat_cases_result *result) {
    fl_chat *chat = NULL;
    fl_chat_text text = {0};
    json_t *expect = json_object_get(test, "expect"), *list = json_object_get(test, "messages");
    json_t *tools = json_object_get(test, "tools");
    bool alphabet = json_is_true(json_object_get(test, "alphabet"));
    fl_chat_message *messages = make_messages(list);
    const fl_chat_options options = {.add_generation_prompt = json_is_true(json_object_get(test, "generate")),
                                     .tools = json_is_null(tools) ? NULL : tools,
                                     .extra_kwargs = json_object_get(test, "kwargs")};
    fl_err err = open_template(test, &chat);
    if (err == FL_ERR_OK) err = fl_chat_render(chat, messages, json_array_size(list), &options, &text);
    result->n_cases++;
    if (err != FL_ERR_OK && json_is_string(expect) && err == FL_ERR_UNSUPPORTED) {
        result->n_unsupported++;
        printf("unsupported %s: %s\n", json_string_value(json_object_get(test, "name")), fl_err_detail());
    } else if ((err != FL_ERR_OK) != json_is_null(expect)) {
        result->n_wrong++;
        report(test, err != FL_ERR_OK ? "refused" : "not refused",
               err != FL_ERR_OK ? fl_err_detail() : text.text);
    } else if (err == FL_ERR_OK && (text.n_bytes != json_string_length(expect) ||
                                    memcmp(text.text, json_string_value(expect), text.n_bytes) != 0)) {
        result->n_wrong++;
        report(test, "another text", text.text);
    } else {
        const char *fault = err == FL_ERR_OK ? check_spans(&text, messages, alphabet) : NULL;
        if (fault != NULL) report(test, fault, text.text);
        result->n_wrong += fault != NULL;
        result->n_equal += fault == NULL;
    }
    fl_chat_text_free(&text);
    fl_chat_close(chat);
    free(messages);
}

chat_cases_result chat_cases_run(const char *path) {
    chat_cases_result result = {0};
    json_error_t error;
    json_t *tests = json_load_file(path, 0, &error);
    if (tests == NULL) fail_msg("%s: line %d: %s", path, error.line, error.text);
    for (size_t i = 0; i < json_array_size(tests); i++) run_case(json_array_get(tests, i), &result);
    json_decref(tests);
    return result;
}
