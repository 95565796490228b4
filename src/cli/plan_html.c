/* A plan as one page that needs nothing else: where time and memory go, as pictures, and what would change it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/format.h"
#include "cli/plan_report.h"

enum {
    WIDTH = 940,
    LABEL_W = 170, /* left of bars */
    VALUE_W = 190, /* right of them */
    BAR_W = WIDTH - LABEL_W - VALUE_W,
    ROW_H = 34,
    BAR_H = 20,
    TOP = 30, /* for what a line is marked with */
    BOTTOM = 12
};

/* Memory beyond this many times a GPU's is cut off, so that what fits can still be read. */
#define SCALE_MOST 1.6

static const char *const stage_colors[FL_N_STAGES] = {"#3b6fb6", "#e0606e", "#9a3d80",
                                                      "#2f8f4e", "#9aa3ad", "#d6a92b"};

static void put(FILE *f, const char *text) {
    for (; *text; text++) switch (*text) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        case '"': fputs("&quot;", f); break;
        default:
            if ((unsigned char)*text >= 32) putc(*text, f);
        }
}

static void put_head(FILE *f, const fl_plan_report *r) {
    const fl_plan_task *t = &r->sides[0].task;
    char line[FL_PLAN_LINE_BYTES];
    fputs(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>firstlight "
        "plan</title>"
        "<style>body{font:15px/1.5 system-ui,\"DejaVu "
        "Sans\",sans-serif;color:#1d2733;background:#f6f7f9;margin:0}"
        "main{max-width:980px;margin:0 auto;padding:24px 20px 48px}h1{font-size:24px;margin:0}"
        "h2{font-size:17px;margin:28px 0 8px}p{margin:6px 0}.mute{color:#5b6775}"
        ".card{background:#fff;border:1px solid #e2e6eb;border-radius:10px;padding:14px 18px;margin-top:10px;"
        "overflow-x:auto}"
        ".yes{border-left:6px solid #2f8f4e}.no{border-left:6px solid "
        "#c8414f}svg{width:100%;min-width:600px;height:auto;display:block}"
        "svg text{font:13px system-ui,\"DejaVu "
        "Sans\",sans-serif;fill:#1d2733;paint-order:stroke;stroke:#fff;stroke-width:4px}svg "
        ".mute{fill:#5b6775}"
        "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:5px 12px 5px "
        "0;vertical-align:top;"
        "border-top:1px solid #eceff2;font-weight:400}tr:first-child td,tr:first-child th{border-top:0}"
        "th{color:#5b6775}td{overflow-wrap:anywhere}td.n{text-align:right;white-space:nowrap;font-variant-"
        "numeric:tabular-nums}"
        ".key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 6px 0 0}"
        ".keys span{margin-right:16px;white-space:nowrap}</style><main><h1>",
        f);
    put(f, r->model);
    fprintf(f, " on %d &times; %s</h1><p class=\"mute\">%s tokens, weights %s, KV %s, attention ",
            r->box.n_gpus, r->box.gpu->name, fl_format_count(t->n_tokens).s,
            fl_plan_weights(&r->sides[0].config), fl_kv_format_name(t->kv.format));
    put(f, r->sides[0].attending.policy_text);
    fprintf(f,
            ". A projection at %.0f%% of the data sheet's peaks, nothing overlapped; no time here was "
            "measured.</p>",
            100 * r->box.efficiency);
    fl_plan_verdict(r, line);
    fprintf(f, "<div class=\"card %s\"><p><b>", r->feasible ? "yes" : "no");
    put(f, line);
    fputs("</b></p>", f);
    if (fl_plan_note(r, line)) {
        fputs("<p>", f);
        put(f, line);
        fputs("</p>", f);
    }
    if (!r->feasible && r->goal_s > 0) {
        fl_plan_ceiling(r, line);
        fputs("<p>", f);
        put(f, line);
        fputs("</p>", f);
    }
    fputs("</div>", f);
}

