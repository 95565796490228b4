/* The safetensors container: 8 bytes little-endian header length, a JSON header that names each tensor with
 * dtype, shape and byte range, then the bytes. This reader checks everything the header claims before anyone
 * uses it: length, JSON, duplicate names, shape x dtype = bytes, ranges that cover the data exactly once
 * without gaps. It is a single pass without recursion and takes memory in proportion to the number of tensors
 * only. */
#ifndef FL_MODEL_SAFETENSORS_H
#define FL_MODEL_SAFETENSORS_H

#include "base/dtype.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    FL_SAFETENSORS_RANK_MAX = 8,
    FL_SAFETENSORS_NAME_MAX = 255,             /* bytes of a tensor name */
    FL_SAFETENSORS_HEADER_MAX = 100 * 1000000, /* bytes, the format's own limit */
};

typedef struct fl_safetensors_entry {
    const char *name;       /* owned by the fl_safetensors; printable ASCII */
    const char *dtype_name; /* as the file spells it; static */
    int32_t dtype; /* fl_dtype, or -1: a format of the container that firstlight does not compute with */
    int32_t ndim;  /* 0..8 */
    int64_t dims[FL_SAFETENSORS_RANK_MAX]; /* outermost first */
    int64_t elements;                      /* product of dims; 1 for ndim 0 */
    int64_t begin_bytes, end_bytes;        /* range in the data part */
} fl_safetensors_entry;

typedef struct fl_safetensors {
    fl_safetensors_entry *entries; /* [n_entries] sorted by name, no two alike */
    int64_t n_entries;
    char *names;               /* storage of the names */
    const unsigned char *data; /* the data part inside the parsed bytes; any alignment */
    int64_t data_bytes;
} fl_safetensors;

/* Parses a whole file held in memory. `file` is the name for messages. `bytes` must outlive *out, whose data
 * pointer points into it. FL_ERR_DATA: the message has file, tensor, expected and found. On failure *out is
 * empty. */
fl_err fl_safetensors_parse(const char *file, const unsigned char *bytes, size_t n_bytes,
                            fl_safetensors *out);

/* Frees what parse made; accepts a zeroed struct. Does not touch the parsed bytes. */
void fl_safetensors_close(fl_safetensors *st);

/* The entry called `name`, or NULL. */
const fl_safetensors_entry *fl_safetensors_find(const fl_safetensors *st, const char *name);

/* "[128, 64]" of a shape into `text` (cut short when it does not fit); returns text. */
const char *fl_safetensors_shape_text(char *text, size_t size, int32_t ndim, const int64_t *dims);

#endif
