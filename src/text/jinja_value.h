/* Values of a template rendering, and how strings remember where their bytes came from.
 *
 * Values are immutable and live in the run's arena (namespaces apart, whose variables may be set). A string
 * carries marks: disjoint byte ranges in ascending order that say where those bytes came from, either the
 * template (literals and what the caller vouches for, such as bos_token: trusted) or one message's content at
 * a known offset. Bytes under no mark came from elsewhere in the request and are as untrusted as content.
 * Every operation keeps the marks of the bytes it copies, so the marks of the rendered text say which bytes
 * may become control tokens. */
#ifndef FL_TEXT_JINJA_VALUE_H
#define FL_TEXT_JINJA_VALUE_H

#include "text/jinja_arena.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct fl_jinja_limits;

/* State of one rendering that operations on values need. */
typedef struct fl_jrun {
    fl_jarena arena;
    const struct fl_jinja_limits *limits; /* borrowed */
    uint64_t steps;                       /* done so far */
    uint32_t line;                        /* template line being rendered; 0 = none yet */
} fl_jrun;

/* Counts one step and `bytes` / 64 more. FL_ERR_LIMIT when the limit is passed. */
fl_err fl_jrun_charge(fl_jrun *run, size_t bytes);

/* ---- strings ------------------------------------------------------------------------------------------- */

#define FL_JORIGIN_TEMPLATE SIZE_MAX

typedef struct fl_jmark {
    size_t begin, end;   /* bytes of the string, begin < end */
    size_t origin;       /* FL_JORIGIN_TEMPLATE, or the message whose content this is */
    size_t origin_begin; /* where in that content `begin` is; 0 for the template */
} fl_jmark;

typedef struct fl_jstr {
    const char *bytes; /* [n], UTF-8, not NUL-terminated */
    size_t n;
    const fl_jmark *marks; /* [n_marks] ascending, disjoint */
    size_t n_marks;
} fl_jstr;

/* ---- values -------------------------------------------------------------------------------------------- */

typedef enum fl_jkind {
    FL_JABSENT, /* an optional argument that was not given; never a value of a template */
    FL_JUNDEFINED,
    FL_JNONE,
    FL_JBOOL,
    FL_JINT,
    FL_JFLOAT,
    FL_JSTR,
    FL_JLIST, /* lists and tuples */
    FL_JDICT,
    FL_JNAMESPACE,
    FL_JLOOP
} fl_jkind;

typedef struct fl_jlist fl_jlist;
typedef struct fl_jdict fl_jdict;
typedef struct fl_jnamespace fl_jnamespace;
typedef struct fl_jloop fl_jloop;

typedef struct fl_jval {
    fl_jkind kind;
    bool trusted; /* INT, FLOAT: its digits count as template text */
    union {
        const fl_jstr *name; /* UNDEFINED: of what; may be NULL */
        bool truth;
        int64_t integer;
        double real;
        const fl_jstr *str;
        const fl_jlist *list;
        const fl_jdict *dict;
        fl_jnamespace *space;
        const fl_jloop *loop;
    } as;
} fl_jval;

struct fl_jlist {
    const fl_jval *items; /* [n] */
    size_t n;
    size_t depth; /* 1 + that of the deepest item */
    bool tuple;
};

typedef struct fl_jpair {
    fl_jval key, value;
} fl_jpair;

struct fl_jdict {
    const fl_jpair *pairs; /* [n] in insertion order, keys unique */
    size_t n;
    size_t depth;
};

struct fl_jnamespace {
    fl_jpair *pairs; /* [n], keys are strings */
    size_t n, cap;
};

struct fl_jloop {
    const fl_jval *items; /* [n] */
    size_t n, at;         /* `at` is the current item */
};

static inline fl_jval fl_jval_undefined(const fl_jstr *name) {
    return (fl_jval){.kind = FL_JUNDEFINED, .as.name = name};
}

static inline fl_jval fl_jval_none(void) {
    return (fl_jval){.kind = FL_JNONE};
}

static inline fl_jval fl_jval_bool(bool truth) {
    return (fl_jval){.kind = FL_JBOOL, .trusted = true, .as.truth = truth};
}

static inline fl_jval fl_jval_int(int64_t integer, bool trusted) {
    return (fl_jval){.kind = FL_JINT, .trusted = trusted, .as.integer = integer};
}

static inline fl_jval fl_jval_float(double real, bool trusted) {
    return (fl_jval){.kind = FL_JFLOAT, .trusted = trusted, .as.real = real};
}

static inline fl_jval fl_jval_str(const fl_jstr *str) {
    return (fl_jval){.kind = FL_JSTR, .as.str = str};
}

