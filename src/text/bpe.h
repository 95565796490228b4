/* Byte-pair merging: a piece of text begins as one token a byte; again and again the neighbours whose merge has the
 * lowest rank, the leftmost of equals, become one token. Rank = position in the checkpoint's list of merges. */
#ifndef FL_TEXT_BPE_H
#define FL_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define FL_BPE_NO_RANK UINT32_MAX

/* Ids and ranks have at most so many bits, so that a pair and its rank fit into one number. */
enum { FL_BPE_BITS = 21 };

/* A word of at most 15 bytes that becomes one token. */
typedef struct fl_bpe_known {
    uint64_t key[2]; /* 0, 0 in an empty entry */
    int32_t id;
} fl_bpe_known;

/* Immutable once built. */
typedef struct fl_bpe {
    uint64_t *slots;      /* [slot_mask + 1] left, right, rank; open addressing, at most half full; owned */
    int32_t *merged;      /* [n_merges] rank -> id; owned */
    uint32_t *byte_ranks; /* [256 * 256] rank of the merge of two bytes; owned */
    fl_bpe_known *known;  /* [known_mask + 1] open addressing, at most half full; owned */
    size_t slot_mask, known_mask, n_known, n_known_max;
    uint32_t n_merges, n_merges_max;
    int32_t byte_ids[256];
} fl_bpe;

/* Memory for n_merges_max (<= 2^FL_BPE_BITS) merges. byte_ids[256]: the token of every byte. On failure close it all
 * the same. */
fl_err fl_bpe_init(fl_bpe *b, const int32_t *byte_ids, uint32_t n_merges_max);

/* Adds the merge of the next rank, at most n_merges_max. FL_ERR_DATA: the pair has one already. */
fl_err fl_bpe_add(fl_bpe *b, int32_t left, int32_t right, int32_t id);

/* Call once after the last fl_bpe_add: makes ready to encode and reserves room for n_known_max known words. */
fl_err fl_bpe_finish(fl_bpe *b, size_t n_known_max);

/* Call after fl_bpe_finish. (*whole)[n_ids], malloc'ed, passes to the caller: of every id of a merge or byte (all
 * < n_ids), whether merging its bytes gives that one token. False where that is not certain. */
fl_err fl_bpe_whole(const fl_bpe *b, size_t n_ids, bool **whole);

/* Keeps a token that comes out whole for a fast answer, if it has a length that is worth it. Each token at most once,
 * before the first use by another thread. */
void fl_bpe_know(fl_bpe *b, const uint8_t *bytes, size_t n_bytes, int32_t id);

/* Rank of the merge of two ids; FL_BPE_NO_RANK if they do not merge. */
uint32_t fl_bpe_rank(const fl_bpe *b, int32_t left, int32_t right);

/* The merge in a slot: its pair and rank; FL_BPE_NO_RANK in an empty slot. */
uint32_t fl_bpe_slot_merge(const fl_bpe *b, size_t slot, int32_t *left, int32_t *right);

/* Accepts zeroed and half-built tables. */
void fl_bpe_close(fl_bpe *b);

/* What one encoding thread needs: room for long pieces, and the ids of words it has seen. */
typedef struct fl_bpe_scratch {
    struct fl_bpe_symbol *symbols; /* [room] owned */
    uint64_t *heap;                /* [2 * room] owned */
    size_t room;
    struct fl_bpe_word *words; /* [set_mask + 1][2] owned */
    size_t set_mask;
} fl_bpe_scratch;

/* For a text of n_bytes. On failure close it all the same. */
fl_err fl_bpe_scratch_init(fl_bpe_scratch *s, size_t n_bytes);

/* Accepts a zeroed one. */
void fl_bpe_scratch_close(fl_bpe_scratch *s);

/* A piece of text and the bytes that may be read from its beginning: the text around it, n_readable >= n_bytes. */
typedef struct fl_bpe_piece {
    const uint8_t *bytes;
    size_t n_bytes, n_readable;
} fl_bpe_piece;

/* Ids of a piece of 1 .. 2^31 - 1 bytes; ids has room for n_bytes. O(n log n). */
fl_err fl_bpe_encode(const fl_bpe *b, fl_bpe_scratch *s, fl_bpe_piece piece, int32_t *ids, size_t *n_ids);

#endif
