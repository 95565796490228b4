/* The engine's side of the prefix cache's disk tier (kv/disk.h): pages go down behind steps, and come back before a
 * request that can use them is admitted. Worker only, unless said otherwise. A NULL tier does nothing. */
#ifndef FL_ENGINE_DISK_TIER_H
#define FL_ENGINE_DISK_TIER_H

#include "kv/disk.h"

typedef struct fl_disk_tier fl_disk_tier;
struct fl_engine;
struct fl_request;

/* After checkpoint, backend, attention and KV shape are there, before the prefix cache. Nothing without
 * settings->kv_disk. Hashes the checkpoint, whose fingerprint is part of what pages are filed under. */
fl_err fl_disk_tier_open(struct fl_engine *engine, const fl_settings *settings);

/* Stores what is still waiting, unless the disk refuses, half a minute at most. The worker has ended. */
void fl_disk_tier_close(struct fl_engine *engine);

/* Of the prefix cache: [32], or NULL without a tier. */
const uint8_t *fl_disk_tier_secret(const fl_disk_tier *tier);

/* Hands waiting pages to the tier as far as it takes them, and enters what it has read into the cache. */
void fl_disk_tier_pump(struct fl_engine *engine);

/* Whether the request may be admitted: nothing of its document is to come from disk. Else its pages are being read,
 * and it stays queued; asked once a request. */
bool fl_disk_tier_ready(struct fl_engine *engine, struct fl_request *request);

/* Whether the request may be admitted: nothing that is not stored yet has to be evicted for it. Else it stays queued,
 * as long as pages get stored and for 2 s at most: a slow disk delays nobody further, and what it misses is
 * counted. */
bool fl_disk_tier_spares(struct fl_engine *engine, struct fl_request *request);

/* Under the lock: the page of that key is wrong, and shall not come back. */
void fl_disk_tier_forget(fl_disk_tier *tier, const fl_prefix_key *key);

/* Under the lock. Something is being read, or waits to be stored. */
bool fl_disk_tier_busy(const fl_disk_tier *tier, const fl_prefix *prefix);

/* Under the lock: the tier's part of the load. */
void fl_disk_tier_get_load(const fl_disk_tier *tier, const fl_prefix *prefix, fl_engine_load *out);

/* Until a transfer ends, 10 ms at most. */
void fl_disk_tier_wait(fl_disk_tier *tier);

#endif
