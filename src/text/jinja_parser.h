/* Tokens to the tree: statements in jinja_parser.c, expressions in jinja_expr.c. Recursion is bounded: every
 * nested construct enters a level, and limits.nesting is the most there may be. */
#ifndef FL_TEXT_JINJA_PARSER_H
#define FL_TEXT_JINJA_PARSER_H

#include "text/jinja_lexer.h"
#include "text/jinja_tree.h"

enum { FL_JSYMBOLS_MAX = 4096, FL_JSYMBOL_SLOTS = 2 * FL_JSYMBOLS_MAX };

typedef struct fl_jparser {
    fl_jinja *jinja;        /* being filled */
    const fl_jtoken *token; /* the current one */
    size_t level;           /* open constructs */
    size_t loops;           /* open for loops that a break may end */
    size_t scopes;          /* open constructs with variables of their own, where no macro may be defined */
    uint16_t
        *symbol_table; /* [FL_JSYMBOL_SLOTS] by hash of the name, linear probing; 0 = free, else symbol + 1 */
    const fl_jnode **calls; /* [n_calls] macro calls, checked at the end */
    size_t n_calls, cap_calls;
    bool *is_macro; /* [FL_JSYMBOLS_MAX] a macro of this name is defined somewhere */
} fl_jparser;

/* A growing list of nodes. */
typedef struct fl_jnodes {
    const fl_jnode **items;
    size_t n, cap;
} fl_jnodes;

/* Fails with FL_ERR_DATA "line N: expected WANTED, found ..." at the current token. */
fl_err fl_jparser_fail_expected(const fl_jparser *ps, const char *wanted);

/* Fails with FL_ERR_UNSUPPORTED "line N: WHAT 'NAME' is not supported". */
fl_err fl_jparser_fail_unsupported(uint32_t line, const char *what, const char *name, size_t n);

/* Opens a level; FL_ERR_LIMIT beyond limits.nesting. Close it with fl_jparser_leave. */
fl_err fl_jparser_enter(fl_jparser *ps);
void fl_jparser_leave(fl_jparser *ps);

fl_err fl_jparser_node(fl_jparser *ps, fl_jnode_kind kind, fl_jnode **out);

/* Makes `child` (may be NULL) count for the depth of `parent`; FL_ERR_LIMIT if that gets deeper than
 * limits.nesting. */
fl_err fl_jparser_adopt(fl_jparser *ps, fl_jnode *parent, const fl_jnode *child);

fl_err fl_jparser_push(fl_jparser *ps, fl_jnodes *nodes, const fl_jnode *node);

/* Gives `nodes` to `parent` as its items. */
fl_err fl_jparser_give(fl_jparser *ps, fl_jnode *parent, const fl_jnodes *nodes);

/* The number of a variable's name. */
fl_err fl_jparser_symbol(fl_jparser *ps, const fl_jtoken *name, uint32_t *out);

/* A string of template text for `token`. */
fl_err fl_jparser_text(fl_jparser *ps, const fl_jtoken *token, fl_jval *out);

bool fl_jparser_at_operator(const fl_jparser *ps, const char *text);
bool fl_jparser_at_name(const fl_jparser *ps, const char *text);

/* Moves past the operator if it is there. */
bool fl_jparser_skip_operator(fl_jparser *ps, const char *text);
bool fl_jparser_skip_name(fl_jparser *ps, const char *text);
fl_err fl_jparser_expect_operator(fl_jparser *ps, const char *text);

/* Any expression. */
fl_err fl_jparser_expression(fl_jparser *ps, const fl_jnode **out);

/* An expression without `a if b else c`, as after `in` of a for statement. */
fl_err fl_jparser_condition(fl_jparser *ps, const fl_jnode **out);

#endif
