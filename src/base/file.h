/* Reading and mapping whole files of a folder, for foreign data: regular files only, sizes capped. */
#ifndef FL_BASE_FILE_H
#define FL_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Joins dir and name. *out is malloc'ed and passes to the caller. */
fl_err fl_file_path(const char *dir, const char *name, char **out);

/* Whether dir/name exists (as anything but a folder). What cannot be told counts as there: whoever then reads it gets
 * the reason, and nothing is left out unseen. */
bool fl_file_exists(const char *dir, const char *name);

/* Opens dir/name for reading, a regular file only. The caller closes *fd. *n_bytes (may be NULL) is its size. Errors
 * as fl_file_read. */
fl_err fl_file_open(const char *dir, const char *name, int *fd, size_t *n_bytes);

/* Reads dir/name. *bytes is malloc'ed, passes to the caller and has a NUL after *n_bytes. FL_ERR_DATA:
 * missing, not a regular file, or larger than max_bytes. FL_ERR_IO: cannot be read. */
fl_err fl_file_read(const char *dir, const char *name, size_t max_bytes, char **bytes, size_t *n_bytes);

/* Writes dir/name through a temporary file and rename, so that a reader never sees half of it. */
fl_err fl_file_write(const char *dir, const char *name, const char *bytes, size_t n_bytes);

/* A read-only mapping of a whole file. Empty files map to NULL and 0. */
typedef struct fl_file_map {
    const unsigned char *bytes;
    size_t n_bytes;
} fl_file_map;

/* Maps dir/name; errors as fl_file_read. Whoever shortens the file while it is mapped makes later reads
 * fault. */
fl_err fl_file_map_open(const char *dir, const char *name, fl_file_map *out);

/* Tells the kernel whether reads will jump about (true: it then fetches single pages) or run through (false, as after
 * opening). A hint: nothing depends on it. */
void fl_file_map_expect_jumps(const fl_file_map *map, bool jumps);

/* Accepts a zeroed map; zeroes it. */
void fl_file_map_close(fl_file_map *map);

#endif
