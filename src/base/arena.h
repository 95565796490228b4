/* A bump allocator over memory reserved at start. A step takes what it needs and gives it all back at its end; the
 * high-water mark is what the plan must cover. In measuring mode there is no memory: pointers are only addresses that
 * keep the same alignment and offsets, so the plan is the very sequence of calls the step makes. */
#ifndef FL_BASE_ARENA_H
#define FL_BASE_ARENA_H

#include "base/err.h"

typedef struct fl_arena {
    uint8_t *base; /* 64-byte aligned; borrowed; NULL = measuring */
    int64_t size_bytes;
    int64_t used_bytes;
    int64_t peak_bytes;
} fl_arena;

void fl_arena_init(fl_arena *arena, void *base, int64_t size_bytes);

/* count * item_bytes bytes, 64-byte aligned, not cleared. FL_ERR_LIMIT: the plan was too small (an internal fault). */
fl_err fl_arena_take(fl_arena *arena, int64_t count, int64_t item_bytes, void *out_pointer);

/* Everything taken since fl_arena_mark is given back. */
int64_t fl_arena_mark(const fl_arena *arena);
void fl_arena_reset(fl_arena *arena, int64_t mark);

#endif
