/* Patterns of a JSON schema: regular expressions as tables over bytes of UTF-8.
 *
 * The subset of ECMA-262 that is understood: literals, `.`, classes with ranges and `^`, \d \w \s \D \W \S \t \n \r
 * \f \v \xHH \uHHHH, other escaped punctuation, groups (capturing or (?: )), |, * + ? {m} {m,} {m,n} also lazy, ^
 * where the pattern or an alternative of it begins and $ where it ends. As in JSON Schema an unanchored pattern may
 * be found anywhere. Look-around, back-references, \b and \p are refused. */
#ifndef FL_TEXT_SCHEMA_DFA_H
#define FL_TEXT_SCHEMA_DFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    FL_PATTERN_BYTES_MAX = 2048,
    FL_PATTERN_TOKENS_MAX = 16384, /* with repetitions written out */
    FL_PATTERN_RANGES_MAX = 4096,  /* of code points in its classes */
    FL_PATTERN_NFA_MAX = 32768,    /* states */
    FL_PATTERN_DFA_MAX = 4096,     /* states */
    FL_PATTERN_WORK_MAX = 2 << 20, /* states of the NFA looked at */
    FL_PATTERN_GROUPS_MAX = 64,    /* inside each other */
    FL_PATTERN_REPEAT_MAX = 1000,
    FL_PATTERN_DEAD = UINT16_MAX,
};

/* Every state can reach an accepting one. State 0 is the first. */
typedef struct fl_schema_dfa {
    uint16_t (*next)[256]; /* [n] state or FL_PATTERN_DEAD; owned */
    bool *accepts;         /* [n] owned */
    uint32_t n;            /* 0: nothing matches */
} fl_schema_dfa;

typedef struct fl_schema_pattern {
    const char *text;
    size_t n_bytes;
    uint32_t min, max; /* code points of the strings; max UINT32_MAX = any number */
} fl_schema_pattern;

/* Strings in which the pattern is found. *work: steps that may be taken, at most FL_PATTERN_WORK_MAX; what is left.
 * FL_ERR_UNSUPPORTED: a construct that is not understood, named; FL_ERR_INVALID: not a regular expression;
 * FL_ERR_LIMIT: it becomes too large. */
fl_err fl_schema_dfa_make(const fl_schema_pattern *pattern, int64_t *work, fl_schema_dfa *out);
void fl_schema_dfa_free(fl_schema_dfa *dfa);

#endif
