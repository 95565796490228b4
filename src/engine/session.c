/* Sessions: one token timeline each. Pages come from three places: kept from the session's last request, found in
 * the prefix cache, or taken from the pool. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

fl_err fl_session_open(fl_engine *engine, fl_session **out) {
    fl_session *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(FL_ERR_NOMEM, "session");
    s->engine = engine;
    s->tokens = malloc((size_t)engine->ctx_tokens * sizeof(int32_t));
    s->pages = malloc((size_t)fl_pages_of(engine->ctx_tokens) * sizeof(int32_t));
    if (!s->tokens || !s->pages) {
        free(s->tokens);
        free(s->pages);
        free(s);
        return FL_FAIL(FL_ERR_NOMEM, "session of %d tokens", engine->ctx_tokens);
    }
    pthread_mutex_lock(&engine->lock);
    s->next = engine->sessions;
    engine->sessions = s;
    pthread_mutex_unlock(&engine->lock);
    *out = s;
    return FL_ERR_OK;
}

/* The worker touches a session's pages only while it has a request, or evicts it, both under `current` and lock. */
fl_err fl_session_close(fl_session *s) {
    if (!s) return FL_ERR_OK;
    fl_engine *engine = s->engine;
    pthread_mutex_lock(&engine->lock);
    if (s->current) {
        pthread_mutex_unlock(&engine->lock);
        return FL_FAIL(FL_ERR_AGAIN, "the session has a running request: cancel or close it first");
    }
    fl_session **link = &engine->sessions;
    while (*link != s) link = &(*link)->next;
    *link = s->next;
    fl_session_forget(s);
    engine->n_freed++;
    pthread_mutex_unlock(&engine->lock);
    free(s->tokens);
    free(s->pages);
    free(s);
    return FL_ERR_OK;
}

static void drop_pages(fl_session *s, int32_t keep) {
    while (s->n_pages > keep) fl_kv_pool_drop(s->engine->pool, s->pages[--s->n_pages]);
}

void fl_session_forget(fl_session *s) {
    drop_pages(s, 0);
    s->n_tokens = 0;
    s->n_shared = 0;
    s->sharing = false;
}

static void forget_on_disk(void *tier, const fl_prefix_entry *entry) {
    fl_disk_tier_forget(tier, &entry->key);
}

void fl_session_unshare(fl_session *s) {
    fl_engine *e = s->engine;
    for (int32_t i = 0; i < s->n_pages; i++)
        fl_prefix_remove(e->prefix, s->pages[i], forget_on_disk, e->tier);
}

void fl_engine_forget(fl_engine *e) {
    pthread_mutex_lock(&e->lock);
    for (fl_session *s = e->sessions; s; s = s->next)
        if (!s->current) fl_session_forget(s);
    fl_prefix_evict(e->prefix, fl_kv_pool_pages(e->pool));
    e->n_freed++;
    fl_graphs_forget(e->graphs);
    pthread_mutex_unlock(&e->lock);
}

void fl_session_trim(fl_session *s) {
    drop_pages(s, fl_pages_of(s->n_tokens));
    fl_prefix_touch(s->engine->prefix, s->pages, s->n_pages);
    s->last_use = ++s->engine->clock;
}

/* Tokens of the prompt whose KV the session holds and may keep. A page that others hold too cannot be written on, so a
 * part of it is not kept. */
static int32_t keep_common(const fl_session *s, const fl_request *r) {
    int32_t first_row = fl_request_first_row(r), most = s->n_tokens < first_row ? s->n_tokens : first_row,
            common = 0;
    while (common < most && s->tokens[common] == r->prompt[common]) common++;
    int32_t part = common % FL_KV_PAGE_TOKENS;
    if (part > 0 && fl_kv_pool_references(s->engine->pool, s->pages[common / FL_KV_PAGE_TOKENS]) > 1)
        common -= part;
    /* Document rows begin at whole tiles. */
    return common < r->document_end ? common - common % fl_tile_rows(s->engine) : common;
}

