/* The patterns of .gitignore files: which paths of a repository are not part of it. The order of the rules decides:
 * later ones, and those of deeper folders, win. */
#ifndef FL_CLI_GITIGNORE_H
#define FL_CLI_GITIGNORE_H

#include "base/err.h"

#include <stddef.h>

enum { FL_IGNORE_RULES_MAX = 20000, FL_IGNORE_PATTERN_BYTES_MAX = 1024 };

typedef struct fl_ignore_rule {
    char *pattern;     /* without '!' and the slashes at its ends; owned */
    size_t base_bytes; /* the rule holds below this much of the path ("src/"; 0 = root) */
    bool negated;      /* takes a path back in */
    bool folders_only;
    bool anchored; /* matches the path below the base, else a name anywhere below it */
} fl_ignore_rule;

typedef struct fl_ignore {
    fl_ignore_rule *rules; /* [n] */
    int32_t n, capacity;
} fl_ignore;

/* Adds the rules of one .gitignore; its folder is the first base_bytes of the paths to come ("src/", or 0).
 * FL_ERR_LIMIT: too many rules. */
fl_err fl_ignore_add(fl_ignore *ignore, const char *text, size_t n_bytes, size_t base_bytes);

/* Drops the rules from number n on: a folder is left. */
void fl_ignore_cut(fl_ignore *ignore, int32_t n);

/* Whether a path ("src/a.c", relative to the root, all its folders not ignored) is ignored. */
bool fl_ignore_match(const fl_ignore *ignore, const char *path, bool is_folder);

void fl_ignore_close(fl_ignore *ignore);

/* Whether a pattern matches a text: '*' and '?' match no '/', "[a-z]" and "[!a]" one byte of a set, "**" between
 * slashes any number of folders, a backslash takes the next byte as it is. */
bool fl_glob_match(const char *pattern, const char *text);

#endif
