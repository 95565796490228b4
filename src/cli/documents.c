#include "cli/documents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/utf8.h"

static const char too_large[] = "%s: more than %d MiB of text in all; choose fewer files with -f";

static fl_err reserve(fl_documents *d, size_t more, const char *shown) {
    size_t need = d->n_bytes + more + 1;
    if (need > FL_DOCUMENT_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, too_large, shown, FL_DOCUMENT_BYTES_MAX >> 20);
    if (need <= d->capacity) return FL_ERR_OK;
    size_t capacity = need < 65536 ? 65536 : 2 * need;
    char *text = realloc(d->text, capacity);
    if (!text) return FL_FAIL(FL_ERR_NOMEM, "%s: %zu bytes of text", shown, capacity);
    d->text = text;
    d->capacity = capacity;
    return FL_ERR_OK;
}

static fl_err append(fl_documents *d, const char *text, size_t n_bytes, const char *shown) {
    FL_TRY(reserve(d, n_bytes, shown));
    memcpy(d->text + d->n_bytes, text, n_bytes);
    d->n_bytes += n_bytes;
    return FL_ERR_OK;
}

/* A large binary file is known by its first bytes and not read to its end. */
static fl_err read_all(fl_documents *d, int fd, const char *shown, bool *has_nul) {
    enum { CHUNK = 256 << 10 };
    *has_nul = false;
    for (;;) {
        FL_TRY(reserve(d, CHUNK, shown));
        ssize_t n = read(fd, d->text + d->n_bytes, CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return FL_FAIL(FL_ERR_IO, "%s: cannot read: %s", shown, strerror(errno));
        if (n == 0) return FL_ERR_OK;
        *has_nul = memchr(d->text + d->n_bytes, '\0', (size_t)n) != NULL;
        if (*has_nul) return FL_ERR_OK;
        d->n_bytes += (size_t)n;
    }
}

fl_err fl_documents_add_fd(fl_documents *d, int fd, const char *header, const char *shown, bool *taken) {
    size_t before = d->n_bytes;
    bool has_nul;
    if (header) {
        if (before > 0 && d->text[before - 1] != '\n') FL_TRY(append(d, "\n", 1, shown));
        if (before > 0) FL_TRY(append(d, "\n", 1, shown));
        FL_TRY(append(d, "==> ", 4, shown));
        FL_TRY(append(d, header, strlen(header), shown));
        FL_TRY(append(d, " <==\n", 5, shown));
    }
    size_t begin = d->n_bytes;
    FL_TRY(read_all(d, fd, shown, &has_nul));
    *taken = !has_nul && fl_utf8_is_text(d->text + begin, d->n_bytes - begin);
    if (!*taken) d->n_bytes = before;
    else d->n_files++;
    return FL_ERR_OK;
}

static fl_err add_stdin(fl_documents *d, bool headers) {
    bool taken;
    FL_TRY(fl_documents_add_fd(d, STDIN_FILENO, headers ? "standard input" : NULL, "standard input", &taken));
    if (!taken) return FL_FAIL(FL_ERR_DATA, "standard input is no text: expected UTF-8 without NUL bytes");
    return FL_ERR_OK;
}

static fl_err add_path(fl_documents *d, const char *path, bool headers) {
    struct stat status;
    if (strcmp(path, "-") == 0) return add_stdin(d, headers);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &status) != 0) {
        fl_err err = FL_FAIL(FL_ERR_IO, "-f %s: %s; give a file, a folder, or - for standard input", path,
                             strerror(errno));
        if (fd >= 0) close(fd);
        return err;
    }
    fl_err err = FL_ERR_OK;
    bool taken = true;
    if (S_ISDIR(status.st_mode)) {
        err = fl_repository_read(d, path, headers ? path : "");
    } else if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) {
        err = FL_FAIL(FL_ERR_IO, "-f %s: expected a file or a folder", path);
    } else {
        int flags = fcntl(fd, F_GETFL);
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK); /* a pipe may take its time; opening it must not */
        err = fl_documents_add_fd(d, fd, headers ? path : NULL, path, &taken);
    }
    if (err == FL_ERR_OK && !taken)
        err = FL_FAIL(FL_ERR_DATA,
                      "-f %s is no text: expected UTF-8 without NUL bytes; convert it first, or leave it out",
                      path);
    close(fd);
    return err;
}

fl_err fl_documents_read(const fl_text_list *paths, fl_documents *out) {
    fl_err err = FL_ERR_OK;
    *out = (fl_documents){0};
    for (int32_t i = 0; i < paths->n; i++) FL_TRY_GOTO(add_path(out, paths->items[i], paths->n > 1));
    if (paths->n > 0 && out->n_files == 0) {
        err = FL_FAIL(FL_ERR_DATA, "-f %s: no text files in it (%d binary, %d ignored); name one with -f",
                      paths->items[0], out->n_binary, out->n_ignored);
        goto fail;
    }
    FL_TRY_GOTO(reserve(out, 0, "text"));
    out->text[out->n_bytes] = '\0';
    return FL_ERR_OK;
fail:
    fl_documents_close(out);
    return err;
}

void fl_documents_close(fl_documents *d) {
    free(d->text);
    *d = (fl_documents){0};
}
