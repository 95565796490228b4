/* Answers of the OpenAI-shaped API: events of the engine in, bytes for the client out. One object serves
 * streamed and whole answers alike: hand it the events of every choice as they come, then end it. Pure
 * functions over memory.
 *
 * Streamed, for each choice: a chunk whose delta is {"role":"assistant","content":""}, with the first
 * token; chunks with content, or with tool_calls; a chunk with an empty delta and the finish_reason. Then,
 * if include_usage, one chunk with "choices":[] and the usage (all others say "usage":null), then "data:
 * [DONE]". Every chunk is "data: {..}\n\n"; id, created, model and system_fingerprint are the same in all
 * of them. A fault after the first byte is "data: {"error":{..}}" in place of what was left, and then
 * [DONE]. */
#ifndef FL_SERVER_API_RESPONSE_H
#define FL_SERVER_API_RESPONSE_H

#include "server/api_request.h"
#include "text/tokenizer.h"

/* What all chunks of an answer share. */
typedef struct fl_api_identity {
    unsigned char random[16]; /* fresh random bytes: ids of the answer and of its tool calls come from them */
    int64_t created_s;        /* Unix time */
    const char *model;        /* the name the answer bears; copied */
    const char *
        fingerprint; /* system_fingerprint: changes with program, checkpoint and settings, NULL = null; copied */
} fl_api_identity;

enum { FL_API_ANSWER_BYTES_MAX = 64 << 20 }; /* of a whole answer kept in memory */

typedef struct fl_api_answer fl_api_answer;

/* For a chat or completion request. `request` and `tokenizer` (the texts of log-probs' tokens) are borrowed
 * until close. */
fl_err fl_api_answer_open(const fl_api_request *request, const fl_api_identity *identity,
                          const fl_tokenizer *tokenizer, fl_api_answer **out);
void fl_api_answer_close(fl_api_answer *answer);

/* "chatcmpl-..." or "cmpl-...", for logs. Borrowed. */
const char *fl_api_answer_id(const fl_api_answer *answer);

/* Takes one event of choice `choice` (0..fl_api_request_choices - 1). Streamed answers append their chunks
 * to `out`; whole ones keep what they need and leave it alone. FL_ERR_LIMIT, FL_ERR_NOMEM: a buffer is
 * full; end the answer with fl_api_answer_fail. After a DONE with an error the other choices should be
 * cancelled; their events are ignored. */
fl_err fl_api_answer_event(fl_api_answer *answer, int32_t choice, const fl_event *event, fl_buffer *out);

/* Ends it with an error of the server's own (the worker is gone, a buffer is full). The first failure
 * stays. */
void fl_api_answer_fail(fl_api_answer *answer, const fl_api_error *error);

/* Every choice has ended, or one has failed: time for fl_api_answer_end. */
bool fl_api_answer_done(const fl_api_answer *answer);

/* The last bytes, once. A whole answer: the complete body, and *error is empty; or *error is what to send
 * instead (its status is not 0) and `out` is as it was. A streamed one: usage chunk and [DONE], or error
 * object and [DONE]; *error says which, for logs. */
fl_err fl_api_answer_end(fl_api_answer *answer, fl_buffer *out, fl_api_error *error);

/* Prompt tokens (of all prompts), those of them from a cache, and answer tokens so far. */
typedef struct fl_api_usage {
    int64_t prompt_tokens, cached_tokens, completion_tokens;
} fl_api_usage;
fl_api_usage fl_api_answer_usage(const fl_api_answer *answer);

/* ---- small bodies -------------------------------------------------------------------------------------- */

/* One model of GET /v1/models: {id, object, created, owned_by, max_model_len}. ctx_tokens 0 = not known. */
void fl_api_model_write(const char *model, int64_t created_s, int64_t ctx_tokens, fl_buffer *out);

/* POST /tokenize: {count, max_model_len, tokens}. */
void fl_api_tokens_write(const int32_t *tokens, int64_t n_tokens, int64_t ctx_tokens, fl_buffer *out);

/* POST /detokenize: {prompt}. */
void fl_api_text_write(const char *text, size_t text_bytes, fl_buffer *out);

#endif
