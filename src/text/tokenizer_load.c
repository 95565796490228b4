/* From tokenizer.json's vocabulary, added tokens and merges to the tables. The file's structure is checked before
 * (tokenizer_schema.c); here every string and number is. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

/* The byte alphabet writes every byte as one printable character: itself where Latin-1 has one, else U+0100 and up in
 * order of the bytes without. */
enum { ALPHABET_END = 0x100 + 68 };

_Static_assert(FL_TOKENIZER_VOCAB_MAX <= 1 << FL_BPE_BITS, "ids and ranks must fit into the merge table");

typedef struct loader {
    fl_tokenizer *t;
    fl_tokenizer_parts parts;
    size_t bytes_max;
    int16_t byte_of[ALPHABET_END]; /* code point -> byte, -1 = none */
} loader;

static void alphabet_init(int16_t byte_of[ALPHABET_END]) {
    for (int i = 0; i < ALPHABET_END; i++) byte_of[i] = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        byte_of[printable ? byte : next++] = (int16_t)byte;
    }
}

/* Decodes text in the byte alphabet into out[FL_TOKEN_BYTES_MAX]; false if it is not in it, empty or too long. */
static bool alphabet_decode(const loader *l, const char *text, size_t n, char *out, size_t *n_out) {
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code_point;
        int length = fl_utf8_decode((const uint8_t *)text + i, n - i, &code_point);
        if (length <= 0 || code_point >= ALPHABET_END || l->byte_of[code_point] < 0) return false;
        if (count == FL_TOKEN_BYTES_MAX) return false;
        out[count++] = (char)l->byte_of[code_point];
        i += (size_t)length;
    }
    *n_out = count;
    return count > 0;
}

static uint64_t hash_of(const char *bytes, size_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)bytes[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

int32_t *fl_tokenizer_slot(const fl_tokenizer *t, const char *bytes, size_t n_bytes) {
    for (size_t i = hash_of(bytes, n_bytes);; i++) {
        int32_t *slot = &t->slots[i & t->slot_mask];
        if (*slot < 0) return slot;
        const fl_token *token = &t->tokens[*slot];
        if (token->n_bytes == n_bytes && memcmp(t->bytes + token->offset, bytes, n_bytes) == 0) return slot;
    }
}

int32_t fl_tokenizer_plain_id(const fl_tokenizer *t, const char *bytes, size_t n_bytes) {
    return *fl_tokenizer_slot(t, bytes, n_bytes);
}

/* Room for every token. The decoded bytes of all strings are no more than the file's. */
static fl_err tables_alloc(loader *l) {
    fl_tokenizer *t = l->t;
    json_int_t highest = -1;
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)l->parts.vocab, text, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= FL_TOKENIZER_VOCAB_MAX)
            return FL_FAIL(FL_ERR_DATA, "tokenizer.json: the id of \"%.64s\" is no integer from 0 to %d",
                           text, FL_TOKENIZER_VOCAB_MAX - 1);
        if (id > highest) highest = id;
    }
    size_t n_added = json_array_size(l->parts.added);
    if (n_added > FL_TOKENIZER_ADDED_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "tokenizer.json: %zu added tokens, at most %d", n_added,
                       FL_TOKENIZER_ADDED_MAX);
    for (size_t i = 0; i < n_added; i++) {
        const json_t *entry = json_array_get(l->parts.added, i);
        FL_TRY(fl_tokenizer_check_added(entry, i));
        json_int_t id = json_integer_value(json_object_get(entry, "id"));
        if (id < 0 || id >= FL_TOKENIZER_VOCAB_MAX)
            return FL_FAIL(FL_ERR_DATA, "tokenizer.json: added_tokens[%zu].id is %lld, expected 0 to %d", i,
                           (long long)id, FL_TOKENIZER_VOCAB_MAX - 1);
        if (id > highest) highest = id;
    }
    t->n_vocab = (int32_t)(highest + 1);
    size_t n_slots = 512;
    while (n_slots / 2 < json_object_size(l->parts.vocab)) n_slots *= 2;
    t->slot_mask = n_slots - 1;
    t->bytes = malloc(l->bytes_max + 1);
    t->tokens = calloc((size_t)t->n_vocab + 1, sizeof *t->tokens);
    t->slots = malloc(n_slots * sizeof *t->slots);
    for (int i = 0; i < 2; i++) t->added[i].tokens = malloc((n_added + 1) * sizeof *t->added[i].tokens);
    if (!t->bytes || !t->tokens || !t->slots || !t->added[0].tokens || !t->added[1].tokens)
        return FL_FAIL(FL_ERR_NOMEM, "a tokenizer of %d ids", t->n_vocab);
    for (size_t i = 0; i < n_slots; i++) t->slots[i] = -1;
    return FL_ERR_OK;
}

