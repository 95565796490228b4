/* The lexer: a loop over tags. Text before a tag is cut by the tag's signs; inside a tag, tokens are read
 * until the closing delimiter, which does not count inside brackets ("{{ {'a': {}}}}"). */
#include "text/jinja_lexer.h"

#include "base/hex.h"
#include "text/jinja_str.h"

#include <inttypes.h>
#include <string.h>

typedef struct lexer {
    fl_jarena *arena;
    const char *text; /* [n], line ends normalised */
    size_t n, at;
    uint32_t line;
    bool line_start; /* the text at `at` begins a line as far as lstrip_blocks goes */
    char *brackets;  /* [nesting] the closers that are due */
    size_t n_brackets, nesting;
    fl_jtoken *tokens;
    size_t n_tokens, cap_tokens;
} lexer;

#define LEX_FAIL(lx, code, format, ...)                                                                      \
    FL_FAIL(code, "chat template line %" PRIu32 ": " format, (lx)->line, __VA_ARGS__)

static fl_err add_token(lexer *lx, fl_jtoken_kind kind, const char *text, size_t n) {
    if (lx->n_tokens == lx->cap_tokens) {
        fl_jtoken *grown =
            fl_jarena_grow(lx->arena, lx->tokens, lx->n_tokens, sizeof *grown, &lx->cap_tokens);
        if (grown == NULL) return fl_jarena_error(lx->arena);
        lx->tokens = grown;
    }
    lx->tokens[lx->n_tokens++] = (fl_jtoken){.kind = kind, .line = lx->line, .text = text, .n = n};
    return FL_ERR_OK;
}

/* Moves on by `n` bytes, counting lines. */
static void advance(lexer *lx, size_t n) {
    for (size_t i = 0; i < n; i++) lx->line += lx->text[lx->at + i] == '\n';
    lx->at += n;
}

static void skip_space(lexer *lx) {
    size_t begin = lx->at, end = lx->n;
    fl_jstr_trim(lx->text, &begin, &end, true, false);
    advance(lx, begin - lx->at);
}

