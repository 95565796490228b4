#include "server/api_logprobs.h"

#include "server/json_write.h"

#include <math.h>

enum { DIGITS = 9 }; /* of a float */

void fl_api_logprobs_init(fl_api_logprobs *l, bool chat, size_t max_bytes) {
    *l = (fl_api_logprobs){.chat = chat};
    fl_buffer *const all[] = {&l->entries, &l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) fl_buffer_init(all[i], max_bytes);
}

void fl_api_logprobs_free(fl_api_logprobs *l) {
    fl_buffer_free(&l->entries);
    fl_buffer_free(&l->tokens);
    fl_buffer_free(&l->values);
    fl_buffer_free(&l->tops);
    fl_buffer_free(&l->offsets);
}

/* JSON has no minus infinity: the API's stand-in for "as good as never" is -9999. */
static void write_value(fl_buffer *out, float logprob) {
    double value = (double)logprob;
    fl_json_real(out, value > -9999 ? value : -9999.0, DIGITS);
}

/* {"token": text, "logprob": x, "bytes": [..] without the closing brace. */
static void write_token(fl_buffer *out, const fl_tokenizer *t, int32_t token, float logprob) {
    size_t n;
    const char *bytes = fl_tokenizer_token_bytes(t, token, &n);
    fl_buffer_add_text(out, "{\"token\":");
    fl_json_string(out, bytes, n);
    fl_buffer_add_text(out, ",\"logprob\":");
    write_value(out, logprob);
    fl_buffer_add_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) fl_buffer_add(out, ",", 1);
        fl_json_int(out, (unsigned char)bytes[i]);
    }
    fl_buffer_add(out, "]", 1);
}

static void add_chat(fl_api_logprobs *l, const fl_tokenizer *t, const fl_event *event) {
    fl_buffer *out = &l->entries;
    if (l->n > 0) fl_buffer_add(out, ",", 1);
    write_token(out, t, event->token, event->logprob);
    fl_buffer_add_text(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < event->n_top; i++) {
        if (i > 0) fl_buffer_add(out, ",", 1);
        write_token(out, t, event->top[i].token, event->top[i].logprob);
        fl_buffer_add(out, "}", 1);
    }
    fl_buffer_add_text(out, "]}");
}

static void write_text(fl_buffer *out, const fl_tokenizer *t, int32_t token) {
    size_t n;
    const char *bytes = fl_tokenizer_token_bytes(t, token, &n);
    fl_json_string(out, bytes, n);
}

static void add_legacy(fl_api_logprobs *l, const fl_tokenizer *t, const fl_event *event) {
    size_t n;
    const char *bytes = fl_tokenizer_token_bytes(t, event->token, &n);
    fl_buffer *const arrays[] = {&l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t i = 0; i < 4 && l->n > 0; i++) fl_buffer_add(arrays[i], ",", 1);
    write_text(&l->tokens, t, event->token);
    write_value(&l->values, event->logprob);
    fl_buffer_add(&l->tops, "{", 1);
    for (int32_t i = 0; i < event->n_top; i++) {
        if (i > 0) fl_buffer_add(&l->tops, ",", 1);
        write_text(&l->tops, t, event->top[i].token);
        fl_buffer_add(&l->tops, ":", 1);
        write_value(&l->tops, event->top[i].logprob);
    }
    fl_buffer_add(&l->tops, "}", 1);
    fl_json_int(&l->offsets, l->offset);
    for (size_t i = 0; i < n; i++) l->offset += (bytes[i] & 0xc0) != 0x80;
}

void fl_api_logprobs_add(fl_api_logprobs *l, const fl_tokenizer *t, const fl_event *event) {
    if (l->chat) add_chat(l, t, event);
    else add_legacy(l, t, event);
    l->n++;
}

static void take(fl_buffer *from, const char *head, fl_buffer *out) {
    fl_buffer_add_text(out, head);
    fl_buffer_add(out, from->bytes, from->n);
    fl_buffer_clear(from);
}

void fl_api_logprobs_take(fl_api_logprobs *l, fl_buffer *out) {
    if (l->n == 0) {
        fl_buffer_add_text(out, "null");
    } else if (l->chat) {
        take(&l->entries, "{\"content\":[", out);
        fl_buffer_add_text(out, "],\"refusal\":null}");
    } else {
        take(&l->tokens, "{\"tokens\":[", out);
        take(&l->values, "],\"token_logprobs\":[", out);
        take(&l->tops, "],\"top_logprobs\":[", out);
        take(&l->offsets, "],\"text_offset\":[", out);
        fl_buffer_add_text(out, "]}");
    }
    l->n = 0;
}

fl_err fl_api_logprobs_check(const fl_api_logprobs *l) {
    FL_TRY(fl_buffer_check(&l->entries));
    FL_TRY(fl_buffer_check(&l->tokens));
    FL_TRY(fl_buffer_check(&l->values));
    FL_TRY(fl_buffer_check(&l->tops));
    return fl_buffer_check(&l->offsets);
}
