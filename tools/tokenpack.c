/* Lines in, ids out, and back. The encoder decodes its own work and compares, so a layout it does not understand is an
 * error there and not a surprise in a test. */
#include "tools/tokenpack.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static const size_t BYTES_MAX = (size_t)1 << 28;
enum { N_COUNTS = 5, PLANES = 6, IDS_MAX = 1 << 24, INDENT = 12, LINE_EXTRA = 32 };

static const char VOCAB[] = "\"vocab\": {\n", MERGES[] = "\"merges\": [\n";

/* Text that lies in someone else's memory. */
typedef struct piece {
    const char *text;
    size_t n;
} piece;

/* The contents of a pack, in memory of its own or its frame's. */
typedef struct content {
    piece head, middle, tail;
    piece *tokens;     /* [n_first + n_merges] owned; as JSON writes them */
    char *token_bytes; /* owned: the text of the merged tokens */
    uint32_t n_first, n_merges;
    uint32_t *left, *right; /* [n_merges] owned */
} content;

static void content_close(content *c) {
    free(c->tokens);
    free(c->token_bytes);
    free(c->left);
    free(c->right);
}

static fl_err content_alloc(content *c) {
    size_t n_merges = c->n_merges;
    c->tokens = calloc(n_merges + c->n_first + 1, sizeof *c->tokens);
    c->left = calloc(n_merges + 1, sizeof *c->left);
    c->right = calloc(n_merges + 1, sizeof *c->right);
    if (!c->tokens || !c->left || !c->right) return FL_FAIL(FL_ERR_NOMEM, "%zu merges", n_merges);
    return FL_ERR_OK;
}

/* ---- frames ---------------------------------------------------------------------------------------------------- */

fl_err fl_frame_encode(const char *bytes, size_t n_bytes, int level, char **out, size_t *out_bytes) {
    *out = NULL;
    if (n_bytes > BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "%zu bytes to pack, at most %zu", n_bytes, BYTES_MAX);
    size_t room = ZSTD_compressBound(n_bytes);
    char *frame = malloc(room);
    if (!frame) return FL_FAIL(FL_ERR_NOMEM, "%zu bytes", room);
    size_t size = ZSTD_compress(frame, room, bytes, n_bytes, level);
    if (ZSTD_isError(size)) {
        free(frame);
        return FL_FAIL(FL_ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(size));
    }
    *out = frame;
    *out_bytes = size;
    return FL_ERR_OK;
}

fl_err fl_frame_decode(const char *frame, size_t frame_bytes, char **out, size_t *out_bytes) {
    *out = NULL;
    unsigned long long size = ZSTD_getFrameContentSize(frame, frame_bytes);
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > BYTES_MAX)
        return FL_FAIL(FL_ERR_DATA, "no zstd frame of a known size up to %zu bytes", BYTES_MAX);
    char *bytes = malloc((size_t)size + 1);
    if (!bytes) return FL_FAIL(FL_ERR_NOMEM, "%llu bytes", size);
    size_t n = ZSTD_decompress(bytes, (size_t)size, frame, frame_bytes);
    if (ZSTD_isError(n) || n != size) {
        free(bytes);
        return FL_FAIL(FL_ERR_DATA, "zstd: %s", ZSTD_isError(n) ? ZSTD_getErrorName(n) : "short frame");
    }
    bytes[n] = '\0';
    *out = bytes;
    *out_bytes = n;
    return FL_ERR_OK;
}

/* ---- tokenizer.json to content --------------------------------------------------------------------------------- */

/* Takes the next line, without its newline. */
static bool line_take(piece *rest, piece *line) {
    const char *end = memchr(rest->text, '\n', rest->n);
    if (!end) return false;
    line->text = rest->text;
    line->n = (size_t)(end - rest->text);
    rest->text = end + 1;
    rest->n -= line->n + 1;
    return true;
}

