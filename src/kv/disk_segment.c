#include "kv/disk_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEADER_BYTES = 512, ALIGNMENT = 4096 };

static const char MAGIC[8] = "flkv\r\n\x1a\x01";

typedef struct header {
    char magic[8];
    int64_t page_bytes;
    fl_prefix_entry page;
    uint8_t page_sum[16];   /* XXH3-128 of the page */
    uint8_t header_sum[16]; /* of all before it */
} header;

_Static_assert(sizeof(header) <= HEADER_BYTES, "the header fits its place");

int64_t fl_segment_slot_bytes(int64_t page_bytes) {
    return fl_align_up(HEADER_BYTES + page_bytes, ALIGNMENT);
}

/* Deleting one must leave most of the rest; all are open at once, and a process may have 1,024 files as a rule. */
int64_t fl_segment_bytes_of(int64_t capacity_bytes) {
    enum { PARTS_MIN = 16, PARTS_MAX = 256, ENOUGH_BYTES = 1 << 30 };
    int64_t most = capacity_bytes / PARTS_MIN, least = capacity_bytes / PARTS_MAX;
    if (least < ENOUGH_BYTES) least = ENOUGH_BYTES;
    return most < least ? most : least;
}

static void path_of(const char *dir, int32_t number, char *path, size_t n_bytes) {
    snprintf(path, n_bytes, "%s/segment-%d.kv", dir, number);
}

fl_err fl_segment_open(const char *dir, int32_t number, bool create, fl_segment *out) {
    char path[4096];
    path_of(dir, number, path, sizeof path);
    *out = (fl_segment){.number = number};
    out->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (out->fd >= 0) return FL_ERR_OK;
    out->number = 0;
    return FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
}

void fl_segment_close(fl_segment *segment) {
    if (segment->fd >= 0) close(segment->fd);
    segment->fd = -1;
}

void fl_segment_delete(const char *dir, const fl_segment *segment) {
    char path[4096];
    path_of(dir, segment->number, path, sizeof path);
    unlink(path);
}

int32_t fl_segment_slots(const fl_segment *segment, int64_t page_bytes) {
    struct stat st;
    if (fstat(segment->fd, &st) != 0) return 0;
    int64_t slots = st.st_size / fl_segment_slot_bytes(page_bytes);
    return slots > INT32_MAX ? INT32_MAX : (int32_t)slots;
}

static void sum_of(const void *bytes, size_t n, uint8_t out[16]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n));
    memcpy(out, canonical.digest, 16);
}

fl_err fl_segment_write(const fl_segment *s, int32_t slot, const fl_prefix_entry *page, const void *bytes,
                        int64_t page_bytes) {
    static const uint8_t zeros[ALIGNMENT];
    uint8_t first[HEADER_BYTES] = {0};
    int64_t slot_bytes = fl_segment_slot_bytes(page_bytes), at = slot * slot_bytes;
    header h = {.page_bytes = page_bytes, .page = *page};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    sum_of(bytes, (size_t)page_bytes, h.page_sum);
    sum_of(&h, offsetof(header, header_sum), h.header_sum);
    memcpy(first, &h, sizeof h);
    struct iovec parts[3] = {{first, HEADER_BYTES},
                             {(void *)(uintptr_t)bytes, (size_t)page_bytes},
                             {(void *)(uintptr_t)zeros, (size_t)(slot_bytes - HEADER_BYTES - page_bytes)}};
    for (int32_t i = 0; i < 3;) {
        ssize_t n = pwritev(s->fd, parts + i, 3 - i, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return FL_FAIL(FL_ERR_IO, "segment-%d.kv: %s", s->number, strerror(errno));
        at += n;
        for (; i < 3 && (size_t)n >= parts[i].iov_len; i++) n -= (ssize_t)parts[i].iov_len;
        if (i == 3) break;
        parts[i].iov_base = (uint8_t *)parts[i].iov_base + n;
        parts[i].iov_len -= (size_t)n;
    }
    return FL_ERR_OK;
}

void fl_segment_erase(const fl_segment *s, int32_t slot, int64_t page_bytes) {
    static const uint8_t nothing[HEADER_BYTES];
    (void)!pwrite(s->fd, nothing, sizeof nothing, slot * fl_segment_slot_bytes(page_bytes));
}

static bool read_whole(int fd, void *to, int64_t n_bytes, int64_t at) {
    while (n_bytes > 0) {
        ssize_t n = pread(fd, to, (size_t)n_bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to = (uint8_t *)to + n;
        n_bytes -= n;
        at += n;
    }
    return true;
}

static bool read_header(const fl_segment *s, int32_t slot, int64_t page_bytes, header *h) {
    uint8_t sum[16];
    if (!read_whole(s->fd, h, sizeof *h, slot * fl_segment_slot_bytes(page_bytes))) return false;
    sum_of(h, offsetof(header, header_sum), sum);
    return memcmp(h->magic, MAGIC, sizeof MAGIC) == 0 && h->page_bytes == page_bytes && h->page.index >= 0 &&
           memcmp(sum, h->header_sum, sizeof sum) == 0;
}

bool fl_segment_read_header(const fl_segment *s, int32_t slot, int64_t page_bytes, fl_prefix_entry *out) {
    header h;
    if (!read_header(s, slot, page_bytes, &h)) return false;
    *out = h.page;
    return true;
}

bool fl_segment_read(const fl_segment *s, int32_t slot, const fl_prefix_entry *page, void *bytes,
                     int64_t page_bytes) {
    header h;
    uint8_t sum[16];
    int64_t at = slot * fl_segment_slot_bytes(page_bytes) + HEADER_BYTES;
    if (!read_header(s, slot, page_bytes, &h) || !read_whole(s->fd, bytes, page_bytes, at)) return false;
    sum_of(bytes, (size_t)page_bytes, sum);
    return memcmp(&h.page.key, &page->key, sizeof page->key) == 0 &&
           memcmp(&h.page.parent, &page->parent, sizeof page->parent) == 0 &&
           memcmp(h.page.tokens, page->tokens, sizeof page->tokens) == 0 &&
           memcmp(sum, h.page_sum, sizeof sum) == 0;
}
