#include "kv/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "kv/disk_segment.h"

enum { NONE = -1, THREADS = 2, SECRET_BYTES = 32, SEGMENTS_MAX = 4096, RETRY_S = 30 };

/* A record that is on disk. */
typedef struct entry {
    fl_prefix_key key;
    int32_t next; /* in the bucket, or in the list of unused ones */
    int32_t segment, slot;
} entry;

typedef enum transfer_state {
    UNUSED,
    FILLING,
    QUEUED_WRITE,
    QUEUED_READ,
    RUNNING,
    FINISHED,
    GIVEN
} transfer_state;

typedef struct transfer {
    transfer_state state;
    fl_prefix_entry page;
    void *bytes; /* [page_bytes] */
    bool found, writes;
    bool unwanted; /* what it writes shall not be found */
} transfer;

struct fl_disk {
    fl_backend *be;
    char dir[3072];
    int lock_fd;
    int64_t page_bytes, slot_bytes, capacity_bytes;
    uint8_t secret[SECRET_BYTES];
    void *memory; /* of the transfers */
    pthread_t threads[THREADS];
    int32_t n_threads;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work, idle;
    bool closing;
    transfer transfers[FL_DISK_TRANSFERS];
    fl_segment segments[SEGMENTS_MAX]; /* number 0 = none */
    int32_t slots_max;                 /* of a segment */
    int32_t current;                   /* the segment that is appended to, or NONE */
    int32_t last_number, n_segments;
    entry *entries; /* [n_entries] */
    int32_t *buckets;
    int32_t n_entries, unused;
    uint64_t clock;
    double failed_s; /* when writing failed last; 0 = never */
    fl_disk_info info;
};

/* ---- the index ------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(fl_disk *d, const fl_prefix_key *key) {
    uint64_t head;
    memcpy(&head, key->bytes, sizeof head);
    return &d->buckets[head % (uint64_t)d->n_entries];
}

static int32_t find(fl_disk *d, const fl_prefix_key *key) {
    int32_t i = *bucket_of(d, key);
    while (i != NONE && memcmp(&d->entries[i].key, key, sizeof *key) != 0) i = d->entries[i].next;
    return i;
}

static void enter(fl_disk *d, const fl_prefix_key *key, int32_t segment, int32_t slot) {
    int32_t i = d->unused, *bucket = bucket_of(d, key);
    if (i == NONE || find(d, key) != NONE) return;
    d->unused = d->entries[i].next;
    d->entries[i] = (entry){.key = *key, .next = *bucket, .segment = segment, .slot = slot};
    *bucket = i;
    d->info.n_pages++;
}

/* Takes the entry that the link points to out of its bucket. */
static void drop(fl_disk *d, int32_t *link) {
    int32_t i = *link;
    *link = d->entries[i].next;
    d->entries[i].next = d->unused;
    d->unused = i;
    d->info.n_pages--;
}

/* The link to the key's entry, or to NONE. */
static int32_t *link_of(fl_disk *d, const fl_prefix_key *key) {
    int32_t *link = bucket_of(d, key);
    while (*link != NONE && memcmp(&d->entries[*link].key, key, sizeof *key) != 0)
        link = &d->entries[*link].next;
    return link;
}

static void forget(fl_disk *d, const fl_prefix_key *key) {
    int32_t *link = link_of(d, key);
    if (*link != NONE) drop(d, link);
}

static fl_err make_index(fl_disk *d) {
    int64_t n = d->capacity_bytes / d->slot_bytes + d->slots_max;
    if (n > 1 << 30) n = 1 << 30;
    d->n_entries = (int32_t)n;
    d->entries = malloc((size_t)n * sizeof *d->entries);
    d->buckets = malloc((size_t)n * sizeof *d->buckets);
    if (!d->entries || !d->buckets) return FL_FAIL(FL_ERR_NOMEM, "index of %lld pages on disk", (long long)n);
    for (int32_t i = 0; i < d->n_entries; i++) {
        d->entries[i].next = i + 1 < d->n_entries ? i + 1 : NONE;
        d->buckets[i] = NONE;
    }
    return FL_ERR_OK;
}

/* ---- segments -------------------------------------------------------------------------------------------------- */

static void release_segment(fl_disk *d, int32_t i) {
    fl_segment *s = &d->segments[i];
    if (--s->users > 0 || !s->deleted) return;
    fl_segment_close(s);
    *s = (fl_segment){.fd = -1};
}

