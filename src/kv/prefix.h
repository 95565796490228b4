/* The prefix cache: full document pages found again by the tokens from position 0 on. A page's key is SHA-256(secret,
 * key of the page before, the tokens of its unit): the secret is drawn at start (or kept with the disk tier), so keys
 * cannot be predicted, and the tokens are compared as well, so a collision can never hand out another prompt's KV. A
 * timeline's first parent is its root: that of its cache_salt, so that tenants do not see each other's pages.
 * A unit is so many pages as are computed together (a tile of rows). With block lists a row of it may hang on any
 * other, so pages that differ in one token of their unit are different ones.
 * The cache holds one reference on each of its pages. Of pages nobody else holds and no cached page follows, those that
 * a lower tier has are evicted before others, and of equals the one that saves least: worth = what computing it again
 * would cost, on top of the worth of what was evicted last when it was used last (GreedyDual: Cao and Irani, USITS
 * 1997), so that cost and age weigh together.
 * Only document pages enter: their bits do not depend on who computed them (ARCHITECTURE.md, Contracts). */
#ifndef FL_KV_PREFIX_H
#define FL_KV_PREFIX_H

#include "kv/kv_pool.h"

typedef struct fl_prefix fl_prefix;

typedef struct fl_prefix_key {
    uint8_t bytes[32];
} fl_prefix_key;

typedef struct fl_prefix_options {
    const uint8_t *secret; /* [32], copied; NULL = a new one */
    int32_t unit_pages;    /* found and entered whole; 0 = 1 */
    /* What pages cost, in any unit: computing the index-th of a timeline, page_cost + index * index_cost; reading one
     * that is stored below. All 0: pages are alike. */
    double page_cost, index_cost, stored_cost;
} fl_prefix_options;

fl_err fl_prefix_open(fl_kv_pool *pool, const fl_prefix_options *options, fl_prefix **out);
void fl_prefix_close(fl_prefix *prefix);

typedef struct fl_prefix_query {
    const int32_t *tokens; /* [n_pages * FL_KV_PAGE_TOKENS] from position 0 */
    int32_t n_pages;
    fl_prefix_key root; /* zero, or fl_prefix_root's */
} fl_prefix_query;

/* Finds the longest run of cached pages, in whole units, takes a reference on each for the caller and writes them to
 * pages[n_pages]. *key becomes the key of the last one found (the root for none). Returns how many. */
int32_t fl_prefix_find(fl_prefix *prefix, const fl_prefix_query *query, int32_t *pages, fl_prefix_key *key);

/* Enters `page`, the index-th of its timeline, whose tokens are there from position 0 to the end of the page's unit,
 * after the page of *key; *key becomes its key. If an equal page is there already, nothing changes but *key. Returns
 * the cache's page, without a reference, or -1: a failed hash. Whoever goes on to enter the page behind has to hold the
 * cache's in place of an equal one of its own: a page that is followed stays, so one that nobody holds would be lost to
 * all until the follower goes. */
int32_t fl_prefix_add(fl_prefix *prefix, fl_prefix_key *key, const int32_t *timeline, int32_t index,
                      int32_t page);

/* Marks a timeline's pages as used just now, all at once, so that its end is evicted before its beginning. */
void fl_prefix_touch(fl_prefix *prefix, const int32_t *pages, int32_t n_pages);

/* Drops pages that only the cache holds, those that save least first, until the pool has n_pages free ones or none is
 * left. */
void fl_prefix_evict(fl_prefix *prefix, int32_t n_pages);

/* The root of timelines with this salt: others do not find their pages. "" has the zero root. */
fl_prefix_key fl_prefix_root(fl_prefix *prefix, const char *salt);

/* The key of the index-th page of that timeline, whose parent has this key; tokens as of fl_prefix_add. False: the hash
 * failed. */
bool fl_prefix_key_of(fl_prefix *prefix, const fl_prefix_key *parent, const int32_t *timeline, int32_t index,
                      fl_prefix_key *out);

/* The page of that key, without a reference, or -1. */
int32_t fl_prefix_page_of(const fl_prefix *prefix, const fl_prefix_key *key);

/* A page of the cache as a lower tier stores it. */
typedef struct fl_prefix_entry {
    fl_prefix_key key, parent;
    int32_t tokens[FL_KV_PAGE_TOKENS];
    int32_t index; /* in its timeline */
} fl_prefix_entry;

/* fl_prefix_add of a page whose key is known. */
int32_t fl_prefix_enter(fl_prefix *prefix, const fl_prefix_entry *entry, int32_t page);

/* The longest waiting page that no lower tier was told to have, or -1. */
int32_t fl_prefix_unstored(const fl_prefix *prefix, fl_prefix_entry *out);
int32_t fl_prefix_n_unstored(const fl_prefix *prefix);
void fl_prefix_set_stored(fl_prefix *prefix, int32_t page);

/* Takes a page and all that follow it out of the cache, whoever holds them: what is in it is wrong. fn is told of each;
 * nothing if it is not there. */
typedef void fl_prefix_removed_fn(void *context, const fl_prefix_entry *entry);
void fl_prefix_remove(fl_prefix *prefix, int32_t page, fl_prefix_removed_fn *fn, void *context);

/* Pages that only the cache holds: free on demand. */
int32_t fl_prefix_evictable(const fl_prefix *prefix);

/* Of these, the pages that can go without one that is not stored below: none that such a one follows. */
int32_t fl_prefix_spare(fl_prefix *prefix);

/* Pages evicted before a lower tier was told to have them. */
int64_t fl_prefix_n_lost(const fl_prefix *prefix);

#endif
