/* The pack of one safetensors file: lossless, about a quarter smaller than the file. Trained weights barely
 * compress as they lie: the two bytes of a bf16 value have nothing in common, so they are kept apart (byte
 * planes), and the single-byte fp8 values apart from both and from the fp32 scales. Each of the four streams
 * is one zstd frame.
 *
 * Layout, little endian:
 *   8 bytes   "FLPACK1\n"
 *   u64       bytes of the unpacked file
 *   u32       n_segments
 *   n_segments x { u32 kind; u64 bytes }            the file from front to back
 *   FL_PACK_STREAMS x { u64 raw_bytes; u64 frame_bytes }
 *   the frames, one after the other
 */
#ifndef FL_TOOLS_FLPACK_H
#define FL_TOOLS_FLPACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { FL_PACK_STREAMS = 4 };

/* Packs safetensors file bytes at a zstd level (1..22). *out is malloc'ed and passes to the caller.
 * FL_ERR_DATA: not a safetensors file, or its tensors do not lie front to back without overlap. */
fl_err fl_pack_encode(const uint8_t *file, size_t file_bytes, int level, uint8_t **out, size_t *out_bytes);

/* The file again. *out is malloc'ed and passes to the caller. FL_ERR_DATA: says what in the pack is broken. A
 * damaged frame may still decode to wrong bytes; the caller compares the result with a SHA-256 it trusts. */
fl_err fl_pack_decode(const uint8_t *pack, size_t pack_bytes, uint8_t **out, size_t *out_bytes);

#endif
