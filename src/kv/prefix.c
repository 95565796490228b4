/* One entry a page, in a fixed table of chained buckets, so nothing is allocated after start. Recency is a counter: the
 * eviction scan is linear in the cache, which is rare and cheap beside computing one page. Among equally old pages the
 * deepest goes first: a page is useless once its parent is gone. */
#include "kv/prefix.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_BYTES = 32, NONE = -1 };

typedef struct entry {
    fl_prefix_key key, parent;
    int32_t tokens[FL_KV_PAGE_TOKENS];
    int32_t next;  /* in the bucket */
    int32_t index; /* in the timeline */
    bool used;
    uint64_t last_use;
} entry;

struct fl_prefix {
    fl_kv_pool *pool;
    entry *entries;   /* [n_pages], indexed by page */
    int32_t *buckets; /* [n_buckets] first page or NONE */
    int32_t n_buckets;
    uint64_t clock;
    uint8_t secret[SECRET_BYTES];
    EVP_MD_CTX *sha;
};

fl_err fl_prefix_open(fl_kv_pool *pool, fl_prefix **out) {
    fl_prefix *prefix = calloc(1, sizeof *prefix);
    if (!prefix) return FL_FAIL(FL_ERR_NOMEM, "prefix cache");
    int32_t n_pages = fl_kv_pool_pages(pool);
    prefix->pool = pool;
    prefix->n_buckets = n_pages;
    prefix->entries = calloc((size_t)n_pages, sizeof(entry));
    prefix->buckets = malloc((size_t)n_pages * sizeof(int32_t));
    prefix->sha = EVP_MD_CTX_new();
    if (!prefix->entries || !prefix->buckets || !prefix->sha) {
        fl_prefix_close(prefix);
        return FL_FAIL(FL_ERR_NOMEM, "prefix cache of %d pages", n_pages);
    }
    if (RAND_bytes(prefix->secret, SECRET_BYTES) != 1) {
        fl_prefix_close(prefix);
        return FL_FAIL(FL_ERR_INTERNAL, "no random bytes for the prefix cache");
    }
    for (int32_t i = 0; i < n_pages; i++) prefix->buckets[i] = NONE;
    *out = prefix;
    return FL_ERR_OK;
}

void fl_prefix_close(fl_prefix *prefix) {
    if (!prefix) return;
    for (int32_t i = 0; prefix->entries && i < prefix->n_buckets; i++)
        if (prefix->entries[i].used) fl_kv_pool_drop(prefix->pool, i);
    EVP_MD_CTX_free(prefix->sha);
    free(prefix->entries);
    free(prefix->buckets);
    free(prefix);
}

/* False if the hash fails, which then only means a miss. */
static bool page_key(fl_prefix *p, const fl_prefix_key *parent, const int32_t *tokens, fl_prefix_key *out) {
    unsigned n_bytes = 0;
    return EVP_DigestInit_ex(p->sha, EVP_sha256(), NULL) == 1 &&
           EVP_DigestUpdate(p->sha, p->secret, SECRET_BYTES) == 1 &&
           EVP_DigestUpdate(p->sha, parent->bytes, sizeof parent->bytes) == 1 &&
           EVP_DigestUpdate(p->sha, tokens, FL_KV_PAGE_TOKENS * sizeof(int32_t)) == 1 &&
           EVP_DigestFinal_ex(p->sha, out->bytes, &n_bytes) == 1;
}

static int32_t bucket_of(const fl_prefix *p, const fl_prefix_key *key) {
    uint64_t head;
    memcpy(&head, key->bytes, sizeof head);
    return (int32_t)(head % (uint64_t)p->n_buckets);
}

static int32_t find_page(const fl_prefix *p, const fl_prefix_key *key, const fl_prefix_key *parent,
                         const int32_t *tokens) {
    for (int32_t page = p->buckets[bucket_of(p, key)]; page != NONE; page = p->entries[page].next) {
        const entry *e = &p->entries[page];
        if (memcmp(&e->key, key, sizeof *key) == 0 && memcmp(&e->parent, parent, sizeof *parent) == 0 &&
            memcmp(e->tokens, tokens, sizeof e->tokens) == 0)
            return page;
    }
    return NONE;
}

int32_t fl_prefix_find(fl_prefix *p, const fl_prefix_query *query, int32_t *pages, fl_prefix_key *key) {
    fl_prefix_key at = {{0}};
    uint64_t now = ++p->clock;
    int32_t n = 0, whole = 0;
    *key = at;
    for (; n < query->n_pages; n++) {
        const int32_t *tokens = query->tokens + (int64_t)n * FL_KV_PAGE_TOKENS;
        fl_prefix_key next;
        if (!page_key(p, &at, tokens, &next)) break;
        int32_t page = find_page(p, &next, &at, tokens);
        if (page == NONE) break;
        fl_kv_pool_hold(p->pool, page);
        p->entries[page].last_use = now;
        pages[n] = page;
        at = next;
        if ((n + 1) % query->multiple != 0) continue;
        whole = n + 1;
        *key = at;
    }
    for (int32_t i = whole; i < n; i++) fl_kv_pool_drop(p->pool, pages[i]);
    return whole;
}

void fl_prefix_add(fl_prefix *p, fl_prefix_key *key, const int32_t *tokens, int32_t index, int32_t page) {
    fl_prefix_key parent = *key;
    if (!page_key(p, &parent, tokens, key)) return;
    int32_t there = find_page(p, key, &parent, tokens);
    if (there == NONE && !p->entries[page].used) {
        entry *e = &p->entries[page];
        int32_t bucket = bucket_of(p, key);
        *e = (entry){.key = *key, .parent = parent, .next = p->buckets[bucket], .index = index, .used = true};
        memcpy(e->tokens, tokens, sizeof e->tokens);
        p->buckets[bucket] = there = page;
        fl_kv_pool_hold(p->pool, page);
    }
    if (there != NONE) p->entries[there].last_use = p->clock;
}

void fl_prefix_touch(fl_prefix *p, const int32_t *pages, int32_t n_pages) {
    uint64_t now = ++p->clock;
    for (int32_t i = 0; i < n_pages; i++)
        if (p->entries[pages[i]].used) p->entries[pages[i]].last_use = now;
}

static void forget(fl_prefix *p, int32_t page) {
    int32_t *link = &p->buckets[bucket_of(p, &p->entries[page].key)];
    while (*link != page) link = &p->entries[*link].next;
    *link = p->entries[page].next;
    p->entries[page].used = false;
    fl_kv_pool_drop(p->pool, page);
}

static bool only_ours(const fl_prefix *p, int32_t page) {
    return p->entries[page].used && fl_kv_pool_references(p->pool, page) == 1;
}

static bool goes_before(const entry *a, const entry *b) {
    return a->last_use != b->last_use ? a->last_use < b->last_use : a->index > b->index;
}

void fl_prefix_evict(fl_prefix *p, int32_t n_pages) {
    while (fl_kv_pool_free_pages(p->pool) < n_pages) {
        int32_t oldest = NONE;
        for (int32_t i = 0; i < p->n_buckets; i++)
            if (only_ours(p, i) && (oldest == NONE || goes_before(&p->entries[i], &p->entries[oldest])))
                oldest = i;
        if (oldest == NONE) return;
        forget(p, oldest);
    }
}

int32_t fl_prefix_evictable(const fl_prefix *p) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_buckets; i++) n += only_ours(p, i);
    return n;
}
