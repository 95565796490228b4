#include <stdlib.h>
#include <string.h>

#include "cli/format.h"
#include "cli/ladder.h"
#include "cli/svg.h"

static double step_of(const fl_ladder *l, int32_t i) {
    return i > 0 ? fl_ladder_time(&l->rows[i - 1]) / l->rows[i].ttft_s : 1;
}

static double total_of(const fl_ladder *l, int32_t i) {
    return fl_ladder_time(&l->rows[0]) / fl_ladder_time(&l->rows[i]);
}

static double loaded_step(const fl_ladder *l, int32_t i) {
    return i > 0 ? l->rows[i - 1].loaded.ttft_s / l->rows[i].loaded.ttft_s : 1;
}

/* ---- terminal ---- */

void fl_ladder_print_head(const fl_ladder *l) {
    const fl_options *o = l->options;
    if (o->json) return;
    printf("ladder of %s: prompts of %s tokens in a context of %s, median of %d runs\n",
           o->synthetic ? o->synthetic : o->operands.items[0], fl_format_count(l->prompt_tokens).s,
           fl_format_count(l->ctx_tokens).s, (int)o->runs);
    if (l->streams.n > 0)
        printf("loaded: the same prompt while %d requests decode behind prompts of %s tokens\n", l->streams.n,
               fl_format_count(l->streams.tokens).s);
    fflush(stdout);
}

static fl_text32 loss_text(const fl_ladder_row *r) {
    fl_text32 t = {"-"};
    if (r->loss.known) snprintf(t.s, sizeof t.s, "%.2f", r->loss.points);
    return t;
}

static fl_text32 times_text(double factor) {
    fl_text32 t;
    snprintf(t.s, sizeof t.s, "%.2fx", factor);
    return t;
}

static void print_row(const fl_ladder *l, int32_t i) {
    const fl_ladder_row *r = &l->rows[i];
    bool loaded = r->loaded.ttft_s > 0;
    char density[32] = "";
    if (r->density < 1) snprintf(density, sizeof density, " (%.1f%% of blocks)", 100 * r->density);
    printf("%2d  %s%s\n", i + 1, r->stage.name, density);
    printf("    %9s %8s %8s %10s %7s", fl_format_seconds(r->ttft_s).s, times_text(step_of(l, i)).s,
           times_text(total_of(l, i)).s, fl_format_seconds(r->predicted_s).s, loss_text(r).s);
    if (loaded)
        printf(" %10s %8s %9s %9s", fl_format_seconds(r->loaded.ttft_s).s, times_text(loaded_step(l, i)).s,
               fl_format_seconds(r->loaded.token_s).s, fl_format_seconds(r->loaded.stall_s).s);
    if (r->stage.reuse)
        printf("  %s of %s tokens found", fl_format_count(r->cached_tokens).s,
               fl_format_count(l->prompt_tokens).s);
    putchar('\n');
    if (r->corrected_s > 0)
        printf("    %9s with the kernel times of %s\n", fl_format_seconds(r->corrected_s).s, l->peer);
}

static const char no_loss[] = "not measured: random weights; ask spark-66m at the same density";

void fl_ladder_print(const fl_ladder *l) {
    printf("\n    %9s %8s %8s %10s %7s", "TTFT", "step", "total", "predicted", "loss");
    if (l->streams.n > 0) printf(" %10s %8s %9s %9s", "loaded", "step", "a token", "stall");
    putchar('\n');
    for (int32_t i = 0; i < l->n_rows; i++) print_row(l, i);
    printf("\n%s; the whole ladder %.2fx%s\n", l->machine, total_of(l, fl_ladder_last(l)),
           l->peer[0] ? "" : "; row 1 not corrected by a peer's kernel times");
    printf("predicted by the rates of %s\n", l->rates);
    printf("loss in points of 100: %s\n", l->options->synthetic ? no_loss : l->loss_source);
    if (l->streams.n > 0)
        printf("alone a stream makes a token in %s; a token, stall: of a stream while the prompt is read\n",
               fl_format_seconds(l->rows[0].loaded.quiet_token_s).s);
}

/* ---- JSON ---- */

static void set_loss(const fl_ladder_row *r, json_t *out) {
    if (!r->loss.known) {
        json_object_set_new(out, "loss_points", json_null());
        return;
    }
    json_object_set_new(out, "loss_points", json_real(r->loss.points));
    json_object_set_new(out, "loss_low", json_real(r->loss.low));
    json_object_set_new(out, "loss_high", json_real(r->loss.high));
    json_object_set_new(out, "loss_questions", json_integer(r->loss.questions));
}

static void set_loaded(const fl_ladder *l, int32_t i, json_t *out) {
    const fl_loaded *loaded = &l->rows[i].loaded;
    if (loaded->ttft_s <= 0) return;
    json_object_set_new(out, "loaded_ttft_s", json_real(loaded->ttft_s));
    json_object_set_new(out, "loaded_step", json_real(loaded_step(l, i)));
    json_object_set_new(out, "decode_token_s", json_real(loaded->token_s));
    json_object_set_new(out, "decode_quiet_token_s", json_real(loaded->quiet_token_s));
    json_object_set_new(out, "decode_stall_s", json_real(loaded->stall_s));
}

