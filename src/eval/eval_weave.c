/* Running text and the sentences hidden in it. */
#include <stdlib.h>
#include <string.h>

#include "eval/eval_draft.h"

static bool is_upper(char c) {
    return c >= 'A' && c <= 'Z';
}

static bool is_lower(char c) {
    return c >= 'a' && c <= 'z';
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void fl_eval_body_take(fl_eval_draft *d, size_t n_bytes, fl_eval_text *body) {
    enum { CUT_BYTES_MAX = 4096 };
    const char *hay = d->spec->haystack;
    size_t n_hay = d->spec->haystack_bytes;
    size_t at = (size_t)fl_eval_random_below(&d->random, (int64_t)n_hay), begin = at;
    do begin = (begin + 1) % n_hay;
    while (begin != at && !(hay[begin == 0 ? n_hay - 1 : begin - 1] == '\n' && !is_space(hay[begin])));
    body->n = 0;
    while (body->n < n_bytes && !body->failed) {
        size_t n = n_hay - begin < n_bytes - body->n ? n_hay - begin : n_bytes - body->n;
        fl_eval_text_add(body, hay + begin, n);
        begin = 0;
    }
    if (body->failed) return;
    size_t least = body->n > CUT_BYTES_MAX ? body->n - CUT_BYTES_MAX : 1;
    size_t cut = body->n;
    while (cut > least && !(body->bytes[cut - 1] == '.' &&
                            (is_lower(body->bytes[cut - 2]) || is_upper(body->bytes[cut - 2]))))
        cut--;
    if (cut > least) body->n = cut - 1;
    body->bytes[body->n] = '\0';
}

fl_eval_needle *fl_eval_needle_add(fl_eval_needles *needles, int32_t fact) {
    if (needles->n == needles->capacity) {
        int32_t capacity = needles->capacity ? 2 * needles->capacity : 64;
        fl_eval_needle *items = realloc(needles->items, (size_t)capacity * sizeof *items);
        if (!items) {
            needles->failed = true;
            return NULL;
        }
        needles->items = items;
        needles->capacity = capacity;
    }
    fl_eval_needle *needle = &needles->items[needles->n++];
    *needle = (fl_eval_needle){.fact = fact};
    return needle;
}

void fl_eval_needles_free(fl_eval_needles *needles) {
    free(needles->items);
    *needles = (fl_eval_needles){0};
}

void fl_eval_needles_spread(fl_eval_draft *d, fl_eval_needles *needles, int32_t first, size_t body_bytes) {
    int32_t n = needles->n - first, order[FL_EVAL_FACTS_MAX];
    if (n <= 0 || n > FL_EVAL_FACTS_MAX) return;
    fl_eval_random_order(&d->random, order, n);
    for (int32_t i = 0; i < n; i++) {
        double share = ((double)order[i] + fl_eval_random_unit(&d->random)) / (double)n;
        needles->items[first + i].at_byte = (size_t)(share * (double)body_bytes);
    }
}

/* Token positions along the body. */
typedef struct token_map {
    size_t *byte;   /* [n + 1] cuts before blanks, where tokens begin; the last is the body's end */
    int64_t *token; /* [n + 1] tokens before each */
    size_t n;
} token_map;

static void map_close(token_map *map) {
    free(map->byte);
    free(map->token);
}

static fl_err map_open(const fl_eval_draft *d, const fl_eval_text *body, token_map *map) {
    enum { PIECE_BYTES = 96 };
    size_t n_max = body->n / PIECE_BYTES + 1;
    *map = (token_map){.byte = calloc(n_max + 1, sizeof *map->byte),
                       .token = calloc(n_max + 1, sizeof *map->token)};
    if (!map->byte || !map->token) return FL_FAIL(FL_ERR_NOMEM, "token positions of %zu bytes", body->n);
    for (size_t at = 0; at < body->n;) {
        size_t end = at + PIECE_BYTES < body->n ? at + PIECE_BYTES : body->n;
        while (end < body->n && body->bytes[end] != ' ') end++;
        int64_t tokens = 0;
        FL_TRY(d->spec->count(d->spec->count_context, body->bytes + at, end - at, &tokens));
        map->n++;
        map->byte[map->n] = at = end;
        map->token[map->n] = map->token[map->n - 1] + tokens;
    }
    return FL_ERR_OK;
}

/* The byte where about `token` tokens lie before: between two cuts, evenly. */
static size_t map_byte(const token_map *map, int64_t token) {
    size_t low = 0, high = map->n;
    if (token <= 0 || map->n == 0) return 0;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (map->token[middle] <= token) low = middle;
        else high = middle;
    }
    int64_t tokens = map->token[high] - map->token[low], behind = token - map->token[low];
    if (behind >= tokens) return map->byte[high];
    return map->byte[low] + (map->byte[high] - map->byte[low]) * (size_t)behind / (size_t)tokens;
}

