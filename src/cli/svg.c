#include "cli/svg.h"

#include <errno.h>
#include <string.h>

fl_err fl_svg_open(const char *path, int width, int height, fl_svg *out) {
    *out = (fl_svg){.file = fopen(path, "we"), .path = path};
    if (!out->file) return FL_FAIL(FL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    fprintf(out->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"system-ui,'DejaVu Sans',sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"#fff\"/>\n",
            width, height, width, height);
    return FL_ERR_OK;
}

fl_err fl_svg_close(fl_svg *svg) {
    if (!svg->file) return FL_ERR_OK;
    fputs("</svg>\n", svg->file);
    bool failed = ferror(svg->file) != 0;
    failed |= fclose(svg->file) != 0;
    svg->file = NULL;
    return failed ? FL_FAIL(FL_ERR_IO, "cannot write %s", svg->path) : FL_ERR_OK;
}

static void put_escaped(FILE *file, const char *text) {
    for (; *text; text++) switch (*text) {
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '&': fputs("&amp;", file); break;
        case '"': fputs("&quot;", file); break;
        default:
            if ((unsigned char)*text >= 32) putc(*text, file);
        }
}

void fl_svg_put_text(const fl_svg *svg, const fl_svg_text *at, const char *text) {
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(svg->file, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\"%s>",
            at->x, at->y, at->size, anchors[at->anchor], at->grey ? "#5b6775" : "#1d2733",
            at->bold ? " font-weight=\"600\"" : "");
    put_escaped(svg->file, text);
    fputs("</text>\n", svg->file);
}

void fl_svg_put_bar(const fl_svg *svg, double x, double y, double width, double height, const char *color) {
    fprintf(svg->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" fill=\"%s\"/>\n",
            x, y, width > 1 ? width : 1, height, color);
}

void fl_svg_put_curve(const fl_svg *svg, const fl_svg_point *points, int32_t n, const char *color) {
    fprintf(svg->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", color);
    for (int32_t i = 0; i < n; i++) fprintf(svg->file, "%.1f,%.1f ", points[i].x, points[i].y);
    fputs("\"/>\n", svg->file);
    for (int32_t i = 0; i < n; i++)
        fprintf(svg->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", points[i].x,
                points[i].y, color);
}

void fl_svg_put_line(const fl_svg *svg, fl_svg_point from, fl_svg_point to, const char *color) {
    fprintf(svg->file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", from.x,
            from.y, to.x, to.y, color);
}
