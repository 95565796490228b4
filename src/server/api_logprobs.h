/* Log-probs of tokens as the API writes them: a chat's list of objects, and the completions' arrays side by
 * side. */
#ifndef FL_SERVER_API_LOGPROBS_H
#define FL_SERVER_API_LOGPROBS_H

#include "base/buffer.h"
#include "text/tokenizer.h"

/* What was gathered of a choice and not written yet. */
typedef struct fl_api_logprobs {
    bool chat;
    fl_buffer entries;                       /* chat: objects with commas between */
    fl_buffer tokens, values, tops, offsets; /* completions: the same of each array */
    int64_t n;                               /* entries gathered */
    int64_t offset;                          /* completions: code points of all tokens so far */
} fl_api_logprobs;

void fl_api_logprobs_init(fl_api_logprobs *logprobs, bool chat, size_t max_bytes);
void fl_api_logprobs_free(fl_api_logprobs *logprobs);

/* Adds the token of a TOKEN event with its alternatives. */
void fl_api_logprobs_add(fl_api_logprobs *logprobs, const fl_tokenizer *tokenizer, const fl_event *event);

/* Appends what was gathered as the value of "logprobs", null if nothing was, and forgets it. */
void fl_api_logprobs_take(fl_api_logprobs *logprobs, fl_buffer *out);

/* FL_ERR_LIMIT, FL_ERR_NOMEM: a buffer could not grow. */
fl_err fl_api_logprobs_check(const fl_api_logprobs *logprobs);

#endif
