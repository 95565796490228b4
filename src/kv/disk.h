/* The prefix cache's disk tier: document pages in segment files, found again after a restart. A folder belongs to one
 * identity, everything that decides a page's bits; records have one size, so that a segment is a row of slots:
 *   DIR/IDENTITY/lock               held while open
 *   DIR/IDENTITY/secret             32 bytes, the cache's key of keys
 *   DIR/IDENTITY/segment-N.kv       slots of [header of 512 bytes][a page], padded to 4 KiB
 * A header has the page's key, its parent's, its tokens, and XXH3-128 sums of itself and of the page, so that a slot
 * half written when the machine stopped is no record, and a damaged page is a miss. Segments are only appended to, the
 * newest by the next process too; when they are more than the capacity, the one longest unused is deleted whole.
 * One thread calls; transfers run on threads of the tier, through a fixed number of buffers. */
#ifndef FL_KV_DISK_H
#define FL_KV_DISK_H

#include "backend/backend.h"
#include "kv/prefix.h"

typedef struct fl_disk fl_disk;

enum { FL_DISK_TRANSFERS = 16 };

typedef struct fl_disk_options {
    const char *dir;      /* made if it is not there, for this user only */
    const char *identity; /* a file name: a digest of everything that decides a page's bits; borrowed */
    int64_t page_bytes;
    int64_t capacity_bytes; /* of this identity's segments */
    fl_backend *be;         /* whose memory buffers are in; borrowed */
} fl_disk_options;

/* Opens the folder and reads the headers of its segments. FL_ERR_IO: cannot be made, read or written. FL_ERR_CONFIG:
 * another process has it. FL_ERR_INVALID: the capacity is less than two segments of one page. */
fl_err fl_disk_open(const fl_disk_options *options, fl_disk **out);

/* Finishes what is queued. */
void fl_disk_close(fl_disk *disk);

/* Of the folder: [32], for fl_prefix_open. */
const uint8_t *fl_disk_secret(const fl_disk *disk);

/* Whether a record of that key is there. */
bool fl_disk_has(fl_disk *disk, const fl_prefix_key *key);

/* Drops the record of that key, also one that is being written, now and for later processes. */
void fl_disk_forget(fl_disk *disk, const fl_prefix_key *key);

/* A buffer of page_bytes to fill and to hand to fl_disk_write, or NULL: all are in use, or writing failed lately. */
void *fl_disk_buffer(fl_disk *disk);

/* Writing failed lately: no buffer is handed out for a while. */
bool fl_disk_rests(fl_disk *disk);

/* Queues the buffer's bytes as this page. */
void fl_disk_write(fl_disk *disk, const fl_prefix_entry *page, void *buffer);

/* Queues the reading of a page. False: all buffers are in use; try again when a transfer has finished. */
bool fl_disk_read(fl_disk *disk, const fl_prefix_entry *page);

/* A page that was read. */
typedef struct fl_disk_result {
    fl_prefix_key key;
    int32_t index;     /* in its timeline, as it was asked for */
    bool found;        /* false: it was not there, or damaged */
    const void *bytes; /* [page_bytes], until fl_disk_release */
} fl_disk_result;

/* The next finished reading, in any order. False: none has finished. */
bool fl_disk_next(fl_disk *disk, fl_disk_result *out);
/* Gives a buffer back, also one of fl_disk_buffer that is not written. */
void fl_disk_release(fl_disk *disk, const void *bytes);

/* Waits until a transfer ends, timeout_s at most. */
void fl_disk_wait(fl_disk *disk, double timeout_s);

/* Waits until nothing is queued or under way, timeout_s at most. */
void fl_disk_drain(fl_disk *disk, double timeout_s);

typedef struct fl_disk_info {
    int64_t bytes, capacity_bytes; /* of segments */
    int64_t n_pages;
    int64_t n_writing;                   /* handed over and not written yet */
    int64_t n_written, n_read, n_missed; /* n_missed: asked for, damaged or gone */
    int64_t n_failed;                    /* writes that the file system refused */
} fl_disk_info;

void fl_disk_get_info(fl_disk *disk, fl_disk_info *out);

#endif
