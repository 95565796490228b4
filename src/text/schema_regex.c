/* From the text of a pattern to postfix order. Groups are kept on a stack of fixed size; repetitions are written
 * out. */
#include "text/schema_regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "text/utf8.h"

enum { ANYTHING, DIGITS, WORD, SPACE, DOT, N_FIXED, NO_CODE = -1 };

typedef struct group {
    uint32_t start;    /* first token */
    uint32_t items;    /* joined in this branch */
    uint32_t branches; /* before it */
} group;

typedef struct parsing {
    const uint8_t *text;
    size_t n, at;
    fl_regex *out;
    group groups[FL_PATTERN_GROUPS_MAX];
    uint32_t depth; /* of the innermost group; 0: the pattern */
    bool ended;     /* behind $ */
} parsing;

/* --- sets ----------------------------------------------------------------------------------------------------- */

static fl_err add_range(fl_regex *r, uint32_t low, uint32_t high) {
    if (r->n_ranges == FL_PATTERN_RANGES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "the pattern's classes are too large");
    r->ranges[r->n_ranges++] = (fl_regex_range){low, high};
    return FL_ERR_OK;
}

static int by_low(const void *a, const void *b) {
    const fl_regex_range *x = a, *y = b;
    return x->low != y->low ? (x->low < y->low ? -1 : 1) : 0;
}

/* Sorts ranges[first..] and joins those that touch. */
static void tidy(fl_regex *r, uint32_t first) {
    fl_regex_range *p = r->ranges + first;
    uint32_t n = r->n_ranges - first, kept = 0;
    qsort(p, n, sizeof *p, by_low);
    for (uint32_t i = 0; i < n; i++) {
        if (kept > 0 && p[i].low <= p[kept - 1].high + 1) {
            if (p[i].high > p[kept - 1].high) p[kept - 1].high = p[i].high;
        } else {
            p[kept++] = p[i];
        }
    }
    r->n_ranges = first + kept;
}

/* Ranges[first..], tidy, become what they leave out. */
static fl_err turn(fl_regex *r, uint32_t first) {
    uint32_t low = 0, n = r->n_ranges;
    for (uint32_t i = first; i < n; i++) {
        fl_regex_range next = r->ranges[i];
        if (next.low > low) FL_TRY(add_range(r, low, next.low - 1));
        low = next.high + 1;
    }
    if (low <= 0x10ffff) FL_TRY(add_range(r, low, 0x10ffff));
    memmove(r->ranges + first, r->ranges + n, (r->n_ranges - n) * sizeof *r->ranges);
    r->n_ranges -= n - first;
    return FL_ERR_OK;
}

/* Takes U+0000 and the surrogates out of ranges[first..], tidy. */
static fl_err leave_out(fl_regex *r, uint32_t first) {
    FL_TRY(turn(r, first));
    FL_TRY(add_range(r, 0, 0));
    FL_TRY(add_range(r, 0xd800, 0xdfff));
    tidy(r, first);
    return turn(r, first);
}

static fl_err end_set(fl_regex *r, uint32_t first, bool negated) {
    tidy(r, first);
    if (negated) FL_TRY(turn(r, first));
    FL_TRY(leave_out(r, first));
    r->sets[r->n_sets++] = (fl_regex_set){first, r->n_ranges - first};
    return FL_ERR_OK;
}

static fl_err add_fixed(fl_regex *r, int which) {
    static const fl_regex_range RANGES[][6] = {
        [ANYTHING] = {{1, 0x10ffff}},
        [DIGITS] = {{'0', '9'}},
        [WORD] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
        [SPACE] = {{9, 13}, {' ', ' '}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}},
        [DOT] = {{1, 9}, {11, 12}, {14, 0x2027}, {0x202a, 0x10ffff}},
    };
    for (int i = 0; i < 6 && RANGES[which][i].high > 0; i++)
        FL_TRY(add_range(r, RANGES[which][i].low, RANGES[which][i].high));
    if (which != SPACE) return FL_ERR_OK;
    FL_TRY(add_range(r, 0x202f, 0x202f));
    FL_TRY(add_range(r, 0x205f, 0x205f));
    FL_TRY(add_range(r, 0x3000, 0x3000));
    return add_range(r, 0xfeff, 0xfeff);
}

