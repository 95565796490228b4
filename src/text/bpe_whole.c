/* Which tokens come out whole when their own bytes are merged, without merging them all: that would cost more than the
 * rest of loading.
 *
 * Let every merge use only tokens that bytes or earlier merges make, and every token be made once; then a token's parts
 * exist from the rank that makes them to the rank that merges them away. A token left + right comes out whole if both
 * do and no merge across their border gets in first. What stands at the border is a chain on either side: left, its
 * right part, that one's right part ..., and right, its left part, .... Of each two that exist at the same time the
 * merge must not exist, or come too late. The leftmost of equal ranks goes first, hence < on one side and <= on the
 * other. */
#include <stdlib.h>

#include "text/bpe.h"

/* A token's making. */
typedef struct origin {
    int32_t left, right;
    uint32_t made; /* 0: a byte; rank + 1 of its merge; UNMADE */
    bool whole;
} origin;

static const uint32_t UNMADE = UINT32_MAX;

/* Whether nothing merges across the border of two tokens before `made`. */
static bool border_holds(const fl_bpe *b, const origin *origins, const origin *token) {
    int32_t left = token->left, right = token->right;
    uint32_t left_until = token->made, right_until = token->made;
    for (;;) {
        const origin *l = &origins[left], *r = &origins[right];
        if (l->made > r->made) {
            left_until = l->made;
            left = l->right;
        } else if (r->made > 0) {
            right_until = r->made;
            right = r->left;
        } else {
            return true; /* down to bytes */
        }
        uint32_t rank = fl_bpe_rank(b, left, right);
        if (rank != FL_BPE_NO_RANK && rank + 1 < left_until && rank + 1 <= right_until) return false;
    }
}

/* Fills origins in the order of ranks; false if a merge comes before its parts or makes a token again. */
static bool origins_fill(const fl_bpe *b, origin *origins) {
    for (int byte = 0; byte < 256; byte++) origins[b->byte_ids[byte]] = (origin){.made = 0, .whole = true};
    for (uint32_t rank = 0; rank < b->n_merges; rank++) {
        origin *token = &origins[b->merged[rank]];
        if (token->made != UNMADE) return false;
        const origin *left = &origins[token->left], *right = &origins[token->right];
        if (left->made == UNMADE || right->made == UNMADE) return false;
        token->made = rank + 1;
        token->whole = left->whole && right->whole && border_holds(b, origins, token);
    }
    return true;
}

fl_err fl_bpe_whole(const fl_bpe *b, size_t n_ids, bool **whole) {
    origin *origins = malloc(n_ids * sizeof *origins);
    *whole = calloc(n_ids, sizeof **whole);
    if (!origins || !*whole) {
        free(origins);
        free(*whole);
        *whole = NULL;
        return FL_FAIL(FL_ERR_NOMEM, "the origins of %zu tokens", n_ids);
    }
    for (size_t i = 0; i < n_ids; i++) origins[i] = (origin){.made = UNMADE};
    for (size_t i = 0; i <= b->slot_mask; i++) {
        int32_t left, right;
        uint32_t rank = fl_bpe_slot_merge(b, i, &left, &right);
        if (rank == FL_BPE_NO_RANK) continue;
        origins[b->merged[rank]].left = left;
        origins[b->merged[rank]].right = right;
    }
    if (origins_fill(b, origins))
        for (size_t i = 0; i < n_ids; i++) (*whole)[i] = origins[i].whole;
    free(origins);
    return FL_ERR_OK;
}