static bool looking_at(const lexer *lx, const char *text) {
    size_t n = strlen(text);
    return lx->n - lx->at >= n && memcmp(lx->text + lx->at, text, n) == 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* ---- inside tags --------------------------------------------------------------------------------------- */

/* After the closing delimiter: what it swallows of the text that follows. */
static void finish_tag(lexer *lx, char sign, bool trim_newline) {
    size_t begin = lx->at;
    if (sign == '-') skip_space(lx);
    else if (trim_newline && sign != '+' && lx->at < lx->n && lx->text[lx->at] == '\n') advance(lx, 1);
    lx->line_start = lx->at > begin && lx->text[lx->at - 1] == '\n';
}

/* \x, \u and \U with `digits` digits at text[*at], the letter just behind. */
static fl_err hex_escape(lexer *lx, const char *text, size_t n, size_t *at, char *out, size_t *n_out) {
    size_t digits = text[*at - 1] == 'x' ? 2 : text[*at - 1] == 'u' ? 4 : 8;
    uint32_t value = 0;
    for (size_t i = 0; i < digits; i++) {
        int hex = *at + i < n ? fl_hex_digit(text[*at + i]) : -1;
        if (hex < 0 || value > 0x10FFFF)
            return LEX_FAIL(lx, FL_ERR_DATA, "bad escape in a string, %zu hex digits expected", digits);
        value = value << 4 | (uint32_t)hex;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
        return LEX_FAIL(lx, FL_ERR_DATA, "a string has an escape of U+%" PRIX32 ", which is no character",
                        value);
    }
    *at += digits;
    *n_out += fl_jstr_encode(value, out + *n_out);
    return FL_ERR_OK;
}

/* The value of a string literal's inside, by Python's rules. An escape never decodes to more bytes than it
 * has. */
static fl_err decode_string(lexer *lx, const char *text, size_t n, char *out, size_t *n_out) {
    static const char letters[] = "ntr\\'\"abfv", values[] = "\n\t\r\\'\"\a\b\f\v";
    *n_out = 0;
    for (size_t at = 0; at < n;) {
        char c = text[at++];
        if (c != '\\') {
            out[(*n_out)++] = c;
            continue;
        }
        char escape = text[at++]; /* there is one: the closing quote was not escaped */
        const char *known = strchr(letters, escape);
        if (escape != '\0' && known != NULL) {
            out[(*n_out)++] = values[known - letters];
        } else if (escape == 'x' || escape == 'u' || escape == 'U') {
            FL_TRY(hex_escape(lx, text, n, &at, out, n_out));
        } else if (escape >= '0' && escape <= '7') {
            uint32_t value = (uint32_t)(escape - '0');
            for (int i = 0; i < 2 && at < n && text[at] >= '0' && text[at] <= '7'; i++) {
                value = value << 3 | (uint32_t)(text[at++] - '0');
            }
            *n_out += fl_jstr_encode(value, out + *n_out);
        } else if (escape == 'N') {
            return LEX_FAIL(lx, FL_ERR_UNSUPPORTED, "the escape \\%c in a string is not supported", escape);
        } else if (escape != '\n') { /* a line end after \ is dropped; an unknown escape stays as written */
            out[(*n_out)++] = '\\';
            out[(*n_out)++] = escape;
        }
    }
    return FL_ERR_OK;
}

static fl_err lex_string(lexer *lx) {
    char quote = lx->text[lx->at];
    size_t end = lx->at + 1;
    while (end < lx->n && lx->text[end] != quote) end += lx->text[end] == '\\' ? 2 : 1;
    if (end >= lx->n) return LEX_FAIL(lx, FL_ERR_DATA, "a string that begins with %c has no end", quote);
    size_t inside = end - lx->at - 1, n;
    char *value = fl_jarena_alloc(lx->arena, inside, 1);
    if (value == NULL) return fl_jarena_error(lx->arena);
    FL_TRY(decode_string(lx, lx->text + lx->at + 1, inside, value, &n));
    FL_TRY(add_token(lx, FL_JTOK_STRING, value, n));
    advance(lx, inside + 2);
    return FL_ERR_OK;
}

static size_t count_digits(const lexer *lx, size_t at) {
    size_t begin = at;
    while (at < lx->n && is_digit(lx->text[at])) at++;
    return at - begin;
}

static fl_err lex_number(lexer *lx) {
    const char *text = lx->text;
    size_t whole = count_digits(lx, lx->at), end = lx->at + whole;
    const fl_jtoken *last = &lx->tokens[lx->n_tokens - 1];
    bool after_dot = last->kind == FL_JTOK_OPERATOR && last->text[0] == '.';
    fl_jtoken_kind kind = FL_JTOK_INT;
    if (!after_dot && end < lx->n && text[end] == '.' && count_digits(lx, end + 1) > 0) {
        kind = FL_JTOK_FLOAT;
        end += 1 + count_digits(lx, end + 1);
    }
    if (!after_dot && end < lx->n && (text[end] == 'e' || text[end] == 'E')) {
        size_t sign = end + 1 < lx->n && (text[end + 1] == '+' || text[end + 1] == '-');
        size_t digits = count_digits(lx, end + 1 + sign);
        if (digits > 0) {
            kind = FL_JTOK_FLOAT;
            end += 1 + sign + digits;
        }
    }
    if (end < lx->n && is_name_start(text[end])) {
        return LEX_FAIL(lx, FL_ERR_UNSUPPORTED, "a number like '%.*s' is not supported",
                        (int)(end + 1 - lx->at < 32 ? end + 1 - lx->at : 32), text + lx->at);
    }
    if (kind == FL_JTOK_INT && whole > 1 && text[lx->at] == '0') {
        return LEX_FAIL(lx, FL_ERR_DATA, "a number begins with %s", "0");
    }
    FL_TRY(add_token(lx, kind, text + lx->at, end - lx->at));
    lx->at = end;
    return FL_ERR_OK;
}

static fl_err lex_operator(lexer *lx) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-*/%~[](){}<>=.:|,;";
    char c = lx->text[lx->at];
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (looking_at(lx, two[i])) n = 2;
    }
    if (n == 0 && c != '\0' && strchr(one, c) != NULL) n = 1;
    if (n == 0) {
        uint32_t code_point;
        fl_jstr_char(lx->text + lx->at, lx->n - lx->at, &code_point);
        return LEX_FAIL(lx, FL_ERR_DATA, "unexpected character U+%04" PRIX32, code_point);
    }
    if (c == '(' || c == '[' || c == '{') {
        if (lx->n_brackets == lx->nesting) {
            return LEX_FAIL(lx, FL_ERR_LIMIT, "more than %zu brackets are open", lx->nesting);
        }
        lx->brackets[lx->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (lx->n_brackets == 0) return LEX_FAIL(lx, FL_ERR_DATA, "unexpected '%c'", c);
        char due = lx->brackets[--lx->n_brackets];
        if (c != due) return LEX_FAIL(lx, FL_ERR_DATA, "unexpected '%c', expected '%c'", c, due);
    }
    FL_TRY(add_token(lx, FL_JTOK_OPERATOR, lx->text + lx->at, n));
    lx->at += n;
    return FL_ERR_OK;
}