static fl_err make_fixed_sets(fl_regex *r) {
    for (int i = 0; i < N_FIXED; i++) {
        uint32_t first = r->n_ranges;
        FL_TRY(add_fixed(r, i));
        FL_TRY(end_set(r, first, false));
    }
    return FL_ERR_OK;
}

/* --- tokens --------------------------------------------------------------------------------------------------- */

static fl_err emit(parsing *p, fl_regex_op op, uint32_t set) {
    if (p->out->n_tokens == FL_PATTERN_TOKENS_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "the pattern is too large with its repetitions written out");
    p->out->tokens[p->out->n_tokens++] = (fl_regex_token){(uint16_t)op, (uint16_t)set};
    return FL_ERR_OK;
}

static fl_err emit_anything(parsing *p) {
    FL_TRY(emit(p, FL_REGEX_SET, ANYTHING));
    return emit(p, FL_REGEX_STAR, 0);
}

/* The item whose tokens end here belongs to the branch. */
static fl_err join(parsing *p) {
    if (p->groups[p->depth].items++ > 0) return emit(p, FL_REGEX_JOIN, 0);
    return FL_ERR_OK;
}

static fl_err copy(parsing *p, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const fl_regex_token *t = &p->out->tokens[first + i];
        FL_TRY(emit(p, t->op, t->set));
    }
    return FL_ERR_OK;
}

/* The item tokens[first..] min to max times (max -1: without end), in place. */
static fl_err repeat(parsing *p, uint32_t first, int min, int max) {
    uint32_t n = p->out->n_tokens - first;
    if (max == 0) {
        p->out->n_tokens = first;
        return emit(p, FL_REGEX_EMPTY, 0);
    }
    if (max < 0 && min == 0) return emit(p, FL_REGEX_STAR, 0);
    for (int i = 1; i < min; i++) {
        FL_TRY(copy(p, first, n));
        bool last = i == min - 1 && max < 0;
        if (last) FL_TRY(emit(p, FL_REGEX_PLUS, 0));
        FL_TRY(emit(p, FL_REGEX_JOIN, 0));
    }
    if (max < 0) return min > 1 ? FL_ERR_OK : emit(p, FL_REGEX_PLUS, 0);
    /* x(x(x)?)?: what follows an item is one choice, not as many as may follow */
    int rest = max - min;
    for (int i = min == 0 ? 1 : 0; i < rest; i++) FL_TRY(copy(p, first, n));
    for (int i = 0; i < rest; i++) {
        FL_TRY(emit(p, FL_REGEX_MAYBE, 0));
        if (i < rest - 1 || min > 0) FL_TRY(emit(p, FL_REGEX_JOIN, 0));
    }
    return FL_ERR_OK;
}

/* --- text ----------------------------------------------------------------------------------------------------- */

static bool take(parsing *p, char c) {
    if (p->at == p->n || p->text[p->at] != (uint8_t)c) return false;
    p->at++;
    return true;
}

static fl_err take_number(parsing *p, int *out) {
    *out = 0;
    if (p->at == p->n || p->text[p->at] < '0' || p->text[p->at] > '9')
        return FL_FAIL(FL_ERR_INVALID, "the pattern has no number behind {, at byte %zu", p->at);
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        *out = 10 * *out + (p->text[p->at++] - '0');
        if (*out > FL_PATTERN_REPEAT_MAX)
            return FL_FAIL(FL_ERR_LIMIT, "the pattern repeats more than %d times", FL_PATTERN_REPEAT_MAX);
    }
    return FL_ERR_OK;
}

/* What repeats the item tokens[first..], if anything. */
static fl_err parse_repeat(parsing *p, uint32_t first) {
    int min = 0, max = -1;
    if (take(p, '*')) {
    } else if (take(p, '+')) {
        min = 1;
    } else if (take(p, '?')) {
        max = 1;
    } else if (take(p, '{')) {
        FL_TRY(take_number(p, &min));
        if (!take(p, ',')) max = min;
        else if (p->at < p->n && p->text[p->at] != '}') FL_TRY(take_number(p, &max));
        if (!take(p, '}') || (max >= 0 && max < min))
            return FL_FAIL(FL_ERR_INVALID, "the pattern has a bad repetition before byte %zu", p->at);
    } else {
        return FL_ERR_OK;
    }
    take(p, '?'); /* lazy: the same strings */
    return repeat(p, first, min, max);
}

