#include "server/api_response.h"

#include "server/api_logprobs.h"
#include "server/api_tool_parse.h"
#include "server/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct choice {
    fl_api_answer *answer;
    int32_t index;
    bool begun, ended;
    const char *finish; /* once ended */
    fl_buffer content;  /* whole answers: the text so far */
    fl_buffer calls;    /* whole answers: tool_calls' objects so far, the last one open */
    int32_t n_calls;
    fl_api_logprobs logprobs;
    fl_tool_parser parser; /* where functions may be called */
    fl_api_usage usage;
} choice;

struct fl_api_answer {
    const fl_api_request *request; /* borrowed */
    const fl_tokenizer *tokenizer; /* borrowed */
    bool chat, calling;
    char id[48], call_id[24];
    char *head; /* [head_bytes] owned: of every chunk, or of the whole answer, up to and with "choices":[ */
    size_t head_bytes;
    fl_api_error error;
    fl_buffer *out; /* during one call */
    int32_t n_choices;
    choice choices[]; /* [n_choices] */
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static void write_hex(char *out, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static fl_err make_head(fl_api_answer *a, const fl_api_identity *identity) {
    static const char *const objects[2][2] = {{"text_completion", "text_completion"},
                                              {"chat.completion", "chat.completion.chunk"}};
    fl_buffer b;
    fl_buffer_init(&b, 1 << 20);
    fl_buffer_add_text(&b, a->request->stream ? "data: {\"id\":" : "{\"id\":");
    fl_json_text(&b, a->id);
    fl_buffer_add_text(&b, ",\"object\":");
    fl_json_text(&b, objects[a->chat][a->request->stream]);
    fl_buffer_add_text(&b, ",\"created\":");
    fl_json_int(&b, identity->created_s);
    fl_buffer_add_text(&b, ",\"model\":");
    fl_json_text(&b, identity->model);
    fl_buffer_add_text(&b, ",\"system_fingerprint\":");
    fl_json_text(&b, identity->fingerprint);
    fl_buffer_add_text(&b, ",\"choices\":[");
    a->head = b.bytes;
    a->head_bytes = b.n;
    return fl_buffer_check(&b);
}

static void init_choice(fl_api_answer *a, int32_t index) {
    choice *c = &a->choices[index];
    size_t most = FL_API_ANSWER_BYTES_MAX / (size_t)a->n_choices;
    c->answer = a;
    c->index = index;
    fl_buffer_init(&c->content, most);
    fl_buffer_init(&c->calls, most);
    fl_api_logprobs_init(&c->logprobs, a->chat, most);
}

fl_err fl_api_answer_open(const fl_api_request *request, const fl_api_identity *identity,
                          const fl_tokenizer *tokenizer, fl_api_answer **out) {
    int32_t n = fl_api_request_choices(request);
    fl_api_answer *a = calloc(1, sizeof *a + (size_t)n * sizeof a->choices[0]);
    if (a == NULL) return FL_FAIL(FL_ERR_NOMEM, "an answer of %d choices", n);
    a->request = request;
    a->tokenizer = tokenizer;
    a->n_choices = n;
    a->chat = request->kind == FL_API_CHAT;
    a->calling = a->chat && request->tools != NULL && request->tool_choice != FL_API_TOOLS_NONE;
    int prefix = snprintf(a->id, sizeof a->id, "%s", a->chat ? "chatcmpl-" : "cmpl-");
    write_hex(a->id + prefix, identity->random, sizeof identity->random);
    write_hex(a->call_id, identity->random, 8);
    for (int32_t i = 0; i < n; i++) init_choice(a, i);
    fl_err err = make_head(a, identity);
    if (err == FL_ERR_OK) *out = a;
    else fl_api_answer_close(a);
    return err;
}

void fl_api_answer_close(fl_api_answer *a) {
    if (a == NULL) return;
    for (int32_t i = 0; i < a->n_choices; i++) {
        fl_buffer_free(&a->choices[i].content);
        fl_buffer_free(&a->choices[i].calls);
        fl_api_logprobs_free(&a->choices[i].logprobs);
        fl_tool_parser_free(&a->choices[i].parser);
    }
    free(a->head);
    free(a);
}

const char *fl_api_answer_id(const fl_api_answer *a) {
    return a->id;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

static void begin_chunk(choice *c) {
    fl_buffer *out = c->answer->out;
    fl_buffer_add(out, c->answer->head, c->answer->head_bytes);
    fl_buffer_add_text(out, "{\"index\":");
    fl_json_int(out, c->index);
}

/* Ends a chunk whose delta or text was written: the log-probs that wait, the reason, the usage. */
static void end_chunk(choice *c, const char *finish) {
    fl_buffer *out = c->answer->out;
    fl_buffer_add_text(out, ",\"logprobs\":");
    fl_api_logprobs_take(&c->logprobs, out);
    fl_buffer_add_text(out, ",\"finish_reason\":");
    fl_json_text(out, finish);
    fl_buffer_add_text(out, c->answer->request->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void send_text(choice *c, const char *text, size_t n) {
    fl_buffer *out = c->answer->out;
    begin_chunk(c);
    fl_buffer_add_text(out, c->answer->chat ? ",\"delta\":{\"content\":" : ",\"text\":");
    fl_json_string(out, text, n);
    fl_buffer_add_text(out, c->answer->chat ? "}" : "");
    end_chunk(c, NULL);
}

static void send_role(choice *c) {
    begin_chunk(c);
    fl_buffer_add_text(c->answer->out,
                       ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                       "\"finish_reason\":null");
    fl_buffer_add_text(c->answer->out,
                       c->answer->request->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void send_finish(choice *c) {
    begin_chunk(c);
    fl_buffer_add_text(c->answer->out, c->answer->chat ? ",\"delta\":{}" : ",\"text\":\"\"");
    end_chunk(c, c->finish);
}

/* ---- what the tool parser finds, and plain text -------------------------------------------------------- */

static void take_content(void *context, const char *text, size_t n) {
    choice *c = context;
    if (c->answer->request->stream) send_text(c, text, n);
    else fl_buffer_add(&c->content, text, n);
}

/* {"index":0,"id":"call_..","type":"function","function":{"name":"..","arguments":" and no more. */
static void write_call(choice *c, fl_buffer *out, const char *name, size_t n) {
    char id[64];
    snprintf(id, sizeof id, "call_%s%02x%06x", c->answer->call_id, (unsigned)c->index & 0xff,
             (unsigned)c->n_calls & 0xffffff);
    fl_buffer_add(out, "{", 1);
    if (c->answer->request->stream) {
        fl_buffer_add_text(out, "\"index\":");
        fl_json_int(out, c->n_calls);
        fl_buffer_add(out, ",", 1);
    }
    fl_buffer_add_text(out, "\"id\":");
    fl_json_text(out, id);
    fl_buffer_add_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
    fl_json_string(out, name, n);
    fl_buffer_add_text(out, ",\"arguments\":\"");
}

static void take_call(void *context, const char *name, size_t n) {
    choice *c = context;
    bool stream = c->answer->request->stream;
    fl_buffer *out = stream ? c->answer->out : &c->calls;
    if (stream) {
        begin_chunk(c);
        fl_buffer_add_text(out, ",\"delta\":{\"tool_calls\":[");
    } else if (c->n_calls > 0) {
        fl_buffer_add_text(out, "\"}},");
    }
    write_call(c, out, name, n);
    if (stream) {
        fl_buffer_add_text(out, "\"}}]}");
        end_chunk(c, NULL);
    }
    c->n_calls++;
}

static void take_arguments(void *context, const char *text, size_t n) {
    choice *c = context;
    fl_buffer *out = c->answer->out;
    if (!c->answer->request->stream) {
        fl_json_escape(&c->calls, text, n);
        return;
    }
    begin_chunk(c);
    fl_buffer_add_text(out, ",\"delta\":{\"tool_calls\":[{\"index\":");
    fl_json_int(out, c->n_calls - 1);
    fl_buffer_add_text(out, ",\"function\":{\"arguments\":");
    fl_json_string(out, text, n);
    fl_buffer_add_text(out, "}}]}");
    end_chunk(c, NULL);
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* With the first token or, where there is none, with the end. */
static void begin_choice(choice *c) {
    const fl_api_answer *a = c->answer;
    if (c->begun) return;
    c->begun = true;
    if (a->chat && a->request->stream) send_role(c);
    if (!a->calling) return;
    const fl_tool_sink sink = {take_content, take_call, take_arguments, c};
    fl_tool_parser_init(&c->parser, a->request, sink);
}

static fl_err take_text(choice *c, const fl_event *event) {
    bool stream = c->answer->request->stream;
    if (event->text_bytes > 0) {
        if (c->answer->calling) FL_TRY(fl_tool_parser_push(&c->parser, event->text, event->text_bytes));
        else take_content(c, event->text, event->text_bytes);
    }
    /* A token whose text is held back has its log-prob now. */
    if (stream && c->logprobs.n > 0) send_text(c, "", 0);
    return FL_ERR_OK;
}

static fl_err end_choice(choice *c, const fl_event *event) {
    FL_TRY(take_text(c, event));
    if (c->answer->calling) FL_TRY(fl_tool_parser_finish(&c->parser));
    c->finish = event->finish == FL_FINISH_LENGTH ? "length" : c->n_calls > 0 ? "tool_calls" : "stop";
    c->ended = true;
    if (c->answer->request->stream) send_finish(c);
    return FL_ERR_OK;
}

static fl_err take_done(choice *c, const fl_event *event) {
    fl_api_error error;
    if (event->finish == FL_FINISH_STOP || event->finish == FL_FINISH_LENGTH) {
        begin_choice(c);
        return end_choice(c, event);
    }
    if (event->finish == FL_FINISH_CANCELLED)
        fl_api_error_from(&error, FL_ERR_CANCELLED, "the request was cancelled");
    else fl_api_error_from(&error, event->err, event->err_detail);
    fl_api_answer_fail(c->answer, &error);
    return FL_ERR_OK;
}

static fl_err check_buffers(const choice *c) {
    FL_TRY(fl_buffer_check(c->answer->out));
    FL_TRY(fl_buffer_check(&c->content));
    FL_TRY(fl_buffer_check(&c->calls));
    return fl_api_logprobs_check(&c->logprobs);
}

fl_err fl_api_answer_event(fl_api_answer *a, int32_t index, const fl_event *event, fl_buffer *out) {
    choice *c = &a->choices[index];
    if (c->ended || a->error.status != 0) return FL_ERR_OK;
    a->out = out;
    c->usage = (fl_api_usage){event->prompt_tokens, event->cached_tokens, event->answer_tokens};
    if (event->type == FL_EVENT_TOKEN) {
        begin_choice(c);
        if (event->token >= 0 && a->request->logprobs) fl_api_logprobs_add(&c->logprobs, a->tokenizer, event);
        FL_TRY(take_text(c, event));
    } else if (event->type == FL_EVENT_DONE) {
        FL_TRY(take_done(c, event));
    }
    return check_buffers(c);
}

void fl_api_answer_fail(fl_api_answer *a, const fl_api_error *error) {
    if (a->error.status == 0) a->error = *error;
}

bool fl_api_answer_done(const fl_api_answer *a) {
    bool all = true;
    for (int32_t i = 0; i < a->n_choices; i++) all = all && a->choices[i].ended;
    return all || a->error.status != 0;
}

fl_api_usage fl_api_answer_usage(const fl_api_answer *a) {
    fl_api_usage sum = {0};
    for (int32_t i = 0; i < a->n_choices; i++) {
        const fl_api_usage *own = &a->choices[i].usage;
        sum.completion_tokens += own->completion_tokens;
        if (i % a->request->n != 0) continue; /* the same prompt again */
        sum.prompt_tokens += own->prompt_tokens;
        sum.cached_tokens += own->cached_tokens;
    }
    return sum;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static void write_usage(const fl_api_answer *a, fl_buffer *out) {
    fl_api_usage u = fl_api_answer_usage(a);
    fl_buffer_add_text(out, "\"usage\":{\"prompt_tokens\":");
    fl_json_int(out, u.prompt_tokens);
    fl_buffer_add_text(out, ",\"completion_tokens\":");
    fl_json_int(out, u.completion_tokens);
    fl_buffer_add_text(out, ",\"total_tokens\":");
    fl_json_int(out, u.prompt_tokens + u.completion_tokens);
    fl_buffer_add_text(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    fl_json_int(out, u.cached_tokens);
    fl_buffer_add_text(out, "}}}");
}

static void end_stream(fl_api_answer *a, fl_buffer *out) {
    if (a->error.status != 0) {
        fl_buffer_add_text(out, "data: ");
        fl_api_error_write(&a->error, out);
        fl_buffer_add_text(out, "\n\n");
    } else if (a->request->include_usage) {
        fl_buffer_add(out, a->head, a->head_bytes);
        fl_buffer_add_text(out, "],");
        write_usage(a, out);
        fl_buffer_add_text(out, "\n\n");
    }
    fl_buffer_add_text(out, "data: [DONE]\n\n");
}

static void write_message(choice *c, fl_buffer *out) {
    fl_buffer_add_text(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->n_calls > 0 && c->content.n == 0) fl_buffer_add_text(out, "null");
    else fl_json_string(out, c->content.bytes, c->content.n);
    fl_buffer_add_text(out, ",\"refusal\":null");
    if (c->n_calls > 0) {
        fl_buffer_add_text(out, ",\"tool_calls\":[");
        fl_buffer_add(out, c->calls.bytes, c->calls.n);
        fl_buffer_add_text(out, "\"}}]");
    }
    fl_buffer_add_text(out, "}");
}

static void write_whole(fl_api_answer *a, fl_buffer *out) {
    fl_buffer_add(out, a->head, a->head_bytes);
    for (int32_t i = 0; i < a->n_choices; i++) {
        choice *c = &a->choices[i];
        fl_buffer_add_text(out, i > 0 ? ",{\"index\":" : "{\"index\":");
        fl_json_int(out, i);
        if (a->chat) {
            write_message(c, out);
        } else {
            fl_buffer_add_text(out, ",\"text\":");
            fl_json_string(out, c->content.bytes, c->content.n);
        }
        fl_buffer_add_text(out, ",\"logprobs\":");
        fl_api_logprobs_take(&c->logprobs, out);
        fl_buffer_add_text(out, ",\"finish_reason\":");
        fl_json_text(out, c->finish);
        fl_buffer_add_text(out, "}");
    }
    fl_buffer_add_text(out, "],");
    write_usage(a, out);
}

fl_err fl_api_answer_end(fl_api_answer *a, fl_buffer *out, fl_api_error *error) {
    if (!fl_api_answer_done(a)) {
        fl_api_error early;
        fl_api_error_set(&early, 500, NULL, "internal_error", "the answer ended before its choices did");
        fl_api_answer_fail(a, &early);
    }
    *error = a->error;
    if (a->request->stream) end_stream(a, out);
    else if (error->status == 0) write_whole(a, out);
    return fl_buffer_check(out);
}

/* ---- small bodies -------------------------------------------------------------------------------------- */

void fl_api_model_write(const char *model, int64_t created_s, int64_t ctx_tokens, fl_buffer *out) {
    fl_buffer_add_text(out, "{\"id\":");
    fl_json_text(out, model);
    fl_buffer_add_text(out, ",\"object\":\"model\",\"created\":");
    fl_json_int(out, created_s);
    fl_buffer_add_text(out, ",\"owned_by\":\"firstlight\",\"max_model_len\":");
    if (ctx_tokens > 0) fl_json_int(out, ctx_tokens);
    else fl_buffer_add_text(out, "null");
    fl_buffer_add_text(out, "}");
}

void fl_api_tokens_write(const int32_t *tokens, int64_t n_tokens, int64_t ctx_tokens, fl_buffer *out) {
    fl_buffer_add_text(out, "{\"count\":");
    fl_json_int(out, n_tokens);
    fl_buffer_add_text(out, ",\"max_model_len\":");
    fl_json_int(out, ctx_tokens);
    fl_buffer_add_text(out, ",\"tokens\":[");
    for (int64_t i = 0; i < n_tokens; i++) {
        if (i > 0) fl_buffer_add(out, ",", 1);
        fl_json_int(out, tokens[i]);
    }
    fl_buffer_add_text(out, "]}");
}

void fl_api_text_write(const char *text, size_t text_bytes, fl_buffer *out) {
    fl_buffer_add_text(out, "{\"prompt\":");
    fl_json_string(out, text, text_bytes);
    fl_buffer_add_text(out, "}");
}
