/* SHA-256 (FIPS 180-4) of text and files, as lower-case hex. */
#ifndef FL_BASE_SHA256_H
#define FL_BASE_SHA256_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { FL_SHA256_HEX_BYTES = 65 }; /* 64 digits and a NUL */

/* n bytes as 2 n lower-case digits and a NUL. */
void fl_hex_text(const unsigned char *bytes, size_t n, char *hex);

/* Digest of n_bytes at `bytes`. */
fl_err fl_sha256_of(const void *bytes, size_t n_bytes, char hex[FL_SHA256_HEX_BYTES]);

/* Called after each piece of a file, from the thread that hashes it, with the bytes of that piece. */
typedef void fl_sha256_piece_fn(void *context, int64_t piece_bytes);

/* Digest and size of dir/name, read in pieces of 1 MiB. FL_ERR_DATA: missing or not a regular file. */
fl_err fl_sha256_file(const char *dir, const char *name, fl_sha256_piece_fn *piece, void *context,
                      char hex[FL_SHA256_HEX_BYTES], int64_t *n_bytes);

#endif