static fl_err parse_hex(parsing *p, int n_digits, int *code) {
    *code = 0;
    for (int i = 0; i < n_digits; i++) {
        int digit = p->at < p->n ? fl_hex_digit((char)p->text[p->at++]) : -1;
        if (digit < 0) return FL_FAIL(FL_ERR_INVALID, "the pattern has a bad \\x or \\u at byte %zu", p->at);
        *code = *code << 4 | digit;
    }
    if (*code >= 0xd800 && *code <= 0xdfff)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "the pattern has half of a surrogate pair at byte %zu", p->at);
    return FL_ERR_OK;
}

/* Behind a backslash: *code, or NO_CODE and a set's ranges added. */
static fl_err parse_escape(parsing *p, int *code) {
    static const char LETTERS[] = "tnrfv", CODES[] = "\t\n\r\f\v";
    *code = NO_CODE;
    if (p->at == p->n) return FL_FAIL(FL_ERR_INVALID, "the pattern ends with a backslash");
    char c = (char)p->text[p->at++], low = (char)(c | 0x20);
    if (c == '0' && (p->at == p->n || p->text[p->at] < '0' || p->text[p->at] > '9')) {
        *code = 0;
        return FL_ERR_OK;
    }
    const char *letter = c ? strchr(LETTERS, c) : NULL;
    if (letter) {
        *code = (uint8_t)CODES[letter - LETTERS];
        return FL_ERR_OK;
    }
    if (c == 'x' || c == 'u') return parse_hex(p, c == 'x' ? 2 : 4, code);
    if (low == 'd' || low == 'w' || low == 's') {
        uint32_t first = p->out->n_ranges;
        FL_TRY(add_fixed(p->out, low == 'd' ? DIGITS : low == 'w' ? WORD : SPACE));
        tidy(p->out, first);
        return c == low ? FL_ERR_OK : turn(p->out, first);
    }
    bool letter_or_digit = (low >= 'a' && low <= 'z') || (c >= '0' && c <= '9');
    if (letter_or_digit || (uint8_t)c >= 0x80)
        return FL_FAIL(FL_ERR_UNSUPPORTED, "the pattern has \\%c, which is not supported",
                       (uint8_t)c < 0x80 ? c : '?');
    *code = (uint8_t)c;
    return FL_ERR_OK;
}

static fl_err parse_code(parsing *p, int *code) {
    uint32_t point = 0;
    int length = fl_utf8_decode(p->text + p->at, p->n - p->at, &point);
    if (length <= 0) return FL_FAIL(FL_ERR_INVALID, "the pattern is not UTF-8");
    p->at += (size_t)length;
    *code = (int)point;
    return FL_ERR_OK;
}

/* One end of a range in a class. */
static fl_err parse_class_code(parsing *p, int *code) {
    if (!take(p, '\\')) return parse_code(p, code);
    if (take(p, 'b')) {
        *code = '\b';
        return FL_ERR_OK;
    }
    return parse_escape(p, code);
}

/* Behind [. */
static fl_err parse_class(parsing *p) {
    fl_regex *r = p->out;
    uint32_t start = r->n_ranges;
    bool negated = take(p, '^');
    while (!take(p, ']')) {
        int low, high;
        if (p->at == p->n) return FL_FAIL(FL_ERR_INVALID, "the pattern has a [ without ]");
        FL_TRY(parse_class_code(p, &low));
        bool is_range = p->at + 1 < p->n && p->text[p->at] == '-' && p->text[p->at + 1] != ']';
        if (!is_range) {
            if (low != NO_CODE) FL_TRY(add_range(r, (uint32_t)low, (uint32_t)low));
            continue;
        }
        p->at++;
        FL_TRY(parse_class_code(p, &high));
        if (low == NO_CODE || high < low)
            return FL_FAIL(FL_ERR_INVALID, "the pattern has a bad range in a class, before byte %zu", p->at);
        FL_TRY(add_range(r, (uint32_t)low, (uint32_t)high));
    }
    return end_set(r, start, negated);
}

