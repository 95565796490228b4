/* The pack of a byte-level BPE tokenizer.json: lossless, a fifteenth of the file. Every token but the first few is made
 * by one merge, in order, so the merges as pairs of ids give both lists; all else is kept as text.
 *
 * One zstd frame of, little endian:
 *   u32 head_bytes, middle_bytes, tail_bytes, n_first, n_merges
 *   head, middle, tail        the file's text before the vocabulary, between it and the merges, after them
 *   n_first strings           tokens 0 .. n_first - 1 as JSON writes them, without quotes, each ended by a newline
 *   6 planes of n_merges      bytes 0, 1, 2 of the left ids, then of the right ids
 */
#ifndef FL_TOOLS_TOKENPACK_H
#define FL_TOOLS_TOKENPACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Packs a file that is laid out one token and one merge a line, as json.dump(indent=4) does. *out is malloc'ed and
 * passes to the caller. FL_ERR_UNSUPPORTED: the file has another layout or other merges; nothing is lost silently. */
fl_err fl_tokenpack_encode(const char *json, size_t json_bytes, int level, char **out, size_t *out_bytes);

/* The file again, byte for byte. *out is malloc'ed and passes to the caller. FL_ERR_DATA: not such a pack. */
fl_err fl_tokenpack_decode(const char *pack, size_t pack_bytes, char **out, size_t *out_bytes);

/* One zstd frame that knows its size: packs and unpacks test data of at most 256 MiB. *out as above, with a NUL behind
 * the unpacked bytes. */
fl_err fl_frame_encode(const char *bytes, size_t n_bytes, int level, char **out, size_t *out_bytes);
fl_err fl_frame_decode(const char *frame, size_t frame_bytes, char **out, size_t *out_bytes);

#endif
