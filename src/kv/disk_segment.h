/* Segment files of the disk tier: fixed slots of a header and a page. No locks, no threads. */
#ifndef FL_KV_DISK_SEGMENT_H
#define FL_KV_DISK_SEGMENT_H

#include "kv/disk.h"

/* One file. */
typedef struct fl_segment {
    int32_t number;  /* of its name; 0 = none */
    int fd;          /* -1 = closed */
    int32_t n_slots; /* written or being written */
    int32_t users;   /* transfers under way */
    bool deleted;    /* its file is unlinked; closed when the last user is done */
    uint64_t last_use;
} fl_segment;

int64_t fl_segment_slot_bytes(int64_t page_bytes);

/* How long segments become before the next one begins. */
int64_t fl_segment_bytes_of(int64_t capacity_bytes);

/* Opens or (create) makes DIR/segment-N.kv. FL_ERR_IO. */
fl_err fl_segment_open(const char *dir, int32_t number, bool create, fl_segment *out);
void fl_segment_close(fl_segment *segment);

/* Takes the file's name away; what has it open goes on. */
void fl_segment_delete(const char *dir, const fl_segment *segment);

/* How many slots the file has room for now. */
int32_t fl_segment_slots(const fl_segment *segment, int64_t page_bytes);

fl_err fl_segment_write(const fl_segment *segment, int32_t slot, const fl_prefix_entry *page,
                        const void *bytes, int64_t page_bytes);

/* The slot's record is none any more. Best effort: a file system that refuses leaves it. */
void fl_segment_erase(const fl_segment *segment, int32_t slot, int64_t page_bytes);

/* False: the slot has no whole header of a page of that size. */
bool fl_segment_read_header(const fl_segment *segment, int32_t slot, int64_t page_bytes,
                            fl_prefix_entry *out);

/* False: the slot does not hold just this page, whole. */
bool fl_segment_read(const fl_segment *segment, int32_t slot, const fl_prefix_entry *page, void *bytes,
                     int64_t page_bytes);

#endif
