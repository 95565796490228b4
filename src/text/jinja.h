/* Chat templates: a small, capped subset of the Jinja template language.
 *
 *   text --(jinja_lexer)--> tokens --(jinja_parser, jinja_expr)--> tree in an arena --(jinja_eval)--> text +
 * marks
 *
 * The subset, with whitespace rules as Hugging Face configures them (trim_blocks, lstrip_blocks):
 *   statements  if/elif/else, for (unpacking, `if` filter, else, loop.*), break, continue, set (names,
 * unpacking, a namespace's attribute, block form), macro (at the top level, called by name), comments
 *   operators   or and not, == != < <= > >= in, + - * / // %, ~, a if b else c, attributes, indices, slices,
 * is, | functions   namespace, range, raise_exception, dict filters, tests, methods: the tables in
 * jinja_filters.c, jinja_tests.c, jinja_methods.c Anything else is refused when the template is opened, with
 * its name and line. What depends on values (printing a list, adding a number to a string) is refused when it
 * happens. There is no reflection: attributes are dictionary keys, namespace variables and loop.*, nothing
 * else.
 *
 * Where it knowingly differs from Jinja: upper, lower and capitalize change ASCII letters only; `safe` does
 * nothing; lists and dictionaries have no text form (use tojson); integers are 64 bits wide; a range is a list. */
#ifndef FL_TEXT_JINJA_H
#define FL_TEXT_JINJA_H

#include "text/jinja_value.h"

/* Fill with fl_jinja_limits_default. Exceeding one is FL_ERR_LIMIT. */
typedef struct fl_jinja_limits {
    size_t template_bytes; /* longest template; default 1 MiB */
    size_t tree_bytes;     /* memory of the parsed template; default 64 MiB */
    size_t nesting;        /* levels of a template's statements and expressions, and of a value; default 100
                            (parsing takes about 1.3 KiB of stack each) */
    size_t eval_nesting;   /* levels while rendering, macro calls included; default 400 (about 300 bytes of
                            stack each) */
    uint64_t steps;        /* nodes visited + bytes handled / 64, in one rendering; default 20 million */
    size_t output_bytes;   /* longest text of one rendering; default 64 MiB */
    size_t value_bytes;    /* memory of all values of one rendering; default 256 MiB */
} fl_jinja_limits;

void fl_jinja_limits_default(fl_jinja_limits *limits);

typedef struct fl_jinja fl_jinja;

/* Parses `n_bytes` of template text (copied). FL_ERR_DATA: not Jinja. FL_ERR_UNSUPPORTED: Jinja outside the
 * subset. FL_ERR_LIMIT: template_bytes, tree_bytes or nesting. The caller owns *out. */
fl_err fl_jinja_open(const char *text, size_t n_bytes, const fl_jinja_limits *limits, fl_jinja **out);
void fl_jinja_close(fl_jinja *jinja);

/* A variable of the rendering. */
typedef struct fl_jvar {
    const char *name;
    fl_jval value; /* lives in the run's arena, or longer */
} fl_jvar;

/* Makes a run ready to hold values for one rendering under `limits` (borrowed until fl_jrun_clear). */
void fl_jrun_init(fl_jrun *run, const fl_jinja_limits *limits);
void fl_jrun_clear(fl_jrun *run);

/* Renders with the variables `vars`, all made in `run`. *out is borrowed from the run's arena. FL_ERR_DATA:
 * an operation on values of the wrong kind. FL_ERR_INVALID: the template called raise_exception.
 * FL_ERR_UNSUPPORTED: outside the subset. FL_ERR_LIMIT. One template may be rendered in several threads at
 * once, each with its own run. */
fl_err fl_jinja_render(const fl_jinja *jinja, fl_jrun *run, const fl_jvar *vars, size_t n_vars,
                       const fl_jstr **out);

#endif