/* Gives an id its bytes. */
static fl_err token_put(loader *l, int32_t id, const char *bytes, size_t n_bytes, unsigned flags) {
    fl_tokenizer *t = l->t;
    fl_token *token = &t->tokens[id];
    if (n_bytes > l->bytes_max - t->n_bytes)
        return FL_FAIL(FL_ERR_INTERNAL, "tokens have more bytes than their file");
    *token = (fl_token){(uint32_t)t->n_bytes, (uint16_t)n_bytes, (uint16_t)(flags | FL_TOKEN_PRESENT)};
    memcpy(t->bytes + t->n_bytes, bytes, n_bytes);
    t->n_bytes += n_bytes;
    return FL_ERR_OK;
}

/* Tokens in the byte alphabet go into the table for merging. Others must turn out to be added tokens. */
static fl_err read_vocab(loader *l) {
    fl_tokenizer *t = l->t;
    const char *text;
    size_t n;
    json_t *value;
    json_object_keylen_foreach((json_t *)l->parts.vocab, text, n, value) {
        int32_t id = (int32_t)json_integer_value(value);
        if (t->tokens[id].flags & FL_TOKEN_PRESENT)
            return FL_FAIL(FL_ERR_DATA, "tokenizer.json: model.vocab has id %d twice, once for \"%.64s\"", id,
                           text);
        char bytes[FL_TOKEN_BYTES_MAX];
        size_t n_bytes = 0;
        if (alphabet_decode(l, text, n, bytes, &n_bytes)) {
            FL_TRY(token_put(l, id, bytes, n_bytes, FL_TOKEN_PLAIN));
            *fl_tokenizer_slot(t, bytes, n_bytes) = id;
        } else if (n == 0 || n > FL_TOKEN_BYTES_MAX) {
            return FL_FAIL(FL_ERR_LIMIT, "tokenizer.json: token %d has %zu bytes, expected 1 to %d", id, n,
                           FL_TOKEN_BYTES_MAX);
        } else {
            FL_TRY(token_put(l, id, text, n, 0));
        }
    }
    return FL_ERR_OK;
}

static fl_err read_added_token(loader *l, const json_t *entry, size_t index) {
    fl_tokenizer *t = l->t;
    int32_t id = (int32_t)json_integer_value(json_object_get(entry, "id"));
    const json_t *content = json_object_get(entry, "content");
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    if (n == 0 || n > FL_TOKEN_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "tokenizer.json: added_tokens[%zu] has %zu bytes, expected 1 to %d",
                       index, n, FL_TOKEN_BYTES_MAX);
    fl_token *token = &t->tokens[id];
    const json_t *in_vocab = json_object_getn(l->parts.vocab, text, n);
    if (in_vocab && json_integer_value(in_vocab) != id)
        return FL_FAIL(FL_ERR_DATA,
                       "tokenizer.json: added_tokens[%zu] \"%.64s\" has id %d, model.vocab gives it %lld",
                       index, text, id, (long long)json_integer_value(in_vocab));
    if (token->flags & FL_TOKEN_ADDED)
        return FL_FAIL(FL_ERR_DATA, "tokenizer.json: added_tokens[%zu] repeats id %d", index, id);
    if (!(token->flags & FL_TOKEN_PRESENT)) FL_TRY(token_put(l, id, text, n, 0));
    else if (token->n_bytes != n || memcmp(t->bytes + token->offset, text, n) != 0)
        return FL_FAIL(FL_ERR_DATA,
                       "tokenizer.json: added_tokens[%zu] \"%.64s\" has the id %d of another token", index,
                       text, id);
    bool special = json_is_true(json_object_get(entry, "special"));
    token->flags = (uint16_t)(token->flags | FL_TOKEN_ADDED | (special ? FL_TOKEN_CONTROL : 0));
    fl_added *set = &t->added[json_is_true(json_object_get(entry, "normalized"))];
    set->tokens[set->n_tokens++] = (fl_added_token){t->bytes + token->offset, (uint32_t)n, id};
    return FL_ERR_OK;
}

