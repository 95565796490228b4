/* Memory of one parsed template or one rendering: pieces are handed out until a byte limit and freed
 * together. */
#ifndef FL_TEXT_JINJA_ARENA_H
#define FL_TEXT_JINJA_ARENA_H

#include "base/err.h"

#include <stddef.h>

typedef struct fl_jarena_chunk fl_jarena_chunk;

typedef struct fl_jarena {
    fl_jarena_chunk *chunks; /* newest first; owned */
    size_t used_bytes;       /* handed out so far */
    size_t max_bytes;        /* the most to hand out */
    fl_err err;              /* why the last fl_jarena_alloc gave NULL */
} fl_jarena;

void fl_jarena_init(fl_jarena *arena, size_t max_bytes);

/* Frees every piece. The arena may be used again. */
void fl_jarena_clear(fl_jarena *arena);

/* count * size zeroed bytes, aligned for every type, borrowed from the arena; never NULL for 0 bytes. On
 * failure NULL, and arena->err is FL_ERR_LIMIT (max_bytes would be passed) or FL_ERR_NOMEM, with the detail
 * text set. */
void *fl_jarena_alloc(fl_jarena *arena, size_t count, size_t size);

/* Why the last fl_jarena_alloc or fl_jarena_grow gave NULL; never FL_ERR_OK. */
static inline fl_err fl_jarena_error(const fl_jarena *arena) {
    return arena->err != FL_ERR_OK ? arena->err : FL_ERR_NOMEM;
}

/* A copy of `n` items of `size` bytes with room for at least one more: how the arrays here grow. `*cap` is
 * the number of items the old array had room for and becomes the new one's. Same failures as fl_jarena_alloc.
 */
void *fl_jarena_grow(fl_jarena *arena, const void *items, size_t n, size_t size, size_t *cap);

#endif