/* Takes the next line and returns what lies between its first and last quote; NULL if it is not such a line. */
static piece quoted_take(piece *rest) {
    const piece none = {NULL, 0};
    piece line = none;
    if (!line_take(rest, &line) || line.n < INDENT + 2 || line.text[INDENT] != '"') return none;
    size_t end = line.n - 1;
    while (end > INDENT && line.text[end] != '"') end--;
    return end == INDENT ? none : (piece){line.text + INDENT + 1, end - INDENT - 1};
}

/* Finds text[0, n) in *rest and cuts off everything up to its end. */
static bool cut_behind(piece *rest, const char *text, size_t n, piece *cut) {
    const char *found = rest->n >= n ? memmem(rest->text, rest->n, text, n) : NULL;
    if (!found) return false;
    cut->text = rest->text;
    cut->n = (size_t)(found - rest->text) + n;
    rest->text += cut->n;
    rest->n -= cut->n;
    return true;
}

/* Counts the quoted lines at the beginning of rest. */
static size_t count_quoted(piece rest) {
    size_t n = 0;
    while (quoted_take(&rest).text) n++;
    return n;
}

/* A token with its id, for searching by text. */
typedef struct entry {
    piece text;
    uint32_t id;
} entry;

static int compare_texts(const void *a, const void *b) {
    piece x = ((const entry *)a)->text, y = ((const entry *)b)->text;
    int order = memcmp(x.text, y.text, x.n < y.n ? x.n : y.n);
    return order != 0 ? order : (x.n > y.n) - (x.n < y.n);
}

/* The ids of both sides of every merge line. */
static fl_err merges_read(content *c, const entry *sorted, piece rest) {
    size_t n_tokens = (size_t)c->n_first + c->n_merges;
    for (uint32_t i = 0; i < c->n_merges; i++) {
        piece text = quoted_take(&rest);
        const char *blank = text.text ? memchr(text.text, ' ', text.n) : NULL;
        if (!blank) return FL_FAIL(FL_ERR_UNSUPPORTED, "merge %u has no blank", i);
        size_t n_left = (size_t)(blank - text.text);
        const entry left = {{text.text, n_left}, 0}, right = {{blank + 1, text.n - n_left - 1}, 0};
        const entry *found[2] = {bsearch(&left, sorted, n_tokens, sizeof left, compare_texts),
                                 bsearch(&right, sorted, n_tokens, sizeof right, compare_texts)};
        if (!found[0] || !found[1])
            return FL_FAIL(FL_ERR_UNSUPPORTED, "merge %u has a side that is no token", i);
        c->left[i] = found[0]->id;
        c->right[i] = found[1]->id;
    }
    return FL_ERR_OK;
}

static fl_err content_read(content *c, const char *json, size_t json_bytes) {
    piece rest = {json, json_bytes};
    if (!cut_behind(&rest, VOCAB, sizeof VOCAB - 1, &c->head))
        return FL_FAIL(FL_ERR_UNSUPPORTED, "no vocabulary that begins with a line of its own");
    size_t n_tokens = count_quoted(rest);
    piece at_merges = rest, skipped;
    if (!cut_behind(&at_merges, MERGES, sizeof MERGES - 1, &skipped))
        return FL_FAIL(FL_ERR_UNSUPPORTED, "no merges behind the vocabulary");
    size_t n_merges = count_quoted(at_merges);
    if (n_merges > n_tokens || n_tokens > IDS_MAX)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "%zu tokens and %zu merges", n_tokens, n_merges);
    c->n_merges = (uint32_t)n_merges;
    c->n_first = (uint32_t)(n_tokens - n_merges);
    FL_TRY(content_alloc(c));
    for (size_t i = 0; i < n_tokens; i++) c->tokens[i] = quoted_take(&rest);
    c->middle = (piece){rest.text, (size_t)(at_merges.text - rest.text)};
    entry *sorted = malloc((n_tokens + 1) * sizeof *sorted);
    if (!sorted) return FL_FAIL(FL_ERR_NOMEM, "%zu tokens", n_tokens);
    for (size_t i = 0; i < n_tokens; i++) sorted[i] = (entry){c->tokens[i], (uint32_t)i};
    qsort(sorted, n_tokens, sizeof *sorted, compare_texts);
    fl_err err = merges_read(c, sorted, at_merges);
    free(sorted);
    FL_TRY(err);
    for (size_t i = 0; i < n_merges; i++) quoted_take(&at_merges);
    c->tail = at_merges;
    return FL_ERR_OK;
}