static fl_err read_added(loader *l) {
    fl_tokenizer *t = l->t;
    for (size_t i = 0; i < json_array_size(l->parts.added); i++)
        FL_TRY(read_added_token(l, json_array_get(l->parts.added, i), i));
    for (int i = 0; i < 2; i++) {
        const fl_added_token *twice = fl_added_sort(&t->added[i]);
        if (twice)
            return FL_FAIL(FL_ERR_DATA, "tokenizer.json: the added token \"%.*s\" is there twice",
                           (int)(twice->n_bytes < 64 ? twice->n_bytes : 64), twice->bytes);
    }
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const fl_token *token = &t->tokens[id];
        if ((token->flags & FL_TOKEN_PRESENT) && !(token->flags & (FL_TOKEN_PLAIN | FL_TOKEN_ADDED)))
            return FL_FAIL(
                FL_ERR_UNSUPPORTED,
                "tokenizer.json: token %d \"%.*s\" is neither in the byte alphabet nor an added token", id,
                token->n_bytes < 64 ? token->n_bytes : 64, t->bytes + token->offset);
    }
    return FL_ERR_OK;
}

/* Both sides of a merge, "left right" or ["left", "right"]. */
static bool merge_sides(const json_t *merge, const char *text[2], size_t n[2]) {
    if (json_is_string(merge)) {
        text[0] = json_string_value(merge);
        size_t length = json_string_length(merge);
        const char *blank = memchr(text[0], ' ', length);
        if (!blank) return false;
        n[0] = (size_t)(blank - text[0]);
        text[1] = blank + 1;
        n[1] = length - n[0] - 1; /* a second blank is not in the byte alphabet */
        return true;
    }
    if (!json_is_array(merge) || json_array_size(merge) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *side = json_array_get(merge, i);
        if (!json_is_string(side)) return false;
        text[i] = json_string_value(side);
        n[i] = json_string_length(side);
    }
    return true;
}

static fl_err read_merge(loader *l, const json_t *merge, size_t index) {
    const char *text[2];
    size_t n[2], n_bytes[2];
    char bytes[2 * FL_TOKEN_BYTES_MAX];
    if (!merge_sides(merge, text, n) || !alphabet_decode(l, text[0], n[0], bytes, &n_bytes[0]) ||
        !alphabet_decode(l, text[1], n[1], bytes + n_bytes[0], &n_bytes[1]))
        return FL_FAIL(FL_ERR_DATA,
                       "tokenizer.json: model.merges[%zu] is no pair of tokens in the byte alphabet", index);
    int32_t left = fl_tokenizer_plain_id(l->t, bytes, n_bytes[0]);
    int32_t right = fl_tokenizer_plain_id(l->t, bytes + n_bytes[0], n_bytes[1]);
    int32_t both = fl_tokenizer_plain_id(l->t, bytes, n_bytes[0] + n_bytes[1]);
    if (left < 0 || right < 0 || both < 0)
        return FL_FAIL(FL_ERR_DATA, "tokenizer.json: model.merges[%zu]: %s not in model.vocab", index,
                       left < 0    ? "its left side is"
                       : right < 0 ? "its right side is"
                                   : "what it makes is");
    return fl_bpe_add(&l->t->bpe, left, right, both);
}

