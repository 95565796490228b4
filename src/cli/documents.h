/* The text a question is about: files, standard input, and folders read as repositories, put together in one. */
#ifndef FL_CLI_DOCUMENTS_H
#define FL_CLI_DOCUMENTS_H

#include "cli/options.h"

enum {
    FL_DOCUMENT_BYTES_MAX = 256 << 20, /* all of it together */
    FL_REPOSITORY_DEPTH_MAX = 64,
    FL_REPOSITORY_FILES_MAX = 200000,
};

typedef struct fl_documents {
    char *text; /* [n_bytes], NUL behind; owned */
    size_t n_bytes, capacity;
    int32_t n_files;
    int32_t n_binary;  /* skipped: a NUL byte or no UTF-8 */
    int32_t n_ignored; /* skipped: named by .gitignore, .git, links, devices */
} fl_documents;

/* Reads the paths in their order. One plain file, or "-", gives its text alone; several, and the files of a folder,
 * each come behind a line "==> PATH <==". A path given by name must be text; inside folders what is no text is skipped.
 * FL_ERR_DATA: not UTF-8, or no text at all. FL_ERR_IO: cannot be read. FL_ERR_LIMIT: too large. On success the caller
 * closes *out. */
fl_err fl_documents_read(const fl_text_list *paths, fl_documents *out);
void fl_documents_close(fl_documents *documents);

/* Adds one file's text; `header` NULL = without the line. Text that is not UTF-8 or has a NUL counts as binary and is
 * left out (*taken false). `shown` names the file in errors. */
fl_err fl_documents_add_fd(fl_documents *documents, int fd, const char *header, const char *shown,
                           bool *taken);

/* Adds all text files below a folder; `prefix` stands before their paths in the headers ("" = none). */
fl_err fl_repository_read(fl_documents *documents, const char *folder, const char *prefix);

#endif
