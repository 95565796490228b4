/* Any bytes as the body of every endpoint. What is accepted must be in range, and goes on to the chat
 * template's preparation and to an answer, whose text is the body itself: tool calls in it are foreign
 * bytes too. */
#include "server/api_chat.h"
#include "server/api_response.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void require(bool held) {
    if (!held) abort();
}

static void check_range(const fl_api_request *r) {
    fl_request_params p;
    fl_api_request_params(r, fl_api_request_choices(r) - 1, 1, &p);
    require(fl_api_request_choices(r) >= 1 && fl_api_request_choices(r) <= FL_API_CHOICES_MAX);
    require(p.max_tokens >= 1 && p.min_tokens >= 0 && p.min_tokens <= p.max_tokens);
    require(p.sampling.temperature >= 0 && p.sampling.temperature <= 2 && p.sampling.top_k >= 0);
    require(isfinite(p.sampling.top_p) && isfinite(p.sampling.min_p) &&
            isfinite(p.sampling.repetition_penalty));
    require(p.n_stops >= 0 && p.n_stops <= FL_STOPS_MAX && p.n_stop_tokens >= 0 && p.n_logit_biases >= 0);
    require(p.top_logprobs >= 0 && p.top_logprobs <= FL_TOP_LOGPROBS_MAX);
    require(r->question_message >= r->n_messages ||
            r->question_bytes <= r->messages[r->question_message].content_bytes);
    for (int32_t i = 0; i < r->n_prompts; i++)
        for (int64_t k = 0; k < r->prompts[i].n_tokens; k++) require(r->prompts[i].tokens[k] >= 0);
}

static void prepare(const fl_api_request *r, unsigned way) {
    const fl_api_template shown = {(way & 1) != 0, (way & 2) != 0, (way & 2) != 0,
                                   (way & 4) != 0, (way & 8) != 0, (way & 16) != 0};
    fl_api_chat chat;
    if (fl_api_chat_prepare(r, &shown, &chat) != FL_ERR_OK) return;
    for (size_t i = 0; i < chat.n_messages; i++)
        require(chat.messages[i].role != NULL &&
                (chat.messages[i].content != NULL || chat.messages[i].tool_calls != NULL));
    fl_api_chat_free(&chat);
}

static void answer(const fl_api_request *r, const char *text, size_t n, size_t piece) {
    const fl_api_identity identity = {.model = "m"};
    fl_api_answer *a = NULL;
    fl_api_error error;
    fl_buffer out;
    fl_buffer_init(&out, 16 << 20);
    require(fl_api_answer_open(r, &identity, NULL, &a) == FL_ERR_OK);
    for (int32_t c = 0; c < fl_api_request_choices(r); c++) {
        for (size_t at = 0; at < n; at += piece) {
            const fl_event e = {.type = FL_EVENT_TOKEN,
                                .token = -1,
                                .text = text + at,
                                .text_bytes = piece < n - at ? piece : n - at};
            if (fl_api_answer_event(a, c, &e, &out) != FL_ERR_OK) break;
        }
        const fl_event done = {.type = FL_EVENT_DONE, .token = -1, .text = "", .finish = FL_FINISH_STOP};
        (void)fl_api_answer_event(a, c, &done, &out);
    }
    fl_err err = fl_api_answer_end(a, &out, &error);
    if (err == FL_ERR_OK && !r->stream) { /* a whole answer is JSON, whatever the model said */
        json_t *root = json_loadb(out.bytes, out.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        require(root != NULL);
        json_decref(root);
    }
    fl_api_answer_close(a);
    fl_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    const char *body = (const char *)bytes;
    fl_api_settings settings;
    fl_api_settings_default(&settings);
    unsigned way = n_bytes > 0 ? bytes[n_bytes - 1] : 0;
    for (int kind = FL_API_CHAT; kind <= FL_API_DETOKENIZE; kind++) {
        fl_api_request r;
        fl_api_error error;
        if (fl_api_request_parse((fl_api_kind)kind, body, n_bytes, &settings, &r, &error) != FL_ERR_OK) {
            require(error.status >= 400 && error.message[0] != '\0' && r.root == NULL);
            continue;
        }
        check_range(&r);
        if (r.n_messages > 0) prepare(&r, way);
        if (kind <= FL_API_COMPLETION) answer(&r, body, n_bytes, 1 + way % 37);
        fl_api_request_free(&r);
    }
    return 0;
}
