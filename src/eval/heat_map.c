#include "eval/heat_map.h"

#include <errno.h>
#include <string.h>

enum {
    FIELD_W = 62,
    FIELD_H = 26,
    LEFT = 78,
    TOP = 52,
    BOTTOM = 34,
    GAP = 26,
    MARGIN = 24,
    HEAD = 62,
    WIDTH_MAX = 1180
};
enum { PANEL_W_MIN = 250, SCALE_STEPS = 50, SCALE_STEP_W = 6 };

typedef struct color {
    int r, g, b;
} color;

/* 0..100 points to a colour of steadily rising lightness. */
static color color_of(double points) {
    static const color stops[] = {
        {22, 32, 84}, {66, 86, 122}, {124, 128, 126}, {196, 178, 100}, {255, 236, 120}};
    enum { LAST = sizeof stops / sizeof *stops - 1 };
    double at = points / 100 * LAST;
    at = at < 0 ? 0 : at > LAST ? LAST : at;
    int i = at >= LAST ? LAST - 1 : (int)at;
    double part = at - i;
    return (color){(int)(stops[i].r + part * (stops[i + 1].r - stops[i].r) + 0.5),
                   (int)(stops[i].g + part * (stops[i + 1].g - stops[i].g) + 0.5),
                   (int)(stops[i].b + part * (stops[i + 1].b - stops[i].b) + 0.5)};
}

static void put_escaped(FILE *file, const char *text, size_t n_max) {
    for (size_t i = 0; text[i] && i < n_max; i++) switch (text[i]) {
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '&': fputs("&amp;", file); break;
        case '"': fputs("&quot;", file); break;
        default:
            if ((unsigned char)text[i] >= 32) putc(text[i], file);
        }
    if (strlen(text) > n_max) fputs("…", file);
}

static void put_length(FILE *file, int64_t tokens) {
    if (tokens % 1024 == 0) fprintf(file, "%lldk", (long long)(tokens / 1024));
    else fprintf(file, "%lld", (long long)tokens);
}

/* One panel: which view's sums, and whether its variant's score or the baseline's is shown. */
typedef struct panel {
    const fl_eval_report *report;
    const fl_eval_view *view;
    const char *title, *detail;
    bool baseline;
    int x, y;
} panel;

static void put_field(FILE *file, const panel *p, int32_t length, int32_t depth) {
    const fl_eval_summary *s = &p->view->by_depth[length * FL_EVAL_DEPTHS + depth];
    int x = p->x + LEFT + length * FIELD_W, y = p->y + TOP + depth * FIELD_H;
    double score = p->baseline ? s->score_full : s->score;
    color c = color_of(score);
    if (s->n_questions == 0) {
        fprintf(file,
                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#fff\" stroke=\"#ccc\"/>"
                "<text x=\"%d\" y=\"%d\" class=\"field\" style=\"fill:#777\">none</text>\n",
                x, y, FIELD_W - 2, FIELD_H - 2, x + FIELD_W / 2 - 1, y + 16);
        return;
    }
    const char *ink = 299 * c.r + 587 * c.g + 114 * c.b > 128000 ? "#111" : "#fff";
    fprintf(file, "<g><title>");
    put_length(file, p->report->lengths[length]);
    fprintf(file, " tokens, depth %.0f to %.0f%%: score %.1f", 100.0 * depth / FL_EVAL_DEPTHS,
            100.0 * (depth + 1) / FL_EVAL_DEPTHS, score);
    if (!p->baseline)
        fprintf(file, ", loss %.2f [%.2f, %.2f] points", s->loss.value, s->loss.low, s->loss.high);
    fprintf(
        file,
        ", %d answers</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
        "fill=\"#%02x%02x%02x\"/><text x=\"%d\" y=\"%d\" class=\"field\" style=\"fill:%s\">%.1f</text></g>\n",
        s->n_questions, x, y, FIELD_W - 2, FIELD_H - 2, (unsigned)c.r, (unsigned)c.g, (unsigned)c.b,
        x + FIELD_W / 2 - 1, y + 16, ink, score);
}

