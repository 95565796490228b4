/* One entry a page, in a fixed table of chained buckets, so nothing is allocated after start. The eviction scan is
 * linear in the cache, which is rare and cheap beside computing one page. A page that others follow stays: they would
 * be out of reach without it. */
#include "kv/prefix.h"

#include <math.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_BYTES = 32, NONE = -1 };

typedef struct entry {
    fl_prefix_entry page;
    int32_t next;                     /* in the bucket */
    int32_t parent_page;              /* NONE: the first of a timeline */
    int32_t n_children;               /* cached pages that follow it */
    int32_t waits_before, waits_next; /* in the list of pages not stored below */
    bool used, stored;
    double worth;
    uint64_t last_use;
    uint64_t mark; /* the newest count that met it: those of fl_prefix_spare and fl_prefix_remove */
} entry;

struct fl_prefix {
    fl_kv_pool *pool;
    entry *entries;   /* [n_pages], indexed by page */
    int32_t *buckets; /* [n_buckets] first page or NONE */
    int32_t n_buckets;
    int32_t waits_first, waits_last, n_waiting; /* not stored below */
    fl_prefix_options options;
    double evicted_worth; /* of the last page evicted: what age is measured by */
    uint64_t clock, n_counts;
    int64_t n_lost;
    uint8_t secret[SECRET_BYTES];
    EVP_MD_CTX *sha;
};

