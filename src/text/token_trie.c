#include "text/token_trie.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b) {
    const fl_token_entry *x = a, *y = b;
    uint32_t common = x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes;
    int order = memcmp(x->bytes, y->bytes, common);
    if (order != 0) return order;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static uint32_t common_bytes(const fl_token_entry *a, const fl_token_entry *b) {
    uint32_t n = 0;
    while (n < a->n_bytes && n < b->n_bytes && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

fl_err fl_token_trie_make(fl_token_entry *entries, uint32_t n, fl_token_trie *out) {
    uint32_t open[FL_TOKEN_BYTES_MAX + 1] = {0}, depth = 0; /* nodes of the last entry's bytes */
    uint64_t room = 0;
    *out = (fl_token_trie){0};
    if (n > 1) qsort(entries, n, sizeof *entries, by_bytes);
    for (uint32_t i = 0; i < n; i++)
        room += entries[i].n_bytes - (i > 0 ? common_bytes(&entries[i - 1], &entries[i]) : 0);
    out->nodes = malloc((room > 0 ? room : 1) * sizeof *out->nodes);
    if (!out->nodes || room >= UINT32_MAX) {
        fl_token_trie_free(out);
        return FL_FAIL(FL_ERR_NOMEM, "tree of %u tokens", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const fl_token_entry *e = &entries[i];
        uint32_t common = i > 0 ? common_bytes(&entries[i - 1], e) : 0;
        for (; depth > common; depth--) out->nodes[open[depth]].end = out->n;
        for (; depth < e->n_bytes; depth++) {
            open[depth + 1] = out->n;
            out->nodes[out->n++] =
                (fl_token_node){.token = -1, .depth = (uint16_t)(depth + 1), .byte = e->bytes[depth]};
        }
        if (out->nodes[open[depth]].token < 0) out->nodes[open[depth]].token = e->token;
    }
    for (; depth > 0; depth--) out->nodes[open[depth]].end = out->n;
    return FL_ERR_OK;
}

void fl_token_trie_free(fl_token_trie *trie) {
    free(trie->nodes);
    *trie = (fl_token_trie){0};
}
