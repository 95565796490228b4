/* The disk tier: what is written is found again, also by the next process, and nothing damaged is ever handed out. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kv/disk.h"
#include "kv/disk_segment.h"
#include "support/command.h"

enum { PAGE_BYTES = 5000 };

typedef struct fixture {
    char dir[64], folder[128];
    fl_backend *be;
    fl_disk *disk;
    int64_t capacity;
} fixture;

static void open_disk(fixture *f) {
    const fl_disk_options options = {.dir = f->dir,
                                     .identity = "ab010200000000000000000000000000",
                                     .page_bytes = PAGE_BYTES,
                                     .capacity_bytes = f->capacity,
                                     .be = f->be};
    if (fl_disk_open(&options, &f->disk) != FL_ERR_OK) fail_msg("%s", fl_err_detail());
}

static void reopen(fixture *f) {
    fl_disk_close(f->disk);
    open_disk(f);
}

static void open_fixture(fixture *f, int64_t capacity) {
    *f = (fixture){.dir = "/tmp/firstlight-disk-XXXXXX", .capacity = capacity};
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->folder, sizeof f->folder, "%s/ab010200000000000000000000000000", f->dir);
    assert_int_equal(fl_backend_open("reference", 1, &f->be), FL_ERR_OK);
    open_disk(f);
}

static void close_fixture(fixture *f) {
    fl_disk_close(f->disk);
    fl_backend_close(f->be);
    assert_int_equal(remove_tree(f->dir), 0);
}

/* Page i of the test, and its bytes. */
static fl_prefix_entry page_of(int32_t i) {
    fl_prefix_entry page = {.index = i};
    memcpy(page.key.bytes, &i, sizeof i);
    page.key.bytes[31] = 7;
    memcpy(page.parent.bytes, &i, sizeof i);
    for (int32_t k = 0; k < FL_KV_PAGE_TOKENS; k++) page.tokens[k] = i * 1000 + k;
    return page;
}

static void fill(int32_t i, uint8_t *bytes) {
    for (int32_t k = 0; k < PAGE_BYTES; k++) bytes[k] = (uint8_t)(i * 31 + k * 7 + (k >> 8));
}

static void write_page(fixture *f, int32_t i) {
    fl_prefix_entry page = page_of(i);
    void *buffer;
    while (!(buffer = fl_disk_buffer(f->disk))) fl_disk_drain(f->disk, 1);
    fill(i, buffer);
    fl_disk_write(f->disk, &page, buffer);
}

/* Whether it comes back; if it does, it is right. */
static bool read_page(fixture *f, const fl_prefix_entry *page) {
    uint8_t want[PAGE_BYTES];
    fl_disk_result result;
    assert_true(fl_disk_read(f->disk, page));
    fl_disk_drain(f->disk, 10);
    assert_true(fl_disk_next(f->disk, &result));
    fill(page->index, want);
    assert_memory_equal(&result.key, &page->key, sizeof page->key);
    if (result.found) assert_memory_equal(result.bytes, want, PAGE_BYTES);
    fl_disk_release(f->disk, result.bytes);
    return result.found;
}

static bool comes_back(fixture *f, int32_t i) {
    const fl_prefix_entry page = page_of(i);
    return read_page(f, &page);
}

static void pages_come_back_after_a_restart(void **state) {
    (void)state;
    fixture f;
    uint8_t secret[32];
    fl_disk_info info;
    struct stat st;
    open_fixture(&f, 1 << 20);
    memcpy(secret, fl_disk_secret(f.disk), sizeof secret);
    for (int32_t i = 0; i < 20; i++) write_page(&f, i);
    fl_disk_drain(f.disk, 10);
    assert_true(comes_back(&f, 3));
    reopen(&f);
    assert_memory_equal(secret, fl_disk_secret(f.disk), sizeof secret);
    fl_disk_get_info(f.disk, &info);
    assert_int_equal(info.n_pages, 20);
    for (int32_t i = 0; i < 20; i++) {
        const fl_prefix_entry page = page_of(i);
        assert_true(fl_disk_has(f.disk, &page.key));
        assert_true(comes_back(&f, i));
    }
    const fl_prefix_entry unknown = page_of(21);
    assert_false(fl_disk_has(f.disk, &unknown.key));
    assert_false(comes_back(&f, 21));
    assert_int_equal(stat(f.folder, &st), 0);
    assert_int_equal(st.st_mode & 077, 0); /* others have no business there */
    close_fixture(&f);
}

/* Another prompt's page under the same key, or behind another page, is no hit. */
static void tokens_and_parents_are_compared(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1 << 20);
    for (int32_t i = 1; i <= 2; i++) write_page(&f, i);
    fl_disk_drain(f.disk, 10);
    fl_prefix_entry page = page_of(1);
    page.tokens[63]++;
    assert_false(read_page(&f, &page));
    page = page_of(2);
    page.parent.bytes[9]++;
    assert_false(read_page(&f, &page));
    close_fixture(&f);
}

