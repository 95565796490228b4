/* What a tokenizer is made of. For the tokenizer_*.c files only. */
#ifndef FL_TEXT_TOKENIZER_IMPL_H
#define FL_TEXT_TOKENIZER_IMPL_H

#include <jansson.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

enum {
    FL_TOKEN_PRESENT = 1, /* the id has a token */
    FL_TOKEN_PLAIN = 2,   /* the vocabulary has it in the byte alphabet */
    FL_TOKEN_ADDED = 4,
    FL_TOKEN_CONTROL = 8, /* added and special */
};

typedef struct fl_token {
    uint32_t offset; /* into bytes */
    uint16_t n_bytes;
    uint16_t flags;
} fl_token;

struct fl_tokenizer {
    char *bytes; /* all tokens' bytes, owned */
    size_t n_bytes;
    fl_token *tokens; /* [n_vocab] by id, owned */
    int32_t n_vocab;
    int32_t *slots; /* [slot_mask + 1] hash of bytes -> id of a plain token or -1, at most half full; owned */
    size_t slot_mask;
    fl_bpe bpe;
    fl_added added
        [2]; /* found in the text first, and in what is left (tokenizer.json: not normalized, normalized) */
};

/* The parts of tokenizer.json that hold data; borrowed from the root. */
typedef struct fl_tokenizer_parts {
    const json_t *vocab;  /* object: text in the byte alphabet -> id */
    const json_t *merges; /* array */
    const json_t *added;  /* array or NULL */
} fl_tokenizer_parts;

/* Checks that everything in the file but those parts is what is implemented, and finds them. */
fl_err fl_tokenizer_check(const json_t *root, fl_tokenizer_parts *parts);

/* Checks one entry of added_tokens. */
fl_err fl_tokenizer_check_added(const json_t *entry, size_t index);

/* The id of the plain token with these bytes, or -1. */
int32_t fl_tokenizer_plain_id(const fl_tokenizer *t, const char *bytes, size_t n_bytes);

/* Where a plain token with these bytes is in slots, or would go. */
int32_t *fl_tokenizer_slot(const fl_tokenizer *t, const char *bytes, size_t n_bytes);

#endif
