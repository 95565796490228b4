/* A growing run of bytes with a hard cap. Failure is sticky: after an addition that does not fit or finds
 * no memory, all later ones do nothing, so a writer of many small pieces asks once, at its end. */
#ifndef FL_BASE_BUFFER_H
#define FL_BASE_BUFFER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct fl_buffer {
    char *bytes;    /* [n], owned; NULL while nothing was added. No NUL behind */
    size_t n;       /* bytes in use */
    size_t cap;     /* bytes allocated */
    size_t max;     /* n never exceeds it */
    fl_err failure; /* FL_ERR_OK, or FL_ERR_LIMIT or FL_ERR_NOMEM from then on */
} fl_buffer;

/* An empty buffer of at most max_bytes. Allocates nothing. */
void fl_buffer_init(fl_buffer *buffer, size_t max_bytes);

/* Frees the bytes; the buffer is empty again, with the same cap and no failure. */
void fl_buffer_free(fl_buffer *buffer);

/* Forgets bytes and failure, keeps the memory. */
void fl_buffer_clear(fl_buffer *buffer);

/* Appends. A failed addition leaves the bytes as they were. `bytes` may not lie in the buffer. */
void fl_buffer_add(fl_buffer *buffer, const void *bytes, size_t n);

/* Inline: the length of a literal is then known when compiled. */
static inline void fl_buffer_add_text(fl_buffer *buffer, const char *text) {
    fl_buffer_add(buffer, text, strlen(text));
}

/* Drops the first n bytes (at most those there are): what a reader has taken. */
void fl_buffer_drop(fl_buffer *buffer, size_t n);

/* FL_ERR_OK, or the failure with its text: FL_ERR_LIMIT names the cap. */
fl_err fl_buffer_check(const fl_buffer *buffer);

#endif
