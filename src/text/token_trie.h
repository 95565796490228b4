/* A vocabulary's tokens as a tree over their bytes, laid out so that walking it is one pass over an array. */
#ifndef FL_TEXT_TOKEN_TRIE_H
#define FL_TEXT_TOKEN_TRIE_H

#include "text/tokenizer.h"

typedef struct fl_token_node {
    uint32_t end;   /* the first node that is not below this one */
    int32_t token;  /* that ends here, -1: none */
    uint16_t depth; /* bytes up to here, >= 1 */
    uint8_t byte;   /* the last of them */
} fl_token_node;

/* Parents come before their children, children in order of their bytes. */
typedef struct fl_token_trie {
    fl_token_node *nodes; /* [n] owned */
    uint32_t n;
} fl_token_trie;

/* A token for the tree. */
typedef struct fl_token_entry {
    const uint8_t *bytes; /* borrowed */
    uint32_t n_bytes;     /* 1..FL_TOKEN_BYTES_MAX */
    int32_t token;
} fl_token_entry;

/* Sorts entries and makes the tree; of equal bytes the first token is in it. */
fl_err fl_token_trie_make(fl_token_entry *entries, uint32_t n, fl_token_trie *out);
void fl_token_trie_free(fl_token_trie *trie);

#endif