/* Behind (. */
static fl_err open_group(parsing *p) {
    if (take(p, '?') && !take(p, ':')) {
        bool named = p->at + 1 < p->n && p->text[p->at] == '<' && p->text[p->at + 1] != '=' &&
                     p->text[p->at + 1] != '!';
        if (!named)
            return FL_FAIL(FL_ERR_UNSUPPORTED, "the pattern has a group (? of a kind that is not supported");
        while (p->at < p->n && p->text[p->at] != '>') p->at++;
        p->at += p->at < p->n;
    }
    if (++p->depth == FL_PATTERN_GROUPS_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "the pattern has more than %d groups inside each other",
                       FL_PATTERN_GROUPS_MAX);
    p->groups[p->depth] = (group){.start = p->out->n_tokens};
    return FL_ERR_OK;
}

/* At the beginning of a branch of the whole pattern: without ^ anything may come before. */
static fl_err begin_branch(parsing *p) {
    p->ended = false;
    if (p->depth > 0 || take(p, '^')) return FL_ERR_OK;
    FL_TRY(emit_anything(p));
    return join(p);
}

static fl_err end_branch(parsing *p) {
    group *g = &p->groups[p->depth];
    if (p->depth == 0 && !p->ended) {
        FL_TRY(emit_anything(p));
        FL_TRY(join(p));
    }
    if (g->items == 0) FL_TRY(emit(p, FL_REGEX_EMPTY, 0));
    if (g->branches++ > 0) FL_TRY(emit(p, FL_REGEX_OR, 0));
    g->items = 0;
    return FL_ERR_OK;
}

static fl_err parse_atom(parsing *p, uint8_t c) {
    fl_regex *r = p->out;
    uint32_t start = r->n_ranges, set = r->n_sets;
    int code;
    if (c == '.') {
        p->at++;
        return emit(p, FL_REGEX_SET, DOT);
    }
    if (take(p, '[')) {
        FL_TRY(parse_class(p));
        return emit(p, FL_REGEX_SET, set);
    }
    FL_TRY(take(p, '\\') ? parse_escape(p, &code) : parse_code(p, &code));
    if (code != NO_CODE) FL_TRY(add_range(r, (uint32_t)code, (uint32_t)code));
    FL_TRY(end_set(r, start, false));
    return emit(p, FL_REGEX_SET, set);
}

/* One item, bar or bracket. */
static fl_err parse_next(parsing *p) {
    uint8_t c = p->text[p->at];
    uint32_t first = p->out->n_tokens;
    if (take(p, '|')) {
        FL_TRY(end_branch(p));
        return begin_branch(p);
    }
    if (p->ended || c == '^')
        return FL_FAIL(FL_ERR_UNSUPPORTED, "the pattern has ^ or $ inside, near byte %zu", p->at);
    if (take(p, '(')) return open_group(p);
    if (take(p, '$')) {
        if (p->depth > 0) return FL_FAIL(FL_ERR_UNSUPPORTED, "the pattern has $ inside a group");
        p->ended = true;
        return FL_ERR_OK;
    }
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return FL_FAIL(FL_ERR_INVALID, "the pattern repeats nothing at byte %zu", p->at);
    if (take(p, ')')) {
        if (p->depth == 0) return FL_FAIL(FL_ERR_INVALID, "the pattern has a ) without (");
        FL_TRY(end_branch(p));
        first = p->groups[p->depth--].start;
    } else {
        FL_TRY(parse_atom(p, c));
    }
    FL_TRY(parse_repeat(p, first));
    return join(p);
}

fl_err fl_regex_parse(const char *pattern, size_t n_bytes, fl_regex *out) {
    parsing p = {.text = (const uint8_t *)pattern, .n = n_bytes, .out = out};
    out->n_tokens = out->n_sets = out->n_ranges = 0;
    if (n_bytes > FL_PATTERN_BYTES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, "the pattern has %zu bytes, at most %d", n_bytes, FL_PATTERN_BYTES_MAX);
    FL_TRY(make_fixed_sets(out));
    FL_TRY(begin_branch(&p));
    while (p.at < n_bytes) FL_TRY(parse_next(&p));
    if (p.depth > 0) return FL_FAIL(FL_ERR_INVALID, "the pattern has a ( without )");
    return end_branch(&p);
}
