#include "engine/disk_tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sha256.h"
#include "engine/engine.h"
#include "model/fingerprint.h"

static const double WAIT_S = 0.01, CLOSE_S = 30;
static const double SPARE_S = 2,
                    STALLED_S = 0.5; /* most that a request waits for pages to be stored, and for one */

/* One chain at a time is read: pages [first, end) of a document, of which `asked` were asked for and `done` have come
 * or failed. A reference is held on every page of the chain that is there, so that none is evicted meanwhile. */
struct fl_disk_tier {
    fl_disk *disk;
    int64_t page_bytes;
    int32_t end, next, done, failed; /* end 0: nothing is read; failed: the first that did not come */
    int64_t n_spare;                 /* pages that a request can have without one that is not stored */
    double stored_s;                 /* when the last page was handed down */
    fl_prefix_entry *chain;          /* [ctx pages] */
    int32_t *pages;                  /* [ctx pages] where each is held, -1 = not there */
};

/* ---- what pages are filed under -------------------------------------------------------------------------------- */

/* The digest of a file's bytes, or "none". */
static fl_err digest_calibration(const fl_engine *e, const fl_settings *s, char hex[FL_SHA256_HEX_BYTES]) {
    int64_t n_bytes;
    const char *path = s->calibration, *dir = !path ? s->model_path : *path == '/' ? "/" : ".";
    snprintf(hex, FL_SHA256_HEX_BYTES, "none");
    if (!e->attending.calibrated) return FL_ERR_OK;
    return fl_sha256_file(dir, path ? path : FL_CALIBRATION_NAME, NULL, NULL, hex, &n_bytes);
}

