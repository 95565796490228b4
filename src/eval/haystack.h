/* Running text in which the evaluation hides its facts: the book text that the library carries (share/eval), or the
 * user's own files. */
#ifndef FL_EVAL_HAYSTACK_H
#define FL_EVAL_HAYSTACK_H

#include <stddef.h>

#include "base/err.h"

typedef struct fl_haystack {
    char *text; /* [n_bytes], UTF-8, NUL behind */
    size_t n_bytes;
} fl_haystack;

/* path: NULL = the bundled text; else a text file, or a folder whose regular files (not those of its
 * folders, no hidden ones, in the order of their names) are put together, each beginning on a line of its own. Files
 * that are no UTF-8 text are left out of a folder. FL_ERR_IO: cannot be read. FL_ERR_DATA: no text in it, or broken.
 * FL_ERR_LIMIT: more than 256 MiB. On success the caller closes *out. */
fl_err fl_haystack_open(const char *path, fl_haystack *out);

/* The last beginning of a code point that is not behind `at`, or the end. */
size_t fl_haystack_cut(const fl_haystack *haystack, size_t at);

/* Accepts a zeroed one. */
void fl_haystack_close(fl_haystack *haystack);

#endif
