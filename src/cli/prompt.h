/* The message that asks about documents: their text without line ends at its end, an empty line, the
 * question. */
#ifndef FL_CLI_PROMPT_H
#define FL_CLI_PROMPT_H

#include "cli/documents.h"
#include "cli/options.h"

typedef struct fl_prompt {
    char *text; /* [n_bytes], NUL behind; owned */
    size_t n_bytes;
    size_t question_bytes; /* at its end, for fl_chat_tokenize; 0 = it is all one */
} fl_prompt;

/* On success the caller closes *out. */
fl_err fl_prompt_make(const fl_documents *documents, const char *question, fl_prompt *out);
void fl_prompt_close(fl_prompt *prompt);

/* A context that holds the prompt and --max-tokens of answer, and no more than the model's own or extended length
 * unless that is forced. 0, the engine's choice, when the model's length cannot be read (opening it will say why). */
int64_t fl_prompt_ctx(const fl_options *options, const fl_prompt *prompt);

#endif