/* ---- content to frame and back --------------------------------------------------------------------------------- */

static void put_u32(char **to, size_t value) {
    for (int i = 0; i < 4; i++) *(*to)++ = (char)(value >> (8 * i) & 0xff);
}

static void put_piece(char **to, piece text) {
    memcpy(*to, text.text, text.n);
    *to += text.n;
}

static fl_err content_pack(const content *c, int level, char **out, size_t *out_bytes) {
    size_t size = 4 * N_COUNTS + c->head.n + c->middle.n + c->tail.n + (size_t)PLANES * c->n_merges;
    for (uint32_t i = 0; i < c->n_first; i++) size += c->tokens[i].n + 1;
    char *bytes = malloc(size), *to = bytes;
    if (!bytes) return FL_FAIL(FL_ERR_NOMEM, "%zu bytes", size);
    const size_t counts[N_COUNTS] = {c->head.n, c->middle.n, c->tail.n, c->n_first, c->n_merges};
    for (int i = 0; i < N_COUNTS; i++) put_u32(&to, counts[i]);
    put_piece(&to, c->head);
    put_piece(&to, c->middle);
    put_piece(&to, c->tail);
    for (uint32_t i = 0; i < c->n_first; i++) {
        put_piece(&to, c->tokens[i]);
        *to++ = '\n';
    }
    for (int plane = 0; plane < PLANES; plane++)
        for (uint32_t i = 0; i < c->n_merges; i++)
            *to++ = (char)((plane < 3 ? c->left : c->right)[i] >> (8 * (plane % 3)) & 0xff);
    fl_err err = fl_frame_encode(bytes, size, level, out, out_bytes);
    free(bytes);
    return err;
}

static bool piece_take(piece *rest, size_t n, piece *out) {
    if (rest->n < n) return false;
    *out = (piece){rest->text, n};
    rest->text += n;
    rest->n -= n;
    return true;
}

/* Writes the text of every merged token; a merge may only use tokens that are there before it. */
static fl_err tokens_join(content *c) {
    size_t n_bytes = 0, room = 0;
    for (uint32_t i = 0; i < c->n_merges; i++) {
        uint32_t id = c->n_first + i;
        if (c->left[i] >= id || c->right[i] >= id)
            return FL_FAIL(FL_ERR_DATA, "merge %u of the pack uses a token that is not there yet", i);
        c->tokens[id].n = c->tokens[c->left[i]].n + c->tokens[c->right[i]].n;
        room += c->tokens[id].n;
        if (room > BYTES_MAX)
            return FL_FAIL(FL_ERR_DATA, "the pack's tokens have more than %zu bytes", BYTES_MAX);
    }
    c->token_bytes = malloc(room + 1);
    if (!c->token_bytes) return FL_FAIL(FL_ERR_NOMEM, "%zu bytes", room);
    for (uint32_t i = 0; i < c->n_merges; i++) {
        piece *token = &c->tokens[c->n_first + i];
        const piece *left = &c->tokens[c->left[i]], *right = &c->tokens[c->right[i]];
        char *text = c->token_bytes + n_bytes;
        memcpy(text, left->text, left->n);
        memcpy(text + left->n, right->text, right->n);
        token->text = text;
        n_bytes += token->n;
    }
    return FL_ERR_OK;
}

