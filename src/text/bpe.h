/* Byte-pair merging: a piece of text begins as one token a byte; again and again the neighbours whose merge has the
 * lowest rank, the leftmost of equals, become one token. Rank = position in the checkpoint's list of merges. */
#ifndef FL_TEXT_BPE_H
#define FL_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Merge of a pair of ids; empty where rank is FL_BPE_NO_RANK. */
typedef struct fl_bpe_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank;
    int32_t id; /* what the pair becomes */
} fl_bpe_slot;

#define FL_BPE_NO_RANK UINT32_MAX

/* Immutable after fl_bpe_finish. */
typedef struct fl_bpe {
    fl_bpe_slot *slots;   /* [slot_mask + 1] open addressing, at most half full; owned */
    int32_t *merged;      /* [n_merges] rank -> id; owned */
    uint32_t *byte_ranks; /* [256 * 256] rank of the merge of two bytes; owned */
    size_t slot_mask;
    uint32_t n_merges, n_merges_max;
    int32_t byte_ids[256];
} fl_bpe;

/* Memory for n_merges_max (< 2^31) merges. byte_ids[256]: the token of every byte. On failure close it all the same. */
fl_err fl_bpe_init(fl_bpe *b, const int32_t *byte_ids, uint32_t n_merges_max);

/* Adds the merge of the next rank, at most n_merges_max. FL_ERR_DATA: the pair has one already. */
fl_err fl_bpe_add(fl_bpe *b, int32_t left, int32_t right, int32_t id);

/* Call once after the last fl_bpe_add. */
void fl_bpe_finish(fl_bpe *b);

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