static json_t *row_json(const fl_ladder *l, int32_t i) {
    const fl_ladder_row *r = &l->rows[i];
    json_t *out = json_pack("{s:s, s:f, s:f, s:f, s:f, s:s, s:s, s:f, s:s, s:I, s:I, s:b, s:I}", "stage",
                            r->stage.name, "ttft_s", r->ttft_s, "step", step_of(l, i), "total",
                            total_of(l, i), "predicted_s", r->predicted_s, "policy", r->policy, "kv_dtype",
                            r->kv, "block_density", r->density, "rope", r->stage.rope, "plan_bytes",
                            (json_int_t)r->memory.plan_bytes, "used_bytes", (json_int_t)r->memory.used_bytes,
                            "reuse", (int)r->stage.reuse, "cached_tokens", (json_int_t)r->cached_tokens);
    set_loss(r, out);
    set_loaded(l, i, out);
    if (r->corrected_s > 0) json_object_set_new(out, "corrected_ttft_s", json_real(r->corrected_s));
    return out;
}

json_t *fl_ladder_json(const fl_ladder *l) {
    const fl_options *o = l->options;
    json_t *out = json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:I, s:s, s:s, s:s, s:f, s:[]}", "model",
                            o->synthetic ? o->synthetic : o->operands.items[0], "machine", l->machine,
                            "tokens", (json_int_t)l->prompt_tokens, "ctx_tokens", (json_int_t)l->ctx_tokens,
                            "runs", (int)o->runs, "streams", (int)l->streams.n, "stream_tokens",
                            (json_int_t)l->streams.tokens, "peer", l->peer[0] ? l->peer : "not corrected",
                            "rates", l->rates, "loss_source", o->synthetic ? no_loss : l->loss_source,
                            "ladder_total", total_of(l, fl_ladder_last(l)), "rows");
    if (o->density) json_object_set_new(out, "density_imposed", json_string(o->density));
    if (o->density_from) json_object_set_new(out, "density_from", json_string(o->density_from));
    for (int32_t i = 0; i < l->n_rows; i++)
        json_array_append_new(json_object_get(out, "rows"), row_json(l, i));
    return out;
}

/* ---- picture ---- */

enum { WIDTH = 1000, LEFT = 24, TOP = 96, ROW_H = 58, BAR_H = 14, BAR_W = 560, FOOT = 64 };
static const char idle_color[] = "#3b6fb6", loaded_color[] = "#a9c3e6", predicted_color[] = "#c8414f";

static void put(const fl_svg *svg, double x, double y, int size, bool grey, const char *text) {
    fl_svg_put_text(svg, &(fl_svg_text){.x = x, .y = y, .size = size, .grey = grey}, text);
}

static void draw_row(const fl_svg *svg, const fl_ladder *l, int32_t i, double longest_s) {
    const fl_ladder_row *r = &l->rows[i];
    double y = TOP + i * ROW_H, scale = BAR_W / longest_s, mark = LEFT + r->predicted_s * scale;
    char text[320];
    snprintf(text, sizeof text, "%d  %s", i + 1, r->stage.name);
    put(svg, LEFT, y, 14, false, text);
    fl_svg_put_bar(svg, LEFT, y + 7, r->ttft_s * scale, BAR_H, idle_color);
    if (r->loaded.ttft_s > 0)
        fl_svg_put_bar(svg, LEFT, y + 9 + BAR_H, r->loaded.ttft_s * scale, BAR_H / 2., loaded_color);
    fl_svg_put_bar(svg, mark - 1.5, y + 4, 3, BAR_H + 6, predicted_color);
    snprintf(text, sizeof text, "%s · %.2fx · in all %.2fx · loss %s", fl_format_seconds(r->ttft_s).s,
             step_of(l, i), total_of(l, i), loss_text(r).s);
    put(svg, LEFT + BAR_W + 24, y + 18, 14, false, text);
    if (r->loaded.ttft_s <= 0) return;
    snprintf(text, sizeof text, "loaded %s, a token in %s", fl_format_seconds(r->loaded.ttft_s).s,
             fl_format_seconds(r->loaded.token_s).s);
    put(svg, LEFT + BAR_W + 24, y + 34, 12, true, text);
}

static void draw_head(const fl_svg *svg, const fl_ladder *l) {
    const fl_options *o = l->options;
    char text[512];
    const char *model = o->synthetic ? o->synthetic : o->operands.items[0];
    const char *slash = strrchr(model, '/');
    snprintf(text, sizeof text, "First token of a prompt of %s tokens, %.80s, %.100s",
             fl_format_count(l->prompt_tokens).s, slash && slash[1] ? slash + 1 : model, l->machine);
    fl_svg_put_text(svg, &(fl_svg_text){.x = LEFT, .y = 34, .size = 19, .bold = true}, text);
    snprintf(text, sizeof text,
             "dark: idle; light: beside %d decode streams of %lld tokens; red mark: predicted; loss in "
             "points of 100",
             l->streams.n, (long long)l->streams.tokens);
    put(svg, LEFT, 58, 13, true, text);
}

fl_err fl_ladder_write_svg(const fl_ladder *l, const char *path) {
    fl_svg svg;
    double longest_s = 0;
    char text[512];
    for (int32_t i = 0; i < l->n_rows; i++) {
        const fl_ladder_row *r = &l->rows[i];
        if (r->ttft_s > longest_s) longest_s = r->ttft_s;
        if (r->loaded.ttft_s > longest_s) longest_s = r->loaded.ttft_s;
        if (r->predicted_s > longest_s) longest_s = r->predicted_s;
    }
    int height = TOP + l->n_rows * ROW_H + FOOT;
    FL_TRY(fl_svg_open(path, WIDTH, height, &svg));
    draw_head(&svg, l);
    for (int32_t i = 0; i < l->n_rows; i++) draw_row(&svg, l, i, longest_s);
    snprintf(text, sizeof text, "%s; row 1 %s", l->options->synthetic ? no_loss : l->loss_source,
             l->peer[0] ? "corrected by a peer's kernel times" : "not corrected by a peer's kernel times");
    put(&svg, LEFT, height - 28, 12, true, text);
    return fl_svg_close(&svg);
}