static int open_first_segment(const fixture *f) {
    char path[192];
    snprintf(path, sizeof path, "%s/segment-1.kv", f->folder);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

/* A byte changed anywhere: in a header the record is gone, in a page it is a miss, in the padding nothing. */
static void damage_is_a_miss(void **state) {
    (void)state;
    fixture f;
    const int64_t slot = fl_segment_slot_bytes(PAGE_BYTES);
    static const struct {
        int64_t at;
        bool comes, listed;
    } cases[] = {{0, false, false},   {9, false, false},  {50, false, false},  {300, false, false},
                 {345, false, false}, {600, false, true}, {5511, false, true}, {5512, true, true}};
    open_fixture(&f, 1 << 20);
    write_page(&f, 1);
    fl_disk_drain(f.disk, 10);
    write_page(&f, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_disk_close(f.disk);
        uint8_t byte, changed;
        int fd = open_first_segment(&f);
        assert_int_equal(pread(fd, &byte, 1, slot + cases[i].at), 1);
        changed = byte ^ 0x40;
        assert_int_equal(pwrite(fd, &changed, 1, slot + cases[i].at), 1);
        open_disk(&f);
        const fl_prefix_entry page = page_of(2);
        assert_int_equal(fl_disk_has(f.disk, &page.key), cases[i].listed);
        assert_int_equal(comes_back(&f, 2), cases[i].comes);
        assert_true(comes_back(&f, 1));
        assert_int_equal(pwrite(fd, &byte, 1, slot + cases[i].at), 1);
        close(fd);
    }
    close_fixture(&f);
}

/* The file ends in the middle of a record, as after a crash; writing goes on in its place. */
static void cut_files_lose_the_last_record_only(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1 << 20);
    for (int32_t i = 0; i < 3; i++) {
        write_page(&f, i);
        fl_disk_drain(f.disk, 10);
    }
    fl_disk_close(f.disk);
    int fd = open_first_segment(&f);
    assert_int_equal(ftruncate(fd, 2 * fl_segment_slot_bytes(PAGE_BYTES) + 700), 0);
    close(fd);
    open_disk(&f);
    assert_true(comes_back(&f, 0) && comes_back(&f, 1) && !comes_back(&f, 2));
    write_page(&f, 2);
    reopen(&f);
    assert_true(comes_back(&f, 2));
    close_fixture(&f);
}

static void capacity_is_kept_by_dropping_what_was_unused_longest(void **state) {
    (void)state;
    fixture f;
    fl_disk_info info;
    const int64_t slot = fl_segment_slot_bytes(PAGE_BYTES);
    open_fixture(&f, 32 * slot); /* segments of two slots */
    for (int32_t i = 0; i < 32; i++) {
        write_page(&f, i);
        fl_disk_drain(f.disk, 10);
    }
    for (int32_t i = 32; i < 60; i++) {
        assert_true(comes_back(&f, 0)); /* in use: its segment stays */
        write_page(&f, i);
        fl_disk_drain(f.disk, 10);
        fl_disk_get_info(f.disk, &info);
        assert_true(info.bytes <= f.capacity);
    }
    assert_true(comes_back(&f, 59) && comes_back(&f, 40));
    assert_false(comes_back(&f, 10));
    f.capacity = 8 * slot; /* less room after a restart */
    reopen(&f);
    fl_disk_get_info(f.disk, &info);
    assert_true(info.bytes <= f.capacity && info.n_pages == info.bytes / slot);
    assert_true(comes_back(&f, 59));
    close_fixture(&f);
}

static int32_t count_files(const fixture *f) {
    int32_t n = 0;
    DIR *dir = opendir(f->folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) n += strncmp(e->d_name, "segment-", 8) == 0;
    closedir(dir);
    return n;
}

/* Written, or still on its way: it does not come back, not in the next process either; its neighbours do. */
static void what_is_forgotten_stays_so(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1 << 20);
    for (int32_t i = 0; i < 4; i++) write_page(&f, i);
    fl_disk_drain(f.disk, 10);
    const fl_prefix_entry written = page_of(1);
    fl_disk_forget(f.disk, &written.key);
    assert_false(fl_disk_has(f.disk, &written.key));
    for (int32_t i = 10; i < 30; i++) {
        const fl_prefix_entry page = page_of(i);
        write_page(&f, i);
        if (i % 2 == 1) fl_disk_forget(f.disk, &page.key);
    }
    fl_disk_drain(f.disk, 10);
    for (int round = 0; round < 2; round++) {
        for (int32_t i = 0; i < 4; i++) assert_int_equal(comes_back(&f, i), i != 1);
        for (int32_t i = 10; i < 30; i++) assert_int_equal(comes_back(&f, i), i % 2 == 0);
        reopen(&f);
    }
    write_page(&f, 1); /* read anew, it is kept again */
    fl_disk_drain(f.disk, 10);
    assert_true(comes_back(&f, 1));
    close_fixture(&f);
}

