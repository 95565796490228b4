/* A folder as a repository: every text file below it in the order of names, folder by folder. The walk keeps its own
 * stack; a folder stays open by descriptor while it is read and links are never followed, so nothing outside the folder
 * can get in, even if the tree changes meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/documents.h"
#include "cli/gitignore.h"

enum { PATH_BYTES_MAX = 4096, IGNORE_FILE_BYTES_MAX = 1 << 20 };

typedef struct folder {
    int fd;
    char **names; /* [n] sorted */
    int32_t n, next;
    size_t path_bytes; /* of the walk's path, up to and with this folder's '/' */
    int32_t n_rules;   /* before this folder's own */
} folder;

typedef struct walk {
    fl_documents *documents;
    const char *shown; /* the folder as given */
    const char *prefix;
    fl_ignore ignore;
    folder stack[FL_REPOSITORY_DEPTH_MAX];
    int32_t depth;
    char path[PATH_BYTES_MAX]; /* relative to the root */
    int32_t n_entries;
} walk;

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static fl_err add_name(walk *w, folder *f, const char *name, int32_t *capacity) {
    if (++w->n_entries > FL_REPOSITORY_FILES_MAX)
        return FL_FAIL(FL_ERR_LIMIT,
                       "-f %s: more than %d files; give its parts, or name what to skip in .gitignore",
                       w->shown, FL_REPOSITORY_FILES_MAX);
    if (f->n == *capacity) {
        int32_t more = *capacity ? 2 * *capacity : 32;
        char **names = realloc(f->names, (size_t)more * sizeof *names);
        if (!names) return FL_FAIL(FL_ERR_NOMEM, "%d file names", more);
        f->names = names;
        *capacity = more;
    }
    f->names[f->n] = strdup(name);
    if (!f->names[f->n]) return FL_FAIL(FL_ERR_NOMEM, "file name");
    f->n++;
    return FL_ERR_OK;
}

static fl_err read_names(walk *w, folder *f) {
    int fd = dup(f->fd);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0) close(fd);
        return FL_FAIL(FL_ERR_IO, "-f %s: cannot read the folder '%s': %s", w->shown, w->path,
                       strerror(errno));
    }
    fl_err err = FL_ERR_OK;
    int32_t capacity = 0;
    for (struct dirent *entry; err == FL_ERR_OK && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            err = add_name(w, f, entry->d_name, &capacity);
    closedir(dir);
    if (f->n > 1) qsort(f->names, (size_t)f->n, sizeof *f->names, compare_names);
    return err;
}

/* The folder's own .gitignore, if it is a plain file. */
static fl_err read_rules(walk *w, const folder *f) {
    struct stat status;
    int fd = openat(f->fd, ".gitignore", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return FL_ERR_OK;
    fl_err err = FL_ERR_OK;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        size_t n_bytes =
            status.st_size < IGNORE_FILE_BYTES_MAX ? (size_t)status.st_size : IGNORE_FILE_BYTES_MAX;
        char *text = malloc(n_bytes);
        ssize_t n = text ? read(fd, text, n_bytes) : 0;
        err = text ? FL_ERR_OK : FL_FAIL(FL_ERR_NOMEM, ".gitignore of %zu bytes", n_bytes);
        if (n > 0) err = fl_ignore_add(&w->ignore, text, (size_t)n, f->path_bytes);
        free(text);
    }
    close(fd);
    return err;
}

static void leave(walk *w) {
    folder *f = &w->stack[--w->depth];
    for (int32_t i = 0; i < f->n; i++) free(f->names[i]);
    free(f->names);
    close(f->fd);
    fl_ignore_cut(&w->ignore, f->n_rules);
}

/* Takes fd. */
static fl_err enter(walk *w, int fd, size_t path_bytes) {
    if (w->depth == FL_REPOSITORY_DEPTH_MAX) {
        close(fd);
        return FL_FAIL(FL_ERR_LIMIT,
                       "-f %s: folders more than %d deep at '%.100s'; name it in .gitignore to skip it",
                       w->shown, FL_REPOSITORY_DEPTH_MAX, w->path);
    }
    folder *f = &w->stack[w->depth++];
    *f = (folder){.fd = fd, .path_bytes = path_bytes, .n_rules = w->ignore.n};
    FL_TRY(read_names(w, f));
    return read_rules(w, f);
}

static fl_err add_file(walk *w, int fd) {
    char header[2 * PATH_BYTES_MAX];
    size_t n = strlen(w->prefix);
    bool taken, slash = n > 0 && w->prefix[n - 1] != '/';
    snprintf(header, sizeof header, "%s%s%s", w->prefix, slash ? "/" : "", w->path);
    FL_TRY(fl_documents_add_fd(w->documents, fd, header, header, &taken));
    w->documents->n_binary += !taken;
    return FL_ERR_OK;
}

/* One entry of the innermost folder. */
static fl_err visit(walk *w, const folder *f, const char *name) {
    struct stat status;
    int n = snprintf(w->path + f->path_bytes, PATH_BYTES_MAX - f->path_bytes, "%s", name);
    if (n < 0 || f->path_bytes + (size_t)n + 2 > PATH_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "-f %s: a path longer than %d bytes: '%.100s...'", w->shown,
                       PATH_BYTES_MAX, w->path);
    if (fstatat(f->fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return FL_ERR_OK; /* gone meanwhile */
    bool is_folder = S_ISDIR(status.st_mode);
    if ((!is_folder && !S_ISREG(status.st_mode)) || strcmp(name, ".git") == 0 ||
        fl_ignore_match(&w->ignore, w->path, is_folder)) {
        w->documents->n_ignored++;
        return FL_ERR_OK;
    }
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (is_folder ? O_DIRECTORY : 0);
    int fd = openat(f->fd, name, flags);
    if (fd < 0)
        return FL_FAIL(FL_ERR_IO, "-f %s: cannot read '%s': %s; name it in .gitignore to skip it", w->shown,
                       w->path, strerror(errno));
    if (is_folder) {
        strcpy(w->path + f->path_bytes + n, "/");
        return enter(w, fd, f->path_bytes + (size_t)n + 1);
    }
    fl_err err = add_file(w, fd);
    close(fd);
    return err;
}

fl_err fl_repository_read(fl_documents *documents, const char *root, const char *prefix) {
    walk *w = calloc(1, sizeof *w);
    if (!w) return FL_FAIL(FL_ERR_NOMEM, "folder walk");
    w->documents = documents;
    w->shown = root;
    w->prefix = prefix;
    int fd = open(root, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    fl_err err = fd >= 0 ? enter(w, fd, 0) : FL_FAIL(FL_ERR_IO, "-f %s: %s", root, strerror(errno));
    while (err == FL_ERR_OK && w->depth > 0) {
        folder *f = &w->stack[w->depth - 1];
        if (f->next == f->n) leave(w);
        else err = visit(w, f, f->names[f->next++]);
    }
    while (w->depth > 0) leave(w);
    fl_ignore_close(&w->ignore);
    free(w);
    return err;
}
