/* Finding added tokens in text: leftmost, then longest, as an Aho-Corasick automaton of that kind finds them. */
#ifndef FL_TEXT_ADDED_H
#define FL_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One token's text; bytes are borrowed from the tokenizer. */
typedef struct fl_added_token {
    const char *bytes;
    uint32_t n_bytes; /* >= 1 */
    int32_t id;
} fl_added_token;

/* A set of them. */
typedef struct fl_added {
    fl_added_token *tokens; /* [n_tokens] owned; sorted by bytes after fl_added_sort */
    size_t n_tokens;
    bool begins[256]; /* whether a token begins with this byte */
} fl_added;

typedef struct fl_added_match {
    size_t begin, end; /* byte offsets */
    int32_t id;
} fl_added_match;

/* Sorts the tokens; NULL when all differ, else one that is there twice. */
const fl_added_token *fl_added_sort(fl_added *set);

/* The first match wholly inside text[begin, end); false if there is none. At most FL_TOKEN_BYTES_MAX steps a byte. */
bool fl_added_find(const fl_added *set, const char *text, size_t begin, size_t end, fl_added_match *match);

/* The token that is exactly these bytes, or NULL. */
const fl_added_token *fl_added_lookup(const fl_added *set, const char *bytes, size_t n_bytes);

#endif