static fl_err content_unpack(content *c, const char *bytes, size_t n_bytes) {
    piece rest = {bytes, n_bytes}, counts_text, plane;
    size_t counts[N_COUNTS] = {0};
    if (!piece_take(&rest, 4 * N_COUNTS, &counts_text)) return FL_FAIL(FL_ERR_DATA, "the pack is cut off");
    for (size_t i = 0; i < 4 * N_COUNTS; i++)
        counts[i / 4] |= (size_t)(uint8_t)counts_text.text[i] << 8 * (i % 4);
    if (!piece_take(&rest, counts[0], &c->head) || !piece_take(&rest, counts[1], &c->middle) ||
        !piece_take(&rest, counts[2], &c->tail) || counts[3] > IDS_MAX || counts[4] > IDS_MAX)
        return FL_FAIL(FL_ERR_DATA, "the pack is cut off");
    c->n_first = (uint32_t)counts[3];
    c->n_merges = (uint32_t)counts[4];
    FL_TRY(content_alloc(c));
    for (uint32_t i = 0; i < c->n_first; i++)
        if (!line_take(&rest, &c->tokens[i])) return FL_FAIL(FL_ERR_DATA, "the pack is cut off");
    for (int k = 0; k < PLANES; k++) {
        if (!piece_take(&rest, c->n_merges, &plane)) return FL_FAIL(FL_ERR_DATA, "the pack is cut off");
        uint32_t *ids = k < 3 ? c->left : c->right;
        for (uint32_t i = 0; i < c->n_merges; i++) ids[i] |= (uint32_t)(uint8_t)plane.text[i] << 8 * (k % 3);
    }
    return tokens_join(c);
}

/* ---- content to tokenizer.json --------------------------------------------------------------------------------- */

static fl_err content_write(const content *c, char **out, size_t *out_bytes) {
    size_t n_tokens = (size_t)c->n_first + c->n_merges, room = c->head.n + c->middle.n + c->tail.n + 1;
    for (size_t i = 0; i < n_tokens; i++) room += 2 * (c->tokens[i].n + LINE_EXTRA);
    char *json = malloc(room), *to = json;
    if (!json) return FL_FAIL(FL_ERR_NOMEM, "%zu bytes", room);
    put_piece(&to, c->head);
    for (size_t i = 0; i < n_tokens; i++) {
        to += sprintf(to, "%*s\"", INDENT, "");
        put_piece(&to, c->tokens[i]);
        to += sprintf(to, "\": %zu%s\n", i, i + 1 < n_tokens ? "," : "");
    }
    put_piece(&to, c->middle);
    for (uint32_t i = 0; i < c->n_merges; i++) {
        to += sprintf(to, "%*s\"", INDENT, "");
        put_piece(&to, c->tokens[c->left[i]]);
        *to++ = ' ';
        put_piece(&to, c->tokens[c->right[i]]);
        to += sprintf(to, "\"%s\n", i + 1 < c->n_merges ? "," : "");
    }
    put_piece(&to, c->tail);
    *to = '\0';
    *out = json;
    *out_bytes = (size_t)(to - json);
    return FL_ERR_OK;
}

fl_err fl_tokenpack_decode(const char *pack, size_t pack_bytes, char **out, size_t *out_bytes) {
    char *bytes;
    size_t n_bytes;
    *out = NULL;
    FL_TRY(fl_frame_decode(pack, pack_bytes, &bytes, &n_bytes));
    content c = {0};
    fl_err err = content_unpack(&c, bytes, n_bytes);
    if (err == FL_ERR_OK) err = content_write(&c, out, out_bytes);
    content_close(&c);
    free(bytes);
    return err;
}

fl_err fl_tokenpack_encode(const char *json, size_t json_bytes, int level, char **out, size_t *out_bytes) {
    content c = {0};
    char *back = NULL;
    size_t back_bytes;
    *out = NULL;
    fl_err err = content_read(&c, json, json_bytes);
    if (err == FL_ERR_OK) err = content_pack(&c, level, out, out_bytes);
    if (err == FL_ERR_OK) err = fl_tokenpack_decode(*out, *out_bytes, &back, &back_bytes);
    if (err == FL_ERR_OK && (back_bytes != json_bytes || memcmp(back, json, json_bytes) != 0))
        err = FL_FAIL(FL_ERR_UNSUPPORTED, "the file's layout is not the one this pack keeps");
    if (err != FL_ERR_OK) {
        free(*out);
        *out = NULL;
    }
    free(back);
    content_close(&c);
    return err;
}
