/* Ways to one result, fastest first: words that are one token are known from the start; other words of this text come
 * from a cache; short pieces are merged in an array that is searched for the lowest rank each time; long ones in a
 * linked list with a heap of candidate merges. */
#include "text/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "word keys are masked as little-endian numbers"
#endif

enum {
    SHORT_BYTES = 48, /* above it the heap is faster */
    WORD_BYTES = 15,  /* longest word in the cache */
    WORD_IDS = 4,
    WORD_WAYS = 2, /* words that share a place, a cache line together */
    SETS_MIN = 64,
    SETS_MAX = 1 << 15, /* 2 MiB */
};

/* key[1] is 0 in an empty entry. Behind the last of fewer than WORD_IDS ids is -1. */
typedef struct fl_bpe_word {
    uint64_t key[2];
    int32_t ids[WORD_IDS];
} fl_bpe_word;

/* A token of a long piece, kept at the position of its first byte. */
typedef struct fl_bpe_symbol {
    uint32_t previous, next; /* positions; NONE at the ends */
    int32_t id;
    uint32_t rank; /* of the merge with next; FL_BPE_NO_RANK also where the symbol was merged away */
} fl_bpe_symbol;

static const uint32_t NONE = UINT32_MAX;
static const uint64_t EMPTY = UINT64_MAX; /* no pair and rank: they leave the highest bit 0 */
static const uint32_t RANK_MASK = ((uint32_t)1 << FL_BPE_BITS) - 1;

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x;
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << FL_BPE_BITS | (uint32_t)right;
}

/* The pair's slot, or the empty one where it would go. */
static uint64_t *slot_of(const fl_bpe *b, uint64_t pair) {
    size_t i = mix(pair * 0xd6e8feb86659fd93u) & b->slot_mask;
    while (b->slots[i] >> FL_BPE_BITS != pair && b->slots[i] != EMPTY) i = (i + 1) & b->slot_mask;
    return &b->slots[i];
}

uint32_t fl_bpe_rank(const fl_bpe *b, int32_t left, int32_t right) {
    uint64_t slot = *slot_of(b, pair_of(left, right));
    return slot == EMPTY ? FL_BPE_NO_RANK : (uint32_t)slot & RANK_MASK;
}

uint32_t fl_bpe_slot_merge(const fl_bpe *b, size_t slot, int32_t *left, int32_t *right) {
    uint64_t merge = b->slots[slot];
    *left = (int32_t)(merge >> 2 * FL_BPE_BITS);
    *right = (int32_t)((uint32_t)(merge >> FL_BPE_BITS) & RANK_MASK);
    return merge == EMPTY ? FL_BPE_NO_RANK : (uint32_t)merge & RANK_MASK;
}

fl_err fl_bpe_init(fl_bpe *b, const int32_t *byte_ids, uint32_t n_merges_max) {
    *b = (fl_bpe){0};
    size_t n_slots = 64;
    while (n_slots / 2 < n_merges_max) n_slots *= 2;
    b->slots = malloc(n_slots * sizeof *b->slots);
    b->merged = malloc(((size_t)n_merges_max + 1) * sizeof *b->merged);
    b->byte_ranks = malloc((size_t)256 * 256 * sizeof *b->byte_ranks);
    if (!b->slots || !b->merged || !b->byte_ranks)
        return FL_FAIL(FL_ERR_NOMEM, "the table of %u merges", n_merges_max);
    for (size_t i = 0; i < n_slots; i++) b->slots[i] = EMPTY;
    b->slot_mask = n_slots - 1;
    b->n_merges_max = n_merges_max;
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    return FL_ERR_OK;
}

fl_err fl_bpe_add(fl_bpe *b, int32_t left, int32_t right, int32_t id) {
    if (b->n_merges == b->n_merges_max)
        return FL_FAIL(FL_ERR_INTERNAL, "more than the %u merges announced", b->n_merges_max);
    uint64_t pair = pair_of(left, right), *slot = slot_of(b, pair);
    if (*slot != EMPTY)
        return FL_FAIL(FL_ERR_DATA, "merge %u repeats merge %u", b->n_merges, (uint32_t)*slot & RANK_MASK);
    *slot = pair << FL_BPE_BITS | b->n_merges;
    b->merged[b->n_merges++] = id;
    return FL_ERR_OK;
}

fl_err fl_bpe_finish(fl_bpe *b, size_t n_known_max) {
    for (size_t i = 0; i < (size_t)256 * 256; i++)
        b->byte_ranks[i] = fl_bpe_rank(b, b->byte_ids[i >> 8], b->byte_ids[i & 255]);
    size_t n = 64;
    while (n / 2 < n_known_max) n *= 2;
    b->known = calloc(n, sizeof *b->known);
    if (!b->known) return FL_FAIL(FL_ERR_NOMEM, "a table of %zu words", n_known_max);
    b->known_mask = n - 1;
    b->n_known_max = n_known_max;
    return FL_ERR_OK;
}

