/* Any bytes as tokenizer.json. An accepted tokenizer must encode, and decode to the same bytes. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const fl_tokenizer *t) {
    static const char TEXT[] =
        "Hello the  world, 12345\n\n\xe4\xb8\xad\xe6\x96\x87 \xff<think>the the the the the the the "
        "                                                                 in the end";
    const fl_text_span all = {0, sizeof TEXT - 1};
    int32_t *ids;
    int64_t n_ids;
    if (fl_tokenizer_encode(t, TEXT, sizeof TEXT - 1, &all, 1, &ids, &n_ids) != FL_ERR_OK) abort();
    size_t at = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *token = fl_tokenizer_token_bytes(t, ids[i], &n);
        if (!token || n > sizeof TEXT - 1 - at || memcmp(TEXT + at, token, n) != 0) abort();
        at += n;
    }
    if (at != sizeof TEXT - 1) abort();
    free(ids);
    for (int32_t id = -1; id <= fl_tokenizer_n_vocab(t) && id < 1000; id++) {
        size_t n;
        if (fl_tokenizer_token_bytes(t, id, &n) ? n < 1 || n > FL_TOKEN_BYTES_MAX : n != 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    fl_tokenizer *t;
    fl_err err = fl_tokenizer_open_memory((const char *)bytes, n_bytes, &t);
    if ((err == FL_ERR_OK) != (t != NULL)) abort();
    if (t) check(t);
    fl_tokenizer_close(t);
    return 0;
}
