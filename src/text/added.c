/* A sorted list in place of an automaton: at a byte where some token begins, the range of tokens that agree with the
 * text so far is narrowed byte by byte. Tokens are few and begin rarely, so this costs next to nothing. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    const fl_added_token *x = a, *y = b;
    uint32_t shorter = x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes;
    int order = memcmp(x->bytes, y->bytes, shorter);
    return order != 0 ? order : (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

const fl_added_token *fl_added_sort(fl_added *set) {
    if (set->n_tokens == 0) return NULL;
    qsort(set->tokens, set->n_tokens, sizeof *set->tokens, compare);
    for (size_t i = 0; i < set->n_tokens; i++) {
        set->begins[(uint8_t)set->tokens[i].bytes[0]] = true;
        if (i > 0 && compare(&set->tokens[i - 1], &set->tokens[i]) == 0) return &set->tokens[i];
    }
    return NULL;
}

/* The first of tokens[low, high), which agree in their first `depth` bytes and are all longer, whose next byte is at
 * least `least`. */
static size_t lower_bound(const fl_added *set, size_t low, size_t high, size_t depth, int least) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)set->tokens[middle].bytes[depth] < least) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The longest token that text[0, n) begins with, or NULL. */
static const fl_added_token *longest(const fl_added *set, const char *text, size_t n) {
    const fl_added_token *best = NULL;
    size_t low = 0, high = set->n_tokens;
    for (size_t depth = 0; low < high; depth++) {
        if (set->tokens[low].n_bytes == depth) best = &set->tokens[low++];
        if (depth == n) break;
        int byte = (uint8_t)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return best;
}

bool fl_added_find(const fl_added *set, const char *text, size_t begin, size_t end, fl_added_match *match) {
    for (size_t at = begin; at < end; at++) {
        if (!set->begins[(uint8_t)text[at]]) continue;
        const fl_added_token *token = longest(set, text + at, end - at);
        if (!token) continue;
        *match = (fl_added_match){at, at + token->n_bytes, token->id};
        return true;
    }
    return false;
}

const fl_added_token *fl_added_lookup(const fl_added *set, const char *bytes, size_t n_bytes) {
    const fl_added_token *token = longest(set, bytes, n_bytes);
    return token && token->n_bytes == n_bytes ? token : NULL;
}
