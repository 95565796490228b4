/* mutate: makes small faults in a C source, to see whether the checks notice (script/mutate_ops.sh).
 *
 *   mutate FILE        prints how many faults it can make in FILE
 *   mutate FILE N      prints FILE with fault N (from 0), and on stderr "LINE<tab>old -> new"
 *
 * A fault is one flipped comparison, arithmetic or logic operator, one number plus one, or one index plus one, inside a
 * function body. Relies on clang-format's layout: binary operators stand between blanks, a unary or pointer * does not.
 * Comments, strings and the sizes of declared arrays are left alone, for nothing there changes a result. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEW_MAX = 40 };

static const struct {
    const char *old, *new;
} operators[] = {
    {"<", ">="},  {">", "<="},  {"<=", ">"},  {">=", "<"},  {"==", "!="}, {"!=", "=="}, {"+", "-"},
    {"-", "+"},   {"*", "+"},   {"/", "*"},   {"%", "/"},   {"&&", "||"}, {"||", "&&"}, {"<<", ">>"},
    {">>", "<<"}, {"+=", "-="}, {"-=", "+="}, {"*=", "+="}, {"&", "|"},   {"|", "&"},
};

/* One fault: `old_bytes` bytes at `at` become `text`. */
typedef struct fault {
    size_t at, old_bytes;
    char text[NEW_MAX];
} fault;

typedef struct scanner {
    const char *source;
    size_t at;
    int depth;          /* of braces */
    int function_depth; /* the depth inside which faults are made; 0 = in no function */
    char last;          /* last character that was no blank and no comment */
    bool after_type;    /* the last word followed another word: a declaration's name */
    bool after_word;
    bool in_size; /* inside the brackets of a declared array */
    long wanted;  /* the fault to make; -1 = count */
    long n_faults;
    fault found;
} scanner;

/* Counts a fault and keeps it if it is the wanted one. */
static void offer(scanner *s, size_t at, size_t old_bytes, const char *text) {
    if (s->function_depth == 0 || s->in_size) return;
    if (s->n_faults++ == s->wanted) {
        s->found.at = at;
        s->found.old_bytes = old_bytes;
        snprintf(s->found.text, sizeof s->found.text, "%s", text);
    }
}

/* Skips a comment, a string, a character or a preprocessor line at the scanner's place; false = there is none. */
static bool skip_text(scanner *s) {
    const char *p = s->source + s->at;
    const char *end = NULL;
    if (strncmp(p, "/*", 2) == 0) {
        end = strstr(p + 2, "*/");
        end = end ? end + 2 : p + strlen(p);
    } else if (strncmp(p, "//", 2) == 0 || (*p == '#' && (s->at == 0 || p[-1] == '\n'))) {
        end = p;
        while (*end != '\0' && (*end != '\n' || end[-1] == '\\')) end++;
    } else if (*p == '"' || *p == '\'') {
        end = p + 1;
        while (*end != '\0' && *end != *p) end += *end == '\\' && end[1] != '\0' ? 2 : 1;
        if (*end != '\0') end++;
        s->last = *p;
        s->after_word = s->after_type = false;
    }
    if (end) s->at = (size_t)(end - s->source);
    return end != NULL;
}

static bool is_keyword(const char *word, size_t n) {
    static const char *const keywords[] = {"return", "else", "case", "sizeof", "goto", "do"};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strlen(keywords[i]) == n && strncmp(word, keywords[i], n) == 0) return true;
    return false;
}

static void scan_word(scanner *s) {
    const char *p = s->source + s->at;
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_') n++;
    bool keyword = is_keyword(p, n);
    s->after_type = !keyword && (s->after_word || (s->last == '*' && p[-1] == '*'));
    s->after_word = !keyword;
    s->last = 'a';
    s->at += n;
}

