/* Pieces of JSON text appended to a buffer. Objects and arrays are the caller's own literals: what varies
 * is strings and numbers. */
#ifndef FL_SERVER_JSON_WRITE_H
#define FL_SERVER_JSON_WRITE_H

#include "base/buffer.h"

#include <stdint.h>

/* A string with its quotes. Quotes, backslashes and control bytes are escaped; a byte that is no part of
 * valid UTF-8 becomes U+FFFD, so the result is always JSON. */
void fl_json_string(fl_buffer *buffer, const char *text, size_t n_bytes);

/* The same without the quotes, for strings in several pieces. */
void fl_json_escape(fl_buffer *buffer, const char *text, size_t n_bytes);

/* The same of a C string; NULL becomes null. */
void fl_json_text(fl_buffer *buffer, const char *text);

void fl_json_int(fl_buffer *buffer, int64_t value);

/* With `digits` significant digits (1..17). JSON has no infinities: they and not-a-number become null. */
void fl_json_real(fl_buffer *buffer, double value, int digits);

#endif
