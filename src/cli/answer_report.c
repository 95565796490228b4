#include "cli/answer_report.h"

#include <stdlib.h>
#include <string.h>

#include "cli/format.h"
#include "cli/meters_report.h"

enum {
    BAR_WIDTH_MAX = 40,
    BAR_WIDTH_MIN = 8,
    COLUMNS_BESIDE_BAR = 63,
    PREFILL_ROWS_MAX = 8,
    SPANS_MAX = FL_ANSWER_MARKS_MAX + 2
};

/* A line of the timeline; times since the start of the program. */
typedef struct span {
    char name[40];
    double begin_s, end_s;
    int64_t tokens; /* 0 = not about tokens */
} span;

typedef struct spans {
    int32_t n;
    span item[SPANS_MAX];
} spans;

static void add_span(spans *list, const char *name, double begin_s, double end_s, int64_t tokens) {
    if (list->n == SPANS_MAX) return;
    span *s = &list->item[list->n++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->begin_s = begin_s;
    s->end_s = end_s;
    s->tokens = tokens;
}

static bool is_prefill(const fl_mark *mark) {
    return strcmp(mark->name, "prefill") == 0;
}

/* The marks as they are, for programs. */
static void add_marks(spans *list, const fl_answer *a, double submit_s) {
    for (int32_t i = 0; i < a->n_marks; i++) {
        const fl_mark *m = &a->marks[i];
        add_span(list, m->name, submit_s + m->start_s, submit_s + m->end_s, m->tokens);
    }
}

/* The marks for people; steps of prefill are numbered, and put together until at most `prefill_max` lines are left. */
static void add_lines(spans *list, const fl_answer *a, double submit_s, int32_t prefill_max) {
    int32_t n_prefill = 0, step = 0;
    for (int32_t i = 0; i < a->n_marks; i++) n_prefill += is_prefill(&a->marks[i]);
    int32_t together = (n_prefill + prefill_max - 1) / prefill_max;
    for (int32_t i = 0; i < a->n_marks; i++) {
        const fl_mark *m = &a->marks[i];
        if (!is_prefill(m)) {
            add_span(list, strcmp(m->name, "first_token") == 0 ? "first token" : m->name,
                     submit_s + m->start_s, submit_s + m->end_s, m->tokens);
            continue;
        }
        char name[40];
        int32_t first = step + 1;
        double end_s = m->end_s;
        int64_t tokens = 0;
        for (; step < first - 1 + together && i < a->n_marks && is_prefill(&a->marks[i]); i++, step++) {
            tokens += a->marks[i].tokens;
            end_s = a->marks[i].end_s;
        }
        i--;
        if (n_prefill == 1) snprintf(name, sizeof name, "prefill");
        else if (step == first) snprintf(name, sizeof name, "prefill %d", first);
        else snprintf(name, sizeof name, "prefill %d-%d", first, step);
        add_span(list, name, submit_s + m->start_s, submit_s + end_s, tokens);
    }
}

/* prefill_max 0: the marks as they are. */
static void make_spans(spans *list, const fl_answer_report *r, int32_t prefill_max) {
    const fl_answer_times *t = r->times;
    list->n = 0;
    add_span(list, "load", t->load_begin_s, t->load_end_s, 0);
    add_span(list, "tokenise", t->tokenise_begin_s, t->tokenise_end_s, r->answer->prompt_tokens);
    if (prefill_max > 0) add_lines(list, r->answer, t->submit_s, prefill_max);
    else add_marks(list, r->answer, t->submit_s);
}

static int bar_width(void) {
    int width = fl_terminal_columns() - COLUMNS_BESIDE_BAR;
    return width < BAR_WIDTH_MIN ? BAR_WIDTH_MIN : width > BAR_WIDTH_MAX ? BAR_WIDTH_MAX : width;
}

static void print_span(FILE *file, const span *s, double begin_s, double all_s) {
    double time_s = s->end_s - s->begin_s;
    fprintf(file, "  %-13s %9s %9s  %s", s->name, fl_format_seconds(s->begin_s - begin_s).s,
            time_s > 1e-6 ? fl_format_seconds(time_s).s : "",
            fl_format_bar((s->begin_s - begin_s) / all_s, (s->end_s - begin_s) / all_s, bar_width(), " ").s);
    if (s->tokens > 0) fprintf(file, " %8s tok", fl_format_count(s->tokens).s);
    if (s->tokens > 1 && time_s > 0) fprintf(file, " %9s/s", fl_format_rate((double)s->tokens / time_s).s);
    fputc('\n', file);
}

static void print_bytes(FILE *file, const char *name, int64_t bytes, int64_t scale_bytes, const char *more) {
    fprintf(file, "  %-13s %19s  %s %s\n", name, fl_format_bytes(bytes).s,
            fl_format_bar(0, (double)bytes / (double)scale_bytes, bar_width(), " ").s, more);
}

static void print_memory(FILE *file, const fl_answer_report *r) {
    char kv[64], peak[64];
    const fl_engine_info *i = &r->info;
    int64_t scale_bytes = i->weights_bytes + i->kv_bytes + i->scratch_peak_bytes;
    if (r->memory.peak_bytes > scale_bytes) scale_bytes = r->memory.peak_bytes;
    snprintf(kv, sizeof kv, "room for %s tokens", fl_format_count(i->kv_tokens).s);
    snprintf(peak, sizeof peak, "%s without files", fl_format_bytes(r->memory.anonymous_bytes).s);
    fputc('\n', file);
    print_bytes(file, "weights", i->weights_bytes, scale_bytes, "");
    print_bytes(file, "KV", i->kv_bytes, scale_bytes, kv);
    print_bytes(file, "step", i->scratch_peak_bytes, scale_bytes, "");
    print_bytes(file, "peak memory", r->memory.peak_bytes, scale_bytes, peak);
}

void fl_answer_print(FILE *file, const fl_answer_report *r) {
    const fl_answer *a = r->answer;
    spans *list = malloc(sizeof *list);
    if (!list) return;
    make_spans(list, r, PREFILL_ROWS_MAX);
    double begin_s = r->times->load_begin_s, end_s = r->times->submit_s + a->total_s;
    fprintf(file, "\n  %-13s %9s %9s\n", "", "at", "took");
    for (int32_t i = 0; i < list->n; i++) print_span(file, &list->item[i], begin_s, end_s - begin_s);
    free(list);
    print_memory(file, r);
    int64_t computed = a->prompt_tokens - a->cached_tokens;
    if (r->documents->n_binary + r->documents->n_ignored > 0)
        fprintf(file, "\nfiles   %d read; left out: %d binary, %d ignored", r->documents->n_files,
                r->documents->n_binary, r->documents->n_ignored);
    fprintf(file, "\nprompt  %s tokens", fl_format_count(a->prompt_tokens).s);
    if (a->cached_tokens > 0) fprintf(file, ", %s of them cached", fl_format_count(a->cached_tokens).s);
    if (a->ttft_s > 0)
        fprintf(file, "; first token after %s, %s tokens/s", fl_format_seconds(a->ttft_s).s,
                fl_format_rate((double)computed / a->ttft_s).s);
    fprintf(file, "\nanswer  %s tokens", fl_format_count(a->answer_tokens).s);
    if (a->decode_tokens_per_s > 0) fprintf(file, ", %s tokens/s", fl_format_rate(a->decode_tokens_per_s).s);
    if (a->finish == FL_FINISH_LENGTH) fprintf(file, "; cut off by --max-tokens or --ctx");
    if (a->finish == FL_FINISH_CANCELLED) fprintf(file, "; stopped by Ctrl-C");
    fputc('\n', file);
    fprintf(file, "on      %s, %d threads, KV in %s, attention %s", r->info.backend, r->info.n_threads,
            r->info.kv_dtype, r->info.policy);
    if (r->info.block_density < 1) fprintf(file, " (%.1f%% of blocks)", 100 * r->info.block_density);
    fputc('\n', file);
    fl_meters_print(file, &r->meters);
    if (r->info.position_warning) fprintf(file, "warning: %s\n", r->info.position_warning);
    if (r->info.graph_steps > 0)
        fprintf(file, "graphs  %lld steps, %lld of them of the prompt\n", (long long)r->info.graph_steps,
                (long long)r->info.graph_prompt_steps);
    if (r->info.graph_warning) fprintf(file, FL_GRAPH_WARNING, r->info.graph_warning);
    if (r->info.graph_outside) fprintf(file, "note: %s\n", r->info.graph_outside);
}

static const char *finish_name(fl_finish finish) {
    switch (finish) {
    case FL_FINISH_STOP: return "stop";
    case FL_FINISH_LENGTH: return "length";
    case FL_FINISH_CANCELLED: return "cancelled";
    case FL_FINISH_ERROR: break;
    }
    return "error";
}

static json_t *timeline_json(const fl_answer_report *r) {
    json_t *out = json_array();
    spans *list = malloc(sizeof *list);
    if (!list) return out;
    make_spans(list, r, 0);
    for (int32_t i = 0; i < list->n; i++) {
        const span *s = &list->item[i];
        json_array_append_new(out,
                              json_pack("{s:s, s:f, s:f, s:I}", "name", s->name, "start_s",
                                        s->begin_s - r->times->load_begin_s, "end_s",
                                        s->end_s - r->times->load_begin_s, "tokens", (json_int_t)s->tokens));
    }
    free(list);
    return out;
}

json_t *fl_answer_json(const fl_answer_report *r, const char *model) {
    const fl_answer *a = r->answer;
    int64_t computed = a->prompt_tokens - a->cached_tokens;
    return json_pack(
        "{s:s?, s:s%, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:s, "
        "s:i, s:s, s:f, s:s*, s:I, s:I, s:I, s:s*, s:s*, s:o, s:o}",
        "model", model, "text", a->text ? a->text : "", a->n_bytes, "finish", finish_name(a->finish),
        "prompt_tokens", (json_int_t)a->prompt_tokens, "computed_tokens", (json_int_t)computed,
        "cached_tokens", (json_int_t)a->cached_tokens, "answer_tokens", (json_int_t)a->answer_tokens,
        "load_s", r->times->load_end_s - r->times->load_begin_s, "ttft_s", a->ttft_s, "prefill_tokens_per_s",
        a->ttft_s > 0 ? (double)computed / a->ttft_s : 0.0, "decode_tokens_per_s", a->decode_tokens_per_s,
        "total_s", a->total_s, "peak_bytes", (json_int_t)r->memory.peak_bytes, "anonymous_bytes",
        (json_int_t)r->memory.anonymous_bytes, "weights_bytes", (json_int_t)r->info.weights_bytes, "kv_bytes",
        (json_int_t)r->info.kv_bytes, "scratch_bytes", (json_int_t)r->info.scratch_bytes, "backend",
        r->info.backend, "kv_cache_dtype", r->info.kv_dtype, "threads", (int)r->info.n_threads, "policy",
        r->info.policy, "block_density", r->info.block_density, "warning", r->info.position_warning,
        "graph_steps", (json_int_t)r->info.graph_steps, "graph_prompt_steps",
        (json_int_t)r->info.graph_prompt_steps, "plain_steps", (json_int_t)r->info.plain_steps,
        "graph_warning", r->info.graph_warning, "graph_outside", r->info.graph_outside, "meters",
        fl_meters_json(&r->meters), "timeline", timeline_json(r));
}
