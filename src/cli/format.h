/* Numbers and bars as people read them. */
#ifndef FL_CLI_FORMAT_H
#define FL_CLI_FORMAT_H

#include <stdint.h>
#include <stdio.h>

enum { FL_FORMAT_BYTES = 32 };

/* A short text in a struct, so that several may be made in one call of printf. */
typedef struct fl_text32 {
    char s[FL_FORMAT_BYTES];
} fl_text32;

fl_text32 fl_format_count(int64_t value);    /* 8,765 */
fl_text32 fl_format_bytes(int64_t bytes);    /* 412 MiB */
fl_text32 fl_format_seconds(double value_s); /* 12.3 ms, 2.61 s, 3 min 12 s */
fl_text32 fl_format_si(double value);        /* 1.23 T, 12.3 G */
fl_text32 fl_format_rate(double per_s);      /* 3,214 or 12.4 */

enum { FL_BAR_WIDTH_MAX = 64, FL_BAR_BYTES = 3 * FL_BAR_WIDTH_MAX + 1 };

/* A bar of `width` columns filled from `begin` to `end` (fractions of it) to an eighth of a column; never empty when
 * begin < end. `empty` fills the rest: " " or "░". */
typedef struct fl_bar {
    char s[FL_BAR_BYTES];
} fl_bar;
fl_bar fl_format_bar(double begin, double end, int width, const char *empty);

/* Text wrapped at `width` columns, the first line standing at column `indent` already. */
void fl_print_wrapped(FILE *file, const char *text, int indent, int width);

#endif
