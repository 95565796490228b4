#include "eval/eval_report.h"

#include <stdlib.h>
#include <string.h>

#include "eval/eval_document.h"

/* Which rows a sum is over; -1 = all. */
typedef struct filter {
    int32_t task, length, depth, distance;
    bool counting; /* only cells that count */
} filter;

/* A report being made. */
typedef struct making {
    const fl_eval_results *results;
    const fl_eval_chance *chance;
    fl_eval_report *report;
    fl_eval_pair *pairs; /* [n_rows] room */
    int32_t n_rows;
} making;

int32_t fl_eval_depth_bin(double depth) {
    if (depth < 0) return -1;
    int32_t bin = (int32_t)(depth * FL_EVAL_DEPTHS);
    return bin < FL_EVAL_DEPTHS ? bin : FL_EVAL_DEPTHS - 1;
}

int32_t fl_eval_distance_bin(int32_t segments) {
    return segments <= 4 ? segments : segments <= 8 ? 5 : segments <= 16 ? 6 : 7;
}

const char *fl_eval_distance_name(int32_t bin) {
    static const char *const names[FL_EVAL_DISTANCES] = {"0", "1", "2", "3", "4", "5-8", "9-16", "17+"};
    return names[bin];
}

int32_t fl_eval_side_of(const fl_eval_report *report, int32_t view) {
    return report->n_sides > 1 ? view + 1 : 0;
}

static int32_t task_index(const fl_eval_report *r, const char *task) {
    int32_t i = 0;
    while (i < r->n_tasks && strcmp(r->tasks[i], task) != 0) i++;
    return i;
}

static int32_t length_index(const fl_eval_report *r, int64_t length_tokens) {
    int32_t i = 0;
    while (i < r->n_lengths && r->lengths[i] != length_tokens) i++;
    return i;
}