/* All segments are open at once: neither many short runs nor a large capacity may make more of them than a process may
 * have files. */
static void segments_are_few(void **state) {
    (void)state;
    fixture f;
    const int64_t slot = fl_segment_slot_bytes(PAGE_BYTES);
    open_fixture(&f, 160 * slot); /* segments of ten slots */
    for (int32_t i = 0; i < 25; i++) {
        write_page(&f, i);
        fl_disk_drain(f.disk, 10);
        reopen(&f);
    }
    for (int32_t i = 0; i < 25; i++) assert_true(comes_back(&f, i));
    assert_int_equal(count_files(&f), 3);
    close_fixture(&f);
    for (int64_t bytes = 1 << 20; bytes <= (int64_t)1 << 50; bytes *= 2) {
        assert_true(bytes / fl_segment_bytes_of(bytes) >= 16);
        assert_true(bytes / fl_segment_bytes_of(bytes) <= 256);
    }
}

static void one_process_has_the_folder(void **state) {
    (void)state;
    fixture f;
    fl_disk *second = NULL;
    open_fixture(&f, 1 << 20);
    fl_disk_options options = {.dir = f.dir,
                               .identity = "ab010200000000000000000000000000",
                               .page_bytes = PAGE_BYTES,
                               .capacity_bytes = 1 << 20,
                               .be = f.be};
    assert_int_equal(fl_disk_open(&options, &second), FL_ERR_CONFIG);
    options.identity = "ab010200000100000000000000000000"; /* another model beside it */
    assert_int_equal(fl_disk_open(&options, &second), FL_ERR_OK);
    fl_disk_close(second);
    options.capacity_bytes = 1;
    assert_int_equal(fl_disk_open(&options, &second), FL_ERR_INVALID);
    options.capacity_bytes = 1 << 20;
    options.dir = "/proc/firstlight";
    assert_int_equal(fl_disk_open(&options, &second), FL_ERR_IO);
    close_fixture(&f);
}

static void buffers_are_bounded(void **state) {
    (void)state;
    fixture f;
    void *buffers[FL_DISK_TRANSFERS];
    const fl_prefix_entry page = page_of(1);
    open_fixture(&f, 1 << 20);
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) assert_non_null(buffers[i] = fl_disk_buffer(f.disk));
    assert_null(fl_disk_buffer(f.disk));
    assert_false(fl_disk_read(f.disk, &page));
    for (int32_t i = 0; i < FL_DISK_TRANSFERS; i++) {
        const fl_prefix_entry some = page_of(i);
        fill(i, buffers[i]);
        fl_disk_write(f.disk, &some, buffers[i]);
    }
    fl_disk_drain(f.disk, 10);
    assert_true(comes_back(&f, 0) && comes_back(&f, FL_DISK_TRANSFERS - 1));
    close_fixture(&f);
}

/* Killed while it writes, 100 times: what comes back is right, and the next process goes on. Every round writes other
 * pages, as many as it gets to. */
static void killed_writers_leave_nothing_wrong(void **state) {
    (void)state;
    enum { ROUND = 4096 };
    fixture f;
    int64_t back = 0, damaged = 0;
    open_fixture(&f, 256 << 20);
    for (int32_t round = 0; round < 100; round++) {
        int ends[2];
        char byte = 0;
        fl_disk_close(f.disk);
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) {
            open_disk(&f);
            if (write(ends[1], &byte, 1) != 1) _exit(1); /* from here on it writes, however late that is */
            for (int32_t i = 0; i < ROUND; i++) write_page(&f, round * ROUND + i);
            pause();
        }
        const struct timespec wait = {.tv_nsec = 500000 + round * 37000};
        assert_int_equal(read(ends[0], &byte, 1), 1);
        nanosleep(&wait, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ends[0]);
        close(ends[1]);
        open_disk(&f);
        for (int32_t i = round * ROUND; i < (round + 1) * ROUND; i++) {
            const fl_prefix_entry page = page_of(i);
            if (!fl_disk_has(f.disk, &page.key)) continue;
            if (comes_back(&f, i)) back++; /* and is compared */
            else damaged++;
        }
    }
    print_message("%lld pages came back, %lld were found half written\n", (long long)back,
                  (long long)damaged);
    assert_true(back > 0);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back_after_a_restart),
        cmocka_unit_test(tokens_and_parents_are_compared),
        cmocka_unit_test(damage_is_a_miss),
        cmocka_unit_test(cut_files_lose_the_last_record_only),
        cmocka_unit_test(capacity_is_kept_by_dropping_what_was_unused_longest),
        cmocka_unit_test(what_is_forgotten_stays_so),
        cmocka_unit_test(segments_are_few),
        cmocka_unit_test(one_process_has_the_folder),
        cmocka_unit_test(buffers_are_bounded),
        cmocka_unit_test(killed_writers_leave_nothing_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
