/* Pictures as SVG files that need nothing else: what the plots of benchmarks share. */
#ifndef FL_CLI_SVG_H
#define FL_CLI_SVG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

typedef struct fl_svg {
    FILE *file;
    const char *path; /* borrowed */
} fl_svg;

typedef enum fl_svg_anchor { FL_SVG_START, FL_SVG_MIDDLE, FL_SVG_END } fl_svg_anchor;

/* A white page of width x height. On success fl_svg_close ends it. FL_ERR_IO. */
fl_err fl_svg_open(const char *path, int width, int height, fl_svg *out);
fl_err fl_svg_close(fl_svg *svg);

/* `text` is escaped. size in pixels; grey: what is said aside. */
typedef struct fl_svg_text {
    double x, y;
    int size;
    fl_svg_anchor anchor;
    bool grey, bold;
} fl_svg_text;
void fl_svg_put_text(const fl_svg *svg, const fl_svg_text *at, const char *text);

void fl_svg_put_bar(const fl_svg *svg, double x, double y, double width, double height, const char *color);

typedef struct fl_svg_point {
    double x, y;
} fl_svg_point;
/* Points joined by lines, a dot on each. */
void fl_svg_put_curve(const fl_svg *svg, const fl_svg_point *points, int32_t n, const char *color);
void fl_svg_put_line(const fl_svg *svg, fl_svg_point from, fl_svg_point to, const char *color);

#endif