/* Takes the segment's records out of the index and deletes its file; readers under way finish. */
static void delete_segment(fl_disk *d, int32_t i) {
    fl_segment *s = &d->segments[i];
    for (int32_t b = 0; b < d->n_entries; b++)
        for (int32_t *link = &d->buckets[b]; *link != NONE;)
            if (d->entries[*link].segment == i) drop(d, link);
            else link = &d->entries[*link].next;
    d->info.bytes -= s->n_slots * d->slot_bytes;
    d->n_segments--;
    s->deleted = true;
    s->users++;
    fl_segment_delete(d->dir, s);
    release_segment(d, i);
}

/* The one longest unused, that is not being written; NONE if there is no other. */
static int32_t oldest_segment(const fl_disk *d) {
    int32_t oldest = NONE;
    for (int32_t i = 0; i < SEGMENTS_MAX; i++) {
        const fl_segment *s = &d->segments[i];
        if (s->number == 0 || s->deleted || i == d->current) continue;
        if (oldest == NONE || s->last_use < d->segments[oldest].last_use) oldest = i;
    }
    return oldest;
}

static fl_err begin_segment(fl_disk *d) {
    int32_t i = 0;
    while (i < SEGMENTS_MAX && d->segments[i].number != 0) i++;
    if (i == SEGMENTS_MAX) return FL_FAIL(FL_ERR_LIMIT, "%s: over %d segments", d->dir, SEGMENTS_MAX);
    FL_TRY(fl_segment_open(d->dir, d->last_number + 1, true, &d->segments[i]));
    d->last_number++;
    d->n_segments++;
    d->current = i;
    return FL_ERR_OK;
}

/* A slot for one more record, in a new segment if the last is full, and room for it in the capacity. */
static fl_err take_slot(fl_disk *d, int32_t *segment, int32_t *slot) {
    if (d->current == NONE || d->segments[d->current].n_slots == d->slots_max) FL_TRY(begin_segment(d));
    while (d->info.bytes + d->slot_bytes > d->capacity_bytes) {
        int32_t oldest = oldest_segment(d);
        if (oldest == NONE) return FL_FAIL(FL_ERR_LIMIT, "%s: the capacity is too small", d->dir);
        delete_segment(d, oldest);
    }
    fl_segment *s = &d->segments[d->current];
    s->users++;
    s->last_use = ++d->clock;
    *segment = d->current;
    *slot = s->n_slots++;
    d->info.bytes += d->slot_bytes;
    return FL_ERR_OK;
}

/* ---- transfers ------------------------------------------------------------------------------------------------- */

static void run_write(fl_disk *d, transfer *t) {
    int32_t segment, slot;
    pthread_mutex_lock(&d->lock);
    bool write = !t->unwanted && find(d, &t->page.key) == NONE;
    fl_err err = write ? take_slot(d, &segment, &slot) : FL_ERR_AGAIN;
    fl_segment file = {.fd = -1};
    if (err == FL_ERR_OK) file = d->segments[segment];
    pthread_mutex_unlock(&d->lock);
    if (err == FL_ERR_OK) {
        err = fl_segment_write(&file, slot, &t->page, t->bytes, d->page_bytes);
        pthread_mutex_lock(&d->lock);
        if (err == FL_ERR_OK && t->unwanted) fl_segment_erase(&file, slot, d->page_bytes);
        else if (err == FL_ERR_OK && !d->segments[segment].deleted) enter(d, &t->page.key, segment, slot);
        d->info.n_written += err == FL_ERR_OK;
        release_segment(d, segment);
        pthread_mutex_unlock(&d->lock);
    }
    pthread_mutex_lock(&d->lock);
    if (err != FL_ERR_OK && err != FL_ERR_AGAIN) {
        d->info.n_failed++;
        d->failed_s = fl_now_s();
    }
    t->state = UNUSED;
    pthread_mutex_unlock(&d->lock);
}

static void run_read(fl_disk *d, transfer *t) {
    fl_segment file = {.fd = -1};
    int32_t segment = NONE, slot = 0;
    pthread_mutex_lock(&d->lock);
    int32_t i = find(d, &t->page.key);
    if (i != NONE) {
        segment = d->entries[i].segment;
        slot = d->entries[i].slot;
        d->segments[segment].users++;
        d->segments[segment].last_use = ++d->clock;
        file = d->segments[segment];
    }
    pthread_mutex_unlock(&d->lock);
    t->found = segment != NONE && fl_segment_read(&file, slot, &t->page, t->bytes, d->page_bytes);
    pthread_mutex_lock(&d->lock);
    if (segment != NONE) release_segment(d, segment);
    if (!t->found) forget(d, &t->page.key); /* damaged, or gone */
    d->info.n_read += t->found;
    d->info.n_missed += !t->found;
    t->state = FINISHED;
    pthread_mutex_unlock(&d->lock);
}

