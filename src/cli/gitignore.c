#include "cli/gitignore.h"

#include <stdlib.h>
#include <string.h>

/* Matches the set at p (behind '[') with c; *end is behind its ']'. A set without end matches nothing. */
static bool match_set(const char *p, char c, const char **end) {
    bool negated = *p == '!' || *p == '^', in = false, first = true;
    if (negated) p++;
    for (; *p && (*p != ']' || first); p++, first = false) {
        if (*p == '\\' && p[1]) p++;
        unsigned char low = (unsigned char)*p, high = low;
        if (p[1] == '-' && p[2] && p[2] != ']') {
            p += 2;
            if (*p == '\\' && p[1]) p++;
            high = (unsigned char)*p;
        }
        in |= (unsigned char)c >= low && (unsigned char)c <= high;
    }
    *end = *p ? p + 1 : NULL;
    return *p && in != negated && c != '/';
}

/* One pattern element that is no star against one byte; *next is the pattern behind it, NULL = no match. */
static const char *match_one(const char *p, char c) {
    const char *end;
    switch (*p) {
    case '\0': return NULL;
    case '?': return c != '/' ? p + 1 : NULL;
    case '[': return match_set(p + 1, c, &end) ? end : NULL;
    case '\\': return p[1] == '\0' ? NULL : p[1] == c ? p + 2 : NULL;
    default: return *p == c ? p + 1 : NULL;
    }
}

/* Two places to go back to: the last '*' (its text may grow up to a '/'), and the last "**" (its text may grow by whole
 * folders). Earlier ones need never be tried again, so the time is at most the product of the lengths, squared for
 * "**", and there is no recursion. */
bool fl_glob_match(const char *pattern, const char *text) {
    const char *p = pattern, *t = text;
    const char *star = NULL, *star_text = NULL, *folders = NULL, *folders_text = NULL;
    for (;;) {
        bool segment = p == pattern || p[-1] == '/';
        if (segment && p[0] == '*' && p[1] == '*' && (p[2] == '/' || p[2] == '\0')) {
            if (p[2] == '\0') return *t != '\0';
            folders = p += 3;
            folders_text = t;
            star = NULL;
            continue;
        }
        if (*p == '*') {
            while (*p == '*') p++;
            star = p;
            star_text = t;
            continue;
        }
        if (*t == '\0' && *p == '\0') return true;
        const char *next = *t ? match_one(p, *t) : NULL;
        if (next) {
            p = next;
            t++;
        } else if (star && *star_text && *star_text != '/') {
            p = star;
            t = ++star_text;
        } else if (folders && (folders_text = strchr(folders_text, '/')) != NULL) {
            p = folders;
            t = ++folders_text;
            star = NULL;
        } else {
            return false;
        }
    }
}

static fl_err add_rule(fl_ignore *ignore, const fl_ignore_rule *rule, const char *text, size_t n_bytes) {
    if (ignore->n == FL_IGNORE_RULES_MAX)
        return FL_FAIL(FL_ERR_LIMIT, ".gitignore: more than %d rules; name the files one by one with -f",
                       FL_IGNORE_RULES_MAX);
    if (ignore->n == ignore->capacity) {
        int32_t capacity = ignore->capacity ? 2 * ignore->capacity : 64;
        fl_ignore_rule *rules = realloc(ignore->rules, (size_t)capacity * sizeof *rules);
        if (!rules) return FL_FAIL(FL_ERR_NOMEM, "%d ignore rules", capacity);
        ignore->rules = rules;
        ignore->capacity = capacity;
    }
    char *pattern = malloc(n_bytes + 1);
    if (!pattern) return FL_FAIL(FL_ERR_NOMEM, "ignore rule");
    memcpy(pattern, text, n_bytes);
    pattern[n_bytes] = '\0';
    ignore->rules[ignore->n] = *rule;
    ignore->rules[ignore->n++].pattern = pattern;
    return FL_ERR_OK;
}

/* Blanks at a line's end do not count unless the last is escaped. */
static size_t without_blanks(const char *line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\r') && !(n > 1 && line[n - 2] == '\\')) n--;
    return n;
}

static fl_err add_line(fl_ignore *ignore, const char *line, size_t n, size_t base_bytes) {
    fl_ignore_rule rule = {.base_bytes = base_bytes};
    n = without_blanks(line, n);
    if (n == 0 || line[0] == '#' || n > FL_IGNORE_PATTERN_BYTES_MAX || memchr(line, '\0', n))
        return FL_ERR_OK;
    if (line[0] == '!') {
        rule.negated = true;
        line++;
        n--;
    }
    if (n > 0 && line[n - 1] == '/') {
        rule.folders_only = true;
        n--;
    }
    rule.anchored = memchr(line, '/', n) != NULL;
    if (n > 0 && line[0] == '/') {
        line++;
        n--;
    }
    return n == 0 ? FL_ERR_OK : add_rule(ignore, &rule, line, n);
}

fl_err fl_ignore_add(fl_ignore *ignore, const char *text, size_t n_bytes, size_t base_bytes) {
    for (size_t at = 0; at < n_bytes;) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        size_t n = end ? (size_t)(end - text) - at : n_bytes - at;
        FL_TRY(add_line(ignore, text + at, n, base_bytes));
        at += n + 1;
    }
    return FL_ERR_OK;
}

void fl_ignore_cut(fl_ignore *ignore, int32_t n) {
    while (ignore->n > n) free(ignore->rules[--ignore->n].pattern);
}

bool fl_ignore_match(const fl_ignore *ignore, const char *path, bool is_folder) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int32_t i = ignore->n; i-- > 0;) {
        const fl_ignore_rule *rule = &ignore->rules[i];
        if (rule->folders_only && !is_folder) continue;
        if (fl_glob_match(rule->pattern, rule->anchored ? path + rule->base_bytes : name))
            return !rule->negated;
    }
    return false;
}

void fl_ignore_close(fl_ignore *ignore) {
    fl_ignore_cut(ignore, 0);
    free(ignore->rules);
    *ignore = (fl_ignore){0};
}
