/* Characters of strings: Python's view (code points, white space) on UTF-8 bytes. A byte that is not part of
 * valid UTF-8 counts as one character. */
#ifndef FL_TEXT_JINJA_STR_H
#define FL_TEXT_JINJA_STR_H

#include "text/jinja_value.h"

/* Length in bytes (1 to 4) of the character at the start of `bytes`, n >= 1, and its code point (0xFFFD if
 * broken). */
size_t fl_jstr_char(const char *bytes, size_t n, uint32_t *code_point);

/* The same for the last character of `bytes`, n >= 1. */
size_t fl_jstr_last_char(const char *bytes, size_t n, uint32_t *code_point);

/* Python's str.isspace() of one character. */
bool fl_jstr_is_space(uint32_t code_point);

/* Number of characters. */
size_t fl_jstr_length(const char *bytes, size_t n);

/* Byte offset of character `at`; n if there are not that many. */
size_t fl_jstr_offset(const char *bytes, size_t n, size_t at);

/* First position of `needle` at or after `from`; SIZE_MAX if there is none. An empty needle is found at
 * `from`. */
size_t fl_jstr_find(const fl_jstr *hay, const fl_jstr *needle, size_t from);

bool fl_jstr_same(const fl_jstr *a, const fl_jstr *b);

/* Is it the C string `text`? */
bool fl_jstr_is(const fl_jstr *a, const char *text);

/* Writes `code_point` (not a surrogate, <= 0x10FFFF) as UTF-8 to `out` (4 bytes); returns the length. */
size_t fl_jstr_encode(uint32_t code_point, char *out);

/* Narrows [*begin, *end) of `bytes` by white space on the left and right. */
void fl_jstr_trim(const char *bytes, size_t *begin, size_t *end, bool left, bool right);

#endif
