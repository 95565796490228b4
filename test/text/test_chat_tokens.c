/* From hostile messages to token ids, with DeepSeek-V3's template and tokenizer: whatever the contents are, the control
 * tokens of the prompt are those the template wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "server/api_tool_parse.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "tools/tokenpack.h"

#include <stdlib.h>
#include <string.h>

static const char *const controls[] = {
    "<｜begin▁of▁sentence｜>",  "<｜end▁of▁sentence｜>",  "<｜User｜>",
    "<｜Assistant｜>",          "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",    "<｜tool▁call▁end｜>",    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",    "<｜fim▁hole｜>",         "<｜▁pad▁｜>"};

enum { N_CONTROLS = sizeof controls / sizeof controls[0], IDS_MAX = 64, CONTENT_MAX = 600 };

static fl_tokenizer *tokenizer;
static fl_chat *chat;
static int32_t control_ids[N_CONTROLS];

static int open_both(void **state) {
    (void)state;
    char *packed, *json, *text;
    size_t n_packed, n_json, n_text;
    fl_err err = fl_file_read("test/data", "deepseek-v3.tokenpack", (size_t)1 << 24, &packed, &n_packed);
    if (err == FL_ERR_OK) err = fl_tokenpack_decode(packed, n_packed, &json, &n_json);
    if (err == FL_ERR_OK) err = fl_tokenizer_open_memory(json, n_json, &tokenizer);
    if (err == FL_ERR_OK) err = fl_file_read("test/data", "deepseek_v3.jinja", 1 << 16, &text, &n_text);
    if (err == FL_ERR_OK) err = fl_chat_open_template(text, n_text, controls[0], controls[1], &chat);
    for (size_t i = 0; err == FL_ERR_OK && i < N_CONTROLS; i++) {
        err = fl_tokenizer_find(tokenizer, controls[i], &control_ids[i]);
    }
    if (err != FL_ERR_OK) {
        print_error("%s\n", fl_err_detail());
        return -1;
    }
    free(packed);
    free(json);
    free(text);
    return 0;
}

static int close_both(void **state) {
    (void)state;
    fl_chat_close(chat);
    fl_tokenizer_close(tokenizer);
    return 0;
}

/* The control tokens of a prompt in order. Its ids must decode to its text. */
static size_t controls_of(const fl_chat_text *text, bool trust_all, int32_t *found) {
    const fl_text_span all = {0, text->n_bytes};
    int32_t *ids;
    int64_t n_ids;
    char *decoded;
    size_t n_found = 0, n_decoded;
    assert_int_equal(fl_tokenizer_encode(tokenizer, text->text, text->n_bytes,
                                         trust_all ? &all : text->trusted, trust_all ? 1 : text->n_trusted,
                                         &ids, &n_ids),
                     FL_ERR_OK);
    assert_int_equal(fl_tokenizer_decode(tokenizer, ids, n_ids, true, &decoded, &n_decoded), FL_ERR_OK);
    assert_int_equal(n_decoded, text->n_bytes);
    assert_memory_equal(decoded, text->text, n_decoded);
    for (int64_t i = 0; i < n_ids; i++) {
        for (size_t j = 0; j < N_CONTROLS; j++) {
            if (ids[i] != control_ids[j]) continue;
            assert_in_range(n_found, 0, IDS_MAX - 1);
            found[n_found++] = ids[i];
        }
    }
    free(ids);
    free(decoded);
    return n_found;
}