/* ---- bars ---- */

static void open_svg(FILE *f, int rows, const char *title) {
    fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">", WIDTH,
            TOP + rows * ROW_H + BOTTOM, title);
}

static void put_label(FILE *f, int row, const char *text, const char *mute) {
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\"%s>", LABEL_W - 12, TOP + row * ROW_H + 15, mute);
    put(f, text);
    fputs("</text>", f);
}

/* From `begin` to `end`, fractions of the bars' width. */
static void put_bar(FILE *f, int row, double begin, double end, const char *color) {
    double width = (end - begin) * BAR_W;
    if (width <= 0) return;
    fprintf(f, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>",
            LABEL_W + begin * BAR_W, TOP + row * ROW_H, width < 0.75 ? 0.75 : width, BAR_H, color);
}

static void put_value(FILE *f, int row, double at, const char *text, const char *more) {
    fprintf(f, "<text x=\"%.2f\" y=\"%d\">", LABEL_W + at * BAR_W + 8, TOP + row * ROW_H + 15);
    put(f, text);
    fputs(" <tspan class=\"mute\">", f);
    put(f, more);
    fputs("</tspan></text>", f);
}

static void put_line(FILE *f, double at, int rows, const char *text) {
    double x = LABEL_W + at * BAR_W;
    fprintf(f,
            "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\" stroke=\"#1d2733\" stroke-dasharray=\"4 3\"/>"
            "<text x=\"%.2f\" y=\"14\" text-anchor=\"%s\">",
            x, x, TOP - 10, TOP + rows * ROW_H - 6, x,
            at > 0.85   ? "end"
            : at < 0.08 ? "start"
                        : "middle");
    put(f, text);
    fputs("</text>", f);
}

/* ---- time ---- */

static int32_t count_stages(const fl_outcome *o) {
    int32_t n = 0;
    for (int32_t i = 0; i < FL_N_STAGES; i++) n += o->stages[i].time_s > 0;
    return n;
}

/* One stage behind the other, then all in one; the line over the bars, words over both. */
static void put_time(FILE *f, const fl_plan_report *r) {
    const fl_outcome *o = fl_plan_report_best(r);
    int rows = count_stages(o) + 1, row = 0;
    double all = o->ttft_s > r->goal_s ? o->ttft_s : r->goal_s, at = 0;
    char text[96];
    fprintf(f, "<h2>Where the time goes (projection)</h2><div class=\"card\">");
    open_svg(f, rows, "seconds of each stage");
    for (int32_t i = 0; i < FL_N_STAGES; i++) {
        const fl_stage_cost *s = &o->stages[i];
        if (s->time_s <= 0) continue;
        put_label(f, row, fl_stage_name((fl_stage)i), "");
        put_bar(f, row++, at / all, (at + s->time_s) / all, stage_colors[i]);
        put_bar(f, rows - 1, at / all, (at + s->time_s) / all, stage_colors[i]);
        at += s->time_s;
    }
    put_label(f, row, "first token", " font-weight=\"bold\"");
    snprintf(text, sizeof text, "asked for: %s", fl_format_seconds(r->goal_s).s);
    if (r->goal_s > 0) put_line(f, r->goal_s / all, rows, text);
    put_value(f, row, at / all, fl_format_seconds(o->ttft_s).s, "");
    row = 0;
    at = 0;
    for (int32_t i = 0; i < FL_N_STAGES; i++) {
        const fl_stage_cost *s = &o->stages[i];
        at += s->time_s;
        if (s->time_s > 0)
            put_value(f, row++, at / all, fl_format_seconds(s->time_s).s, fl_bound_name(s->bound));
    }
    fputs("</svg></div>", f);
}

/* ---- memory ---- */

