/* A regular expression in postfix order, as schema_regex.c reads it for schema_dfa.c. */
#ifndef FL_TEXT_SCHEMA_REGEX_H
#define FL_TEXT_SCHEMA_REGEX_H

#include "text/schema_dfa.h"

typedef enum fl_regex_op {
    FL_REGEX_SET,   /* one code point of a set */
    FL_REGEX_EMPTY, /* nothing */
    FL_REGEX_JOIN,  /* the two before, one behind the other */
    FL_REGEX_OR,    /* one of the two before */
    FL_REGEX_MAYBE, /* the one before or nothing */
    FL_REGEX_STAR,
    FL_REGEX_PLUS,
} fl_regex_op;

typedef struct fl_regex_token {
    uint16_t op, set;
} fl_regex_token;

typedef struct fl_regex_range {
    uint32_t low, high; /* code points, both included */
} fl_regex_range;

typedef struct fl_regex_set {
    uint32_t first, n; /* of ranges: sorted, apart, without U+0000 and surrogates */
} fl_regex_set;

typedef struct fl_regex {
    fl_regex_token tokens[FL_PATTERN_TOKENS_MAX];
    fl_regex_set sets[FL_PATTERN_BYTES_MAX + 8];
    fl_regex_range ranges[FL_PATTERN_RANGES_MAX];
    uint32_t n_tokens, n_sets, n_ranges;
} fl_regex;

/* Errors as fl_schema_dfa_make has them. */
fl_err fl_regex_parse(const char *pattern, size_t n_bytes, fl_regex *out);

#endif
