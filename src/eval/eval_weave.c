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

static size_t nearest_break(const fl_eval_text *body, size_t wanted) {
    if (wanted > body->n) wanted = body->n;
    size_t before = wanted, after = wanted;
    while (before > 0 && break_at(body, before) == NO_BREAK) before--;
    while (after < body->n && break_at(body, after) == NO_BREAK) after++;
    return after < body->n && after - wanted < wanted - before ? after : before;
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
    for (int32_t i = 0; i < needles->n; i++)
        if (needles->items[i].text[0] != '\0')
            needles->items[i].at_byte = nearest_break(body, needles->items[i].at_byte);
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
