/* Chunks of doubling size up to 64 KiB; what is larger gets a chunk of its own. Under AddressSanitizer every
 * piece is a chunk, so that an access past a piece is seen. */
#include "text/jinja_arena.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define PIECE_PER_CHUNK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PIECE_PER_CHUNK 1
#endif
#endif
#ifndef PIECE_PER_CHUNK
#define PIECE_PER_CHUNK 0
#endif

enum { ALIGN_BYTES = 16, CHUNK_MIN_BYTES = 4096, CHUNK_MAX_BYTES = 65536 };

struct fl_jarena_chunk {
    fl_jarena_chunk *next;
    size_t used, size; /* of the bytes after this header */
};

/* The header's size rounded up, so that the pieces behind it are aligned. */
enum { HEADER_BYTES = (sizeof(fl_jarena_chunk) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES };

void fl_jarena_init(fl_jarena *arena, size_t max_bytes) {
    *arena = (fl_jarena){.max_bytes = max_bytes};
}

void fl_jarena_clear(fl_jarena *arena) {
    while (arena->chunks != NULL) {
        fl_jarena_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    arena->used_bytes = 0;
}

static fl_jarena_chunk *add_chunk(fl_jarena *arena, size_t bytes) {
    size_t size = bytes;
    if (!PIECE_PER_CHUNK) {
        size_t usual = CHUNK_MIN_BYTES;
        if (arena->chunks != NULL) usual = arena->chunks->size * 2;
        if (usual > CHUNK_MAX_BYTES) usual = CHUNK_MAX_BYTES;
        if (size < usual) size = usual;
    }
    fl_jarena_chunk *chunk = malloc(HEADER_BYTES + size);
    if (chunk == NULL) {
        arena->err = FL_FAIL(FL_ERR_NOMEM, "chat template: %zu bytes", size);
        return NULL;
    }
    *chunk = (fl_jarena_chunk){.next = arena->chunks, .size = size};
    arena->chunks = chunk;
    return chunk;
}

void *fl_jarena_alloc(fl_jarena *arena, size_t count, size_t size) {
    uint64_t bytes, cost = 0;
    bool fits = fl_mul_u64(count, size, &bytes) &&
                fl_add_u64(bytes, bytes == 0 ? ALIGN_BYTES : ALIGN_BYTES - 1, &cost);
    cost -=
        cost %
        ALIGN_BYTES; /* what the limit counts: whole units, so that many tiny pieces cost as they should */
    if (!fits || cost > arena->max_bytes - arena->used_bytes || cost > SIZE_MAX - HEADER_BYTES) {
        arena->err =
            FL_FAIL(FL_ERR_LIMIT, "chat template: its values need more than %zu bytes", arena->max_bytes);
        return NULL;
    }
    arena->used_bytes += (size_t)cost;
    size_t need = PIECE_PER_CHUNK ? (size_t)bytes : (size_t)cost;
    fl_jarena_chunk *chunk = arena->chunks;
    if (PIECE_PER_CHUNK || chunk == NULL || chunk->size - chunk->used < need) {
        chunk = add_chunk(arena, need);
        if (chunk == NULL) return NULL;
    }
    void *piece = (char *)chunk + HEADER_BYTES + chunk->used;
    chunk->used += need;
    return memset(piece, 0, (size_t)bytes);
}

void *fl_jarena_grow(fl_jarena *arena, const void *items, size_t n, size_t size, size_t *cap) {
    size_t want = *cap < 4 ? 4 : *cap;
    if (want > SIZE_MAX / 2) want = SIZE_MAX / 2; /* the allocation below then fails by its limit */
    want *= 2;
    void *grown = fl_jarena_alloc(arena, want, size);
    if (grown == NULL) return NULL;
    if (n > 0) memcpy(grown, items, n * size);
    *cap = want;
    return grown;
}
