/* The report as tables for people: all variants in one, then each by task and length, by depth and by distance. */
#include <math.h>
#include <string.h>

#include "eval/eval_document.h"
#include "eval/eval_report.h"

enum { TASK_COLUMNS = 22, ESTIMATE_BYTES = 64 };

/* What rounds to nothing is shown without a sign. */
static double shown(double value, int decimals) {
    return fabs(value) < 0.5 * pow(10, -decimals) ? 0 : value;
}

/* "0.4 [-0.1, 0.9]" */
static const char *estimate(char *text, const fl_eval_estimate *e, int decimals) {
    snprintf(text, ESTIMATE_BYTES, "%.*f [%.*f, %.*f]", decimals, shown(e->value, decimals), decimals,
             shown(e->low, decimals), decimals, shown(e->high, decimals));
    return text;
}

/* "4,096" needs no more than this for any length there is. */
static const char *length_text(char text[32], int64_t tokens) {
    if (tokens % 1024 == 0) snprintf(text, 32, "%lldk", (long long)(tokens / 1024));
    else snprintf(text, 32, "%lld", (long long)tokens);
    return text;
}

static void print_heads(FILE *file, const char *first) {
    fprintf(file, "  %-*s %7s %6s %6s  %-24s %-29s %8s\n", TASK_COLUMNS + 6, first, "answers", "full", "here",
            "loss, points [95%]", "NLL more, nats a token [95%]", "KL");
}

/* length "" = the name takes its columns too. */
static void print_sum(FILE *file, const char *name, const char *length, const fl_eval_summary *s,
                      const char *note) {
    char loss[ESTIMATE_BYTES], nll[ESTIMATE_BYTES];
    int columns = *length ? TASK_COLUMNS : TASK_COLUMNS + 6;
    fprintf(file, "  %-*.*s", columns, columns, name);
    if (*length) fprintf(file, " %5s", length);
    fprintf(file, " %7d %6.1f %6.1f  %-24s %-29s %8.5f%s\n", s->n_questions, s->score_full, s->score,
            estimate(loss, &s->loss, 2), estimate(nll, &s->nll_diff, 4), s->kl, note);
}

static const char *verdict(const fl_eval_summary *s) {
    return s->worse ? "  WORSE" : "";
}

static void print_sides(FILE *file, const fl_eval_report *r, const fl_eval_about *about) {
    fprintf(file, "sides\n");
    for (int32_t i = 0; i < r->n_sides; i++) {
        const fl_eval_side *s = &about->sides[i];
        const fl_eval_cost *c = &r->costs[i], *base = &r->costs[0];
        fprintf(file, "  %-30s %s, KV %s; %d documents read in %.2f s each", s->spec, s->policy, s->kv_dtype,
                c->n_reads, c->prefill_s / (double)r->n_documents);
        if (i > 0 && base->prefill_s > 0) fprintf(file, " (x %.2f)", c->prefill_s / base->prefill_s);
        if (s->block_density < 1)
            fprintf(file, "; %.1f%% of visible blocks attended", 100 * s->block_density);
        if (s->block_overflow > 0)
            fprintf(file, "; %lld blocks did not fit a list", (long long)s->block_overflow);
        fprintf(file, "\n");
        if (s->position_warning) fprintf(file, "  %-30s %s\n", "", s->position_warning);
    }
}

static void print_overview(FILE *file, const fl_eval_report *r, const fl_eval_about *about) {
    fprintf(file, "\nall tasks and lengths that count\n");
    print_heads(file, "variant");
    for (int32_t v = 0; v < r->n_views; v++) {
        const fl_eval_summary *s = &r->views[v].total;
        print_sum(file, about->sides[fl_eval_side_of(r, v)].spec, "", s, r->views[v].worse ? "  WORSE" : "");
    }
    if (r->views[0].total.n_questions == 0)
        fprintf(file, "  nothing counts: the baseline scores below %.0f in every task\n",
                FL_EVAL_COUNTS_FROM_POINTS);
}

static void print_cells(FILE *file, const fl_eval_report *r, const fl_eval_view *v) {
    char length[32];
    print_heads(file, "task and length");
    for (int32_t t = 0; t < r->n_tasks; t++)
        for (int32_t l = 0; l < r->n_lengths; l++) {
            const fl_eval_cell *cell = &v->cells[t * r->n_lengths + l];
            if (cell->sum.n_questions > 0)
                print_sum(file, r->tasks[t], length_text(length, r->lengths[l]), &cell->sum,
                          cell->counts || strcmp(r->tasks[t], FL_EVAL_TASK_TEXT) == 0
                              ? verdict(&cell->sum)
                              : "  does not count: full is below 60");
        }
    for (int32_t l = 0; l < r->n_lengths; l++)
        if (v->by_length[l].n_questions > 0)
            print_sum(file, "all that count", length_text(length, r->lengths[l]), &v->by_length[l],
                      verdict(&v->by_length[l]));
}

/* Losses by bin, a line a length; '*' where the variant is worse. */
static void print_bins(FILE *file, const fl_eval_report *r, const fl_eval_summary *sums, bool depths) {
    char text[32];
    int32_t n_bins = depths ? FL_EVAL_DEPTHS : FL_EVAL_DISTANCES;
    fprintf(file, "  %-*s", TASK_COLUMNS + 6,
            depths ? "loss by the fact's depth" : "loss by segments between");
    for (int32_t b = 0; b < n_bins; b++) {
        if (depths)
            snprintf(text, sizeof text, "%.0f-%.0f%%", 100.0 * b / FL_EVAL_DEPTHS,
                     100.0 * (b + 1) / FL_EVAL_DEPTHS);
        fprintf(file, " %8s", depths ? text : fl_eval_distance_name(b));
    }
    fprintf(file, "\n");
    for (int32_t l = 0; l < r->n_lengths; l++) {
        fprintf(file, "  %*s", TASK_COLUMNS + 6, length_text(text, r->lengths[l]));
        for (int32_t b = 0; b < n_bins; b++) {
            const fl_eval_summary *s = &sums[l * n_bins + b];
            if (s->n_questions > 0)
                snprintf(text, sizeof text, "%.2f%s", shown(s->loss.value, 2), s->worse ? "*" : "");
            fprintf(file, " %8s", s->n_questions > 0 ? text : "-");
        }
        fprintf(file, "\n");
    }
}

void fl_eval_report_print(FILE *file, const fl_eval_report *r, const fl_eval_about *about) {
    fprintf(file, "%s: %d documents from %s, seed %llu, difficulty %g\n\n", about->model, r->n_documents,
            about->documents, (unsigned long long)about->seed, about->difficulty);
    print_sides(file, r, about);
    print_overview(file, r, about);
    for (int32_t v = 0; v < r->n_views; v++) {
        fprintf(file, "\n%s\n", about->sides[fl_eval_side_of(r, v)].spec);
        print_cells(file, r, &r->views[v]);
        print_bins(file, r, r->views[v].by_depth, true);
        print_bins(file, r, r->views[v].by_distance, false);
    }
    fprintf(
        file,
        "\nWORSE, *: p < %.2f that chance alone made score or NLL this bad (sign flips of whole documents, "
        "one-sided).\nThe intervals see only what happened: with %d documents a loss below %.2f points may "
        "show nowhere.\n",
        FL_EVAL_WORSE_P, r->n_documents, 300.0 / r->n_documents);
}