static void scan_number(scanner *s) {
    const char *p = s->source + s->at;
    char *end = NULL;
    char text[NEW_MAX];
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '.' ||
           ((p[n] == '-' || p[n] == '+') && (p[n - 1] | 32) == 'e' && p[1] != 'x'))
        n++;
    bool hex = p[0] == '0' && (p[1] | 32) == 'x';
    bool real = !hex && memchr(p, '.', n) != NULL;
    if (real) {
        double value = strtod(p, &end);
        snprintf(text, sizeof text, "%.9g%s%.*s", value + 1, value == (double)(long long)value ? ".0" : "",
                 (int)((size_t)(p + n - end)), end);
    } else {
        unsigned long long value = strtoull(p, &end, 0);
        snprintf(text, sizeof text, hex ? "0x%llx%.*s" : "%llu%.*s", value + 1, (int)((size_t)(p + n - end)),
                 end);
    }
    offer(s, s->at, n, text);
    s->after_word = s->after_type = false;
    s->last = '0';
    s->at += n;
}

/* An operator between blanks; false = the character starts none. */
static bool scan_operator(scanner *s) {
    const char *p = s->source + s->at;
    if (s->at == 0 || (p[-1] != ' ' && p[-1] != '\n') || strchr("<>=!+-*/%&|", *p) == NULL) return false;
    size_t n = strspn(p, "<>=!+-*/%&|");
    if (p[n] != ' ' && p[n] != '\n') return false;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (strlen(operators[i].old) == n && strncmp(p, operators[i].old, n) == 0)
            offer(s, s->at, n, operators[i].new);
    s->after_word = s->after_type = false;
    s->last = p[n - 1];
    s->at += n;
    return true;
}

static void scan_mark(scanner *s) {
    char c = s->source[s->at];
    if (c == '{') {
        s->depth++;
        if (s->function_depth == 0 && s->last == ')') s->function_depth = s->depth;
    } else if (c == '}') {
        if (s->depth == s->function_depth) s->function_depth = 0;
        s->depth--;
    } else if (c == '[') {
        if (s->after_type) s->in_size = true;
        offer(s, s->at, 1, "[1 + ");
    } else if (c == ']' && s->source[s->at + 1] != '[') {
        s->in_size = false;
    }
    s->last = c;
    s->after_word = s->after_type = false;
    s->at++;
}

static void scan(scanner *s) {
    while (s->source[s->at] != '\0') {
        unsigned char c = (unsigned char)s->source[s->at];
        if (skip_text(s)) continue;
        if (isspace(c)) s->at++;
        else if (isdigit(c)) scan_number(s);
        else if (isalpha(c) || c == '_') scan_word(s);
        else if (!scan_operator(s)) scan_mark(s);
    }
}

static char *file_read(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t n = 0, space = 1 << 20;
    if (f && (text = malloc(space + 1)) != NULL) {
        n = fread(text, 1, space, f);
        text[n] = '\0';
    }
    if (f) fclose(f);
    return text;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: mutate FILE [N]\n");
        return 2;
    }
    char *source = file_read(argv[1]);
    if (!source) {
        fprintf(stderr, "mutate: cannot read %s\n", argv[1]);
        return 1;
    }
    scanner s = {.source = source, .wanted = argc == 3 ? strtol(argv[2], NULL, 10) : -1};
    scan(&s);
    int status = 0;
    if (argc == 2) {
        printf("%ld\n", s.n_faults);
    } else if (s.wanted < 0 || s.wanted >= s.n_faults) {
        fprintf(stderr, "mutate: %s has %ld faults\n", argv[1], s.n_faults);
        status = 2;
    } else {
        long line = 1;
        for (size_t i = 0; i < s.found.at; i++) line += source[i] == '\n';
        fprintf(stderr, "%ld\t%.*s -> %s\n", line, (int)s.found.old_bytes, source + s.found.at, s.found.text);
        printf("%.*s%s%s", (int)s.found.at, source, s.found.text, source + s.found.at + s.found.old_bytes);
    }
    free(source);
    return status;
}