typedef enum break_kind { NO_BREAK, LINE_BREAK, SENTENCE_BREAK } break_kind;

/* A line start; or the blank behind a full stop that ends a word of three letters or more (no "Mr.") before a
 * capital. */
static break_kind break_at(const fl_eval_text *body, size_t p) {
    const char *s = body->bytes;
    if (p == 0 || p + 1 >= body->n) return p == 0 ? LINE_BREAK : NO_BREAK;
    if (s[p - 1] == '\n' && !is_space(s[p])) return LINE_BREAK;
    if (p >= 4 && s[p - 1] == '.' && s[p] == ' ' && is_upper(s[p + 1]) && is_lower(s[p - 2]) &&
        is_lower(s[p - 3]) && is_lower(s[p - 4]))
        return SENTENCE_BREAK;
    return NO_BREAK;
}

/* For needles that must stand beside a place, the blank behind any mark will do: sentences are too long. */
static bool may_stand(const fl_eval_text *body, size_t p, int32_t side) {
    if (break_at(body, p) != NO_BREAK) return true;
    return side != 0 && p > 0 && p < body->n && body->bytes[p] == ' ' && strchr(".,;:?!", body->bytes[p - 1]);
}

static size_t find_break(const fl_eval_text *body, size_t wanted, int32_t side) {
    if (wanted > body->n) wanted = body->n;
    size_t before = wanted, after = wanted;
    while (before > 0 && !may_stand(body, before, side)) before--;
    while (after < body->n && !may_stand(body, after, side)) after++;
    if (side < 0 || after >= body->n) return before;
    return side > 0 || after - wanted < wanted - before ? after : before;
}

static int by_token(const void *a, const void *b) {
    const fl_eval_needle *x = a, *y = b;
    if (x->at_token != y->at_token) return x->at_token < y->at_token ? -1 : 1;
    return strcmp(x->text, y->text);
}

/* Tokens of all needles but `self` that stand at or before a byte of the body. */
static int64_t inserted_before(const fl_eval_needles *needles, const int64_t *tokens, int32_t self,
                               size_t at_byte) {
    int64_t inserted = 0;
    for (int32_t i = 0; i < needles->n; i++)
        if (i != self && needles->items[i].at_byte <= at_byte) inserted += tokens[i];
    return inserted;
}

fl_err fl_eval_needles_place(const fl_eval_draft *d, fl_eval_needles *needles, const fl_eval_text *body) {
    enum { ROUNDS = 4 };
    token_map map = {0};
    int64_t tokens[FL_EVAL_FACTS_MAX], inserted = 0;
    fl_err err = FL_ERR_OK;
    if (needles->n == 0) return FL_ERR_OK;
    if (needles->n > FL_EVAL_FACTS_MAX) return FL_FAIL(FL_ERR_INTERNAL, "%d needles", (int)needles->n);
    qsort(needles->items, (size_t)needles->n, sizeof *needles->items, by_token);
    FL_TRY_GOTO(map_open(d, body, &map));
    for (int32_t i = 0; i < needles->n; i++) {
        fl_eval_needle *needle = &needles->items[i];
        char text[FL_EVAL_SENTENCE_BYTES + 1] = " ";
        memcpy(text + 1, needle->text, sizeof needle->text);
        FL_TRY_GOTO(d->spec->count(d->spec->count_context, text, strlen(text), &tokens[i]));
        needle->at_byte = find_break(body, map_byte(&map, needle->at_token - inserted), needle->side);
        inserted += tokens[i];
    }
    /* Sentence ends moved the needles to and fro. Those beside a place take account of it; where one needle has room
     * before or behind another, but not between, the outermost of the places tried is on the right side. */
    for (int32_t i = 0; i < needles->n; i++) {
        fl_eval_needle *needle = &needles->items[i];
        size_t outermost = 0;
        for (int round = 0; round < ROUNDS && needle->side != 0; round++) {
            inserted = inserted_before(needles, tokens, i, needle->at_byte);
            size_t at = find_break(body, map_byte(&map, needle->at_token - inserted), needle->side);
            if (round == 0 || (needle->side < 0 ? at < outermost : at > outermost)) outermost = at;
            needle->at_byte = at;
        }
        if (needle->side != 0) needle->at_byte = outermost;
    }
fail:
    map_close(&map);
    return err;
}

