/* JSON strings byte by byte: UTF-8 and escapes are followed by a small state, which is 0 between code points. */
#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "text/schema_impl.h"

enum {
    TEXT, /* between code points */
    /* bytes of a code point still to come, the next one restricted or not */
    MORE_1,
    MORE_2,
    MORE_3,
    AFTER_E0,
    AFTER_ED,
    AFTER_F0,
    AFTER_F4,
    ESCAPE, /* behind a backslash */
    /* digits of \u; ZERO: only zeros so far; D: the first was d */
    HEX_1,
    HEX_2,
    HEX_3,
    HEX_4,
    ZERO_2,
    ZERO_3,
    ZERO_4,
    D_2,
    /* the second half of a surrogate pair must follow */
    HIGH_3,
    HIGH_4,
    PAIR_BACKSLASH,
    PAIR_U,
    LOW_1,
    LOW_2,
    /* the only spelling of a control character: what came of it */
    ONLY_U,
    ONLY_U0,
    ONLY_U00,
    ONLY_U000,
    ONLY_U001,
    DEAD,
};

static bool within(uint8_t byte, uint8_t low, uint8_t high) {
    return byte >= low && byte <= high;
}

/* A byte of a code point in UTF-8, the first or a later one (Unicode standard, table 3-7). */
static int utf8_step(int at, uint8_t byte) {
    bool any = within(byte, 0x80, 0xbf);
    switch (at) {
    case TEXT:
        if (within(byte, 0x20, 0x7f)) return TEXT;
        if (within(byte, 0xc2, 0xdf)) return MORE_1;
        if (byte == 0xe0) return AFTER_E0;
        if (byte == 0xed) return AFTER_ED;
        if (within(byte, 0xe1, 0xef)) return MORE_2;
        if (byte == 0xf0) return AFTER_F0;
        if (byte == 0xf4) return AFTER_F4;
        return within(byte, 0xf1, 0xf3) ? MORE_3 : DEAD;
    case MORE_1: return any ? TEXT : DEAD;
    case MORE_2: return any ? MORE_1 : DEAD;
    case MORE_3: return any ? MORE_2 : DEAD;
    case AFTER_E0: return within(byte, 0xa0, 0xbf) ? MORE_1 : DEAD;
    case AFTER_ED: return within(byte, 0x80, 0x9f) ? MORE_1 : DEAD;
    case AFTER_F0: return within(byte, 0x90, 0xbf) ? MORE_2 : DEAD;
    case AFTER_F4: return within(byte, 0x80, 0x8f) ? MORE_2 : DEAD;
    default: return DEAD;
    }
}

/* Behind \u: four digits, not 0000; a high surrogate only before a low one. */
static int hex_step(int at, uint8_t byte) {
    int digit = fl_hex_digit((char)byte);
    if (at == PAIR_BACKSLASH) return byte == '\\' ? PAIR_U : DEAD;
    if (at == PAIR_U) return byte == 'u' ? LOW_1 : DEAD;
    if (digit < 0) return DEAD;
    switch (at) {
    case HEX_1: return digit == 0 ? ZERO_2 : digit == 0xd ? D_2 : HEX_2;
    case HEX_2: return HEX_3;
    case HEX_3: return HEX_4;
    case HEX_4: return TEXT;
    case ZERO_2: return digit == 0 ? ZERO_3 : HEX_3;
    case ZERO_3: return digit == 0 ? ZERO_4 : HEX_4;
    case ZERO_4: return digit == 0 ? DEAD : TEXT;
    case D_2: return digit < 8 ? HEX_3 : digit < 0xc ? HIGH_3 : DEAD;
    case HIGH_3: return HIGH_4;
    case HIGH_4: return PAIR_BACKSLASH;
    case LOW_1: return digit == 0xd ? LOW_2 : DEAD;
    case LOW_2: return digit >= 0xc ? HEX_3 : DEAD;
    default: return DEAD;
    }
}

static int free_step(int at, uint8_t byte) {
    if (at == TEXT && byte == '\\') return ESCAPE;
    if (at < ESCAPE) return utf8_step(at, byte);
    if (at > ESCAPE) return hex_step(at, byte);
    if (byte == 'u') return HEX_1;
    return byte != 0 && strchr("\"\\/bfnrt", byte) ? TEXT : DEAD;
}

