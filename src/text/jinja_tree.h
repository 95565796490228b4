/* The tree of a parsed template. Nodes live in the template's arena and never change after parsing. */
#ifndef FL_TEXT_JINJA_TREE_H
#define FL_TEXT_JINJA_TREE_H

#include "text/jinja.h"

/* A filter, test, method or function. args[0] is what it is applied to (functions: the first parameter), then
 * one entry per parameter, FL_JABSENT where none was given. */
typedef fl_err fl_jcall(fl_jrun *run, const fl_jval *args, fl_jval *out);

enum { FL_JPARAMS_MAX = 6 };

typedef struct fl_jbuiltin {
    const char *name;
    fl_jcall *call;
    int n_required;                     /* parameters that must be given */
    const char *params[FL_JPARAMS_MAX]; /* names, NULL after the last */
} fl_jbuiltin;

/* NULL if there is no such filter, test, method or function. `name` is [n]. */
const fl_jbuiltin *fl_jbuiltin_filter(const char *name, size_t n);
const fl_jbuiltin *fl_jbuiltin_test(const char *name, size_t n);
const fl_jbuiltin *fl_jbuiltin_method(const char *name, size_t n);
const fl_jbuiltin *fl_jbuiltin_function(const char *name, size_t n);

/* Is `name` a method that Python's strings, lists or dictionaries have, supported here or not? Reading one as
 * an attribute gives a method in Jinja, so it is refused here. */
bool fl_jbuiltin_is_python_method(const fl_jval *object, const fl_jstr *name);

typedef enum fl_jnode_kind {
    /* expressions */
    FL_JNODE_CONST,      /* value */
    FL_JNODE_NAME,       /* symbol */
    FL_JNODE_LIST,       /* items; flag: a tuple */
    FL_JNODE_DICT,       /* items: key, value, key, value, ... */
    FL_JNODE_ATTRIBUTE,  /* a . value (a string) */
    FL_JNODE_INDEX,      /* a [ b ] */
    FL_JNODE_SLICE,      /* a [ items[0] : items[1] : items[2] ], each may be NULL */
    FL_JNODE_FILTER,     /* builtin; items[0] is the operand, then one a parameter, NULL = absent */
    FL_JNODE_TEST,       /* the same; flag: negated */
    FL_JNODE_METHOD,     /* the same */
    FL_JNODE_FUNCTION,   /* builtin; one item a parameter */
    FL_JNODE_NAMESPACE,  /* namespace(names[i]=items[i]) */
    FL_JNODE_DICT_CALL,  /* dict(names[i]=items[i]) */
    FL_JNODE_MACRO_CALL, /* symbol (items positional, then names[i]=items[n_positional + i]) */
    FL_JNODE_NOT,        /* not a; flag: an even number of nots */
    FL_JNODE_SIGN,       /* - a, flag: + a */
    FL_JNODE_OR,         /* items */
    FL_JNODE_AND,        /* items */
    FL_JNODE_COMPARE,    /* items[0] ops[0] items[1] ops[1] ... */
    FL_JNODE_ARITH,      /* the same, from left to right */
    FL_JNODE_CONCAT,     /* items[0] ~ items[1] ~ ... */
    FL_JNODE_IF_ELSE,    /* b if a else c (NULL = undefined) */
    /* statements */
    FL_JNODE_BLOCK,     /* items */
    FL_JNODE_TEXT,      /* value (a string) */
    FL_JNODE_PRINT,     /* a */
    FL_JNODE_IF,        /* items: test, block, test, block, ...; c: the else block or NULL */
    FL_JNODE_FOR,       /* symbols in a [if b]: items[0] block; c: the else block or NULL */
    FL_JNODE_SET,       /* symbols = a; with value (a string): symbols[0] . value = a */
    FL_JNODE_SET_BLOCK, /* symbol = the text of a */
    FL_JNODE_MACRO,     /* symbol (symbols, items[i] the default or NULL): a */
    FL_JNODE_BREAK,
    FL_JNODE_CONTINUE
} fl_jnode_kind;

typedef enum fl_jop {
    FL_JOP_ADD,
    FL_JOP_SUB,
    FL_JOP_MUL,
    FL_JOP_DIV,
    FL_JOP_FLOOR_DIV,
    FL_JOP_MOD,
    FL_JOP_EQ,
    FL_JOP_NE,
    FL_JOP_LT,
    FL_JOP_LE,
    FL_JOP_GT,
    FL_JOP_GE,
    FL_JOP_IN,
    FL_JOP_NOT_IN
} fl_jop;

typedef struct fl_jnode fl_jnode;

struct fl_jnode {
    fl_jnode_kind kind;
    uint32_t line;
    size_t depth; /* 1 + that of the deepest child */
    bool flag;
    uint32_t symbol;
    const fl_jbuiltin *builtin;
    fl_jval value;
    const fl_jnode *a, *b, *c;
    const fl_jnode **items; /* [n_items] */
    size_t n_items;
    size_t n_positional;
    const fl_jop *ops;       /* [n_items - 1] */
    const uint32_t *symbols; /* [n_symbols] */
    size_t n_symbols;
    const fl_jstr **names; /* [n_items], or [n_items - n_positional] */
};

struct fl_jinja {
    fl_jinja_limits limits;
    fl_jarena arena;
    const fl_jnode *root;
    const fl_jstr **symbols; /* [n_symbols] names of variables; [0] is "loop" */
    size_t n_symbols;
};

enum { FL_JSYMBOL_LOOP = 0 };

#endif