fl_err fl_prefix_open(fl_kv_pool *pool, const fl_prefix_options *options, fl_prefix **out) {
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
    prefix->options = *options;
    if (prefix->options.unit_pages < 1) prefix->options.unit_pages = 1;
    prefix->waits_first = prefix->waits_last = NONE;
    if (options->secret) memcpy(prefix->secret, options->secret, SECRET_BYTES);
    else if (RAND_bytes(prefix->secret, SECRET_BYTES) != 1) {
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

/* SHA-256(secret, a, b). */
static bool digest(fl_prefix *p, const fl_prefix_key *a, const void *b, size_t b_bytes, fl_prefix_key *out) {
    unsigned n_bytes = 0;
    return EVP_DigestInit_ex(p->sha, EVP_sha256(), NULL) == 1 &&
           EVP_DigestUpdate(p->sha, p->secret, SECRET_BYTES) == 1 &&
           EVP_DigestUpdate(p->sha, a->bytes, sizeof a->bytes) == 1 &&
           EVP_DigestUpdate(p->sha, b, b_bytes) == 1 && EVP_DigestFinal_ex(p->sha, out->bytes, &n_bytes) == 1;
}

/* A failing hash only means a miss. */
bool fl_prefix_key_of(fl_prefix *p, const fl_prefix_key *parent, const int32_t *timeline, int32_t index,
                      fl_prefix_key *out) {
    int32_t unit = p->options.unit_pages;
    const int32_t *tokens = timeline + (int64_t)(index - index % unit) * FL_KV_PAGE_TOKENS;
    return digest(p, parent, tokens, (size_t)unit * FL_KV_PAGE_TOKENS * sizeof *tokens, out);
}

/* A hash that fails must not lead into others' pages: the root is then one that nobody can meet again. */
fl_prefix_key fl_prefix_root(fl_prefix *p, const char *salt) {
    fl_prefix_key root = {{0}};
    static const fl_prefix_key salts = {"firstlight cache_salt"};
    if (salt[0] && !digest(p, &salts, salt, strlen(salt), &root)) RAND_bytes(root.bytes, sizeof root.bytes);
    return root;
}

static int32_t bucket_of(const fl_prefix *p, const fl_prefix_key *key) {
    uint64_t head;
    memcpy(&head, key->bytes, sizeof head);
    return (int32_t)(head % (uint64_t)p->n_buckets);
}

int32_t fl_prefix_page_of(const fl_prefix *p, const fl_prefix_key *key) {
    int32_t page = p->buckets[bucket_of(p, key)];
    while (page != NONE && memcmp(&p->entries[page].page.key, key, sizeof *key) != 0)
        page = p->entries[page].next;
    return page;
}

static int32_t find_page(const fl_prefix *p, const fl_prefix_key *key, const fl_prefix_key *parent,
                         const int32_t *tokens) {
    int32_t page = fl_prefix_page_of(p, key);
    if (page == NONE) return NONE;
    const fl_prefix_entry *e = &p->entries[page].page;
    bool same =
        memcmp(&e->parent, parent, sizeof *parent) == 0 && memcmp(e->tokens, tokens, sizeof e->tokens) == 0;
    return same ? page : NONE;
}

/* ---- worth ----------------------------------------------------------------------------------------------------- */

static void use(fl_prefix *p, entry *e) {
    const fl_prefix_options *c = &p->options;
    e->last_use = p->clock;
    e->worth = p->evicted_worth + (e->stored ? c->stored_cost : c->page_cost + e->page.index * c->index_cost);
}

/* ---- pages not stored below ------------------------------------------------------------------------------------ */

static void append_waiting(fl_prefix *p, int32_t page) {
    entry *e = &p->entries[page];
    e->waits_before = p->waits_last;
    e->waits_next = NONE;
    if (p->waits_last == NONE) p->waits_first = page;
    else p->entries[p->waits_last].waits_next = page;
    p->waits_last = page;
    p->n_waiting++;
}

static void remove_waiting(fl_prefix *p, int32_t page) {
    const entry *e = &p->entries[page];
    if (e->waits_before == NONE) p->waits_first = e->waits_next;
    else p->entries[e->waits_before].waits_next = e->waits_next;
    if (e->waits_next == NONE) p->waits_last = e->waits_before;
    else p->entries[e->waits_next].waits_before = e->waits_before;
    p->n_waiting--;
}

int32_t fl_prefix_unstored(const fl_prefix *p, fl_prefix_entry *out) {
    if (p->waits_first != NONE) *out = p->entries[p->waits_first].page;
    return p->waits_first;
}

int32_t fl_prefix_n_unstored(const fl_prefix *p) {
    return p->n_waiting;
}

void fl_prefix_set_stored(fl_prefix *p, int32_t page) {
    entry *e = &p->entries[page];
    if (!e->used || e->stored) return;
    remove_waiting(p, page);
    e->stored = true;
    use(p, e);
}

/* ---- finding, entering, dropping ------------------------------------------------------------------------------- */

int32_t fl_prefix_find(fl_prefix *p, const fl_prefix_query *query, int32_t *pages, fl_prefix_key *key) {
    fl_prefix_key at = query->root;
    int32_t unit = p->options.unit_pages, n = 0, whole = 0;
    p->clock++;
    *key = at;
    for (; n < query->n_pages - query->n_pages % unit; n++) {
        fl_prefix_key next;
        if (!fl_prefix_key_of(p, &at, query->tokens, n, &next)) break;
        int32_t page = find_page(p, &next, &at, query->tokens + (int64_t)n * FL_KV_PAGE_TOKENS);
        if (page == NONE) break;
        fl_kv_pool_hold(p->pool, page);
        use(p, &p->entries[page]);
        pages[n] = page;
        at = next;
        if ((n + 1) % unit != 0) continue;
        whole = n + 1;
        *key = at;
    }
    for (int32_t i = whole; i < n; i++) fl_kv_pool_drop(p->pool, pages[i]);
    return whole;
}

int32_t fl_prefix_add(fl_prefix *p, fl_prefix_key *key, const int32_t *timeline, int32_t index,
                      int32_t page) {
    fl_prefix_entry what = {.parent = *key, .index = index};
    if (!fl_prefix_key_of(p, &what.parent, timeline, index, key)) return NONE;
    what.key = *key;
    memcpy(what.tokens, timeline + (int64_t)index * FL_KV_PAGE_TOKENS, sizeof what.tokens);
    return fl_prefix_enter(p, &what, page);
}

int32_t fl_prefix_enter(fl_prefix *p, const fl_prefix_entry *what, int32_t page) {
    int32_t there = find_page(p, &what->key, &what->parent, what->tokens);
    if (there == NONE && !p->entries[page].used && fl_prefix_page_of(p, &what->key) == NONE) {
        entry *e = &p->entries[page];
        int32_t bucket = bucket_of(p, &what->key);
        *e = (entry){.page = *what,
                     .next = p->buckets[bucket],
                     .parent_page = what->index > 0 ? fl_prefix_page_of(p, &what->parent) : NONE,
                     .used = true};
        if (e->parent_page != NONE) p->entries[e->parent_page].n_children++;
        append_waiting(p, page);
        p->buckets[bucket] = there = page;
        fl_kv_pool_hold(p->pool, page);
    }
    if (there != NONE) use(p, &p->entries[there]);
    return there;
}

void fl_prefix_touch(fl_prefix *p, const int32_t *pages, int32_t n_pages) {
    p->clock++;
    for (int32_t i = 0; i < n_pages; i++)
        if (p->entries[pages[i]].used) use(p, &p->entries[pages[i]]);
}

static void forget(fl_prefix *p, int32_t page) {
    entry *e = &p->entries[page];
    int32_t *link = &p->buckets[bucket_of(p, &e->page.key)];
    while (*link != page) link = &p->entries[*link].next;
    *link = e->next;
    if (e->parent_page != NONE) p->entries[e->parent_page].n_children--;
    if (!e->stored) {
        remove_waiting(p, page);
        p->n_lost++;
    }
    e->used = false;
    fl_kv_pool_drop(p->pool, page);
}

/* Marks the cached pages that follow a marked one, however far behind. */
static void mark_followers(fl_prefix *p) {
    for (bool more = true; more;) {
        more = false;
        for (int32_t i = 0; i < p->n_buckets; i++) {
            entry *e = &p->entries[i];
            if (!e->used || e->mark == p->n_counts || e->parent_page == NONE) continue;
            if (p->entries[e->parent_page].mark != p->n_counts) continue;
            e->mark = p->n_counts;
            more = true;
        }
    }
}

void fl_prefix_remove(fl_prefix *p, int32_t page, fl_prefix_removed_fn *fn, void *context) {
    if (!p->entries[page].used) return;
    p->n_counts++;
    p->entries[page].mark = p->n_counts;
    mark_followers(p);
    for (int32_t i = 0; i < p->n_buckets; i++) {
        if (!p->entries[i].used || p->entries[i].mark != p->n_counts) continue;
        fn(context, &p->entries[i].page);
        forget(p, i);
    }
}

static bool only_ours(const fl_prefix *p, int32_t page) {
    return p->entries[page].used && fl_kv_pool_references(p->pool, page) == 1;
}

static bool goes_before(const entry *a, const entry *b) {
    if (a->stored != b->stored) return a->stored;
    return a->worth != b->worth ? a->worth < b->worth : a->last_use < b->last_use;
}

static bool may_go(const fl_prefix *p, int32_t page) {
    return only_ours(p, page) && p->entries[page].n_children == 0;
}

/* One scan finds the page that goes and the next best; from the first on a timeline goes page by page towards its
 * beginning, as long as none of it is worth more than that next best. */
void fl_prefix_evict(fl_prefix *p, int32_t n_pages) {
    while (fl_kv_pool_free_pages(p->pool) < n_pages) {
        int32_t least = NONE, second = NONE;
        for (int32_t i = 0; i < p->n_buckets; i++) {
            if (!may_go(p, i)) continue;
            if (least == NONE || goes_before(&p->entries[i], &p->entries[least])) {
                second = least;
                least = i;
            } else if (second == NONE || goes_before(&p->entries[i], &p->entries[second])) second = i;
        }
        if (least == NONE) return;
        do {
            int32_t parent = p->entries[least].parent_page;
            p->evicted_worth = fmax(p->evicted_worth, p->entries[least].worth);
            forget(p, least);
            least = parent;
        } while (least != NONE && fl_kv_pool_free_pages(p->pool) < n_pages && may_go(p, least) &&
                 (second == NONE || goes_before(&p->entries[least], &p->entries[second])));
    }
}

int32_t fl_prefix_evictable(const fl_prefix *p) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_buckets; i++) n += only_ours(p, i);
    return n;
}

int32_t fl_prefix_spare(fl_prefix *p) {
    int32_t n = 0;
    p->n_counts++;
    for (int32_t waiting = p->waits_first; waiting != NONE; waiting = p->entries[waiting].waits_next)
        for (int32_t i = waiting; i != NONE && p->entries[i].mark != p->n_counts;
             i = p->entries[i].parent_page)
            p->entries[i].mark = p->n_counts;
    for (int32_t i = 0; i < p->n_buckets; i++) n += only_ours(p, i) && p->entries[i].mark != p->n_counts;
    return n;
}

int64_t fl_prefix_n_lost(const fl_prefix *p) {
    return p->n_lost;
}
