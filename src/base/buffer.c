#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

void fl_buffer_init(fl_buffer *b, size_t max_bytes) {
    *b = (fl_buffer){.max = max_bytes};
}

void fl_buffer_free(fl_buffer *b) {
    free(b->bytes);
    fl_buffer_init(b, b->max);
}

void fl_buffer_clear(fl_buffer *b) {
    b->n = 0;
    b->failure = FL_ERR_OK;
}

/* Room for `more` bytes: doubles, so that n additions cost O(n) copies, but never beyond the cap. */
static fl_err grow(fl_buffer *b, size_t more) {
    enum { FIRST_BYTES = 256 };
    if (more > b->max - b->n) return FL_ERR_LIMIT;
    size_t need = b->n + more, cap = b->cap > 0 ? b->cap : FIRST_BYTES;
    if (need <= b->cap) return FL_ERR_OK;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap > b->max) cap = b->max;
    char *bytes = realloc(b->bytes, cap);
    if (bytes == NULL) return FL_ERR_NOMEM;
    b->bytes = bytes;
    b->cap = cap;
    return FL_ERR_OK;
}

void fl_buffer_add(fl_buffer *b, const void *bytes, size_t n) {
    if (n == 0 || b->failure != FL_ERR_OK) return;
    b->failure = grow(b, n);
    if (b->failure != FL_ERR_OK) return;
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

void fl_buffer_drop(fl_buffer *b, size_t n) {
    if (n >= b->n) {
        b->n = 0;
        return;
    }
    if (n > 0) memmove(b->bytes, b->bytes + n, b->n - n);
    b->n -= n;
}

fl_err fl_buffer_check(const fl_buffer *b) {
    if (b->failure == FL_ERR_OK) return FL_ERR_OK;
    if (b->failure == FL_ERR_LIMIT) return FL_FAIL(FL_ERR_LIMIT, "a buffer of %zu bytes is full", b->max);
    return FL_FAIL(FL_ERR_NOMEM, "a buffer of %zu bytes could not grow", b->n);
}
