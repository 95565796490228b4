/* Text to token ids and back: byte-level BPE as in a checkpoint's tokenizer.json with DeepSeek's pre-tokenizer.
 *
 * The ids are those of Hugging Face's tokenizers library (0.22, Unicode 16) with add_special_tokens = false; whoever
 * wants a begin token puts its id in front. A tokenizer is immutable once open: any number of threads may use one. */
#ifndef FL_TEXT_TOKENIZER_H
#define FL_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/text_span.h"

typedef struct fl_tokenizer fl_tokenizer;

/* Limits on foreign data; a file beyond them is refused. */
enum {
    FL_TOKENIZER_FILE_BYTES_MAX = 64 << 20,
    FL_TOKENIZER_VOCAB_MAX = 1 << 21,
    FL_TOKENIZER_ADDED_MAX = 1 << 16,
    FL_TOKEN_BYTES_MAX = 1024,
    FL_TEXT_BYTES_MAX = 512 << 20,
};

/* Reads model_dir/tokenizer.json. On success the caller owns *out. FL_ERR_UNSUPPORTED: a normalizer, pre-tokenizer,
 * model or option that is not implemented, named. FL_ERR_DATA: not a tokenizer.json, or its parts contradict. */
fl_err fl_tokenizer_open(const char *model_dir, fl_tokenizer **out);

/* The same from the file's bytes, borrowed for the call. */
fl_err fl_tokenizer_open_memory(const char *json, size_t n_bytes, fl_tokenizer **out);

/* Accepts NULL. */
void fl_tokenizer_close(fl_tokenizer *t);

/* Ids of text[0, n_bytes). Added tokens (control tokens and the like) are recognised only where they lie wholly
 * inside one of the `trusted` spans (sorted, disjoint, within the text); anywhere else they are plain text. NULL and
 * 0: nothing is trusted; one span over everything: as Hugging Face encodes. What lies between two recognised tokens
 * is split and merged as one text, whatever is trusted in it. A byte that is no part of valid UTF-8 splits like
 * U+FFFD and becomes that byte's own token. O(n log n) on any text. *ids is malloc'ed and passes to the caller
 * (free); never NULL on success. FL_ERR_INVALID: bad spans. FL_ERR_LIMIT: longer than FL_TEXT_BYTES_MAX. */
fl_err fl_tokenizer_encode(const fl_tokenizer *t, const char *text, size_t n_bytes,
                           const fl_text_span *trusted, size_t n_trusted, int32_t **ids, int64_t *n_ids);

/* The highest id + 1. Ids below it may lack a token, and a model's logits may have more rows. */
int32_t fl_tokenizer_n_vocab(const fl_tokenizer *t);

/* The id of the token whose text is exactly `content`, added tokens first. FL_ERR_INVALID: there is none. */
fl_err fl_tokenizer_find(const fl_tokenizer *t, const char *content, int32_t *id);

/* The bytes of any token, control tokens included (not NUL-terminated, maybe not valid UTF-8 by themselves), borrowed
 * from t; *n_bytes <= FL_TOKEN_BYTES_MAX. NULL and 0 for an id without a token, whatever its value. */
const char *fl_tokenizer_token_bytes(const fl_tokenizer *t, int32_t id, size_t *n_bytes);

/* How many of ids [n_ids] lie wholly before byte `byte` of the text they encode: byte-level BPE, so the
 * tokens' bytes add up to the text. */
int64_t fl_tokenizer_count_before(const fl_tokenizer *t, const int32_t *ids, int64_t n_ids, size_t byte);

/* Whether the id is an added token that tokenizer.json marks `special`: not part of the text a reader sees. */
bool fl_tokenizer_is_control(const fl_tokenizer *t, int32_t id);

/* Whether it is any added token: one that text is not merged to. */
bool fl_tokenizer_is_added(const fl_tokenizer *t, int32_t id);

/* Ids back to text that grows token by token. Emits whole code points only, so it holds back at most 3 bytes. What
 * cannot become valid UTF-8 is replaced by U+FFFD, one for each maximal broken part, as the Unicode standard and
 * Hugging Face's decoder do: the pieces put together do not depend on where the tokens end. Plain data. */
typedef struct fl_detok {
    unsigned char held[4];
    uint8_t n_held;
    bool show_control;
} fl_detok;

/* Room that `out` of push and finish must have. */
enum { FL_DETOK_OUT_BYTES = 3 * (FL_TOKEN_BYTES_MAX + 3) };

/* show_control: control tokens appear as their text; otherwise they decode to nothing. */
void fl_detok_init(fl_detok *d, bool show_control);

/* Adds one token; out[0, *n_out) is the text that became final. Ids without a token decode to nothing. */
void fl_detok_push(const fl_tokenizer *t, fl_detok *d, int32_t id, char *out, size_t *n_out);

/* Ends the text: U+FFFD for an incomplete rest. d is ready for the next text. */
void fl_detok_finish(fl_detok *d, char *out, size_t *n_out);

/* All of it at once. *text is malloc'ed, NUL-terminated, passes to the caller (free). */
fl_err fl_tokenizer_decode(const fl_tokenizer *t, const int32_t *ids, int64_t n_ids, bool show_control,
                           char **text, size_t *n_bytes);

#endif