/* Readings first: somebody waits for them. */
static transfer *next_queued(fl_disk *d) {
    transfer *write = NULL;
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) {
        if (d->transfers[i].state == QUEUED_READ) return &d->transfers[i];
        if (d->transfers[i].state == QUEUED_WRITE && !write) write = &d->transfers[i];
    }
    return write;
}

static void *work(void *context) {
    fl_disk *d = context;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        transfer *t = next_queued(d);
        if (!t && d->closing) break;
        if (!t) {
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        bool reads = t->state == QUEUED_READ;
        t->state = RUNNING;
        pthread_mutex_unlock(&d->lock);
        if (reads) run_read(d, t);
        else run_write(d, t);
        pthread_mutex_lock(&d->lock);
        pthread_cond_broadcast(&d->idle);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static transfer *take_transfer(fl_disk *d, transfer_state state) {
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++)
        if (d->transfers[i].state == UNUSED) {
            d->transfers[i].state = state;
            return &d->transfers[i];
        }
    return NULL;
}

/* Under the lock. */
static bool rests(const fl_disk *d) {
    return d->failed_s > 0 && fl_now_s() - d->failed_s < RETRY_S;
}

bool fl_disk_rests(fl_disk *d) {
    pthread_mutex_lock(&d->lock);
    bool so = rests(d);
    pthread_mutex_unlock(&d->lock);
    return so;
}

void *fl_disk_buffer(fl_disk *d) {
    pthread_mutex_lock(&d->lock);
    transfer *t = rests(d) ? NULL : take_transfer(d, FILLING);
    if (t) t->writes = true;
    pthread_mutex_unlock(&d->lock);
    return t ? t->bytes : NULL;
}

void fl_disk_write(fl_disk *d, const fl_prefix_entry *page, void *buffer) {
    pthread_mutex_lock(&d->lock);
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) {
        transfer *t = &d->transfers[i];
        if (t->bytes != buffer) continue;
        t->page = *page;
        t->unwanted = false;
        t->state = QUEUED_WRITE;
    }
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

bool fl_disk_read(fl_disk *d, const fl_prefix_entry *page) {
    pthread_mutex_lock(&d->lock);
    transfer *t = take_transfer(d, QUEUED_READ);
    if (t) {
        t->page = *page;
        t->writes = false;
    }
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    return t != NULL;
}

bool fl_disk_next(fl_disk *d, fl_disk_result *out) {
    bool any = false;
    pthread_mutex_lock(&d->lock);
    for (int32_t i = 0; i < FL_DISK_TRANSFERS && !any; i++) {
        transfer *t = &d->transfers[i];
        if (t->state != FINISHED) continue;
        *out = (fl_disk_result){
            .key = t->page.key, .index = t->page.index, .found = t->found, .bytes = t->bytes};
        t->state = GIVEN;
        any = true;
    }
    pthread_mutex_unlock(&d->lock);
    return any;
}

void fl_disk_release(fl_disk *d, const void *bytes) {
    pthread_mutex_lock(&d->lock);
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++)
        if (d->transfers[i].bytes == bytes) d->transfers[i].state = UNUSED;
    pthread_mutex_unlock(&d->lock);
}

bool fl_disk_has(fl_disk *d, const fl_prefix_key *key) {
    pthread_mutex_lock(&d->lock);
    bool has = find(d, key) != NONE;
    pthread_mutex_unlock(&d->lock);
    return has;
}

void fl_disk_forget(fl_disk *d, const fl_prefix_key *key) {
    pthread_mutex_lock(&d->lock);
    int32_t *link = link_of(d, key);
    if (*link != NONE) {
        const entry *e = &d->entries[*link];
        fl_segment_erase(&d->segments[e->segment], e->slot, d->page_bytes);
        drop(d, link);
    }
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) {
        transfer *t = &d->transfers[i];
        if (t->writes && memcmp(&t->page.key, key, sizeof *key) == 0) t->unwanted = true;
    }
    pthread_mutex_unlock(&d->lock);
}