static void put_panel(FILE *file, const panel *p, int width) {
    fprintf(file, "<text x=\"%d\" y=\"%d\" class=\"title\">", p->x, p->y + 12);
    put_escaped(file, p->title, (size_t)width / 8);
    fprintf(file, "</text><text x=\"%d\" y=\"%d\" class=\"label\">", p->x, p->y + 28);
    put_escaped(file, p->detail, (size_t)width / 7);
    fprintf(file, "</text>\n");
    for (int32_t l = 0; l < p->report->n_lengths; l++) {
        fprintf(file, "<text x=\"%d\" y=\"%d\" class=\"label\" text-anchor=\"middle\">",
                p->x + LEFT + l * FIELD_W + FIELD_W / 2 - 1, p->y + TOP - 6);
        put_length(file, p->report->lengths[l]);
        fprintf(file, "</text>\n");
        for (int32_t d = 0; d < FL_EVAL_DEPTHS; d++) put_field(file, p, l, d);
    }
    for (int32_t d = 0; d < FL_EVAL_DEPTHS; d++)
        fprintf(file, "<text x=\"%d\" y=\"%d\" class=\"label\" text-anchor=\"end\">%.0f-%.0f%%</text>\n",
                p->x + LEFT - 8, p->y + TOP + d * FIELD_H + 16, 100.0 * d / FL_EVAL_DEPTHS,
                100.0 * (d + 1) / FL_EVAL_DEPTHS);
}

static void put_scale(FILE *file, int y) {
    for (int i = 0; i < SCALE_STEPS; i++) {
        color c = color_of(100.0 * i / (SCALE_STEPS - 1));
        fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"12\" fill=\"#%02x%02x%02x\"/>\n",
                MARGIN + i * SCALE_STEP_W, y, SCALE_STEP_W + 1, (unsigned)c.r, (unsigned)c.g, (unsigned)c.b);
    }
    int end = MARGIN + SCALE_STEPS * SCALE_STEP_W;
    fprintf(file,
            "<text x=\"%d\" y=\"%d\" class=\"label\">0</text><text x=\"%d\" y=\"%d\" class=\"label\" "
            "text-anchor=\"end\">100 points</text>\n",
            MARGIN, y + 26, end, y + 26);
}

static void put_head(FILE *file, const fl_eval_about *about, int width, int height) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "role=\"img\" aria-label=\"Score by depth and length\">\n"
            "<style>text{font-family:sans-serif;fill:#222}.head{font-size:18px;font-weight:bold}"
            ".title{font-size:13px;font-weight:bold}.label{font-size:11px;fill:#555}"
            ".field{font-size:12px;text-anchor:middle}</style>\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            width, height, width, height, width, height);
    fprintf(file,
            "<text x=\"%d\" y=\"32\" class=\"head\">Score by depth and length"
            "</text>\n<text x=\"%d\" y=\"50\" class=\"label\">",
            MARGIN, MARGIN);
    put_escaped(file, about->model, 80);
    fprintf(file, ", seed %llu, difficulty %g; rows: where the fact lies; columns: tokens</text>\n",
            (unsigned long long)about->seed, about->difficulty);
}

fl_err fl_heat_map_write(FILE *file, const fl_eval_report *r, const fl_eval_about *about) {
    int panel_w = LEFT + r->n_lengths * FIELD_W, panel_h = TOP + FL_EVAL_DEPTHS * FIELD_H + BOTTOM;
    int32_t n = r->n_sides;
    if (panel_w < PANEL_W_MIN) panel_w = PANEL_W_MIN;
    int a_row = (WIDTH_MAX - 2 * MARGIN + GAP) / (panel_w + GAP);
    a_row = a_row < 1 ? 1 : a_row > n ? n : a_row;
    int width = 2 * MARGIN + a_row * (panel_w + GAP) - GAP;
    if (width < 520) width = 520;
    int n_rows = (n + a_row - 1) / a_row, scale_y = HEAD + 8 + n_rows * panel_h;
    put_head(file, about, width, scale_y + 44);
    for (int32_t i = 0; i < n; i++) {
        const panel p = {.report = r,
                         .view = &r->views[i > 0 ? i - 1 : 0],
                         .title = about->sides[i].spec,
                         .detail = i > 0 ? about->sides[i].policy : "the baseline",
                         .baseline = i == 0,
                         .x = MARGIN + (i % a_row) * (panel_w + GAP),
                         .y = HEAD + 8 + (i / a_row) * panel_h};
        put_panel(file, &p, panel_w);
    }
    put_scale(file, scale_y);
    fprintf(file, "</svg>\n");
    if (fflush(file) != 0 || ferror(file))
        return FL_FAIL(FL_ERR_IO, "cannot write the heat map: %s", strerror(errno));
    return FL_ERR_OK;
}
