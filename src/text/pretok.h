/* DeepSeek's pre-tokenizer: three regular expressions, each applied to the pieces that the one before left (matches and
 * what lies between them become pieces of their own):
 *
 *   1  \p{N}{1,3}
 *   2  [4E00..9FA5, 3040..309F, 30A0..30FF]+
 *   3  [ASCII punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ |  ?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ |
 *      \s+(?!\S) | \s+
 *
 * Since they apply in sequence, the end of a piece of 1 or 2 is the end of text for 3. Here it is one pass: no state
 * but the position, every byte looked at a bounded number of times. */
#ifndef FL_TEXT_PRETOK_H
#define FL_TEXT_PRETOK_H

#include <stddef.h>
#include <stdint.h>

/* Length of the first piece of p[0, n), n >= 1, where p is the beginning of a text or of a piece. Bytes that are not
 * valid UTF-8 count as one U+FFFD each. */
size_t fl_pretok_next(const uint8_t *p, size_t n);

#endif