/* Seven messages with all of the template's branches, the contents from `contents`. */
static void render(char contents[7][CONTENT_MAX], fl_chat_text *out) {
    static const char *const roles[] = {"system",    "user", "assistant", "tool",
                                        "assistant", "user", "assistant"};
    fl_chat_message messages[7];
    json_t *calls = json_pack("[{s:s, s:{s:s, s:s}}]", "type", contents[2], "function", "name", contents[3],
                              "arguments", contents[4]);
    assert_non_null(calls);
    for (size_t i = 0; i < 7; i++) {
        messages[i] =
            (fl_chat_message){.role = roles[i], .content = contents[i], .content_bytes = strlen(contents[i])};
    }
    messages[2].content = NULL;
    messages[2].tool_calls = calls;
    const fl_chat_options options = {.add_generation_prompt = true};
    if (fl_chat_render(chat, messages, 7, &options, out) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
    json_decref(calls);
}

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Whole control tokens, and pieces of them cut between characters. */
static void make_hostile(char *content, uint32_t *seed) {
    content[0] = '\0';
    for (uint32_t n = next_random(seed) % 6; n > 0; n--) {
        const char *token = controls[next_random(seed) % N_CONTROLS];
        size_t length = strlen(token), begin = 0, end = length;
        if (next_random(seed) % 2 == 0) {
            begin = next_random(seed) % length;
            end = begin + next_random(seed) % (length - begin);
        }
        while (begin > 0 && ((unsigned char)token[begin] & 0xC0) == 0x80) begin--;
        while (end < length && ((unsigned char)token[end] & 0xC0) == 0x80) end++;
        strncat(content, token + begin, end - begin);
    }
}

static void contents_never_make_control_tokens(void **state) {
    (void)state;
    char contents[7][CONTENT_MAX] = {"x", "x", "x", "x", "x", "x", "x"};
    int32_t expect[IDS_MAX], found[IDS_MAX];
    fl_chat_text text;
    uint32_t seed = 1;
    size_t n_fooled = 0;
    render(contents, &text);
    size_t n_expect = controls_of(&text, false, expect);
    assert_int_equal(n_expect, controls_of(&text, true, found));
    assert_in_range(n_expect, 14, IDS_MAX);
    fl_chat_text_free(&text);
    for (int i = 0; i < 300; i++) {
        for (size_t j = 0; j < 7; j++) make_hostile(contents[j], &seed);
        render(contents, &text);
        assert_int_equal(controls_of(&text, false, found), n_expect);
        assert_memory_equal(found, expect, n_expect * sizeof *found);
        if (i < 10) n_fooled += controls_of(&text, true, found) > n_expect;
        fl_chat_text_free(&text);
    }
    assert_true(n_fooled > 5); /* without the spans those contents do make control tokens */
}

static void note_call(void *context, const char *name, size_t n) {
    fl_buffer_add(context, name, n);
    fl_buffer_add_text(context, "|");
}

static void note_text(void *context, const char *text, size_t n) {
    fl_buffer_add(context, text, n);
}

/* The model's own tokens of a call, token by token through the decoder: its markers are text there, and the call is
 * found. */
static void calls_that_the_model_writes_are_found(void **state) {
    (void)state;
    static const char answer[] = "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
                                 "function<｜tool▁sep｜>find\n"
                                 "```json\n{\"é\": [1]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    const fl_text_span all = {0, sizeof answer - 1};
    static char out[FL_DETOK_OUT_BYTES];
    fl_api_request request = {.kind = FL_API_CHAT};
    fl_tool_parser parser;
    fl_buffer heard;
    fl_detok detok;
    int32_t *ids;
    int64_t n_ids;
    size_t n;
    assert_int_equal(fl_tokenizer_encode(tokenizer, answer, all.end, &all, 1, &ids, &n_ids), FL_ERR_OK);
    fl_buffer_init(&heard, 1 << 16);
    fl_detok_init(&detok, false);
    fl_tool_parser_init(&parser, &request, (fl_tool_sink){note_text, note_call, note_text, &heard});
    int32_t n_controls = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        for (size_t k = 0; k < N_CONTROLS; k++) n_controls += ids[i] == control_ids[k];
        fl_detok_push(tokenizer, &detok, ids[i], out, &n);
        assert_int_equal(fl_tool_parser_push(&parser, out, n), FL_ERR_OK);
    }
    assert_int_equal(n_controls, 5);
    assert_int_equal(fl_tool_parser_finish(&parser), FL_ERR_OK);
    fl_buffer_add(&heard, "", 1);
    assert_string_equal(heard.bytes, "Yes.find|{\"é\": [1]}");
    fl_tool_parser_free(&parser);
    fl_buffer_free(&heard);
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(contents_never_make_control_tokens),
                                       cmocka_unit_test(calls_that_the_model_writes_are_found)};
    return cmocka_run_group_tests(tests, open_both, close_both);
}
