/* Which tokens may come next in a constrained answer: those whose bytes the automaton takes, and the end tokens
 * where the answer is complete. Control tokens, other added ones and ids without a token never.
 *
 * A mask is made by walking the tree of tokens with the automaton. What was found stays: states get numbers, their
 * steps tables, their masks slots of which the one that was not used for longest makes room. Everything is reserved
 * at open and bounded; when states run out all are forgotten. Inside strings most of a vocabulary is text that may
 * come anyway: those tokens are known beforehand, and only the others are walked. */
#ifndef FL_TEXT_SCHEMA_MASK_H
#define FL_TEXT_SCHEMA_MASK_H

#include "text/schema.h"
#include "text/tokenizer.h"

enum {
    FL_SCHEMA_STATES_MAX = 16384,     /* remembered, of all schemas */
    FL_SCHEMA_STATES_BYTES = 8 << 20, /* their frames */
    FL_SCHEMA_MASKS_BYTES = 16 << 20, /* masks remembered */
};

typedef struct fl_schema_masks fl_schema_masks; /* one thread at a time */

typedef struct fl_schema_vocabulary {
    const fl_tokenizer *tokenizer; /* borrowed for the life of the masks */
    int32_t n_vocab;               /* ids of a mask; those above the tokenizer's are never allowed */
    const int32_t *ends;           /* [n_ends] end tokens, all < n_vocab; copied */
    int32_t n_ends;
} fl_schema_vocabulary;

/* Sorts the vocabulary: 0.04 s for 128K tokens. On success the caller owns *out. */
fl_err fl_schema_masks_open(const fl_schema_vocabulary *vocabulary, fl_schema_masks **out);
void fl_schema_masks_close(fl_schema_masks *masks); /* accepts NULL */

/* The mask of a state of the schema: bit id % 64 of word id / 64, borrowed until the next call. Schemas of the same
 * text share what is remembered. */
const uint64_t *fl_schema_masks_get(fl_schema_masks *masks, const fl_schema *schema,
                                    const fl_schema_state *state);

#endif
