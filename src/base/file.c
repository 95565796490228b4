/* Whole files by folder and name. Every open is non-blocking and checked to be a regular file first: a FIFO
 * or device planted in a checkpoint folder must not hang or feed the loader. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

fl_err fl_file_path(const char *dir, const char *name, char **out) {
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (!path) return FL_FAIL(FL_ERR_NOMEM, "path of %s: %zu bytes", name, size);
    snprintf(path, size, "%s/%s", dir, name);
    *out = path;
    return FL_ERR_OK;
}

static bool is_missing(int code) {
    return code == ENOENT || code == ENOTDIR || code == ENAMETOOLONG;
}

bool fl_file_exists(const char *dir, const char *name) {
    struct stat st = {0};
    int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) return !is_missing(errno);
    bool known = fstatat(dir_fd, name, &st, 0) == 0;
    bool missing = !known && is_missing(errno);
    close(dir_fd);
    return known ? !S_ISDIR(st.st_mode) : !missing;
}

fl_err fl_file_open(const char *dir, const char *name, int *fd, size_t *n_bytes) {
    char *path = NULL;
    FL_TRY(fl_file_path(dir, name, &path));
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int code = errno;
    free(path);
    if (*fd < 0) {
        return FL_FAIL(is_missing(code) ? FL_ERR_DATA : FL_ERR_IO, "%s: cannot open in '%s': %s", name, dir,
                       strerror(code));
    }
    struct stat st;
    fl_err err = FL_ERR_OK;
    if (fstat(*fd, &st) != 0) err = FL_FAIL(FL_ERR_IO, "%s: cannot stat: %s", name, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        err = FL_FAIL(FL_ERR_DATA, "%s: expected a regular file, found something else", name);
    else if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX / 2)
        err = FL_FAIL(FL_ERR_DATA, "%s: size %jd cannot be mapped", name, (intmax_t)st.st_size);
    if (err != FL_ERR_OK) {
        close(*fd);
        return err;
    }
    if (n_bytes) *n_bytes = (size_t)st.st_size;
    return FL_ERR_OK;
}

static fl_err read_all(int fd, const char *name, char *bytes, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t got = read(fd, bytes + done, n_bytes - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return FL_FAIL(FL_ERR_IO, "%s: cannot read: %s", name, strerror(errno));
        if (got == 0) return FL_FAIL(FL_ERR_IO, "%s: ended at byte %zu of %zu", name, done, n_bytes);
        done += (size_t)got;
    }
    return FL_ERR_OK;
}

fl_err fl_file_read(const char *dir, const char *name, size_t max_bytes, char **bytes, size_t *n_bytes) {
    int fd = -1;
    size_t size = 0;
    char *text = NULL;
    FL_TRY(fl_file_open(dir, name, &fd, &size));
    fl_err err;
    if (size > max_bytes) {
        err = FL_FAIL(FL_ERR_DATA, "%s: %zu bytes, at most %zu are accepted", name, size, max_bytes);
        goto fail;
    }
    text = malloc(size + 1);
    if (!text) {
        err = FL_FAIL(FL_ERR_NOMEM, "%s: %zu bytes", name, size + 1);
        goto fail;
    }
    FL_TRY_GOTO(read_all(fd, name, text, size));
    close(fd);
    text[size] = '\0';
    *bytes = text;
    *n_bytes = size;
    return FL_ERR_OK;
fail:
    free(text);
    close(fd);
    return err;
}

static fl_err write_all(int fd, const char *name, const char *bytes, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t put = write(fd, bytes + done, n_bytes - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return FL_FAIL(FL_ERR_IO, "%s: cannot write: %s", name, strerror(errno));
        done += (size_t)put;
    }
    if (fsync(fd) != 0) return FL_FAIL(FL_ERR_IO, "%s: cannot sync: %s", name, strerror(errno));
    return FL_ERR_OK;
}

fl_err fl_file_write(const char *dir, const char *name, const char *bytes, size_t n_bytes) {
    char *path = NULL, *temporary = NULL;
    int fd = -1;
    fl_err err;
    FL_TRY_GOTO(fl_file_path(dir, name, &path));
    FL_TRY_GOTO(fl_file_path(dir, ".firstlight.tmp.XXXXXX", &temporary));
    fd = mkstemp(temporary);
    if (fd < 0) {
        err = FL_FAIL(FL_ERR_IO, "%s: cannot create a file in '%s': %s", name, dir, strerror(errno));
        goto fail;
    }
    err = write_all(fd, name, bytes, n_bytes);
    if (err == FL_ERR_OK && fchmod(fd, 0644) != 0)
        err = FL_FAIL(FL_ERR_IO, "%s: cannot set its mode: %s", name, strerror(errno));
    if (close(fd) != 0 && err == FL_ERR_OK)
        err = FL_FAIL(FL_ERR_IO, "%s: cannot close: %s", name, strerror(errno));
    if (err == FL_ERR_OK && rename(temporary, path) != 0)
        err = FL_FAIL(FL_ERR_IO, "%s: cannot put in place: %s", name, strerror(errno));
    if (err != FL_ERR_OK) unlink(temporary);
fail:
    free(path);
    free(temporary);
    return err;
}

fl_err fl_file_map_open(const char *dir, const char *name, fl_file_map *out) {
    int fd = -1;
    size_t size = 0;
    *out = (fl_file_map){0};
    FL_TRY(fl_file_open(dir, name, &fd, &size));
    if (size == 0) {
        close(fd);
        return FL_ERR_OK;
    }
    void *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    int code = errno;
    close(fd);
    if (bytes == MAP_FAILED)
        return FL_FAIL(FL_ERR_IO, "%s: cannot map %zu bytes: %s", name, size, strerror(code));
    *out = (fl_file_map){.bytes = bytes, .n_bytes = size};
    return FL_ERR_OK;
}

void fl_file_map_expect_jumps(const fl_file_map *map, bool jumps) {
    if (map->bytes) madvise((void *)(uintptr_t)map->bytes, map->n_bytes, jumps ? MADV_RANDOM : MADV_NORMAL);
}

void fl_file_map_close(fl_file_map *map) {
    if (map->bytes) munmap((void *)(uintptr_t)map->bytes, map->n_bytes);
    *map = (fl_file_map){0};
}