/* A digest of everything that decides the bits of a document page. Rotations, scales and outliers follow from these. */
static fl_err identify(const fl_engine *e, const fl_settings *s, char identity[FL_SHA256_HEX_BYTES]) {
    const fl_kv_shape *kv = &e->kv_shape;
    const fl_attend_config *a = &e->attending;
    fl_fingerprint fingerprint;
    char calibration[FL_SHA256_HEX_BYTES], imposed[FL_SHA256_HEX_BYTES] = "", text[2048];
    FL_TRY(digest_calibration(e, s, calibration));
    if (s->block_density_from)
        FL_TRY(fl_sha256_of(a->imposed.share, (size_t)a->n_layers * (size_t)a->n_heads * sizeof(float),
                            imposed));
    FL_TRY(fl_fingerprint_compute(s->model_path, NULL, NULL, &fingerprint));
    int n =
        snprintf(text, sizeof text,
                 "engine %s\nmodel %s\nbackend %s %d\nkv %d %d\npolicy %s density %.17g%s\nrope %d %.17g\n"
                 "calibration %s\n",
                 fl_version(), fingerprint.hex, e->be->name, (int)e->be->split_tokens, (int)kv->format,
                 (int)kv->group, a->policy_text, s->block_density, imposed, (int)a->extension.method,
                 a->extension.factor, calibration);
    fl_fingerprint_close(&fingerprint);
    if (n < 0 || (size_t)n >= sizeof text)
        return FL_FAIL(FL_ERR_INTERNAL, "the disk tier's description is too long");
    return fl_sha256_of(text, (size_t)n, identity);
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

fl_err fl_disk_tier_open(fl_engine *e, const fl_settings *s) {
    if (!s->kv_disk || !*s->kv_disk) return FL_ERR_OK;
    if (s->synthetic)
        return FL_FAIL(FL_ERR_INVALID, "kv_disk: a synthetic model's pages are of no use later");
    fl_disk_tier *tier = calloc(1, sizeof *tier);
    if (!tier) return FL_FAIL(FL_ERR_NOMEM, "disk tier");
    e->tier = tier;
    tier->page_bytes = fl_kv_page_bytes(&e->kv_shape);
    size_t n = (size_t)fl_pages_of(e->ctx_tokens);
    tier->chain = calloc(n, sizeof *tier->chain);
    tier->pages = calloc(n, sizeof *tier->pages);
    if (!tier->chain || !tier->pages) return FL_FAIL(FL_ERR_NOMEM, "disk tier of %zu pages", n);
    char identity[FL_SHA256_HEX_BYTES];
    FL_TRY(identify(e, s, identity));
    const fl_disk_options options = {.dir = s->kv_disk,
                                     .identity = identity,
                                     .page_bytes = tier->page_bytes,
                                     .capacity_bytes = s->kv_disk_bytes,
                                     .be = e->be};
    return fl_disk_open(&options, &tier->disk);
}

void fl_disk_tier_close(fl_engine *e) {
    fl_disk_tier *tier = e->tier;
    if (!tier) return;
    double end_s = fl_now_s() + CLOSE_S;
    while (tier->disk && e->prefix && !e->lost[0] && fl_prefix_n_unstored(e->prefix) > 0 &&
           !fl_disk_rests(tier->disk) && fl_now_s() < end_s) {
        fl_disk_tier_pump(e);
        fl_disk_tier_wait(tier);
    }
    fl_disk_close(tier->disk);
    for (int32_t i = 0; i < tier->end; i++)
        if (tier->pages[i] >= 0) fl_kv_pool_drop(e->pool, tier->pages[i]);
    free(tier->chain);
    free(tier->pages);
    free(tier);
    e->tier = NULL;
}

const uint8_t *fl_disk_tier_secret(const fl_disk_tier *tier) {
    return tier ? fl_disk_secret(tier->disk) : NULL;
}

/* ---- down ------------------------------------------------------------------------------------------------------ */

static bool copy_from_page(fl_engine *e, int32_t page, void *to) {
    void *from = fl_kv_pool_page(e->pool, page);
    if (e->be->download) return e->be->download(e->be, to, from, e->tier->page_bytes) == FL_ERR_OK;
    memcpy(to, from, (size_t)e->tier->page_bytes);
    return true;
}

/* The page waiting longest; false: none, or no buffer. A page whose copy fails is only not stored. */
static bool store_one(fl_engine *e) {
    fl_prefix_entry entry;
    pthread_mutex_lock(&e->lock);
    int32_t page = fl_prefix_unstored(e->prefix, &entry);
    void *buffer = page >= 0 ? fl_disk_buffer(e->tier->disk) : NULL;
    if (buffer) {
        fl_kv_pool_hold(e->pool, page);
        fl_prefix_set_stored(e->prefix, page);
    }
    pthread_mutex_unlock(&e->lock);
    if (!buffer) return false;
    e->tier->stored_s = fl_now_s();
    if (!fl_disk_has(e->tier->disk, &entry.key) && copy_from_page(e, page, buffer))
        fl_disk_write(e->tier->disk, &entry, buffer);
    else fl_disk_release(e->tier->disk, buffer);
    pthread_mutex_lock(&e->lock);
    fl_kv_pool_drop(e->pool, page);
    pthread_mutex_unlock(&e->lock);
    return true;
}

/* ---- up -------------------------------------------------------------------------------------------------------- */

static bool copy_to_page(fl_engine *e, int32_t page, const void *from) {
    void *to = fl_kv_pool_page(e->pool, page);
    if (e->be->upload)
        return e->be->upload(e->be, to, from, e->tier->page_bytes) == FL_ERR_OK &&
               e->be->wait(e->be) == FL_ERR_OK;
    memcpy(to, from, (size_t)e->tier->page_bytes);
    return true;
}

/* A free page, at the cost of what the cache can spare; -1 = none. Under the lock. */
static int32_t take_page(fl_engine *e) {
    if (fl_kv_pool_free_pages(e->pool) == 0) fl_prefix_evict(e->prefix, 1);
    return fl_kv_pool_take(e->pool);
}

/* A page of the chain has come, or has not. */
static void arrive(fl_engine *e, const fl_disk_result *result) {
    fl_disk_tier *tier = e->tier;
    int32_t i = result->index, page = -1;
    pthread_mutex_lock(&e->lock);
    if (result->found) page = take_page(e);
    pthread_mutex_unlock(&e->lock);
    if (page >= 0 && copy_to_page(e, page, result->bytes)) tier->pages[i] = page;
    else if (page >= 0) {
        pthread_mutex_lock(&e->lock);
        fl_kv_pool_drop(e->pool, page);
        pthread_mutex_unlock(&e->lock);
    }
    if (tier->pages[i] < 0 && i < tier->failed) tier->failed = i;
    tier->done++;
}

/* Enters the pages up to the first that did not come, and lets all go: the request that needs them is tried next. */
static void finish_chain(fl_engine *e) {
    fl_disk_tier *tier = e->tier;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < tier->end; i++) {
        if (tier->pages[i] < 0) continue;
        if (i < tier->failed) {
            int32_t there = fl_prefix_enter(e->prefix, &tier->chain[i], tier->pages[i]);
            if (there >= 0) fl_prefix_set_stored(e->prefix, there);
        }
        fl_kv_pool_drop(e->pool, tier->pages[i]);
    }
    e->n_shared++;
    e->n_freed++;
    pthread_mutex_unlock(&e->lock);
    tier->end = 0;
}

static void read_some(fl_engine *e) {
    fl_disk_tier *tier = e->tier;
    fl_disk_result result;
    while (fl_disk_next(tier->disk, &result)) {
        arrive(e, &result);
        fl_disk_release(tier->disk, result.bytes);
    }
    while (tier->next < tier->end && tier->next < tier->failed) {
        if (tier->pages[tier->next] >= 0) tier->done++; /* in memory already */
        else if (!fl_disk_read(tier->disk, &tier->chain[tier->next])) return;
        tier->next++;
    }
    if (tier->end > 0 && tier->done == tier->next) finish_chain(e);
}

