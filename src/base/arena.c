#include "base/arena.h"

#include <string.h>

#include "base/checked.h"

enum { ALIGN = 64 };

void fl_arena_init(fl_arena *arena, void *base, int64_t size_bytes) {
    *arena = (fl_arena){.base = base, .size_bytes = size_bytes};
}

fl_err fl_arena_take(fl_arena *arena, int64_t count, int64_t item_bytes, void *out_pointer) {
    int64_t bytes, end;
    if (count < 0 || !fl_mul_i64(count, item_bytes, &bytes) || !fl_add_i64(bytes, ALIGN - 1, &bytes) ||
        !fl_add_i64(arena->used_bytes, bytes / ALIGN * ALIGN, &end))
        return FL_FAIL(FL_ERR_LIMIT, "step scratch: %lld items of %lld bytes", (long long)count,
                       (long long)item_bytes);
    if (arena->base && end > arena->size_bytes)
        return FL_FAIL(FL_ERR_LIMIT, "step scratch: %lld bytes needed, %lld planned", (long long)end,
                       (long long)arena->size_bytes);
    /* measuring starts at ALIGN, so that no pointer is NULL */
    uintptr_t start =
        (arena->base ? (uintptr_t)arena->base : (uintptr_t)ALIGN) + (uintptr_t)arena->used_bytes;
    memcpy(out_pointer, &start, sizeof start);
    arena->used_bytes = end;
    if (end > arena->peak_bytes) arena->peak_bytes = end;
    return FL_ERR_OK;
}

int64_t fl_arena_mark(const fl_arena *arena) {
    return arena->used_bytes;
}

void fl_arena_reset(fl_arena *arena, int64_t mark) {
    arena->used_bytes = mark;
}
