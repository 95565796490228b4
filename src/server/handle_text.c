/* POST /tokenize and /detokenize: text to ids and back, without the worker. */
#include "server/api_response.h"
#include "server/call.h"

#include <stdlib.h>

enum { TEXT_BYTES_MAX = 256 << 20 };

static int64_t context_of(fl_front *front) {
    fl_link_status status;
    fl_worker_link_status(front->link, &status);
    return status.has_info ? status.info.ctx_tokens : 0;
}

static bool read_request(fl_front *front, fl_http_exchange *exchange, fl_call *call) {
    size_t n = 0;
    fl_api_error error;
    const char *body = fl_http_get_body(exchange, &n);
    fl_err err = fl_api_request_parse(call->route->kind, body, n, &front->api, &call->request, &error);
    fl_http_drop_body(exchange);
    if (err == FL_ERR_OK && fl_front_knows_model(front, call->request.model, &error) &&
        fl_api_request_check_ids(&call->request, fl_tokenizer_n_vocab(front->tokenizer), &error) == FL_ERR_OK)
        return true;
    fl_front_answer_error(exchange, &error, 0, 0);
    return false;
}

static void answer(fl_http_exchange *exchange, fl_err err, fl_buffer *out) {
    fl_api_error error;
    if (err == FL_ERR_OK) {
        fl_front_answer(exchange, NULL, out);
        return;
    }
    fl_api_error_from(&error, err, fl_err_detail());
    fl_front_answer_error(exchange, &error, 0, 0);
}

void fl_handle_tokenize(fl_front *front, fl_http_exchange *exchange) {
    fl_call *call = fl_http_get_user(exchange);
    fl_prompt_tokens tokens;
    fl_buffer out;
    if (!read_request(front, exchange, call)) return;
    fl_buffer_init(&out, TEXT_BYTES_MAX);
    fl_err err = fl_front_tokenize(front, &call->request, 0, &tokens);
    if (err == FL_ERR_OK) {
        fl_api_tokens_write(tokens.ids, tokens.n, context_of(front), &out);
        free(tokens.ids);
    }
    answer(exchange, err, &out);
}

void fl_handle_detokenize(fl_front *front, fl_http_exchange *exchange) {
    fl_call *call = fl_http_get_user(exchange);
    char *text = NULL;
    size_t n_bytes = 0;
    fl_buffer out;
    if (!read_request(front, exchange, call)) return;
    const fl_api_prompt *p = &call->request.prompts[0];
    fl_buffer_init(&out, TEXT_BYTES_MAX);
    fl_err err = fl_tokenizer_decode(front->tokenizer, p->tokens, p->n_tokens, true, &text, &n_bytes);
    if (err == FL_ERR_OK) fl_api_text_write(text, n_bytes, &out);
    free(text);
    answer(exchange, err, &out);
}