/* The one spelling of a byte that must be escaped. Bytes below 0x20 and, as 0x20 and 0x21, quote and backslash. */
enum { SPELLINGS = 0x22, SPELLING_BYTES = 8 };

static void spell(int i, char out[SPELLING_BYTES], uint8_t *byte) {
    static const char LETTERS[] = "........btn.fr..................\"\\";
    *byte = i < 0x20 ? (uint8_t)i : (uint8_t)LETTERS[i];
    if (LETTERS[i] == '.') snprintf(out, SPELLING_BYTES, "\\u%04X", (unsigned)i);
    else snprintf(out, SPELLING_BYTES, "\\%c", LETTERS[i]);
}

static const char *came_so_far(int at) {
    switch (at) {
    case TEXT: return "";
    case ESCAPE: return "\\";
    case ONLY_U: return "\\u";
    case ONLY_U0: return "\\u0";
    case ONLY_U00: return "\\u00";
    case ONLY_U000: return "\\u000";
    default: return "\\u001";
    }
}

/* A byte of an escape that has one spelling only. Where it is done, *out is TEXT and *done the byte that it means.
 * `dfa` (or NULL) must be able to go on from `state` with that byte. */
static int only_step(int at, uint8_t byte, const fl_schema_dfa *dfa, uint32_t state, uint8_t *done) {
    static const int NEXT[] = {ESCAPE, ONLY_U, ONLY_U0, ONLY_U00, ONLY_U000};
    const char *came = came_so_far(at);
    size_t n = strlen(came);
    for (int i = 1; i < SPELLINGS; i++) {
        char text[SPELLING_BYTES];
        uint8_t meant;
        spell(i, text, &meant);
        if (strncmp(text, came, n) != 0 || (uint8_t)text[n] != byte) continue;
        if (dfa && dfa->next[state][meant] == FL_PATTERN_DEAD) continue;
        *done = meant;
        if (text[n + 1] == '\0') return TEXT;
        return byte == '1' && n == 4 ? ONLY_U001 : NEXT[n];
    }
    return DEAD;
}

fl_schema_move fl_schema_name_step(uint16_t *at, uint8_t byte) {
    uint8_t meant;
    int next;
    if (*at == TEXT && byte == '"') return FL_SCHEMA_ENDED;
    if (*at >= ESCAPE || byte == '\\') next = only_step(*at, byte, NULL, 0, &meant);
    else next = utf8_step(*at, byte);
    if (next == DEAD) return FL_SCHEMA_REFUSED;
    *at = (uint16_t)next;
    return FL_SCHEMA_GOES_ON;
}

static fl_schema_move pattern_step(const fl_schema_dfa *dfa, fl_schema_frame *f, uint8_t byte) {
    uint8_t meant = byte;
    int next = TEXT;
    if (f->at == TEXT && byte == '"') return dfa->accepts[f->count] ? FL_SCHEMA_ENDED : FL_SCHEMA_REFUSED;
    if (f->at >= ESCAPE || byte == '\\') next = only_step(f->at, byte, dfa, f->count, &meant);
    else if (byte < 0x20) next = DEAD;
    if (next == DEAD) return FL_SCHEMA_REFUSED;
    if (next == TEXT) {
        if (dfa->next[f->count][meant] == FL_PATTERN_DEAD) return FL_SCHEMA_REFUSED;
        f->count = dfa->next[f->count][meant];
    }
    f->at = (uint16_t)next;
    return FL_SCHEMA_GOES_ON;
}

fl_schema_move fl_schema_string_step(const fl_schema *s, const fl_schema_node *node, fl_schema_frame *f,
                                     uint8_t byte) {
    if (node->detail != FL_SCHEMA_NONE) return pattern_step(&s->dfas[node->detail], f, byte);
    if (f->at == TEXT && byte == '"') return f->count >= node->min ? FL_SCHEMA_ENDED : FL_SCHEMA_REFUSED;
    int next = free_step(f->at, byte);
    if (next == DEAD || (f->at == TEXT && f->count >= node->max)) return FL_SCHEMA_REFUSED;
    uint32_t top = node->max != FL_SCHEMA_NONE ? node->max : node->min;
    if (f->at == TEXT && f->count < top) f->count++;
    f->at = (uint16_t)next;
    return FL_SCHEMA_GOES_ON;
}
