/* The text on which the DeepSeek-V3 tokenizer is compared with the reference, in chunks that are encoded one by one
 * with everything trusted. Deterministic: the same on every machine, from test/data and seeded numbers only.
 *
 *   every code point of planes 0, 1, 2, 3 and 14 in six contexts, of the others in one
 *   random Unicode: runs from some thirty ranges (scripts, blanks, digits, marks, controls, unassigned ...)
 *   random tokens of the vocabulary, which is code and prose of many languages; half the chunks with added tokens
 *   prose, code and many languages from test/data/mixed_text.zst */
#ifndef MIXED_TEXT_H
#define MIXED_TEXT_H

#include <stddef.h>

#include "text/tokenizer.h"

typedef struct mixed_text mixed_text;

/* `document` is the unpacked test/data/mixed_text.zst; both are borrowed until close. Returns NULL without memory. */
mixed_text *mixed_text_open(const fl_tokenizer *t, const char *document, size_t document_bytes);

/* Accepts NULL. */
void mixed_text_close(mixed_text *m);

size_t mixed_text_count(const mixed_text *m);

/* Chunk 0 <= index < count: valid UTF-8, borrowed until the next call. */
const char *mixed_text_chunk(mixed_text *m, size_t index, size_t *n_bytes);

/* One line about the chunk for messages, static until the next call. */
const char *mixed_text_name(mixed_text *m, size_t index);

/* FNV-1a with a finish, for texts and ids in golden files. */
uint64_t mixed_hash(const void *bytes, size_t n_bytes);

#endif