enum { N_PARTS = 6 };
static const struct {
    const char *name, *color;
} parts[N_PARTS] = {{"weights", "#3b6fb6"},     {"KV", "#2f8f4e"},      {"activations", "#5bb5d6"},
                    {"block lists", "#9a3d80"}, {"scratch", "#9aa3ad"}, {"exchange", "#d6a92b"}};

/* Outcomes to draw, with what stands before them. */
enum { MEMORY_ROWS_MAX = FL_N_LAYOUTS + 2 };
typedef struct memory_rows {
    struct {
        char name[48];
        const fl_outcome *outcome;
    } of[MEMORY_ROWS_MAX];
    int n;
    double scale; /* bytes of the bars' whole width */
} memory_rows;

static void put_memory_bars(FILE *f, const memory_rows *rows, int row) {
    const fl_share_memory *m = &rows->of[row].outcome->share.memory;
    const int64_t bytes[N_PARTS] = {
        m->weights, m->kv, m->activations, m->lists, m->scratch + m->logits + m->recordings, m->exchange};
    double at = 0;
    put_label(f, row, rows->of[row].name, "");
    for (int32_t i = 0; i < N_PARTS; i++) {
        double begin = at / rows->scale, end = (at + (double)bytes[i]) / rows->scale;
        put_bar(f, row, begin < 1 ? begin : 1, end < 1 ? end : 1, parts[i].color);
        at += (double)bytes[i];
    }
}

static void put_memory_value(FILE *f, const memory_rows *rows, int row) {
    double all = (double)rows->of[row].outcome->share.memory.total;
    char text[64];
    snprintf(text, sizeof text, "%s%sB", all > rows->scale ? "… " : "", fl_format_si(all).s);
    put_value(f, row, all < rows->scale ? all / rows->scale : 1, text,
              rows->of[row].outcome->fits ? "" : "does not fit");
}

static void collect_memory(const fl_plan_report *r, memory_rows *rows) {
    double card = (double)r->box.gpu->memory_bytes, most = card;
    rows->n = 0;
    for (int32_t i = 0; i < r->outcomes.n; i++) {
        const fl_outcome *o = &r->outcomes.of[i];
        if (!o->possible) continue;
        snprintf(rows->of[rows->n].name, sizeof rows->of[0].name, "%s%s, %s",
                 i == r->outcomes.best ? "▸ " : "", fl_layout_name(o->share.layout, o->share.n_gpus),
                 fl_format_seconds(o->ttft_s).s);
        rows->of[rows->n++].outcome = o;
    }
    for (int i = 0; i < 2 && r->has_pd; i++) {
        snprintf(rows->of[rows->n].name, sizeof rows->of[0].name, i == 0 ? "prefill on %d" : "decode on %d",
                 i == 0 ? r->pd.prefill_gpus : r->pd.decode_gpus);
        rows->of[rows->n++].outcome = i == 0 ? &r->pd.prefill : &r->pd.decode;
    }
    for (int i = 0; i < rows->n; i++)
        if ((double)rows->of[i].outcome->share.memory.total > most)
            most = (double)rows->of[i].outcome->share.memory.total;
    rows->scale = most < SCALE_MOST * card ? most : SCALE_MOST * card;
}

/* Bars, the line over them, words over both. */
static void put_memory(FILE *f, const fl_plan_report *r) {
    memory_rows rows;
    char text[96];
    collect_memory(r, &rows);
    fprintf(f, "<h2>Memory of a GPU, by layout</h2><div class=\"card\"><p class=\"keys\">");
    for (int32_t i = 0; i < N_PARTS; i++)
        fprintf(f, "<span><i class=\"key\" style=\"background:%s\"></i>%s</span>", parts[i].color,
                parts[i].name);
    fputs("</p>", f);
    open_svg(f, rows.n, "bytes on a GPU by layout");
    for (int i = 0; i < rows.n; i++) put_memory_bars(f, &rows, i);
    snprintf(text, sizeof text, "%s: %sB", r->box.gpu->name,
             fl_format_si((double)r->box.gpu->memory_bytes).s);
    put_line(f, (double)r->box.gpu->memory_bytes / rows.scale, rows.n, text);
    for (int i = 0; i < rows.n; i++) put_memory_value(f, &rows, i);
    fputs("</svg>", f);
    if (r->box.n_gpus > 1)
        fputs("<p class=\"mute\">tp: heads and columns cut, KV whole on every GPU. sp: the same, KV cut "
              "along the "
              "sequence. cp: rows cut, all weights everywhere. ep: rows cut, experts spread.</p>",
              f);
    fputs("</div>", f);
}

