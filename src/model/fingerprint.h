/* What exactly a checkpoint is: SHA-256 of every file that can change an answer, and one digest over them. The lock
 * file stores that beside the checkpoint with the engine version it was tested with, so that a changed shard,
 * tokenizer, configuration or engine is noticed before it answers anything. */
#ifndef FL_MODEL_FINGERPRINT_H
#define FL_MODEL_FINGERPRINT_H

#include "base/err.h"
#include "base/sha256.h"

#include <stdint.h>

/* Name of the lock file inside a checkpoint folder. */
#define FL_LOCK_NAME "firstlight.lock.json"

typedef struct fl_fingerprint_file {
    char *name;
    int64_t n_bytes;
    char hex[FL_SHA256_HEX_BYTES];
} fl_fingerprint_file;

typedef struct fl_fingerprint {
    fl_fingerprint_file *files; /* [n_files] in order of their names */
    int32_t n_files;
    char hex[FL_SHA256_HEX_BYTES]; /* over names, sizes and digests of all files; the model's identity */
} fl_fingerprint;

/* Hashes the shards, their index, config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
 * chat_template.jinja (those that exist) on all CPUs. `progress` may be NULL and is called from this thread. On
 * success the caller closes *out; on failure it is empty. */
fl_err fl_fingerprint_compute(const char *dir, fl_progress_fn *progress, void *context, fl_fingerprint *out);

/* Accepts a zeroed struct; zeroes it. */
void fl_fingerprint_close(fl_fingerprint *fingerprint);

/* One difference between lock and folder. `field` is "engine", "fingerprint", or the name of a file; expected and
 * found are versions, digests, sizes ("123 bytes") or "no such file". Borrowed for the call. */
typedef struct fl_lock_mismatch {
    const char *field;
    const char *expected;
    const char *found;
} fl_lock_mismatch;

typedef void fl_lock_mismatch_fn(void *context, const fl_lock_mismatch *mismatch);

/* What fl_lock_check tells its caller; every member may be NULL. */
typedef struct fl_lock_calls {
    fl_progress_fn *progress;
    fl_lock_mismatch_fn *mismatch;
    void *context; /* for both */
} fl_lock_calls;

/* Hashes the folder and writes its lock, replacing an older one. */
fl_err fl_lock_write(const char *dir, fl_progress_fn *progress, void *context);

bool fl_lock_exists(const char *dir);

/* Hashes the folder and compares. FL_ERR_CONFIG: a mismatch (detail has the first, the call gets each), or a lock
 * file that is missing or not one of ours. FL_ERR_DATA: the weights' index is broken or a shard is missing. */
fl_err fl_lock_check(const char *dir, const fl_lock_calls *calls);

#endif