/* Keeps the longer of the session's own prefix and the cache's document pages. */
static void reuse(fl_session *s, const fl_request *r) {
    fl_engine *e = s->engine;
    int32_t common = keep_common(s, r);
    fl_prefix_key key;
    const fl_prefix_query query = {
        .tokens = r->prompt, .n_pages = fl_request_document_pages(r), .root = r->root};
    int32_t n_found = fl_prefix_find(e->prefix, &query, e->found_pages, &key);
    if (n_found * FL_KV_PAGE_TOKENS >= common) {
        drop_pages(s, 0);
        memcpy(s->pages, e->found_pages, (size_t)n_found * sizeof(int32_t));
        s->n_pages = n_found;
        common = n_found * FL_KV_PAGE_TOKENS;
        s->sharing = true;
        s->n_shared = n_found;
        s->key = key;
    } else {
        for (int32_t i = 0; i < n_found; i++) fl_kv_pool_drop(e->pool, e->found_pages[i]);
        drop_pages(s, fl_pages_of(common));
        s->sharing = false;
    }
    s->n_tokens = common;
    memcpy(s->tokens, r->prompt, (size_t)common * sizeof(int32_t));
}

/* A session whose pages may go: between turns, or with a turn still queued, which then computes its prefix again.
 * Sparing queued ones would deadlock: they wait behind the very request that needs their pages. */
static bool may_lose_pages(const fl_session *s, const fl_session *needy) {
    return s != needy && s->n_pages > 0 && (!s->current || s->current->phase == FL_PHASE_QUEUED);
}

/* Whether it could come to so many free pages; counts a page twice that two sessions share, or session and cache. */
static bool may_have_room(const fl_engine *e, const fl_session *needy, int32_t n_pages) {
    int64_t most = (int64_t)fl_kv_pool_free_pages(e->pool) + fl_prefix_evictable(e->prefix);
    for (const fl_session *s = e->sessions; s; s = s->next)
        if (may_lose_pages(s, needy)) most += s->n_pages;
    return most >= n_pages;
}

/* Frees pages of the cache first, then of sessions, the longest idle first; none for a request that has to wait in any
 * case. */
static void make_room(fl_engine *e, const fl_session *needy, int32_t n_pages) {
    if (!may_have_room(e, needy, n_pages)) return;
    fl_prefix_evict(e->prefix, n_pages);
    while (fl_kv_pool_free_pages(e->pool) < n_pages) {
        fl_session *idle = NULL;
        for (fl_session *s = e->sessions; s; s = s->next)
            if (may_lose_pages(s, needy) && (!idle || s->last_use < idle->last_use)) idle = s;
        if (!idle) return;
        fl_session_forget(idle);
        fl_prefix_evict(e->prefix, n_pages);
    }
}

fl_err fl_session_prepare(fl_session *s, fl_request *r) {
    fl_engine *e = s->engine;
    int32_t longest =
        r->n_prompt + r->max_tokens < e->ctx_tokens ? r->n_prompt + r->max_tokens : e->ctx_tokens;
    pthread_mutex_lock(&e->lock);
    reuse(s, r);
    int32_t missing = fl_pages_of(longest) - s->n_pages;
    if (fl_kv_pool_free_pages(e->pool) < missing) make_room(e, s, missing);
    bool fits = fl_kv_pool_free_pages(e->pool) >= missing;
    for (int32_t i = 0; fits && i < missing; i++) s->pages[s->n_pages++] = fl_kv_pool_take(e->pool);
    if (fits) r->cached_tokens = r->done_tokens = s->n_tokens;
    pthread_mutex_unlock(&e->lock);
    return fits ? FL_ERR_OK : FL_FAIL(FL_ERR_AGAIN, "%d KV pages are not free now", missing);
}

/* Another session has computed the same page meanwhile: one of the two goes, so that whoever holds a page of the cache
 * holds those before it there as well. */
static void hold_instead(fl_session *s, int32_t i, int32_t page) {
    fl_engine *e = s->engine;
    fl_kv_pool_hold(e->pool, page);
    fl_kv_pool_drop(e->pool, s->pages[i]);
    s->pages[i] = page;
    e->n_freed++;
}

void fl_session_share(fl_session *s, int32_t document_end) {
    fl_engine *e = s->engine;
    int32_t ready = s->n_tokens < document_end ? s->n_tokens : document_end;
    ready = (ready - ready % fl_tile_rows(e)) / FL_KV_PAGE_TOKENS;
    for (; s->sharing && s->n_shared < ready; s->n_shared++, e->n_shared++) {
        int32_t there = fl_prefix_add(e->prefix, &s->key, s->tokens, s->n_shared, s->pages[s->n_shared]);
        if (there >= 0 && there != s->pages[s->n_shared]) hold_instead(s, s->n_shared, there);
    }
}
