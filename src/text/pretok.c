/* The splitter. A cursor never looks past the end of the piece that the first two expressions cut: END stands for it.
 */
#include "text/pretok.h"

#include <stdbool.h>

#include "text/unicode_tables.h"
#include "text/utf8.h"

enum { END = 16 }; /* one above every class with its flag */

/* Sets of classes, a bit each. */
enum {
    WORD = 1 << FL_CHAR_LETTER | 1 << FL_CHAR_MARK,
    SIGN = 1 << FL_CHAR_PUNCTUATION | 1 << FL_CHAR_SYMBOL,
    BLANK = 1 << FL_CHAR_SPACE | 1 << FL_CHAR_NEWLINE,
    NEWLINE = 1 << FL_CHAR_NEWLINE,
};

/* The text and which piece of expression 2 the position is in. */
typedef struct cursor {
    const uint8_t *end;
    unsigned cjk; /* FL_CHAR_CJK inside a run of ideographs and kana, else 0 */
} cursor;

static bool ascii_letter(uint8_t c) {
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* Class and flag of the character at p < end; *n_bytes is its length. */
static inline unsigned class_at(const uint8_t *p, const uint8_t *end, size_t *n_bytes) {
    uint32_t code_point = 0xfffd;
    int length = fl_utf8_decode(p, (size_t)(end - p), &code_point);
    *n_bytes = length > 0 ? (size_t)length : 1;
    return fl_unicode_class(code_point);
}

/* The class at p, or END where the piece is over. */
static inline unsigned look(const cursor *c, const uint8_t *p, size_t *n_bytes) {
    *n_bytes = 0;
    if (p == c->end) return END;
    unsigned class = class_at(p, c->end, n_bytes);
    if (class == FL_CHAR_NUMBER || (class & FL_CHAR_CJK) != c->cjk) return END;
    return class & FL_CHAR_CLASS_MASK;
}

static inline bool in(unsigned class, unsigned set) {
    return (set >> class & 1) != 0;
}

/* End of the run of `set` that begins at p; p itself if there is none. */
static inline const uint8_t *run_end(const cursor *c, const uint8_t *p, unsigned set) {
    for (;;) {
        size_t n_bytes;
        if (!in(look(c, p, &n_bytes), set)) return p;
        p += n_bytes;
    }
}

static const uint8_t *word_end(const cursor *c, const uint8_t *p) {
    if (c->cjk == 0)
        while (p < c->end && ascii_letter(*p)) p++;
    return run_end(c, p, WORD);
}

static const uint8_t *sign_end(const cursor *c, const uint8_t *p) {
    return run_end(c, run_end(c, p, SIGN), NEWLINE);
}

/* White space at p: up to its last newline; without one all of it, but for the last character where more follows. */
static const uint8_t *blank_end(const cursor *c, const uint8_t *p) {
    const uint8_t *after_newline = NULL, *last = p, *q = p;
    unsigned class;
    for (;;) {
        size_t n_bytes;
        class = look(c, q, &n_bytes);
        if (!in(class, BLANK)) break;
        last = q;
        q += n_bytes;
        if (class == FL_CHAR_NEWLINE) after_newline = q;
    }
    if (after_newline) return after_newline;
    return class == END || last == p ? q : last;
}

/* Whether expression 3 matches nothing at a character of this class with that class behind it. */
static bool unmatched(unsigned class, unsigned next) {
    return class == FL_CHAR_OTHER && !in(next, WORD);
}

/* End of the match of expression 3 at p, or of the characters before its next match. `class` and n_bytes are p's. */
static const uint8_t *match_end(const cursor *c, const uint8_t *p, unsigned class, size_t n_bytes) {
    size_t next_bytes;
    unsigned next;
    switch (class) {
    case FL_CHAR_LETTER: return word_end(c, p);
    case FL_CHAR_MARK: return word_end(c, p + n_bytes);
    case FL_CHAR_PUNCTUATION:
    case FL_CHAR_SYMBOL:
        if (*p < 0x80 && p + 1 < c->end && ascii_letter(p[1])) {
            p++;
            while (p < c->end && ascii_letter(*p)) p++;
            return p;
        }
        return sign_end(c, p + n_bytes);
    case FL_CHAR_SPACE:
        next = look(c, p + n_bytes, &next_bytes);
        if (in(next, WORD)) return word_end(c, p + n_bytes);
        if (*p == ' ' && in(next, SIGN)) return sign_end(c, p + n_bytes);
        return blank_end(c, p);
    case FL_CHAR_NEWLINE: return blank_end(c, p);
    default: break;
    }
    next = look(c, p + n_bytes, &next_bytes);
    if (!unmatched(class, next)) return word_end(c, p + n_bytes);
    do {
        p += n_bytes;
        class = next;
        n_bytes = next_bytes;
        if (class != FL_CHAR_OTHER) break;
        next = look(c, p + n_bytes, &next_bytes);
    } while (unmatched(class, next));
    return p;
}

size_t fl_pretok_next(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    size_t n_bytes;
    unsigned class = class_at(p, end, &n_bytes);
    if (class == FL_CHAR_NUMBER) {
        const uint8_t *q = p + n_bytes;
        for (int digits = 1; digits < 3 && q < end && class_at(q, end, &n_bytes) == FL_CHAR_NUMBER; digits++)
            q += n_bytes;
        return (size_t)(q - p);
    }
    const cursor c = {.end = end, .cjk = class & FL_CHAR_CJK};
    return (size_t)(match_end(&c, p, class & FL_CHAR_CLASS_MASK, n_bytes) - p);
}