static int by_place(const void *a, const void *b) {
    const fl_eval_needle *x = a, *y = b;
    if (x->at_byte != y->at_byte) return x->at_byte < y->at_byte ? -1 : 1;
    bool x_place = x->text[0] == '\0',
         y_place = y->text[0] == '\0'; /* inserted text comes before the sentence there */
    if (x_place != y_place) return x_place ? 1 : -1;
    return strcmp(x->text, y->text);
}

void fl_eval_weave(fl_eval_draft *d, const fl_eval_text *body, fl_eval_needles *needles) {
    if (body->failed || needles->failed) {
        d->failed = true;
        return;
    }
    for (int32_t i = 0; i < needles->n; i++) {
        fl_eval_needle *needle = &needles->items[i];
        if (needle->text[0] != '\0') needle->at_byte = find_break(body, needle->at_byte, needle->side);
    }
    if (needles->n > 0) qsort(needles->items, (size_t)needles->n, sizeof *needles->items, by_place);
    size_t done = 0;
    for (int32_t i = 0; i < needles->n; i++) {
        const fl_eval_needle *needle = &needles->items[i];
        fl_eval_text_add(&d->text, body->bytes + done, needle->at_byte - done);
        done = needle->at_byte;
        if (needle->text[0] == '\0') {
            fl_eval_draft_mark(d, needle->fact);
            continue;
        }
        bool line = break_at(body, done) == LINE_BREAK;
        if (!line) fl_eval_text_put(&d->text, " ");
        fl_eval_draft_mark(d, needle->fact);
        fl_eval_text_put(&d->text, needle->text);
        if (line) fl_eval_text_put(&d->text, "\n");
    }
    fl_eval_text_add(&d->text, body->bytes + done, body->n - done);
}

/* Length of the sentence that begins at p (behind a sentence break) with its full stop; 0 = unfit. */
static size_t sentence_bytes(const fl_eval_text *body, size_t p) {
    enum { BYTES_MIN = 40, BYTES_MAX = 200, WORDS_MIN = 10 };
    const char *s = body->bytes + p;
    size_t left = body->n - p, n = 0, words = 1;
    while (n < left && n < BYTES_MAX && s[n] != '.') {
        if (s[n] < ' ' || s[n] > '~' || s[n] == '"') return 0;
        words += s[n++] == ' ';
    }
    if (n == left || n == BYTES_MAX || n < BYTES_MIN || words < WORDS_MIN) return 0;
    return break_at(body, p + n + 1) == SENTENCE_BREAK ? n + 1 : 0;
}

static bool occurs_once(const fl_eval_text *body, const char *what, size_t n) {
    const char *found = memmem(body->bytes, body->n, what, n);
    if (!found) return false;
    size_t behind = (size_t)(found - body->bytes) + 1;
    return memmem(body->bytes + behind, body->n - behind, what, n) == NULL;
}

bool fl_eval_sentence_find(fl_eval_draft *d, const fl_eval_text *body, size_t *at, fl_eval_sentence *out) {
    for (size_t p = *at; p + 1 < body->n; p++) {
        if (break_at(body, p) != SENTENCE_BREAK) continue;
        size_t n = sentence_bytes(body, p + 1);
        if (n == 0) continue;
        const char *s = body->bytes + p + 1;
        size_t words = (size_t)fl_eval_random_range(&d->random, 4, 6), begin = 0;
        for (size_t w = 0; w < words; w++) begin += strcspn(s + begin + (w > 0), " ") + (w > 0);
        if (s[begin - 1] == ',' || !occurs_once(body, s, begin) || !occurs_once(body, s, n)) continue;
        memcpy(out->text, s, n);
        out->text[n] = '\0';
        memcpy(out->beginning, s, begin);
        out->beginning[begin] = '\0';
        *at = p + 1;
        return true;
    }
    return false;
}
