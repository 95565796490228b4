/* Rendering small templates for tests, always with the same variables: `content` and `other` are the contents of
 * messages 0 and 1, the others are JSON: word "wort", n 7, f 2.5, yes true, nil null, list [1, "b", null],
 * d {"k": "v", "items": 1, "e": {}, "l": []}, uni and esc strings beyond ASCII. */
#ifndef FL_TEST_JINJA_RENDER_H
#define FL_TEST_JINJA_RENDER_H

#include "text/jinja.h"

/* Renders; on success *marks is a string with, for each byte of the result, 't' (template), '0' or '1' (content of that
 * message) or '.', and *text the result; both are the caller's. */
fl_err jinja_render(const char *source, size_t n_source, const fl_jinja_limits *limits, char **text,
                    char **marks);

/* The same with the default limits. */
fl_err jinja_render_default(const char *source, char **text, char **marks);

/* before + middle * n + after; the caller frees it. */
char *jinja_repeat(const char *before, const char *middle, size_t n, const char *after);

#endif
