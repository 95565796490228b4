/* Template text to tokens. White space around tags is handled here (trim_blocks, lstrip_blocks, - and +
 * signs), line ends become \n, and one line end at the template's end is dropped. */
#ifndef FL_TEXT_JINJA_LEXER_H
#define FL_TEXT_JINJA_LEXER_H

#include "text/jinja_arena.h"

#include <stdint.h>

typedef enum fl_jtoken_kind {
    FL_JTOK_END,         /* the end of the template; always the last token */
    FL_JTOK_DATA,        /* text outside tags */
    FL_JTOK_PRINT_BEGIN, /* {{ */
    FL_JTOK_PRINT_END,
    FL_JTOK_TAG_BEGIN, /* {% */
    FL_JTOK_TAG_END,
    FL_JTOK_NAME,
    FL_JTOK_STRING, /* text is the value, escapes decoded */
    FL_JTOK_INT,    /* digits */
    FL_JTOK_FLOAT,
    FL_JTOK_OPERATOR /* text is the operator */
} fl_jtoken_kind;

typedef struct fl_jtoken {
    fl_jtoken_kind kind;
    uint32_t line;    /* from 1 */
    const char *text; /* [n], in the arena */
    size_t n;
} fl_jtoken;

/* All tokens of `text`. FL_ERR_DATA: not Jinja. FL_ERR_UNSUPPORTED: outside the subset. FL_ERR_LIMIT: more
 * than `nesting` open brackets, or the arena's limit. *tokens is borrowed from the arena. */
fl_err fl_jinja_lex(fl_jarena *arena, const char *text, size_t n_bytes, size_t nesting, fl_jtoken **tokens);

#endif
