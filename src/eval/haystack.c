#include "eval/haystack.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#include "base/file.h"
#include "eval/haystack_bytes.h"
#include "text/utf8.h"

enum { HAYSTACK_BYTES_MAX = 256 << 20, FILES_MAX = 1 << 16 };

static fl_err open_bundled(fl_haystack *out) {
    size_t n_bytes = 0;
    const unsigned char *frame = fl_haystack_bytes(&n_bytes);
    unsigned long long size = ZSTD_getFrameContentSize(frame, n_bytes);
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > HAYSTACK_BYTES_MAX)
        return FL_FAIL(FL_ERR_DATA,
                       "the bundled running text: %zu bytes that are no zstd frame of known size", n_bytes);
    out->text = malloc((size_t)size + 1);
    if (!out->text) return FL_FAIL(FL_ERR_NOMEM, "running text: %llu bytes", size);
    size_t got = ZSTD_decompress(out->text, (size_t)size, frame, n_bytes);
    if (ZSTD_isError(got))
        return FL_FAIL(FL_ERR_DATA, "the bundled running text: %s", ZSTD_getErrorName(got));
    out->n_bytes = got;
    out->text[got] = '\0';
    return FL_ERR_OK;
}

/* Adds a file's text with a line end behind it; one that is no text is left alone. */
static fl_err add_file(const char *dir, const char *name, fl_haystack *out) {
    char *bytes = NULL;
    size_t n_bytes = 0;
    FL_TRY(fl_file_read(dir, name, HAYSTACK_BYTES_MAX, &bytes, &n_bytes));
    fl_err err = FL_ERR_OK;
    if (fl_utf8_is_text(bytes, n_bytes) && n_bytes > 0) {
        char *text = NULL;
        if (n_bytes > HAYSTACK_BYTES_MAX - out->n_bytes)
            err = FL_FAIL(FL_ERR_LIMIT, "running text: more than %d MiB with %s", HAYSTACK_BYTES_MAX >> 20,
                          name);
        else if (!(text = realloc(out->text, out->n_bytes + n_bytes + 2)))
            err = FL_FAIL(FL_ERR_NOMEM, "running text: %zu bytes", out->n_bytes + n_bytes);
        if (text) {
            out->text = text;
            memcpy(text + out->n_bytes, bytes, n_bytes);
            out->n_bytes += n_bytes;
            if (text[out->n_bytes - 1] != '\n') text[out->n_bytes++] = '\n';
            text[out->n_bytes] = '\0';
        }
    }
    free(bytes);
    return err;
}

typedef struct name_list {
    char **items;
    size_t n;
} name_list;

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(name_list *names) {
    for (size_t i = 0; i < names->n; i++) free(names->items[i]);
    free(names->items);
}

/* The regular files of a folder, sorted bytewise. */
static fl_err list_names(const char *path, name_list *names) {
    DIR *dir = opendir(path);
    if (!dir)
        return FL_FAIL(FL_ERR_IO, "running text: cannot read the folder '%s': %s", path, strerror(errno));
    fl_err err = FL_ERR_OK;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat status;
        if (entry->d_name[0] == '.' || fstatat(dirfd(dir), entry->d_name, &status, 0) != 0 ||
            !S_ISREG(status.st_mode))
            continue;
        if (names->n == FILES_MAX) {
            err = FL_FAIL(FL_ERR_LIMIT, "running text: more than %d files in '%s'", FILES_MAX, path);
            break;
        }
        char **items = realloc(names->items, (names->n + 1) * sizeof *items);
        if (items) names->items = items;
        char *name = items ? strdup(entry->d_name) : NULL;
        if (!name) {
            err = FL_FAIL(FL_ERR_NOMEM, "names of the files in '%s'", path);
            break;
        }
        names->items[names->n++] = name;
    }
    closedir(dir);
    if (names->n > 0) qsort(names->items, names->n, sizeof *names->items, by_name);
    return err;
}

static fl_err open_folder(const char *path, fl_haystack *out) {
    name_list names = {0};
    fl_err err = list_names(path, &names);
    for (size_t i = 0; err == FL_ERR_OK && i < names.n; i++) err = add_file(path, names.items[i], out);
    free_names(&names);
    return err;
}

static fl_err open_file(const char *path, fl_haystack *out) {
    const char *slash = strrchr(path, '/');
    if (!slash) return add_file(".", path, out);
    char *dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!dir) return FL_FAIL(FL_ERR_NOMEM, "running text: %s", path);
    fl_err err = add_file(dir, slash + 1, out);
    free(dir);
    return err;
}

fl_err fl_haystack_open(const char *path, fl_haystack *out) {
    *out = (fl_haystack){0};
    fl_err err = FL_ERR_OK;
    struct stat status;
    if (!path) FL_TRY_GOTO(open_bundled(out));
    else if (stat(path, &status) != 0)
        FL_TRY_GOTO(FL_FAIL(FL_ERR_IO, "running text '%s': %s", path, strerror(errno)));
    else if (S_ISDIR(status.st_mode)) FL_TRY_GOTO(open_folder(path, out));
    else FL_TRY_GOTO(open_file(path, out));
    if (out->n_bytes == 0)
        err = FL_FAIL(FL_ERR_DATA, "running text '%s': expected UTF-8 text without NUL bytes, found none",
                      path);
fail:
    if (err != FL_ERR_OK) fl_haystack_close(out);
    return err;
}

size_t fl_haystack_cut(const fl_haystack *haystack, size_t at) {
    if (at >= haystack->n_bytes) return haystack->n_bytes;
    while (at > 0 && ((unsigned char)haystack->text[at] & 0xc0) == 0x80) at--;
    return at;
}

void fl_haystack_close(fl_haystack *haystack) {
    free(haystack->text);
    *haystack = (fl_haystack){0};
}