static bool is_busy(const fl_disk *d) {
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) {
        transfer_state state = d->transfers[i].state;
        if (state == QUEUED_READ || state == QUEUED_WRITE || state == RUNNING) return true;
    }
    return false;
}

/* Under the lock, until a transfer ends. */
static void wait_until(fl_disk *d, double end_s) {
    const struct timespec until = fl_timespec_at(end_s);
    pthread_cond_timedwait(&d->idle, &d->lock, &until);
}

void fl_disk_wait(fl_disk *d, double timeout_s) {
    pthread_mutex_lock(&d->lock);
    wait_until(d, fl_now_s() + timeout_s);
    pthread_mutex_unlock(&d->lock);
}

void fl_disk_drain(fl_disk *d, double timeout_s) {
    double end_s = fl_now_s() + timeout_s;
    pthread_mutex_lock(&d->lock);
    while (is_busy(d) && fl_now_s() < end_s) wait_until(d, end_s);
    pthread_mutex_unlock(&d->lock);
}

void fl_disk_get_info(fl_disk *d, fl_disk_info *out) {
    pthread_mutex_lock(&d->lock);
    *out = d->info;
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++)
        out->n_writing += d->transfers[i].state != UNUSED && d->transfers[i].writes;
    pthread_mutex_unlock(&d->lock);
    out->capacity_bytes = d->capacity_bytes;
}

const uint8_t *fl_disk_secret(const fl_disk *d) {
    return d->secret;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static fl_err make_folder(const char *path) {
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return FL_ERR_OK;
    return FL_FAIL(FL_ERR_IO, "kv_disk: cannot make the folder %s: %s", path, strerror(errno));
}

static fl_err lock_folder(fl_disk *d) {
    char path[4096];
    snprintf(path, sizeof path, "%s/lock", d->dir);
    d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock_fd < 0) return FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return FL_FAIL(FL_ERR_CONFIG, "kv_disk: another process uses %s; give each a folder of its own",
                       d->dir);
    return FL_ERR_OK;
}

/* The folder's secret, drawn when it is new. Whole or not there: it is written aside, then renamed. */
static fl_err read_secret(fl_disk *d) {
    char path[4096], aside[4096];
    snprintf(path, sizeof path, "%s/secret", d->dir);
    snprintf(aside, sizeof aside, "%s/secret.new", d->dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        ssize_t n = read(fd, d->secret, SECRET_BYTES);
        close(fd);
        if (n == SECRET_BYTES) return FL_ERR_OK;
        return FL_FAIL(FL_ERR_IO, "%s: expected %d bytes, found %d; delete the folder", path, SECRET_BYTES,
                       (int)n);
    }
    if (errno != ENOENT) return FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
    if (RAND_bytes(d->secret, SECRET_BYTES) != 1) return FL_FAIL(FL_ERR_INTERNAL, "no random bytes");
    fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool written = fd >= 0 && write(fd, d->secret, SECRET_BYTES) == SECRET_BYTES && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    if (!written || rename(aside, path) != 0) return FL_FAIL(FL_ERR_IO, "%s: %s", path, strerror(errno));
    return FL_ERR_OK;
}

/* The number in "segment-N.kv", or 0. */
static int32_t number_of(const char *name) {
    static const char head[] = "segment-";
    char *end = NULL;
    if (strncmp(name, head, sizeof head - 1) != 0) return 0;
    long number = strtol(name + sizeof head - 1, &end, 10);
    return number > 0 && number < INT32_MAX && strcmp(end, ".kv") == 0 ? (int32_t)number : 0;
}

static void read_segment(fl_disk *d, int32_t number) {
    int32_t i = d->n_segments;
    fl_prefix_entry page;
    if (i == SEGMENTS_MAX || fl_segment_open(d->dir, number, false, &d->segments[i]) != FL_ERR_OK) return;
    fl_segment *s = &d->segments[i];
    s->n_slots = fl_segment_slots(s, d->page_bytes);
    s->last_use = (uint64_t)number; /* older segments have lower numbers */
    /* From the end: of a page that was damaged, the record behind counts. */
    for (int32_t slot = s->n_slots; slot-- > 0;)
        if (fl_segment_read_header(s, slot, d->page_bytes, &page)) enter(d, &page.key, i, slot);
    d->info.bytes += s->n_slots * d->slot_bytes;
    d->n_segments++;
}

