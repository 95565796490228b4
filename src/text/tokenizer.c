/* Text to ids: added tokens are found inside the trusted spans; what lies between them is split and merged. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/pretok.h"
#include "text/tokenizer_impl.h"

/* One call's state. Text before `done` is in ids. */
typedef struct encoding {
    const fl_tokenizer *t;
    const char *text;
    size_t n_bytes, done;
    fl_bpe_scratch scratch;
    int32_t *ids; /* [room] */
    size_t n_ids, room;
} encoding;

static fl_err reserve(encoding *e, size_t n_more) {
    if (e->room - e->n_ids >= n_more) return FL_ERR_OK;
    size_t room = e->room + e->room / 2 + n_more; /* at most a few times FL_TEXT_BYTES_MAX */
    int32_t *ids = realloc(e->ids, room * sizeof *ids);
    if (!ids) return FL_FAIL(FL_ERR_NOMEM, "%zu token ids", room);
    e->ids = ids;
    e->room = room;
    return FL_ERR_OK;
}

/* Encodes text[done, end) as plain text. */
static fl_err encode_plain(encoding *e, size_t end) {
    const uint8_t *text = (const uint8_t *)e->text;
    while (e->done < end) {
        size_t n = fl_pretok_next(text + e->done, end - e->done), count;
        FL_TRY(reserve(e, n));
        const fl_bpe_piece piece = {text + e->done, n, e->n_bytes - e->done};
        FL_TRY(fl_bpe_encode(&e->t->bpe, &e->scratch, piece, e->ids + e->n_ids, &count));
        e->n_ids += count;
        e->done += n;
    }
    return FL_ERR_OK;
}

static fl_err encode_match(encoding *e, const fl_added_match *match) {
    FL_TRY(encode_plain(e, match->begin));
    FL_TRY(reserve(e, 1));
    e->ids[e->n_ids++] = match->id;
    e->done = match->end;
    return FL_ERR_OK;
}

/* Finds the added tokens of a trusted span: those of the first set, then those of the second in what is left. */
static fl_err encode_trusted(encoding *e, fl_text_span span) {
    const fl_added *sets = e->t->added;
    size_t at = span.begin;
    fl_added_match first, second;
    for (;;) {
        bool found = fl_added_find(&sets[0], e->text, at, span.end, &first);
        size_t end = found ? first.begin : span.end;
        while (fl_added_find(&sets[1], e->text, at, end, &second)) {
            FL_TRY(encode_match(e, &second));
            at = second.end;
        }
        if (!found) return FL_ERR_OK;
        FL_TRY(encode_match(e, &first));
        at = first.end;
    }
}

static fl_err check_spans(size_t n_bytes, const fl_text_span *spans, size_t n_spans) {
    size_t at = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].begin < at || spans[i].end < spans[i].begin || spans[i].end > n_bytes)
            return FL_FAIL(FL_ERR_INVALID,
                           "trusted[%zu] is [%zu, %zu), expected sorted, disjoint, within %zu bytes", i,
                           spans[i].begin, spans[i].end, n_bytes);
        at = spans[i].end;
    }
    return FL_ERR_OK;
}

fl_err fl_tokenizer_encode(const fl_tokenizer *t, const char *text, size_t n_bytes,
                           const fl_text_span *trusted, size_t n_trusted, int32_t **ids, int64_t *n_ids) {
    *ids = NULL;
    *n_ids = 0;
    if (n_bytes > FL_TEXT_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "a text of %zu bytes, at most %d", n_bytes, FL_TEXT_BYTES_MAX);
    FL_TRY(check_spans(n_bytes, trusted, n_trusted));
    fl_err err = FL_ERR_OK;
    encoding e = {.t = t, .text = text, .n_bytes = n_bytes};
    FL_TRY_GOTO(fl_bpe_scratch_init(&e.scratch, n_bytes));
    FL_TRY_GOTO(reserve(&e, n_bytes / 3 + 16));
    for (size_t i = 0; i < n_trusted; i++) FL_TRY_GOTO(encode_trusted(&e, trusted[i]));
    FL_TRY_GOTO(encode_plain(&e, n_bytes));
    fl_bpe_scratch_close(&e.scratch);
    *ids = e.ids;
    *n_ids = (int64_t)e.n_ids;
    return FL_ERR_OK;
fail:
    fl_bpe_scratch_close(&e.scratch);
    free(e.ids);
    return err;
}

int32_t fl_tokenizer_n_vocab(const fl_tokenizer *t) {
    return t->n_vocab;
}

fl_err fl_tokenizer_find(const fl_tokenizer *t, const char *content, int32_t *id) {
    size_t n = strlen(content);
    for (int i = 0; i < 2; i++) {
        const fl_added_token *token = fl_added_lookup(&t->added[i], content, n);
        if (token) {
            *id = token->id;
            return FL_ERR_OK;
        }
    }
    *id = fl_tokenizer_plain_id(t, content, n);
    if (*id < 0) return FL_FAIL(FL_ERR_INVALID, "the tokenizer has no token \"%.64s\"", content);
    return FL_ERR_OK;
}

static const fl_token *token_of(const fl_tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->n_vocab || !(t->tokens[id].flags & FL_TOKEN_PRESENT)) return NULL;
    return &t->tokens[id];
}

const char *fl_tokenizer_token_bytes(const fl_tokenizer *t, int32_t id, size_t *n_bytes) {
    const fl_token *token = token_of(t, id);
    *n_bytes = token ? token->n_bytes : 0;
    return token ? t->bytes + token->offset : NULL;
}

int64_t fl_tokenizer_count_before(const fl_tokenizer *t, const int32_t *ids, int64_t n_ids, size_t byte) {
    size_t at = 0, n_bytes;
    for (int64_t i = 0; i < n_ids; i++) {
        fl_tokenizer_token_bytes(t, ids[i], &n_bytes);
        at += n_bytes;
        if (at > byte) return i;
    }
    return n_ids;
}

bool fl_tokenizer_is_control(const fl_tokenizer *t, int32_t id) {
    const fl_token *token = token_of(t, id);
    return token && (token->flags & FL_TOKEN_CONTROL);
}

bool fl_tokenizer_is_added(const fl_tokenizer *t, int32_t id) {
    const fl_token *token = token_of(t, id);
    return token && (token->flags & FL_TOKEN_ADDED);
}