void fl_disk_tier_pump(fl_engine *e) {
    if (!e->tier) return;
    read_some(e);
    while (store_one(e)) {
    }
    pthread_mutex_lock(&e->lock);
    if (fl_prefix_n_unstored(e->prefix) > 0)
        e->tier->n_spare = (int64_t)fl_kv_pool_free_pages(e->pool) + fl_prefix_spare(e->prefix);
    pthread_mutex_unlock(&e->lock);
}

bool fl_disk_tier_spares(fl_engine *e, fl_request *r) {
    fl_disk_tier *tier = e->tier;
    if (!tier) return true;
    int64_t longest = (int64_t)r->n_prompt + r->max_tokens;
    int64_t needed = fl_pages_of(longest < e->ctx_tokens ? (int32_t)longest : e->ctx_tokens);
    double now_s = fl_now_s();
    pthread_mutex_lock(&e->lock);
    bool all_stored = fl_prefix_n_unstored(e->prefix) == 0;
    pthread_mutex_unlock(&e->lock);
    if (all_stored || tier->n_spare >= needed) {
        tier->n_spare -= needed; /* until the next look: it is about to have them */
        return true;
    }
    if (r->spare_asked_s == 0) r->spare_asked_s = now_s;
    double moved_s = tier->stored_s > r->spare_asked_s ? tier->stored_s : r->spare_asked_s;
    return now_s - r->spare_asked_s > SPARE_S || now_s - moved_s > STALLED_S;
}

/* The chain of the request's document as far as memory or disk have it; whether some of it is on disk only. Pages in
 * memory are held from here on. */
static bool find_chain(fl_engine *e, const fl_request *r) {
    fl_disk_tier *tier = e->tier;
    int32_t n = fl_request_document_pages(r), i = 0, on_disk = 0;
    fl_prefix_key parent = r->root;
    pthread_mutex_lock(&e->lock);
    for (; i < n; i++) {
        fl_prefix_entry *entry = &tier->chain[i];
        *entry = (fl_prefix_entry){.parent = parent, .index = i};
        memcpy(entry->tokens, r->prompt + (int64_t)i * FL_KV_PAGE_TOKENS, sizeof entry->tokens);
        if (!fl_prefix_key_of(e->prefix, &parent, r->prompt, i, &entry->key)) break;
        parent = entry->key;
        tier->pages[i] = fl_prefix_page_of(e->prefix, &entry->key);
        if (tier->pages[i] < 0 && !fl_disk_has(tier->disk, &entry->key)) break;
        if (tier->pages[i] >= 0) fl_kv_pool_hold(e->pool, tier->pages[i]);
        else on_disk++;
    }
    for (int32_t k = 0; k < i && on_disk == 0; k++) fl_kv_pool_drop(e->pool, tier->pages[k]);
    pthread_mutex_unlock(&e->lock);
    tier->end = on_disk > 0 ? i : 0;
    tier->next = tier->done = 0;
    tier->failed = i;
    return on_disk > 0;
}

bool fl_disk_tier_ready(fl_engine *e, fl_request *r) {
    fl_disk_tier *tier = e->tier;
    if (!tier || (r->on_disk_asked && tier->end == 0)) return true;
    if (tier->end > 0) return false; /* its own chain, or another's before it */
    r->on_disk_asked = true;
    if (!find_chain(e, r)) return true;
    read_some(e);
    return false;
}

void fl_disk_tier_forget(fl_disk_tier *tier, const fl_prefix_key *key) {
    if (tier) fl_disk_forget(tier->disk, key);
}

bool fl_disk_tier_busy(const fl_disk_tier *tier, const fl_prefix *prefix) {
    return tier && (tier->end > 0 || fl_prefix_n_unstored(prefix) > 0);
}

void fl_disk_tier_get_load(const fl_disk_tier *tier, const fl_prefix *prefix, fl_engine_load *out) {
    fl_disk_info info;
    if (!tier) return;
    fl_disk_get_info(tier->disk, &info);
    out->kv_disk_pages = info.n_pages;
    out->kv_disk_bytes = info.bytes;
    out->kv_disk_read = info.n_read;
    out->kv_disk_lost = fl_prefix_n_lost(prefix);
    out->kv_disk_waiting = fl_prefix_n_unstored(prefix) + info.n_writing;
}

void fl_disk_tier_wait(fl_disk_tier *tier) {
    fl_disk_wait(tier->disk, WAIT_S);
}