static fl_err read_merges(loader *l) {
    int32_t byte_ids[256];
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        byte_ids[byte] = fl_tokenizer_plain_id(l->t, &c, 1);
        if (byte_ids[byte] < 0)
            return FL_FAIL(FL_ERR_UNSUPPORTED, "tokenizer.json: model.vocab has no token for the byte 0x%02x",
                           byte);
    }
    size_t n_merges = json_array_size(l->parts.merges);
    if (n_merges > FL_TOKENIZER_VOCAB_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "tokenizer.json: %zu merges, at most %d", n_merges,
                       FL_TOKENIZER_VOCAB_MAX);
    FL_TRY(fl_bpe_init(&l->t->bpe, byte_ids, (uint32_t)n_merges));
    for (size_t i = 0; i < n_merges; i++) FL_TRY(read_merge(l, json_array_get(l->parts.merges, i), i));
    fl_tokenizer *t = l->t;
    bool *whole;
    FL_TRY(fl_bpe_finish(&t->bpe, json_object_size(l->parts.vocab)));
    FL_TRY(fl_bpe_whole(&t->bpe, (size_t)t->n_vocab, &whole));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const fl_token *token = &t->tokens[id];
        if (whole[id]) fl_bpe_know(&t->bpe, (const uint8_t *)t->bytes + token->offset, token->n_bytes, id);
    }
    free(whole);
    return FL_ERR_OK;
}

/* Gives back what the upper bound on the tokens' bytes took too much. Pointers into them follow. */
static fl_err bytes_shrink(fl_tokenizer *t) {
    char *bytes = malloc(t->n_bytes + 1);
    if (!bytes) return FL_FAIL(FL_ERR_NOMEM, "%zu bytes of tokens", t->n_bytes);
    memcpy(bytes, t->bytes, t->n_bytes);
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < t->added[i].n_tokens; j++)
            t->added[i].tokens[j].bytes = bytes + (t->added[i].tokens[j].bytes - t->bytes);
    free(t->bytes);
    t->bytes = bytes;
    return FL_ERR_OK;
}

fl_err fl_tokenizer_open_memory(const char *json, size_t n_bytes, fl_tokenizer **out) {
    *out = NULL;
    if (n_bytes > FL_TOKENIZER_FILE_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "tokenizer.json has %zu bytes, at most %d", n_bytes,
                       FL_TOKENIZER_FILE_BYTES_MAX);
    json_error_t fault;
    json_t *root = json_loadb(json, n_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!root)
        return FL_FAIL(FL_ERR_DATA, "tokenizer.json: line %d, column %d: %s", fault.line, fault.column,
                       fault.text);
    fl_err err = FL_ERR_OK;
    loader l = {.t = calloc(1, sizeof *l.t), .bytes_max = n_bytes};
    if (!l.t) {
        err = FL_FAIL(FL_ERR_NOMEM, "a tokenizer");
        goto fail;
    }
    alphabet_init(l.byte_of);
    FL_TRY_GOTO(fl_tokenizer_check(root, &l.parts));
    FL_TRY_GOTO(tables_alloc(&l));
    FL_TRY_GOTO(read_vocab(&l));
    FL_TRY_GOTO(read_added(&l));
    FL_TRY_GOTO(read_merges(&l));
    FL_TRY_GOTO(bytes_shrink(l.t));
    json_decref(root);
    *out = l.t;
    return FL_ERR_OK;
fail:
    json_decref(root);
    fl_tokenizer_close(l.t);
    return err;
}

fl_err fl_tokenizer_open(const char *model_dir, fl_tokenizer **out) {
    char *json;
    size_t n_bytes;
    *out = NULL;
    FL_TRY(fl_file_read(model_dir, "tokenizer.json", FL_TOKENIZER_FILE_BYTES_MAX, &json, &n_bytes));
    fl_err err = fl_tokenizer_open_memory(json, n_bytes, out);
    free(json);
#ifdef __GLIBC__
    malloc_trim(
        0); /* the parsed file was several times the tokenizer's size, in pieces that would stay resident */
#endif
    return err;
}

void fl_tokenizer_close(fl_tokenizer *t) {
    if (!t) return;
    fl_bpe_close(&t->bpe);
    for (int i = 0; i < 2; i++) free(t->added[i].tokens);
    free(t->slots);
    free(t->tokens);
    free(t->bytes);
    free(t);
}