static int compare_lengths(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Names, lengths, and what the documents cost. */
static fl_err list(making *m) {
    fl_eval_report *r = m->report;
    int64_t n_rows = 0;
    for (int32_t i = 0; i < m->results->n; i++) n_rows += m->results->items[i].n_rows;
    if (n_rows < 1 || n_rows > 1 << 26)
        return FL_FAIL(FL_ERR_INVALID, "a report needs 1 to %d answers, found %lld", 1 << 26,
                       (long long)n_rows);
    m->n_rows = (int32_t)n_rows;
    m->pairs = calloc((size_t)n_rows, sizeof *m->pairs);
    r->tasks = calloc((size_t)n_rows, sizeof *r->tasks);
    r->lengths = calloc((size_t)n_rows, sizeof *r->lengths);
    if (!m->pairs || !r->tasks || !r->lengths)
        return FL_FAIL(FL_ERR_NOMEM, "report of %lld answers", (long long)n_rows);
    for (int32_t i = 0; i < m->results->n; i++) {
        const fl_eval_result *result = &m->results->items[i];
        if (!result->rows) continue;
        r->n_documents++;
        if (length_index(r, result->length_tokens) == r->n_lengths)
            r->lengths[r->n_lengths++] = result->length_tokens;
        for (int32_t row = 0; row < result->n_rows; row++)
            if (task_index(r, result->rows[row].task) == r->n_tasks)
                r->tasks[r->n_tasks++] = result->rows[row].task;
        for (int32_t s = 0; s < m->results->n_sides; s++) {
            r->costs[s].prefill_s += result->costs[s].prefill_s;
            r->costs[s].computed_tokens += result->costs[s].computed_tokens;
            r->costs[s].cached_tokens += result->costs[s].cached_tokens;
            r->costs[s].n_reads += result->costs[s].n_reads;
        }
    }
    qsort(r->lengths, (size_t)r->n_lengths, sizeof *r->lengths, compare_lengths);
    return FL_ERR_OK;
}

static fl_err open_view(const fl_eval_report *r, fl_eval_view *v) {
    size_t n_tasks = (size_t)r->n_tasks, n_lengths = (size_t)r->n_lengths;
    v->cells = calloc(n_tasks * n_lengths, sizeof *v->cells);
    v->by_task = calloc(n_tasks, sizeof *v->by_task);
    v->by_length = calloc(n_lengths, sizeof *v->by_length);
    v->by_depth = calloc(n_lengths * FL_EVAL_DEPTHS, sizeof *v->by_depth);
    v->by_distance = calloc(n_lengths * FL_EVAL_DISTANCES, sizeof *v->by_distance);
    return v->cells && v->by_task && v->by_length && v->by_depth && v->by_distance
               ? FL_ERR_OK
               : FL_FAIL(FL_ERR_NOMEM, "report of %d tasks x %d lengths", r->n_tasks, r->n_lengths);
}

static bool takes(const fl_eval_report *r, const fl_eval_view *v, const filter *f, const fl_eval_row *row,
                  int32_t task, int32_t length) {
    if ((f->task >= 0 && f->task != task) || (f->length >= 0 && f->length != length)) return false;
    if (f->depth >= 0 && f->depth != fl_eval_depth_bin(row->depth)) return false;
    if (f->distance >= 0 && f->distance != fl_eval_distance_bin(row->segment_distance)) return false;
    return !f->counting || v->cells[task * r->n_lengths + length].counts;
}

/* The sum over the rows that the filter takes. The stratum of a document is its length and what was asked for. */
static fl_err sum_up(making *m, int32_t view, const filter *f, fl_eval_summary *out) {
    const fl_eval_report *r = m->report;
    int32_t n = 0, stratum = 0;
    for (int32_t i = 0; i < m->results->n; i++) {
        const fl_eval_result *result = &m->results->items[i], *before = i > 0 ? result - 1 : result;
        stratum += result->task != before->task || result->length_tokens != before->length_tokens;
        int32_t length = result->rows ? length_index(r, result->length_tokens) : 0;
        for (int32_t row = 0; row < result->n_rows; row++) {
            const fl_eval_row *of = &result->rows[row];
            const fl_eval_outcome *full = &of->sides[0], *other = &of->sides[fl_eval_side_of(r, view)];
            int32_t task = task_index(r, of->task);
            if (!takes(r, &r->views[view], f, of, task, length)) continue;
            m->pairs[n++] = (fl_eval_pair){.document = i,
                                           .stratum = stratum,
                                           .cell = task * r->n_lengths + length,
                                           .score_full = full->score,
                                           .score = other->score,
                                           .nll_full = full->nll,
                                           .nll = other->nll,
                                           .kl = other->kl};
        }
    }
    return fl_eval_summarise(m->pairs, n, m->chance, out);
}

static fl_err make_cells(making *m, int32_t view) {
    const fl_eval_report *r = m->report;
    for (int32_t t = 0; t < r->n_tasks; t++)
        for (int32_t l = 0; l < r->n_lengths; l++) {
            fl_eval_cell *cell = &r->views[view].cells[t * r->n_lengths + l];
            const filter f = {.task = t, .length = l, .depth = -1, .distance = -1};
            FL_TRY(sum_up(m, view, &f, &cell->sum));
            cell->counts = cell->sum.n_questions > 0 && cell->sum.score_full >= FL_EVAL_COUNTS_FROM_POINTS;
        }
    return FL_ERR_OK;
}

static fl_err make_tasks(making *m, int32_t view) {
    const fl_eval_report *r = m->report;
    for (int32_t t = 0; t < r->n_tasks; t++) {
        fl_eval_summary *out = &r->views[view].by_task[t];
        filter f = {.task = t, .length = -1, .depth = -1, .distance = -1, .counting = true};
        FL_TRY(sum_up(m, view, &f, out));
        f.counting = false;
        if (out->n_questions == 0) FL_TRY(sum_up(m, view, &f, out));
    }
    return FL_ERR_OK;
}

static fl_err make_lengths(making *m, int32_t view) {
    const fl_eval_report *r = m->report;
    const fl_eval_view *v = &r->views[view];
    for (int32_t l = 0; l < r->n_lengths; l++) {
        filter f = {.task = -1, .length = l, .depth = -1, .distance = -1, .counting = true};
        FL_TRY(sum_up(m, view, &f, &v->by_length[l]));
        for (f.depth = 0; f.depth < FL_EVAL_DEPTHS; f.depth++)
            FL_TRY(sum_up(m, view, &f, &v->by_depth[l * FL_EVAL_DEPTHS + f.depth]));
        f.depth = -1;
        for (f.distance = 0; f.distance < FL_EVAL_DISTANCES; f.distance++)
            FL_TRY(sum_up(m, view, &f, &v->by_distance[l * FL_EVAL_DISTANCES + f.distance]));
    }
    return FL_ERR_OK;
}

static fl_err make_view(making *m, int32_t view) {
    const filter all = {.task = -1, .length = -1, .depth = -1, .distance = -1, .counting = true};
    FL_TRY(open_view(m->report, &m->report->views[view]));
    m->report->n_views = view + 1;
    FL_TRY(make_cells(m, view));
    FL_TRY(make_tasks(m, view));
    FL_TRY(make_lengths(m, view));
    fl_eval_view *v = &m->report->views[view];
    FL_TRY(sum_up(m, view, &all, &v->total));
    int32_t text = task_index(m->report, FL_EVAL_TASK_TEXT);
    v->worse = v->total.worse || (text < m->report->n_tasks && v->by_task[text].worse);
    return FL_ERR_OK;
}

fl_err fl_eval_report_make(const fl_eval_results *results, const fl_eval_chance *chance,
                           fl_eval_report *out) {
    making m = {.results = results, .chance = chance, .report = out};
    *out = (fl_eval_report){0};
    fl_err err = list(&m);
    out->n_sides = results->n_sides;
    int32_t n_views = results->n_sides > 1 ? results->n_sides - 1 : 1;
    for (int32_t view = 0; err == FL_ERR_OK && view < n_views; view++) err = make_view(&m, view);
    free(m.pairs);
    if (err != FL_ERR_OK) fl_eval_report_close(out);
    return err;
}

void fl_eval_report_close(fl_eval_report *report) {
    for (int32_t i = 0; i < FL_EVAL_SIDES_MAX - 1; i++) {
        fl_eval_view *v = &report->views[i];
        free(v->cells);
        free(v->by_task);
        free(v->by_length);
        free(v->by_depth);
        free(v->by_distance);
    }
    free(report->tasks);
    free(report->lengths);
    *report = (fl_eval_report){0};
}
