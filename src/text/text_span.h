/* A half-open range of bytes in a text. */
#ifndef FL_TEXT_TEXT_SPAN_H
#define FL_TEXT_TEXT_SPAN_H

#include <stddef.h>

typedef struct fl_text_span {
    size_t begin, end; /* bytes [begin, end) */
} fl_text_span;

#endif