static int compare_numbers(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static fl_err read_segments(fl_disk *d) {
    int32_t numbers[SEGMENTS_MAX], n = 0;
    DIR *dir = opendir(d->dir);
    if (!dir) return FL_FAIL(FL_ERR_IO, "%s: %s", d->dir, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir)) && n < SEGMENTS_MAX;)
        if (number_of(e->d_name) > 0) numbers[n++] = number_of(e->d_name);
    closedir(dir);
    qsort(numbers, (size_t)n, sizeof *numbers, compare_numbers);
    for (int32_t i = n; i-- > 0;) read_segment(d, numbers[i]); /* the newest first: they stay */
    d->last_number = n > 0 ? numbers[n - 1] : 0;
    d->clock = (uint64_t)d->last_number;
    for (int32_t oldest; d->info.bytes > d->capacity_bytes && (oldest = oldest_segment(d)) != NONE;)
        delete_segment(d, oldest);
    /* The newest goes on, so that there are no more files, all of them open, than the capacity fills. */
    const fl_segment *newest = &d->segments[0];
    if (newest->number > 0 && newest->n_slots < d->slots_max) d->current = 0;
    return FL_ERR_OK;
}

static fl_err open_folder(fl_disk *d, const fl_disk_options *o) {
    int n = snprintf(d->dir, sizeof d->dir, "%s/%s", o->dir, o->identity);
    if (n < 0 || (size_t)n >= sizeof d->dir)
        return FL_FAIL(FL_ERR_INVALID, "the disk tier's path is too long");
    FL_TRY(make_folder(o->dir));
    FL_TRY(make_folder(d->dir));
    FL_TRY(lock_folder(d));
    return read_secret(d);
}

static fl_err open_transfers(fl_disk *d) {
    int64_t each = fl_align_up(d->page_bytes, 64);
    FL_TRY(fl_backend_alloc_host(d->be, each * FL_DISK_TRANSFERS, &d->memory));
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) d->transfers[i].bytes = (uint8_t *)d->memory + i * each;
    for (; d->n_threads < THREADS; d->n_threads++) {
        int code = pthread_create(&d->threads[d->n_threads], NULL, work, d);
        if (code != 0) return FL_FAIL(FL_ERR_NOMEM, "a thread of the disk tier: %s", strerror(code));
    }
    return FL_ERR_OK;
}

fl_err fl_disk_open(const fl_disk_options *o, fl_disk **out) {
    fl_disk *d = calloc(1, sizeof *d);
    if (!d) return FL_FAIL(FL_ERR_NOMEM, "disk tier");
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    fl_cond_init(&d->idle);
    d->be = o->be;
    d->lock_fd = d->current = NONE;
    d->page_bytes = o->page_bytes;
    d->slot_bytes = fl_segment_slot_bytes(o->page_bytes);
    d->capacity_bytes = o->capacity_bytes;
    int64_t segment_bytes = fl_segment_bytes_of(o->capacity_bytes);
    d->slots_max = segment_bytes > d->slot_bytes ? (int32_t)(segment_bytes / d->slot_bytes) : 1;
    for (int32_t i = 0; i < SEGMENTS_MAX; i++) d->segments[i].fd = -1;
    fl_err err;
    if (o->capacity_bytes < 2 * d->slot_bytes) {
        err = FL_FAIL(FL_ERR_INVALID, "kv_disk_bytes: expected at least %lld, two pages, found %lld",
                      (long long)(2 * d->slot_bytes), (long long)o->capacity_bytes);
        goto fail;
    }
    FL_TRY_GOTO(open_folder(d, o));
    FL_TRY_GOTO(make_index(d));
    FL_TRY_GOTO(read_segments(d));
    FL_TRY_GOTO(open_transfers(d));
    *out = d;
    return FL_ERR_OK;
fail:
    fl_disk_close(d);
    return err;
}

void fl_disk_close(fl_disk *d) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    for (int32_t i = 0; i < d->n_threads; i++) pthread_join(d->threads[i], NULL);
    for (int32_t i = 0; i < SEGMENTS_MAX; i++)
        if (d->segments[i].fd >= 0) fl_segment_close(&d->segments[i]);
    if (d->memory) fl_backend_free_host(d->be, d->memory, fl_align_up(d->page_bytes, 64) * FL_DISK_TRANSFERS);
    if (d->lock_fd >= 0) close(d->lock_fd);
    free(d->entries);
    free(d->buckets);
    pthread_cond_destroy(&d->idle);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    free(d);
}
