/* Ids to text. The state is the incomplete code point at the end of what came so far. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"
#include "text/utf8.h"

static const char REPLACEMENT[3] = "\xef\xbf\xbd";

void fl_detok_init(fl_detok *d, bool show_control) {
    *d = (fl_detok){.show_control = show_control};
}

/* Copies whole code points to out and keeps an incomplete one. Returns the number of bytes written, at most three for
 * each byte of p. */
static size_t emit(fl_detok *d, const uint8_t *p, size_t n, char *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code_point;
        int length = fl_utf8_decode(p + i, n - i, &code_point);
        if (length == 0) {
            d->n_held = (uint8_t)(n - i);
            memcpy(d->held, p + i, n - i);
            break;
        }
        size_t size = length > 0 ? (size_t)length : sizeof REPLACEMENT;
        memcpy(out + n_out, length > 0 ? (const char *)p + i : REPLACEMENT, size);
        n_out += size;
        i += (size_t)(length > 0 ? length : -length);
    }
    return n_out;
}

void fl_detok_push(const fl_tokenizer *t, fl_detok *d, int32_t id, char *out, size_t *n_out) {
    uint8_t bytes[3 + FL_TOKEN_BYTES_MAX];
    size_t n, n_held = d->n_held;
    const char *token = fl_tokenizer_token_bytes(t, id, &n);
    *n_out = 0;
    if (!token || (!d->show_control && fl_tokenizer_is_control(t, id))) return;
    memcpy(bytes, d->held, n_held);
    memcpy(bytes + n_held, token, n);
    d->n_held = 0;
    *n_out = emit(d, bytes, n_held + n, out);
}

void fl_detok_finish(fl_detok *d, char *out, size_t *n_out) {
    *n_out = d->n_held > 0 ? sizeof REPLACEMENT : 0;
    memcpy(out, REPLACEMENT, *n_out);
    d->n_held = 0;
}

fl_err fl_tokenizer_decode(const fl_tokenizer *t, const int32_t *ids, int64_t n_ids, bool show_control,
                           char **text, size_t *n_bytes) {
    size_t room = 3 + 1; /* the end's U+FFFD and the NUL */
    for (int64_t i = 0; i < n_ids; i++) {
        size_t n;
        fl_tokenizer_token_bytes(t, ids[i], &n);
        room += 3 * n;
    }
    char *out = malloc(room);
    *text = out;
    *n_bytes = 0;
    if (!out) return FL_FAIL(FL_ERR_NOMEM, "the text of %lld tokens", (long long)n_ids);
    fl_detok d;
    fl_detok_init(&d, show_control);
    size_t at = 0, n;
    for (int64_t i = 0; i < n_ids; i++) {
        fl_detok_push(t, &d, ids[i], out + at, &n);
        at += n;
    }
    fl_detok_finish(&d, out + at, &n);
    at += n;
    out[at] = '\0';
    *n_bytes = at;
    return FL_ERR_OK;
}