/* At the tag's end: adds the token, moves on and says so in *ended. */
static fl_err lex_tag_end(lexer *lx, bool print, bool *ended) {
    const char *closer = print ? "}}" : "%}";
    char c = lx->text[lx->at], sign = 0;
    *ended = false;
    if (lx->n_brackets > 0) return FL_ERR_OK;
    if (c == '-' || (c == '+' && !print)) {
        sign = c;
        lx->at++; /* to look behind the sign */
    }
    if (!looking_at(lx, closer)) {
        if (sign != 0) lx->at--;
        return FL_ERR_OK;
    }
    *ended = true;
    FL_TRY(add_token(lx, print ? FL_JTOK_PRINT_END : FL_JTOK_TAG_END, closer, 2));
    lx->at += 2;
    finish_tag(lx, sign, !print);
    return FL_ERR_OK;
}

/* The tokens of one {{ }} or {% %}, `at` behind the opening delimiter and its sign. */
static fl_err lex_tag(lexer *lx, bool print) {
    uint32_t first_line = lx->line;
    FL_TRY(add_token(lx, print ? FL_JTOK_PRINT_BEGIN : FL_JTOK_TAG_BEGIN, print ? "{{" : "{%", 2));
    for (;;) {
        skip_space(lx);
        if (lx->at == lx->n) break;
        bool ended;
        FL_TRY(lex_tag_end(lx, print, &ended));
        if (ended) return FL_ERR_OK;
        char c = lx->text[lx->at];
        if (is_digit(c)) {
            FL_TRY(lex_number(lx));
        } else if (is_name_start(c)) {
            size_t end = lx->at + 1;
            while (end < lx->n && (is_name_start(lx->text[end]) || is_digit(lx->text[end]))) end++;
            FL_TRY(add_token(lx, FL_JTOK_NAME, lx->text + lx->at, end - lx->at));
            lx->at = end;
            const fl_jtoken *name = &lx->tokens[lx->n_tokens - 1];
            /* What follows {% raw %} is not in this language, so it is refused here, not in the parser. */
            if (name->n == 3 && memcmp(name->text, "raw", 3) == 0 && name[-1].kind == FL_JTOK_TAG_BEGIN) {
                return LEX_FAIL(lx, FL_ERR_UNSUPPORTED, "the statement '%s' is not supported", "raw");
            }
        } else if (c == '"' || c == '\'') {
            FL_TRY(lex_string(lx));
        } else {
            FL_TRY(lex_operator(lx));
        }
    }
    lx->line = first_line;
    return LEX_FAIL(lx, FL_ERR_DATA, "'%s' has no end", print ? "{{" : "{%");
}

