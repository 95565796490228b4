/* The prefix cache: full document pages found again by the tokens from position 0 on. A page's key is
 * SHA-256(secret, key of the page before, its 64 tokens): the secret is drawn at start, so keys cannot be predicted,
 * and the tokens are compared as well, so a collision can never hand out another prompt's KV. The cache holds one
 * reference on each of its pages; pages nobody else holds are evicted, least recently used first.
 * Only document pages enter: their bits do not depend on who computed them (DESIGN 5.1, 5.4). */
#ifndef FL_KV_PREFIX_H
#define FL_KV_PREFIX_H

#include "kv/kv_pool.h"

typedef struct fl_prefix fl_prefix;

typedef struct fl_prefix_key {
    uint8_t bytes[32];
} fl_prefix_key;

fl_err fl_prefix_open(fl_kv_pool *pool, fl_prefix **out);
void fl_prefix_close(fl_prefix *prefix);

typedef struct fl_prefix_query {
    const int32_t *tokens; /* [n_pages * FL_KV_PAGE_TOKENS] from position 0 */
    int32_t n_pages;
    int32_t multiple; /* only so many pages at once are of use, >= 1 */
} fl_prefix_query;

/* Finds the longest run of cached pages, a multiple of query->multiple, takes a reference on each for the caller and
 * writes them to pages[n_pages]. *key becomes the key of the last one found (zero for none). Returns how many. */
int32_t fl_prefix_find(fl_prefix *prefix, const fl_prefix_query *query, int32_t *pages, fl_prefix_key *key);

/* Enters `page`, the index-th of its timeline, holding these 64 tokens, after the page of *key; *key becomes its key.
 * If an equal page is there already, nothing changes but *key. */
void fl_prefix_add(fl_prefix *prefix, fl_prefix_key *key, const int32_t *tokens, int32_t index, int32_t page);

/* Marks a timeline's pages as used just now, all at once, so that its end is evicted before its beginning. */
void fl_prefix_touch(fl_prefix *prefix, const int32_t *pages, int32_t n_pages);

/* Drops least recently used pages that only the cache holds until the pool has n_pages free ones or none is left. */
void fl_prefix_evict(fl_prefix *prefix, int32_t n_pages);

/* Pages that only the cache holds: free on demand. */
int32_t fl_prefix_evictable(const fl_prefix *prefix);

#endif