/* A string of all of `bytes` (borrowed) under one mark; fl_jval_from_bytes is one without. */
fl_err fl_jval_from_marked(fl_jarena *arena, const char *bytes, size_t n, size_t origin, fl_jval *out);
fl_err fl_jval_from_bytes(fl_jarena *arena, const char *bytes, size_t n, fl_jval *out);

/* A list of `items` (borrowed: they must live in the arena). FL_ERR_LIMIT: nested too deep. */
fl_err fl_jval_from_items(fl_jrun *run, const fl_jval *items, size_t n, bool tuple, fl_jval *out);

/* A dictionary of `pairs` (borrowed, in the arena); of equal keys the last value wins, at the first one's
 * place. FL_ERR_DATA: a key that is not a string, number, boolean or none. */
fl_err fl_jval_from_pairs(fl_jrun *run, fl_jpair *pairs, size_t n, fl_jval *out);

/* The value of a JSON text, its strings unmarked and borrowed from `json`. FL_ERR_LIMIT: nested too deep. */
fl_err fl_jval_from_json(fl_jrun *run, json_t *json, fl_jval *out);

/* "string", "list", ... for messages. */
const char *fl_jval_kind_name(const fl_jval *value);

bool fl_jval_truth(const fl_jval *value);

/* Python's ==. */
fl_err fl_jval_equal(fl_jrun *run, const fl_jval *a, const fl_jval *b, bool *out);

/* -1, 0, 1 by Python's <; 2 when one is not a number. FL_ERR_DATA: kinds without an order. */
fl_err fl_jval_compare(fl_jrun *run, const fl_jval *a, const fl_jval *b, int *out);

/* Python's `needle in hay`. */
fl_err fl_jval_contains(fl_jrun *run, const fl_jval *hay, const fl_jval *needle, bool *out);

/* Python's str(). FL_ERR_UNSUPPORTED: a kind without a text form here. */
fl_err fl_jval_text(fl_jrun *run, const fl_jval *value, const fl_jstr **out);

/* Writes Python's repr() of a float to `text` (32 bytes, no NUL promised); returns the length. */
size_t fl_jval_print_float(double real, char *text);

/* What a for loop walks over: a list's items, a dictionary's keys, a string's characters, nothing of an
 * undefined value. *items is borrowed from the arena. */
fl_err fl_jval_items(fl_jrun *run, const fl_jval *value, const fl_jval **items, size_t *n);

/* The value under `key`, NULL if there is none. Namespaces and dictionaries. */
fl_err fl_jval_find(fl_jrun *run, const fl_jval *value, const fl_jval *key, const fl_jval **out);

/* Records "line N: WHAT is undefined" or "line N: DOING needs WANTED, found KIND". */
void fl_jval_note_undefined(const fl_jrun *run, const fl_jval *value);
void fl_jval_note_kind(const fl_jrun *run, const char *doing, const char *wanted, const fl_jval *found);

/* The same as failures. Inline so that compilers see that they do fail. */
static inline fl_err fl_jval_fail_undefined(const fl_jrun *run, const fl_jval *value) {
    fl_jval_note_undefined(run, value);
    return FL_ERR_DATA;
}

static inline fl_err fl_jval_fail_kind(const fl_jrun *run, const char *doing, const char *wanted,
                                       const fl_jval *found) {
    fl_jval_note_kind(run, doing, wanted, found);
    return FL_ERR_DATA;
}

/* ---- string building ----------------------------------------------------------------------------------- */

/* A string under construction in the run's arena. Start with {.run = run, .max_bytes = limit}. */
typedef struct fl_jbuf {
    fl_jrun *run;
    size_t max_bytes; /* FL_ERR_LIMIT beyond; SIZE_MAX: only the arena's limit */
    char *bytes;
    size_t n, cap;
    fl_jmark *marks;
    size_t n_marks, cap_marks;
} fl_jbuf;

/* Appends bytes [begin, end) of `str` with their marks. */
fl_err fl_jbuf_add(fl_jbuf *buf, const fl_jstr *str, size_t begin, size_t end);

/* Appends bytes that belong to no message and are not template text. */
fl_err fl_jbuf_add_bytes(fl_jbuf *buf, const char *bytes, size_t n);

/* The string so far; the buffer must not be added to afterwards. */
fl_err fl_jbuf_finish(fl_jbuf *buf, const fl_jstr **out);

/* Bytes [begin, end) of `str` as a string of its own. */
fl_err fl_jstr_slice(fl_jrun *run, const fl_jstr *str, size_t begin, size_t end, const fl_jstr **out);

#endif
