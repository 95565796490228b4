/* share/eval/haystack.txt.zst as it was when the program was built. */
#ifndef FL_EVAL_HAYSTACK_BYTES_H
#define FL_EVAL_HAYSTACK_BYTES_H

#include <stddef.h>

/* [*n_bytes] a zstd frame, static. */
const unsigned char *fl_haystack_bytes(size_t *n_bytes);

#endif