static fl_err lex_comment(lexer *lx) {
    const char *end = memmem(lx->text + lx->at, lx->n - lx->at, "#}", 2);
    if (end == NULL) return LEX_FAIL(lx, FL_ERR_DATA, "'%s' has no end", "{#");
    size_t n = (size_t)(end - (lx->text + lx->at));
    char sign = n > 0 && (end[-1] == '-' || end[-1] == '+') ? end[-1] : 0;
    advance(lx, n + 2);
    finish_tag(lx, sign, true);
    return FL_ERR_OK;
}

/* ---- between tags -------------------------------------------------------------------------------------- */

/* Where the next tag begins; n if there is none. */
static size_t find_tag(const lexer *lx) {
    for (size_t at = lx->at; at + 1 < lx->n; at++) {
        const char *brace = memchr(lx->text + at, '{', lx->n - at - 1);
        if (brace == NULL) return lx->n;
        at = (size_t)(brace - lx->text);
        if (brace[1] == '{' || brace[1] == '%' || brace[1] == '#') return at;
    }
    return lx->n;
}

/* Adds the text up to `tag` (n = none), cut as the tag's sign asks, and moves to the tag. */
static fl_err lex_data(lexer *lx, size_t tag) {
    const char *text = lx->text;
    size_t begin = lx->at, end = tag;
    char sign = tag + 2 < lx->n ? text[tag + 2] : 0;
    if (tag < lx->n && sign == '-') {
        fl_jstr_trim(text, &begin, &end, false, true);
    } else if (tag < lx->n && sign != '+' && text[tag + 1] != '{') {
        const char *newline = tag > begin ? memrchr(text + begin, '\n', tag - begin) : NULL;
        if (newline != NULL || lx->line_start) {
            size_t line = newline == NULL ? begin : (size_t)(newline - text) + 1, rest = line;
            fl_jstr_trim(text, &rest, &end, true, false);
            end = rest == tag ? line : tag;
        }
    }
    if (end > begin) FL_TRY(add_token(lx, FL_JTOK_DATA, text + begin, end - begin));
    advance(lx, tag - lx->at);
    return FL_ERR_OK;
}

static fl_err lex_all(lexer *lx) {
    lx->line_start = true;
    while (lx->at < lx->n) {
        size_t tag = find_tag(lx);
        FL_TRY(lex_data(lx, tag));
        if (tag == lx->n) break;
        char type = lx->text[tag + 1];
        lx->at += 2;
        if (lx->at < lx->n && (lx->text[lx->at] == '-' || lx->text[lx->at] == '+')) lx->at++;
        if (type == '#') FL_TRY(lex_comment(lx));
        else FL_TRY(lex_tag(lx, type == '{'));
    }
    return add_token(lx, FL_JTOK_END, "", 0);
}

fl_err fl_jinja_lex(fl_jarena *arena, const char *text, size_t n_bytes, size_t nesting, fl_jtoken **tokens) {
    lexer lx = {.arena = arena, .line = 1, .nesting = nesting};
    char *copy = fl_jarena_alloc(arena, n_bytes, 1);
    lx.brackets = fl_jarena_alloc(arena, nesting, 1);
    if (copy == NULL || lx.brackets == NULL) return fl_jarena_error(arena);
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] == '\n' && i > 0 && text[i - 1] == '\r') continue;
        copy[lx.n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (lx.n > 0 && copy[lx.n - 1] == '\n') lx.n--;
    lx.text = copy;
    FL_TRY(lex_all(&lx));
    *tokens = lx.tokens;
    return FL_ERR_OK;
}