void fl_bpe_close(fl_bpe *b) {
    free(b->slots);
    free(b->merged);
    free(b->byte_ranks);
    free(b->known);
    *b = (fl_bpe){0};
}

fl_err fl_bpe_scratch_init(fl_bpe_scratch *s, size_t n_bytes) {
    *s = (fl_bpe_scratch){0};
    size_t n_sets = SETS_MIN;
    while (n_sets < SETS_MAX && n_sets < n_bytes / 16) n_sets *= 2;
    size_t words_bytes = n_sets * WORD_WAYS * sizeof *s->words;
    s->words = aligned_alloc(WORD_WAYS * sizeof *s->words, words_bytes);
    if (!s->words) return FL_FAIL(FL_ERR_NOMEM, "a cache of %zu bytes", words_bytes);
    memset(s->words, 0, words_bytes);
    s->set_mask = n_sets - 1;
    return FL_ERR_OK;
}

void fl_bpe_scratch_close(fl_bpe_scratch *s) {
    free(s->symbols);
    free(s->heap);
    free(s->words);
    *s = (fl_bpe_scratch){0};
}

/* ---- short pieces ---------------------------------------------------------------------------------------------- */

static size_t encode_short(const fl_bpe *b, const uint8_t *p, size_t n, int32_t *ids) {
    uint32_t ranks[SHORT_BYTES]; /* [i]: of the merge of tokens i and i + 1; the last is NO_RANK */
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = b->byte_ranks[(size_t)p[i] << 8 | p[i + 1]];
    for (size_t i = 0; i < n; i++) ids[i] = b->byte_ids[p[i]];
    ranks[n - 1] = FL_BPE_NO_RANK;
    for (;;) {
        size_t at = 0;
        uint32_t lowest = ranks[0];
        for (size_t i = 1; i < n; i++) {
            at = ranks[i] < lowest ? i : at;
            lowest = ranks[i] < lowest ? ranks[i] : lowest;
        }
        if (lowest == FL_BPE_NO_RANK) return n;
        n--;
        ids[at] = b->merged[lowest];
        for (size_t i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1];
        }
        ranks[at] = at + 1 < n ? fl_bpe_rank(b, ids[at], ids[at + 1]) : FL_BPE_NO_RANK;
        if (at > 0) ranks[at - 1] = fl_bpe_rank(b, ids[at - 1], ids[at]);
    }
}

/* ---- long pieces ----------------------------------------------------------------------------------------------- */

