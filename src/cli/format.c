#include "cli/format.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

fl_text32 fl_format_count(int64_t value) {
    char digits[24];
    fl_text32 out = {""};
    int n = snprintf(digits, sizeof digits, "%" PRId64, value), at = 0;
    for (int i = 0; i < n; i++) {
        out.s[at++] = digits[i];
        if ((n - i - 1) % 3 == 0 && i + 1 < n && digits[i] != '-') out.s[at++] = ',';
    }
    out.s[at] = '\0';
    return out;
}

/* Three digits that matter. */
static int decimals(double value) {
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

static fl_text32 scaled(double value, double step, const char *const *units, int n_units) {
    fl_text32 out;
    int unit = 0;
    while (fabs(value) >= step * 0.9995 && unit + 1 < n_units) {
        value /= step;
        unit++;
    }
    snprintf(out.s, sizeof out.s, "%.*f %s", unit == 0 && value == floor(value) ? 0 : decimals(fabs(value)),
             value, units[unit]);
    return out;
}

fl_text32 fl_format_bytes(int64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled((double)bytes, 1024, units, 6);
}

fl_text32 fl_format_si(double value) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    return scaled(value, 1000, units, 6);
}

fl_text32 fl_format_seconds(double value_s) {
    fl_text32 out;
    if (value_s < 0.0000005) snprintf(out.s, sizeof out.s, "0 s");
    else if (value_s < 0.0009995) snprintf(out.s, sizeof out.s, "%.0f us", value_s * 1e6);
    else if (value_s < 0.9995)
        snprintf(out.s, sizeof out.s, "%.*f ms", decimals(value_s * 1e3), value_s * 1e3);
    else if (value_s < 99.95) snprintf(out.s, sizeof out.s, "%.*f s", decimals(value_s), value_s);
    else
        snprintf(out.s, sizeof out.s, "%.0f min %.0f s", floor(round(value_s) / 60),
                 fmod(round(value_s), 60));
    return out;
}

fl_text32 fl_format_rate(double per_s) {
    fl_text32 out;
    if (per_s >= 99.95) return fl_format_count((int64_t)round(per_s));
    snprintf(out.s, sizeof out.s, "%.*f", decimals(per_s), per_s);
    return out;
}

/* Blocks fill from the left only, so a bar's begin is rounded to a column and its end to an eighth. */
fl_bar fl_format_bar(double begin, double end, int width, const char *empty) {
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    fl_bar out;
    size_t at = 0;
    if (width > FL_BAR_WIDTH_MAX) width = FL_BAR_WIDTH_MAX;
    begin = begin < 0 ? 0 : begin > 1 ? 1 : begin;
    end = end < begin ? begin : end > 1 ? 1 : end;
    int first = (int)floor(begin * width);
    if (first >= width) first = width - 1;
    int fill = (int)round((end * width - first) * 8);
    if (fill < 1 && end > begin) fill = 1;
    if (fill > (width - first) * 8) fill = (width - first) * 8;
    for (int column = 0; column < width; column++) {
        int here = column < first ? 0 : fill - (column - first) * 8;
        const char *block = here >= 8 ? "█" : here > 0 ? eighths[here] : empty;
        memcpy(out.s + at, block, strlen(block));
        at += strlen(block);
    }
    out.s[at] = '\0';
    return out;
}

void fl_print_wrapped(FILE *file, const char *text, int indent, int width) {
    int column = indent;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > width) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(file, "%s%.*s", column > indent ? " " : "", n, text);
        text += n;
        while (*text == ' ') text++;
    }
    fputc('\n', file);
}