/* ---- tables ---- */

static void put_advice(FILE *f, const fl_plan_report *r) {
    char line[FL_PLAN_LINE_BYTES];
    if (r->advice.n == 0) return;
    fputs("<h2>What would do</h2><div class=\"card\"><table>", f);
    for (int32_t i = 0; i < r->advice.n; i++) {
        const fl_advice *a = &r->advice.of[i];
        if (r->advice.of[0].fits && !a->fits) continue;
        fl_plan_advice_line(r, a, line);
        fprintf(f, "<tr><td>%s</td><td class=\"n\">%s</td><td>", a->enough ? "✓" : "·",
                a->fits ? fl_format_seconds(a->ttft_s).s : "does not fit");
        put(f, line);
        fputs("<br><span class=\"mute\">", f);
        put(f, fl_plan_advice_caution(a));
        fputs("</span></td></tr>", f);
    }
    fputs("</table></div>", f);
}

static void put_row(FILE *f, const char *name, const char *value, const char *more) {
    fprintf(f, "<tr><th>%s</th><td class=\"n\">", name);
    put(f, value);
    fputs("</td><td>", f);
    put(f, more);
    fputs("</td></tr>", f);
}

static void put_sums(FILE *f, const fl_plan_report *r) {
    const fl_outcome *o = fl_plan_report_best(r);
    char value[64], more[FL_PLAN_LINE_BYTES];
    fputs("<h2>The sums</h2><div class=\"card\"><table>", f);
    snprintf(value, sizeof value, "%sFLOP", fl_format_si(fl_count_linear_flops(&r->whole)).s);
    snprintf(more, sizeof more, "%s at the peak of all", fl_format_seconds(r->linear_floor_s).s);
    put_row(f, "linear layers", value, more);
    snprintf(value, sizeof value, "%sFLOP", fl_format_si(fl_count_attention_flops(&r->whole)).s);
    put_row(f, "attention", value, r->sides[0].density > 0 ? r->sides[0].density_why : "");
    snprintf(value, sizeof value, "%sB", fl_format_si((double)r->weights_bytes).s);
    put_row(f, "weights", value, "of one copy");
    snprintf(value, sizeof value, "%sB", fl_format_si((double)r->kv_bytes).s);
    put_row(f, "KV", value, "of the whole context");
    snprintf(value, sizeof value, "%sB", fl_format_si(fl_share_comm_bytes(&o->share)).s);
    put_row(f, "communication", value, "received by a GPU");
    if (r->has_pd) {
        fl_plan_pd_verdict(r, more);
        put_row(f, "prefill and decode apart", "", more);
    }
    put_row(f, "roofs", r->box.gpu->name, r->box.gpu->source);
    fputs("</table></div></main></html>\n", f);
}

fl_err fl_plan_html(const fl_plan_report *r, const char *path) {
    FILE *f = fopen(path, "we");
    if (!f) return FL_FAIL(FL_ERR_IO, "--html %s: %s", path, strerror(errno));
    put_head(f, r);
    put_time(f, r);
    put_memory(f, r);
    put_advice(f, r);
    put_sums(f, r);
    bool failed = ferror(f) != 0;
    failed |= fclose(f) != 0;
    return failed ? FL_FAIL(FL_ERR_IO, "--html %s: %s", path, strerror(errno)) : FL_ERR_OK;
}