/* A heap entry orders by rank, then by position. */
static uint64_t entry_of(uint32_t rank, uint32_t position) {
    return (uint64_t)rank << 32 | position;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t entry = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = entry;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry) {
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static fl_err scratch_reserve(fl_bpe_scratch *s, size_t n) {
    if (n <= s->room) return FL_ERR_OK;
    free(s->symbols);
    free(s->heap);
    s->room = 0;
    s->symbols = malloc(n * sizeof *s->symbols);
    s->heap = malloc(2 * n * sizeof *s->heap);
    if (!s->symbols || !s->heap) return FL_FAIL(FL_ERR_NOMEM, "merging a piece of %zu bytes", n);
    s->room = n;
    return FL_ERR_OK;
}

/* The merge of the symbol with its right neighbour becomes a candidate. Every merge takes an entry out and puts at most
 * two in, so 2 n entries are enough. */
static void propose(const fl_bpe *b, fl_bpe_scratch *s, size_t *n_heap, uint32_t at) {
    fl_bpe_symbol *left = &s->symbols[at];
    left->rank = left->next == NONE ? FL_BPE_NO_RANK : fl_bpe_rank(b, left->id, s->symbols[left->next].id);
    if (left->rank != FL_BPE_NO_RANK) heap_push(s->heap, n_heap, entry_of(left->rank, at));
}

static fl_err encode_long(const fl_bpe *b, fl_bpe_scratch *s, fl_bpe_piece piece, int32_t *ids,
                          size_t *n_ids) {
    const uint8_t *p = piece.bytes;
    uint32_t n = (uint32_t)piece.n_bytes;
    FL_TRY(scratch_reserve(s, n));
    fl_bpe_symbol *symbols = s->symbols;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = i + 1 < n ? b->byte_ranks[(size_t)p[i] << 8 | p[i + 1]] : FL_BPE_NO_RANK;
        symbols[i] = (fl_bpe_symbol){i - 1, i + 1 < n ? i + 1 : NONE, b->byte_ids[p[i]], rank};
        if (rank != FL_BPE_NO_RANK) s->heap[n_heap++] = entry_of(rank, i);
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(s->heap, n_heap, i);
    while (n_heap > 0) {
        uint64_t entry = s->heap[0];
        s->heap[0] = s->heap[--n_heap];
        if (n_heap > 0) sift_down(s->heap, n_heap, 0);
        uint32_t at = (uint32_t)entry, rank = (uint32_t)(entry >> 32);
        fl_bpe_symbol *left = &symbols[at];
        if (left->rank != rank) continue; /* one of the two has merged elsewhere since */
        fl_bpe_symbol *right = &symbols[left->next];
        right->rank = FL_BPE_NO_RANK;
        left->id = b->merged[rank];
        left->next = right->next;
        if (left->next != NONE) symbols[left->next].previous = at;
        propose(b, s, &n_heap, at);
        if (left->previous != NONE) propose(b, s, &n_heap, left->previous);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != NONE; i = symbols[i].next) ids[count++] = symbols[i].id;
    *n_ids = count;
    return FL_ERR_OK;
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

/* A word's key: its bytes, zeros behind them, and its length in the last byte. Reads whole numbers where the text
 * around the word allows it. */
static void word_key(const fl_bpe_piece *piece, uint64_t key[2]) {
    size_t n = piece->n_bytes;
    if (piece->n_readable >= 16) {
        memcpy(key, piece->bytes, 16);
        key[0] &= n < 8 ? ((uint64_t)1 << 8 * n) - 1 : ~(uint64_t)0;
        key[1] &= n > 8 ? ((uint64_t)1 << 8 * (n - 8)) - 1 : 0;
    } else {
        key[0] = key[1] = 0;
        memcpy(key, piece->bytes, n);
    }
    key[1] |= (uint64_t)n << 56;
}

static uint64_t key_hash(const uint64_t key[2]) {
    return mix(key[0] * 0xd6e8feb86659fd93u ^ mix(key[1]));
}

/* The entry of a known word, or the empty one where it would go. */
static fl_bpe_known *known_of(const fl_bpe *b, const uint64_t key[2], uint64_t hash) {
    for (size_t i = hash;; i++) {
        fl_bpe_known *k = &b->known[i & b->known_mask];
        if (k->key[1] == 0 || (k->key[0] == key[0] && k->key[1] == key[1])) return k;
    }
}

void fl_bpe_know(fl_bpe *b, const uint8_t *bytes, size_t n_bytes, int32_t id) {
    uint64_t key[2];
    if (n_bytes < 3 || n_bytes > WORD_BYTES || b->n_known == b->n_known_max) return;
    word_key(&(fl_bpe_piece){bytes, n_bytes, n_bytes}, key);
    fl_bpe_known *k = known_of(b, key, key_hash(key));
    if (k->key[1] != 0) return;
    *k = (fl_bpe_known){.key = {key[0], key[1]}, .id = id};
    b->n_known++;
}

static size_t word_copy(const fl_bpe_word *word, int32_t *ids) {
    size_t n = 0;
    while (n < WORD_IDS && word->ids[n] >= 0) {
        ids[n] = word->ids[n];
        n++;
    }
    return n;
}

static bool word_is(const fl_bpe_word *word, const uint64_t key[2]) {
    return word->key[0] == key[0] && word->key[1] == key[1];
}

/* A piece of 3 .. WORD_BYTES bytes. */
static size_t encode_word(const fl_bpe *b, fl_bpe_scratch *s, const fl_bpe_piece *piece, int32_t *ids) {
    uint64_t key[2];
    word_key(piece, key);
    uint64_t hash = key_hash(key);
    const fl_bpe_known *known = known_of(b, key, hash);
    if (known->key[1] != 0) {
        ids[0] = known->id;
        return 1;
    }
    fl_bpe_word *set = s->words + WORD_WAYS * (hash & s->set_mask);
    if (word_is(&set[0], key)) return word_copy(&set[0], ids);
    if (word_is(&set[1], key)) return word_copy(&set[1], ids);
    size_t n = encode_short(b, piece->bytes, piece->n_bytes, ids);
    if (n > WORD_IDS) return n;
    set[1] = set[0];
    memcpy(set[0].key, key, sizeof set[0].key);
    for (size_t i = 0; i < WORD_IDS; i++) set[0].ids[i] = i < n ? ids[i] : -1;
    return n;
}

static size_t encode_two(const fl_bpe *b, const uint8_t *bytes, int32_t *ids) {
    uint32_t rank = b->byte_ranks[(size_t)bytes[0] << 8 | bytes[1]];
    ids[0] = rank == FL_BPE_NO_RANK ? b->byte_ids[bytes[0]] : b->merged[rank];
    if (rank != FL_BPE_NO_RANK) return 1;
    ids[1] = b->byte_ids[bytes[1]];
    return 2;
}

fl_err fl_bpe_encode(const fl_bpe *b, fl_bpe_scratch *s, fl_bpe_piece piece, int32_t *ids, size_t *n_ids) {
    if (piece.n_bytes > SHORT_BYTES) return encode_long(b, s, piece, ids, n_ids);
    if (piece.n_bytes > WORD_BYTES) {
        *n_ids = encode_short(b, piece.bytes, piece.n_bytes, ids);
    } else if (piece.n_bytes > 2) {
        *n_ids = encode_word(b, s, &piece, ids);
    } else if (piece.n_bytes == 2) {
        *n_ids = encode_two(b, piece.bytes, ids);
    } else {
        ids[0] = b->byte_ids[piece.bytes[0]];
        *n_ids = 1;
    }
    return FL_ERR_OK;
}
